"""Epochs over explicit lists of indices, such as samplers give: which of them each rank reads at every step.

A `Listing` is the list of one epoch. `ListedOrder` shares the places of a list out as any other order is, so a list
that all ranks agree on is as elastic as a plain epoch. `BatchedOrder` has steps that somebody else has cut, and is one
rank's own. `Lists` holds the listings: written by the trainer's thread before it begins an epoch, read by the planner
of that epoch.
"""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from forebay.order.engine import Order
from forebay.order.lanes import Int64
from forebay.order.needs import Needs
from forebay.order.plan import RankPlan
from forebay.order.steps import Split
from forebay_core.errors import StateError


@dataclass(frozen=True)
class Listing:
    """The list of an epoch.

    indices: int64, what each place of the list is.
    order: in which order the places are read.
    offsets: int64 [steps + 1], where a batch sampler has cut the steps: step s has the places
        [offsets[s], offsets[s + 1]).
    """

    indices: Int64
    order: Order
    offsets: Int64 | None = None

    @cached_property
    def digest(self) -> str:
        """128 bits of SHA-256 over the indices and the cut, as hexadecimal digits."""
        digest = hashlib.sha256(np.ascontiguousarray(self.indices, dtype="<i8").tobytes())
        if self.offsets is not None:
            digest.update(np.ascontiguousarray(self.offsets, dtype="<i8").tobytes())
        return digest.hexdigest()[:32]

    def index_at(self, epoch: int, position: int) -> int | None:
        """The index that is read at a position; None at the end of the epoch."""
        if position >= len(self.indices):
            return None
        return int(self.indices[self.order.epoch(epoch).sample_ids(position, position + 1)[0]])


class Lists:
    """The listings of the latest two epochs, or the one of every epoch."""

    def __init__(self, of_every_epoch: Listing | None = None) -> None:
        self._of_every_epoch = of_every_epoch
        self._recent: tuple[tuple[int, Listing], ...] = ()

    def put(self, epoch: int, listing: Listing) -> None:
        """This epoch's list is known, and the one that counts."""
        before = [kept for kept in self._recent if kept[0] != epoch]
        self._recent = ((epoch, listing), *before[:1])

    def find(self, epoch: int) -> Listing | None:
        """The epoch's list, if it is known."""
        return self._of_every_epoch or dict(self._recent).get(epoch)

    def of(self, epoch: int) -> Listing:
        """The epoch's list, which is known."""
        listing = self.find(epoch)
        if listing is None:
            raise StateError(f"the list of epoch {epoch} was never drawn, or is not kept any more: iterate the loader")
        return listing

    @property
    def last(self) -> Listing | None:
        """The list of the epoch that was begun last, if one was."""
        return self._of_every_epoch or (self._recent[0][1] if self._recent else None)

    @property
    def current(self) -> Listing:
        """The list of the epoch that was begun last."""
        assert self.last is not None
        return self.last


@dataclass(frozen=True)
class ListedOrder:
    """Lists, shared out over ranks. A `RankOrder`."""

    lists: Lists
    split: Split
    rank: int
    has_pieces = False

    @property
    def samples(self) -> int:
        return len(self.lists.current.indices)

    def steps(self, position: int = 0) -> int:
        return self.split.steps(self.samples, position)

    def position_of(self, step: int) -> int | None:
        return self.split.position_of(self.samples, step)

    def plan(self, epoch: int, position: int, steps: int) -> RankPlan:
        listing = self.lists.of(epoch)
        places = listing.order.epoch(epoch).plan(position, steps, split=self.split, rank=self.rank)
        index = listing.indices[places.row]
        return replace(places, sample_id=index, row=index)

    def needs(self, epoch: int, position: int) -> Needs:
        return Needs.nothing()


@dataclass(frozen=True)
class BatchedOrder:
    """Lists that are cut into steps already; this rank reads all of them. A `RankOrder`."""

    lists: Lists
    split: Split
    has_pieces = False

    @property
    def samples(self) -> int:
        return len(self.lists.current.indices)

    def steps(self, position: int = 0) -> int:
        return _steps_from(self.lists.current, position)

    def position_of(self, step: int) -> int | None:
        offsets = cut(self.lists.current)
        return int(offsets[step]) if step < len(offsets) - 1 else None

    def plan(self, epoch: int, position: int, steps: int) -> RankPlan:
        listing = self.lists.of(epoch)
        offsets = cut(listing)
        first = len(offsets) - 1 - _steps_from(listing, position)
        offsets = offsets[first : first + steps + 1]
        places = np.arange(offsets[0], offsets[-1])
        index = listing.indices[places]
        return RankPlan(
            offsets=offsets - offsets[0],
            sample_id=index,
            piece=np.zeros_like(index),
            row=index,
            position=places,
            is_pad=np.zeros(len(index), dtype=np.bool_),
            after=offsets[1:],
        )

    def needs(self, epoch: int, position: int) -> Needs:
        return Needs.nothing()


def cut(listing: Listing) -> Int64:
    """Where the steps of a list begin and end that is cut into steps."""
    assert listing.offsets is not None
    return listing.offsets


def _steps_from(listing: Listing, position: int) -> int:
    """Steps from a position to the end of the list. `StateError` where no step begins there."""
    offsets = cut(listing)
    step = int(np.searchsorted(offsets, position))
    if step == len(offsets) or offsets[step] != position:
        raise StateError(
            f"position {position} is no border between two batches of the batch sampler: load a state that was taken "
            f"with the same batches"
        )
    return len(offsets) - 1 - step
