"""Selections: which samples of a dataset take part. The first N of them, a portion of a split, or one of the other.

A `Selection` is what a user chose, made before anything is known of the data. `over` the dataset's pieces it becomes
`SelectedRows`: how many rows of each piece take part, and which. The rows of a piece keep their order, and a sample
keeps its id in the whole dataset, and so its random numbers, its shard and its row.

The portions of a split are disjoint and together complete. To which a sample belongs follows from the split's seed, its
fractions, the shard's key relative to the dataset's root, and the sample's row in the shard: shards that are added,
moved or cut otherwise leave the others' samples where they were. Of a selection that is split again, a sample's number
among the selected rows of its shard takes the place of its row. Making `SelectedRows` costs the pieces and shards (and
units of 32768 rows, see `strata`), a look-up the rows looked up. Immutable; any thread.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import accumulate
from typing import Any, Literal, Self, get_args

import numpy as np

from forebay.order import philox
from forebay.order.lanes import Int64
from forebay.order.options import integer
from forebay.order.strata import FRACTION_BITS, Strata, UInt64
from forebay_core.errors import ConfigurationError

SplitBy = Literal["sample", "shard"]
"""Every shard's rows are spread over the portions, or each shard goes to one portion whole."""

_ALGORITHM = "split-1"
_WHOLE = 1 << FRACTION_BITS
_ROUNDING = Fraction(1, 10**6)
"""Fractions that sum to 1 but for so much are meant to."""


@dataclass(frozen=True)
class Pieces:
    """What a selection has to know of a dataset's pieces.

    rows: int64[pieces]. shard: int64[pieces], the number of each one's shard, ascending.
    keys: the key of each shard relative to the dataset's root, as bytes.
    """

    rows: Int64
    shard: Int64
    keys: Sequence[bytes]

    @classmethod
    def of_indices(cls, samples: int) -> Self:
        """Those of a map-style dataset, as `Order.of_indices` has them."""
        return cls(np.array([samples], dtype=np.int64), np.zeros(1, dtype=np.int64), [b""])


@dataclass(frozen=True)
class Limit:
    """The first `samples` samples, or all where there are fewer. Raises `ConfigurationError`."""

    samples: int

    def __post_init__(self) -> None:
        if isinstance(self.samples, bool) or integer("limit", self.samples) < 1:
            raise ConfigurationError(f"limit={self.samples!r}: give a number of samples, 1 or more")
        object.__setattr__(self, "samples", operator.index(self.samples))

    def over(self, pieces: Pieces, splits: int) -> "_Chosen":
        """The rows of these pieces, which were split `splits` times before."""
        before = np.cumsum(pieces.rows) - pieces.rows
        samples = min(self.samples, int(pieces.rows.sum()))
        return _Chosen(np.clip(samples - before, 0, pieces.rows), None)

    def spec(self) -> dict[str, Any]:
        """What a state records, as JSON values."""
        return {"limit": self.samples}


@dataclass(frozen=True)
class Portion:
    """One portion of a split. Made by `portions`.

    low, high: its bounds, as numbers of 2**-40 of the rows.
    """

    name: str
    fractions: tuple[tuple[str, float], ...]
    seed: int
    by: SplitBy
    low: int
    high: int

    def over(self, pieces: Pieces, splits: int) -> "_Chosen":
        """The rows of these pieces, which were split `splits` times before: each split is independent of the others."""
        key = philox.shard_keys(philox.seed_digest(self.seed), philox.SPLIT, pieces.keys, stream=splits)
        if self.by == "shard":
            return _Chosen(np.where(self._has(key)[pieces.shard], pieces.rows, 0), None)
        before = np.cumsum(pieces.rows) - pieces.rows
        first_of_shard = np.searchsorted(pieces.shard, pieces.shard)
        start = before - before[first_of_shard]
        strata = Strata(key[pieces.shard], start, pieces.rows, low=self.low, high=self.high)
        return _Chosen(strata.counts, strata)

    def _has(self, key: UInt64) -> Any:
        drawn = key >> np.uint64(64 - FRACTION_BITS)
        return (drawn >= np.uint64(self.low)) & (drawn < np.uint64(self.high))

    def spec(self) -> dict[str, Any]:
        """What a state records, as JSON values."""
        return {
            "portion": self.name,
            "of": dict(self.fractions),
            "by": self.by,
            "seed": self.seed,
            "algorithm": _ALGORITHM,
        }


