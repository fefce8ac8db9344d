"""The order of a mixture: from which source each position draws, and which of the source's own positions it reads.

Weights become whole numbers of *slots* in a *block* of positions, and every block holds exactly those, permuted by
(seed, block). Blocks run on over the mixture's epochs: epoch e begins at the *running* position e·T, wherever in a
block that lies. Draw k of a source, counted over the whole run, is position k mod N of its own epoch k div N, so each
of its own epochs is exactly once, whatever the mixture's epochs are. A running position's block says how many draws of
each source came before it, so any range of any epoch costs the same and nothing is replayed.

A mixture has positions like any order, and a `Split` cuts it into steps. A step sorts its draws by how far along their
own source's line they lie (`in_step_order`), never by source first: so each rank keeps its part of every source, and
no rank gets a source alone. Objects are immutable but for the blocks used last; any thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from forebay.order import philox
from forebay.order.lanes import Int64
from forebay.order.options import integer
from forebay_core.errors import ConfigurationError, EmptyDataset

EpochLength = Literal["longest", "shortest"] | int

DEFAULT_BLOCK = 10_000
"""So many that weights in whole hundredths of a percent are exact; so few that a block takes half a millisecond, and
that the draws of a source up to any position stay within a hundred or so of its share (deviation √block / 4)."""
MAXIMUM_BLOCK = 1 << 16
MAXIMUM_EPOCH = 1 << 48
"""A slot's number is kept in the low 16 bits of its key."""

_SLOT_BITS = np.uint64(MAXIMUM_BLOCK - 1)
_KEPT_BLOCKS = 2


@dataclass(frozen=True, slots=True)
class Draws:
    """What consecutive positions of a mixture read; int64, one element a position."""

    source: Int64
    source_epoch: Int64
    source_position: Int64
    """The position within the source's own epoch."""


@dataclass(frozen=True, slots=True)
class _Block:
    """The positions of one block: their sources, and how many draws of the same source precede each in the block."""

    number: int
    source: Int64
    earlier: Int64


