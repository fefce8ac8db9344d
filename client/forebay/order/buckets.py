"""Batches of samples of like length, so that little is padded: an order whose positions are regrouped by length.

The positions of an epoch are cut into blocks of `window`. Each block is sorted by length, ties by position, cut into
units of `unit` samples, and the units are permuted by (seed, block, epoch): the position of the first sample of a unit
says nothing of its length, and neighbours are alike. So the sequence is another one of the same samples with the same
promises: each once, whatever the world and batch sizes, and any position costs one block, wherever it lies. A step
sorts what it takes by length and gives each rank a contiguous run. Immutable but for the blocks used last; any thread.
"""

import hashlib
import operator
import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from forebay.order import philox
from forebay.order.engine import Order
from forebay.order.lanes import Int64, counted
from forebay.order.located_plan import Readings, SharedLocated
from forebay.order.needs import Needs
from forebay.order.rank_order import RankOrder, SharedOrder
from forebay.order.steps import Split
from forebay_core.errors import ConfigurationError

MAXIMUM_WINDOW = 1 << 20
"""A rank locates whole blocks, so that much is located for the first batch."""

_KEPT_BLOCKS = 2
_DIGESTED_AT_ONCE = 1 << 20


@dataclass(frozen=True, eq=False)
class Buckets:
    """Groups the samples of a dataset by length, so that the samples of a batch are of like lengths.

    lengths: whole numbers [N] by sample id (by index, for a map-style dataset): an array, a list, or the path of a
        `.npy` file, which is mapped when first needed. In any unit: tokens, pixels, seconds times 1000.
    window: samples among which like ones are found, consecutive in the shuffled order, 1 to 2**20. A larger one pads
        less, and delays the first batch; a rank reads from all of a dataset's pieces that a window holds.
    unit: samples of like length that stay together, 1 to `window`. A property of the run, like the seed: choose about
        the global batch, so that all ranks of a step have samples of like lengths, and not less than a rank's batch.

    Raises `ConfigurationError` for values that cannot work; for lengths that are not the dataset's when it is opened.
    """

    lengths: Any
    window: int = 8192
    unit: int = 256

    def __post_init__(self) -> None:
        _check_range("window", self.window, MAXIMUM_WINDOW)
        _check_range("unit", self.unit, self.window)
        if isinstance(self.lengths, str | os.PathLike):
            object.__setattr__(self, "lengths", os.path.abspath(self.lengths))  # noqa: PTH100 - as it was given
        else:
            object.__setattr__(self, "lengths", _whole_numbers(self.lengths, "lengths= is"))

    @cached_property
    def by_sample(self) -> npt.NDArray[Any]:
        """The lengths, by sample id. Raises `ConfigurationError` where the file cannot be read."""
        if not isinstance(self.lengths, str):
            lengths: npt.NDArray[Any] = self.lengths
            return lengths
        try:
            found = np.load(self.lengths, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise ConfigurationError(
                f"the lengths in {self.lengths} cannot be read ({error}): give a .npy file of whole numbers"
            ) from error
        return _whole_numbers(found, f"{self.lengths} holds")

    @cached_property
    def digest(self) -> str:
        """What a state records of the lengths: the same for the same numbers, whatever type they are kept in."""
        digest, lengths = hashlib.sha256(), self.by_sample
        for begin in range(0, len(lengths), _DIGESTED_AT_ONCE):
            digest.update(np.ascontiguousarray(lengths[begin : begin + _DIGESTED_AT_ONCE], dtype="<i8").data)
        return f"sha256:{digest.hexdigest()[:32]}"

    def spec(self) -> dict[str, Any]:
        """What a state records, as JSON values."""
        return {"algorithm": "buckets-1", "window": self.window, "unit": self.unit, "lengths": self.digest}

    def check(self, samples: int) -> None:
        """Raises `ConfigurationError` where there is not one length for each sample id of the dataset."""
        if len(self.by_sample) != samples:
            raise ConfigurationError(
                f"Buckets has {len(self.by_sample)} lengths and the dataset {samples} samples: give one length for "
                f"each sample id, those that a limit or a split leaves out too"
            )

    def window_begin(self, position: int) -> int:
        """Where the block of a position begins."""
        return position // self.window * self.window

    def __getstate__(self) -> dict[str, Any]:
        return {"lengths": self.lengths, "window": self.window, "unit": self.unit}


class BucketedSequence:
    """An order whose positions are regrouped by length: what `SharedLocated` shares out. `seed` is the order's."""

    def __init__(self, order: Order, buckets: Buckets, *, seed: int) -> None:
        self.order, self.buckets = order, buckets
        self._digest = philox.seed_digest(seed)
        self._recent: tuple[tuple[tuple[int, int], Readings], ...] = ()

    @property
    def samples(self) -> int:
        return self.order.samples

    def read(self, epoch: int, start: int, stop: int) -> Readings:
        """What the positions [start, stop) of an epoch read, with the lengths by which steps are sorted."""
        window = self.buckets.window
        blocks = range(start // window, max(start // window + 1, -(-stop // window)))
        found = [self._block(epoch, number) for number in blocks]
        whole = found[0]
        for block in found[1:]:
            whole = whole.followed_by(block)
        return whole.at(np.arange(start, stop) - blocks.start * window)

    @property
    def has_pieces(self) -> bool:
        return self.order.has_pieces

    def needs(self, epoch: int, position: int, *, split: Split, rank: int) -> Needs:
        """Every piece that is read from `position` of the epoch on: any rank's run by length can be of any lane."""
        bounds, window = self.order.epoch(epoch).part_bounds(), self.buckets.window
        first = np.maximum(bounds.first // window * window, position)
        last = np.minimum(-(-bounds.last // window) * window, self.samples)
        wanted = first < last
        return Needs(bounds.pieces[wanted], first[wanted], last[wanted])

    def _block(self, epoch: int, number: int) -> Readings:
        """The block's samples as its positions read them."""
        for key, block in self._recent:
            if key == (epoch, number):
                return block
        begin = number * self.buckets.window
        stop = min(begin + self.buckets.window, self.samples)
        located = self.order.epoch(epoch).locate(min(begin, stop), stop)
        length = np.asarray(self.buckets.by_sample[located.sample_id]).astype(np.int64)
        regrouped = self._regrouped(length, epoch, number)
        made = Readings(located.sample_id, located.piece, located.row, length).at(regrouped)
        self._recent = (((epoch, number), made), *self._recent)[:_KEPT_BLOCKS]
        return made

    def _regrouped(self, length: Int64, epoch: int, number: int) -> Int64:
        """Where in the block each of its positions reads."""
        by_length = np.argsort(length, kind="stable")
        units = -(-len(length) // self.buckets.unit)
        words = philox.raw_words(self._digest, philox.BUCKETS, units, block=number, epoch=epoch)
        begin = np.argsort(words, kind="stable") * self.buckets.unit
        return by_length[counted(begin, np.minimum(self.buckets.unit, len(length) - begin))]


def shared(order: Order, buckets: Buckets | None, seed: int, split: Split, rank: int) -> RankOrder:
    """The order shared out over ranks, regrouped by length where that was asked for."""
    if buckets is None:
        return SharedOrder(order, split, rank)
    return SharedLocated(BucketedSequence(order, buckets, seed=seed), split, rank)


def spec_of(order: Order, buckets: Buckets | None) -> dict[str, Any]:
    """What a state records of them."""
    return order.spec() if buckets is None else {**order.spec(), "buckets": buckets.spec()}


def _check_range(name: str, value: int, maximum: int) -> None:
    try:
        valid = not isinstance(value, bool) and 1 <= operator.index(value) <= maximum
    except TypeError:
        valid = False
    if not valid:
        raise ConfigurationError(f"Buckets({name}={value!r}): give an integer from 1 to {maximum}")


def _whole_numbers(lengths: Any, what: str) -> npt.NDArray[Any]:
    """The array, if it is one number for each sample."""
    array: npt.NDArray[Any] = np.asanyarray(lengths)
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.dtype == np.uint64:
        raise ConfigurationError(
            f"{what} an array of shape {array.shape} and type {array.dtype}: give a one-dimensional array of whole "
            f"numbers, one for each sample id"
        )
    return array
