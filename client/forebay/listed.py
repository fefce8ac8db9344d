"""A map-style dataset read by a list of indices: one that was given, or one that a sampler draws each epoch.

A list that was given, or that all ranks draw alike, is shared out over the ranks and as elastic as a plain epoch. A
list from a sampler of the user's own is this rank's own, as every sampler's is to torch: it is read as it is, and the
state carries a digest of it, so that a sampler which draws another one after a restart is refused. Lists are drawn by
the trainer's thread as an epoch begins, where torch does it.
"""

import copy
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from forebay import progress
from forebay.indexed import IndexedDataset
from forebay.loading.assembly import Assembly
from forebay.order import BatchedOrder, ListedOrder, Listing, Lists, RankOrder, Split
from forebay.order.lanes import Int64
from forebay.progress import Identity, SavedState
from forebay.samplers import Drawn, listing
from forebay.topology import Topology
from forebay_core.errors import ConfigurationError, StateError, StateMismatch

_log = logging.getLogger("forebay")


class ListedDataset(IndexedDataset):
    """`dataset[index]` for the indices of one list: each place of it exactly once an epoch over all ranks."""

    _repeats = True

    def __init__(self, dataset: Any, indices: Int64, **options: Any) -> None:
        super().__init__(dataset, **options)
        self._lists = Lists(listing(indices, shuffle=self.shuffle, seed=self.seed))
        self._is_said = False

    @property
    def samples(self) -> int:
        """The length of the list."""
        return len(self._lists.current.indices)

    def describe(self) -> dict[str, Any]:
        index = self._lists.current.index_at(self.epoch, self.position)
        return {"epoch": self.epoch, "position": self.position, "samples": self.samples, "index": index}

    def _prepare(self, split: Split, *, runs_on: bool) -> None:
        super()._prepare(split, runs_on=runs_on)
        if split.world_size > 1 and not self._is_said:
            self._is_said = True
            _log.warning(
                "the sampler's list of %d indices is shared out over %d ranks: if it is one rank's part already, give "
                "rank=0, world_size=1",
                self.samples,
                split.world_size,
            )

    def _identity(self) -> Identity:
        current = self._lists.current
        spec = {**current.order.spec(), "list": current.digest, "tail": self.tail}
        return Identity("indices", self.samples, spec)

    def _rank_order(self, split: Split) -> RankOrder:
        return ListedOrder(self._lists, split, self._topology().rank)


@dataclass(frozen=True)
class _Expected:
    """The list that a loaded state was taken in."""

    epoch: int
    samples: int
    digest: str
    rank: int | None