class MixtureOrder:
    """The order of a mixture.

    sources: samples of each source, 1 or more.
    weights: the share of each source, in proportion to their sum; positive. What counts is `slots`, made from them.
    seed: any integer.
    block: positions in which the shares are exact, from the number of sources to 65536.
    epoch_length: positions of an epoch. "longest" reads about all of every source in each epoch, some more than once;
        "shortest" ends where the first source would begin anew, about; or any number.

    An order is recorded by `spec()`; its slots, given as weights with its block and epoch length, make the same order.
    Raises `ConfigurationError` for arguments that cannot work, `EmptyDataset` for a source without samples.
    """

    def __init__(
        self,
        sources: Sequence[int],
        weights: Sequence[float],
        *,
        seed: int,
        block: int = DEFAULT_BLOCK,
        epoch_length: EpochLength = "longest",
    ) -> None:
        self._sources = np.array([_samples(number, samples) for number, samples in enumerate(sources)], dtype=np.int64)
        if len(weights) != len(sources):
            raise ConfigurationError(
                f"{len(sources)} sources and {len(weights)} weights: give one weight to each source"
            )
        block = integer("block", block)
        self._slots = np.array(apportion(weights, block), dtype=np.int64)
        self._seed = integer("seed", seed)
        self._block = block
        self._samples = _epoch_length(epoch_length, self._sources.tolist(), self._slots.tolist(), block)
        self._digest = philox.seed_digest(self._seed)
        self._source_of_slot = np.repeat(np.arange(len(sources)), self._slots)
        first_slot = np.cumsum(self._slots) - self._slots
        self._earlier_slots = np.arange(block) - first_slot[self._source_of_slot]
        self._recent: tuple[_Block, ...] = ()

    @property
    def algorithm(self) -> str:
        return "mixture-1"

    @property
    def samples(self) -> int:
        """The positions of one epoch."""
        return self._samples

    @property
    def slots(self) -> list[int]:
        """How many positions of each block every source has."""
        slots: list[int] = self._slots.tolist()
        return slots

    def spec(self) -> dict[str, Any]:
        """What a state records of the order, as JSON values. Equal specs over equal sources are equal orders."""
        return {
            "algorithm": self.algorithm,
            "seed": self._seed,
            "block": self._block,
            "slots": self.slots,
            "epoch_length": self.samples,
        }

    def epoch(self, epoch: int) -> "MixtureEpoch":
        """The order of one epoch, 0 or more."""
        if epoch < 0:
            raise ConfigurationError(f"epoch {epoch}: epochs count from 0")
        return MixtureEpoch(self, epoch)

    def draws(self, start: int, stop: int) -> Draws:
        """What the running positions [start, stop) draw, 0 <= start."""
        if start < 0:
            raise ConfigurationError(f"position {start}: positions count from 0")
        sources, earlier = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        for number in range(start // self._block, -(-stop // self._block)):
            block, begin = self._made(number), number * self._block
            inside = slice(max(0, start - begin), stop - begin)
            sources.append(block.source[inside])
            earlier.append(block.earlier[inside] + number * self._slots[sources[-1]])
        source = np.concatenate(sources)
        return Draws(source, *np.divmod(np.concatenate(earlier), self._sources[source]))

    def drawn(self, position: int) -> Int64:
        """How many draws of each source lie before a running position, 0 or more: int64[sources]."""
        number, inside = divmod(position, self._block)
        return number * self._slots + np.bincount(self._made(number).source[:inside], minlength=len(self._slots))

    def span(self, source: int, first: Int64, stop: Int64) -> tuple[Int64, Int64]:
        """Running positions [from, to) within which the draws [first, stop) of a source lie; whole blocks."""
        slots = self._slots[source]
        return first // slots * self._block, -(-stop // slots) * self._block

    def _made(self, number: int) -> _Block:
        for block in self._recent:
            if block.number == number:
                return block
        words = philox.raw_words(self._digest, philox.MIXTURE, self._block, block=number)
        keys = np.sort((words & ~_SLOT_BITS) | np.arange(self._block, dtype=np.uint64))
        source = self._source_of_slot[(keys & _SLOT_BITS).astype(np.int64)]
        earlier = np.empty_like(source)
        earlier[np.argsort(source.astype(np.uint16), kind="stable")] = self._earlier_slots
        made = _Block(number, source, earlier)
        self._recent = (made, *self._recent)[:_KEPT_BLOCKS]
        return made


class MixtureEpoch:
    """One epoch of a mixture. Made by `MixtureOrder.epoch`. Raises `ConfigurationError` for positions beyond it."""

    def __init__(self, order: MixtureOrder, epoch: int) -> None:
        self._order = order
        self._begin = epoch * order.samples

    @property
    def samples(self) -> int:
        return self._order.samples

    def draws(self, start: int, stop: int) -> Draws:
        """What the positions [start, stop) draw."""
        return self._order.draws(self._running(start), self._running(stop))

    def drawn(self, position: int) -> Int64:
        """How many draws of each source lie before a position, those of earlier epochs included: int64[sources]."""
        return self._order.drawn(self._running(position))

    def _running(self, position: int) -> int:
        if not 0 <= position <= self.samples:
            raise ConfigurationError(f"position {position} is not in an epoch of {self.samples} positions")
        return self._begin + position


def apportion(weights: Sequence[float], block: int) -> list[int]:
    """Whole slots in proportion to the weights, at least 1 for each, `block` in all.

    Sources that deserve less than one slot get one, and the others share the rest by largest remainder, the first of
    equals first. Exact rational arithmetic, so it is the same everywhere. Raises `ConfigurationError`.
    """
    if not 0 < len(weights) <= block <= MAXIMUM_BLOCK:
        raise ConfigurationError(
            f"block={block} for {len(weights)} sources: give at least one source, and a block of as many positions as "
            f"sources or more, at most {MAXIMUM_BLOCK}"
        )
    exact = [_weight(number, weight) for number, weight in enumerate(weights)]
    slots = [1] * len(exact)
    sharing = set(range(len(exact)))
    while True:
        rest, total = block - len(exact) + len(sharing), sum(exact[source] for source in sharing)
        quota = {source: exact[source] * rest / total for source in sharing}
        deserving = {source for source in sharing if quota[source] >= 1}
        if deserving == sharing:
            break
        sharing = deserving
    for source in sharing:
        slots[source] = int(quota[source])
    by_remainder = sorted(sharing, key=lambda source: (slots[source] - quota[source], source))
    for source in by_remainder[: block - sum(slots)]:
        slots[source] += 1
    return slots


def in_step_order(fraction: npt.NDArray[np.float64], take: Int64) -> Int64:
    """The order in which consecutive steps hand out their draws.

    fraction: for each draw, by position, how far along its source's line it lies (`Located.fraction`).
    take: how many draws each step takes; their sum is len(fraction).

    Indices into `fraction`, int64: those of the first step, by fraction, ties by position; then those of the next.
    `forebay.order.runs` says which of each step are a rank's. A step's pads are ordered alone and follow.
    """
    return np.lexsort((fraction, np.repeat(np.arange(len(take)), take)))


def _weight(number: int, weight: float) -> Fraction:
    try:
        exact = Fraction(float(weight))
    except (TypeError, ValueError, OverflowError):
        exact = Fraction(0)
    if exact <= 0:
        raise ConfigurationError(
            f"weight {weight!r} of source {number}: give a positive number, or leave the source out"
        )
    return exact


def _epoch_length(wanted: EpochLength, sources: list[int], slots: list[int], block: int) -> int:
    if wanted == "longest":
        return max(-(-samples * block // own) for samples, own in zip(sources, slots, strict=True))
    if wanted == "shortest":
        return min(samples * block // own for samples, own in zip(sources, slots, strict=True))
    length = wanted if isinstance(wanted, str) else integer("epoch", wanted)
    if isinstance(length, str) or not 1 <= length <= MAXIMUM_EPOCH:
        raise ConfigurationError(
            f"epoch={wanted!r}: give 'longest', 'shortest' or a number of samples from 1 to {MAXIMUM_EPOCH}"
        )
    return length


def _samples(number: int, samples: int) -> int:
    if integer(f"the samples of source {number}", samples) < 1:
        raise EmptyDataset(f"source {number} of the mixture has no samples: check its URL, or leave it out")
    return samples