Stage = Limit | Portion
"""One choice among the rows that an earlier one left."""


@dataclass(frozen=True)
class Selection:
    """What takes part: the whole dataset, narrowed by each stage in turn."""

    stages: tuple[Stage, ...] = ()

    def then(self, stage: Stage) -> "Selection":
        """This selection, narrowed once more."""
        return Selection((*self.stages, stage))

    def spec(self) -> list[dict[str, Any]]:
        """What a state records of it, as JSON values. Equal specs over equal pieces select the same samples."""
        return [stage.spec() for stage in self.stages]

    def over(self, pieces: Pieces) -> "SelectedRows":
        """The rows of these pieces that take part."""
        chosen, splits = [], 0
        for stage in self.stages:
            chosen.append(stage.over(pieces, splits))
            pieces = Pieces(chosen[-1].counts, pieces.shard, pieces.keys)
            splits += isinstance(stage, Portion)
        strata = tuple(each.strata for each in chosen if each.strata is not None)
        return SelectedRows(self, pieces.rows, strata)


@dataclass(frozen=True)
class SelectedRows:
    """The rows of a dataset's pieces that take part. Made by `Selection.over`."""

    selection: Selection
    counts: Int64
    """How many of each piece's rows: int64[pieces]."""
    strata: tuple[Strata, ...]
    """What picks rows among those left before, the first one among all."""

    def rows(self, piece: Int64, index: Int64) -> Int64:
        """The row in its piece that is the index-th of those that take part, ascending; int64[n] each."""
        return reduce(lambda row, strata: strata.rows(piece, row), reversed(self.strata), index)


@dataclass(frozen=True)
class _Chosen:
    """What a stage leaves of each piece; `strata` says which rows, None: the first ones."""

    counts: Int64
    strata: Strata | None


def portions(fractions: Mapping[str, float], *, seed: int = 0, by: SplitBy = "sample") -> dict[str, Portion]:
    """The portions of a split, by name.

    fractions: the share of each, positive; their sum is at most 1, and what is missing to 1 belongs to none. The order
        in which they are given does not matter, their names' order does.
    seed: any integer; another one is another split.
    by: "sample" takes its share of every stretch of a shard, spread evenly. "shard" gives each shard to one portion,
        whole; the shares then hold as well as the number of shards lets them.

    Raises `ConfigurationError`.
    """
    if by not in get_args(SplitBy):
        raise ConfigurationError(f"by={by!r}: give 'sample' or 'shard'")
    if not isinstance(fractions, Mapping) or not fractions:
        raise ConfigurationError(
            f"split({fractions!r}): give a fraction for each name, as in {{'train': 0.9, 'eval': 0.1}}"
        )
    for name in fractions:
        if not isinstance(name, str):
            raise ConfigurationError(f"split(): the name {name!r} is no string")
    seed = integer("seed", seed)
    exact = {name: _exact(name, fractions[name]) for name in sorted(fractions)}
    bounds = _bounds(list(exact.values()))
    given = tuple((name, float(fractions[name])) for name in exact)
    made = {}
    for name, low, high in zip(exact, bounds[:-1], bounds[1:], strict=True):
        if low == high:
            raise ConfigurationError(f"split(): the fraction {fractions[name]!r} of {name!r} leaves it no sample")
        made[name] = Portion(name, given, seed, by, low, high)
    return {name: made[name] for name in fractions}


def _exact(name: str, fraction: float) -> Fraction:
    """The number as it is written: 0.1 is a tenth."""
    try:
        exact = Fraction(0) if isinstance(fraction, bool | str) else Fraction(repr(float(fraction)))
    except (TypeError, ValueError, OverflowError):
        exact = Fraction(0)
    if not 0 < exact <= 1:
        raise ConfigurationError(f"split(): the fraction {fraction!r} of {name!r}: give a number above 0, at most 1")
    return exact


def _bounds(fractions: list[Fraction]) -> list[int]:
    """The bounds between the portions, in 2**-40; ascending from 0."""
    sums = [Fraction(0), *accumulate(fractions)]
    if sums[-1] > 1 + _ROUNDING:
        raise ConfigurationError(f"split(): the fractions sum to {float(sums[-1]):g}: give 1 at most")
    if abs(sums[-1] - 1) <= _ROUNDING:
        sums = [min(each, Fraction(1)) for each in sums[:-1]] + [Fraction(1)]
    return [int(each * _WHOLE + Fraction(1, 2)) for each in sums]