class SampledDataset(IndexedDataset):
    """`dataset[index]` for the indices of the lists that a sampler draws."""

    _repeats = _ends_with_epoch = True

    def __init__(self, dataset: Any, drawn: Drawn, **options: Any) -> None:
        super().__init__(dataset, shuffle=False, **options)
        self.drawn = drawn
        self._lists = Lists()
        self._expected: _Expected | None = None

    @property
    def samples(self) -> int:
        """The length of the epoch's list; as the sampler says it, or as the last epoch's was, until it is drawn."""
        found, expected = self._lists.find(self.epoch), self._expected
        if found is not None:
            return len(found.indices)
        if expected is not None and expected.epoch == self.epoch:
            return expected.samples
        if not self.drawn.in_batches:
            return self.drawn.length
        return max(self.position, 0 if self._lists.last is None else len(self._lists.last.indices))

    def describe(self) -> dict[str, Any]:
        """As a plain dataset's, with the `sampler`; `index` is None as long as the epoch's list is not drawn."""
        found = self._lists.find(self.epoch)
        index = None if found is None else found.index_at(self.epoch, self.position)
        said = {"epoch": self.epoch, "position": self.position, "samples": self.samples, "index": index}
        return {**said, "sampler": self.drawn.name}

    def state_dict(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        """The position as JSON values. The state of a sampler that is this rank's own belongs to this rank."""
        state = super().state_dict(*arguments, **options)
        if self._expected is not None and self._expected.epoch == self.epoch:
            return {**state, "list": _encoded(self._expected.digest, self._expected.rank)}
        found = self._lists.find(self.epoch)
        if self.position == 0 or found is None:
            return state
        return {**state, "list": _encoded(found.digest, None if self.drawn.is_shared else self._place().rank)}

    def load_state_dict(self, state: Mapping[str, Any], *arguments: Any, strict: bool = True, **options: Any) -> None:
        """Goes on where `state` was taken, if the sampler draws the epoch's list again, which the next iteration sees.

        Raises `StateMismatch` where the order differs; `strict=False` takes epoch and position whatever is drawn.
        """
        expected = _decoded(state) if strict else None
        super().load_state_dict(state, *arguments, strict=strict, **options)
        self._expected = expected if self.position else None

    def _accept(self, saved: SavedState, *, strict: bool) -> None:
        if strict:
            here = self._identity()
            progress.check(saved, replace(here, samples=saved.identity.samples))

    def _prepare(self, split: Split, *, runs_on: bool) -> None:
        super()._prepare(split, runs_on=runs_on)
        self._know(split, *self._progress.upcoming(runs_on=runs_on))

    def _enter(self, split: Split) -> None:
        self._know(split, self.epoch, self.position)

    def _know(self, split: Split, epoch: int, position: int) -> None:
        """Has the list of the epoch that is read from this position on."""
        drawn = self._lists.find(epoch)
        if drawn is None or self._unexpected(drawn, epoch):
            self._draw(epoch)
            drawn = self._lists.of(epoch)
        self._check(drawn, epoch, position)
        if position and self._rank_order(split).steps(position) == 0:
            self._draw(epoch + 1)
            self._progress.commit(epoch + 1, 0, split.global_batch)
        if self._rank_order(split).steps() == 0:
            split.check(self._rank_order(split).samples)

    def _draw(self, epoch: int) -> None:
        self._epochs.announce(epoch)
        self._lists.put(epoch, self.drawn.draw(epoch, self.seed))

    def _unexpected(self, drawn: Listing, epoch: int) -> bool:
        """Whether a state was taken in another list of this epoch, as far as this rank can know."""
        expected = self._expected
        if expected is None or expected.epoch != epoch or expected.rank not in (None, self._place().rank):
            return False
        return expected.digest != drawn.digest

    def _check(self, drawn: Listing, epoch: int, position: int) -> None:
        if self._unexpected(drawn, epoch):
            raise StateMismatch(
                f"the sampler {self.drawn.name} draws another list for epoch {epoch} than the one in which the state "
                f"was taken: let its list follow from a seed and the epoch (set_epoch is called), or "
                f"load_state_dict(state, strict=False) to go on at position {position} of the new list"
            )
        if position > len(drawn.indices):
            raise StateError(
                f"position {position} is beyond the {len(drawn.indices)} indices that the sampler {self.drawn.name} "
                f"draws for epoch {epoch}: start its next epoch"
            )
        self._expected = None

    def _replay(
        self, split: Split, assembly: Assembly, epoch: int, *, step: int | None = None, position: int | None = None
    ) -> Any:
        found = self._lists.find(epoch)
        if found is None and not self.drawn.is_shared:
            raise ConfigurationError(
                f"replay({epoch}, …): only the sampler {self.drawn.name} knows the list of that epoch, and it would "
                f"have to draw it again: iterate the epoch first"
            )
        there = copy.copy(self)
        there._lists = Lists(found or self.drawn.draw(epoch, self.seed))
        return super(SampledDataset, there)._replay(split, assembly, epoch, step=step, position=position)

    def _place(self) -> Topology:
        """Where this rank is among all, whoever shares the list out."""
        return super()._topology()

    def _topology(self) -> Topology:
        return super()._topology() if self.drawn.is_shared else Topology(0, 1)

    def _split(self, batch_size: int | None = None, global_batch_size: int | None = None) -> Split:
        if not self.drawn.in_batches:
            return super()._split(batch_size, global_batch_size)
        return Split(1, 1)

    def _steps(self, split: Split, position: int = 0) -> int:
        if not self.drawn.in_batches:
            return super()._steps(split, position)
        if self._lists.find(self.epoch) is None:
            return self.drawn.length
        return self._rank_order(split).steps(position)

    def _identity(self) -> Identity:
        spec: dict[str, Any] = {"algorithm": "listed-1", "sampler": self.drawn.name, "tail": self.tail}
        if self.drawn.is_shared:
            spec |= {"seed": self.seed}
        return Identity("indices", self.samples, spec)

    def _rank_order(self, split: Split) -> RankOrder:
        if self.drawn.in_batches:
            return BatchedOrder(self._lists, split)
        return ListedOrder(self._lists, split, self._topology().rank)


def _encoded(digest: str, rank: int | None) -> dict[str, Any]:
    return {"digest": digest, "rank": rank}


def _decoded(state: Mapping[str, Any]) -> _Expected | None:
    """The list that a state was taken in, if it says any; the state is checked by whoever loads it."""
    try:
        found = state["list"]
        return _Expected(state["epoch"], state["dataset"]["samples"], str(found["digest"]), found["rank"])
    except (KeyError, TypeError):
        return None
