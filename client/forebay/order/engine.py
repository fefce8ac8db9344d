"""The order of a dataset: what the loader, `describe()` and audits ask.

An order is a pure function of (piece rows, seed, shuffle, options), and an epoch of it of the epoch's number too.
World size, batch size, workers and cache are no part of it: a `Split` only cuts it. Objects are immutable and may be
shared by threads; making one costs the pieces, never the samples.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from forebay.order import line, philox
from forebay.order.lanes import Int64, cut_lanes
from forebay.order.needs import Needs, PartBounds, needs, part_bounds
from forebay.order.options import OrderOptions, Shuffle, integer, resolve_lanes, resolve_window
from forebay.order.permutation import Permutation
from forebay.order.plan import RankPlan, plan
from forebay.order.selection import SelectedRows
from forebay.order.sequence import LaneReader, Sequence
from forebay.order.steps import Split
from forebay.order.window import Window
from forebay_core.errors import ConfigurationError

_ALGORITHMS = {"window": "window-1", "global": "global-1", False: "sequential-1"}
_KEPT_EPOCHS = 2


@dataclass(frozen=True, slots=True)
class Place:
    """The next sample of a lane."""

    lane: int
    offset: int
    """How many samples the lane has handed out in this epoch."""
    piece: int
    row: int


@dataclass(frozen=True, slots=True)
class Located:
    """The samples at consecutive positions; int64 unless said, one element a position."""

    sample_id: Int64
    piece: Int64
    row: Int64
    fraction: npt.NDArray[np.float64]
    """Where on the line each lies, in [0, 1): steps sort by it, and ranks get neighbouring runs."""


class EpochOrder:
    """The order of one epoch. Made by `Order.epoch`. Raises `ConfigurationError` for positions outside [0, samples]."""

    def __init__(self, sequence: Sequence, *, has_pieces: bool) -> None:
        self._sequence = sequence
        self._has_pieces = has_pieces

    @property
    def samples(self) -> int:
        return self._sequence.samples

    def sample_ids(self, start: int, stop: int) -> Int64:
        """The sample at each position of [start, stop): int64[stop - start]."""
        return self.locate(start, stop).sample_id

    def locate(self, start: int, stop: int) -> Located:
        """The sample at each position of [start, stop), and where it lies. What a mixture reads its sources by."""
        self._check(start)
        self._check(stop)
        place = self._sequence.places(np.arange(start, stop))
        part = self._sequence.track.find(place)
        piece, row = self._sequence.rows(place, part)
        fraction = self._sequence.coordinates(place, part) / max(1, self.samples)
        return Located(self._sequence.sample_ids(piece, row), piece, row, fraction)

    def plan(self, position: int, steps: int, *, split: Split, rank: int) -> RankPlan:
        """What `rank` reads in the next steps from `position`: `steps` of them, fewer where the epoch ends."""
        self._check(position)
        return plan(self._sequence, position, steps, split=split, rank=rank)

    def needs(self, position: int, *, split: Split, rank: int) -> Needs:
        """Every piece that `rank` may still want from `position` on, with bounds of the positions at which."""
        self._check(position)
        if not self._has_pieces:
            return Needs.nothing()
        return needs(self._sequence, position, split=split, rank=rank)

    def part_bounds(self) -> PartBounds:
        """Between which positions each part of a piece is read, whoever reads it."""
        return part_bounds(self._sequence)

    def places(self, position: int) -> list[Place]:
        """Where each lane stands: its next sample at or after `position`. Lanes that are done are left out."""
        self._check(position)
        lanes = self._sequence.lanes
        turn = lanes.turns_before(np.array(position))
        lane = np.flatnonzero(turn < lanes.length)
        place = self._sequence.places(turn[lane] * lanes.count + lanes.slot[lane])
        piece, row = self._sequence.rows(place, self._sequence.track.find(place))
        return [Place(*fields) for fields in zip(*(a.tolist() for a in (lane, turn[lane], piece, row)), strict=True)]

    def _check(self, position: int) -> None:
        if not 0 <= position <= self.samples:
            raise ConfigurationError(f"position {position} is not in an epoch of {self.samples} samples")


class Order:
    """The order of a dataset.

    piece_rows: rows of each piece, in the manifest's order; pieces without rows never appear.
    selected: which of the rows of these pieces take part; None: all. Samples keep their ids in the whole dataset.
    seed: any integer.
    shuffle: "window"; "global", for data of which any row costs the same; or False for the order of the sample ids.
    total_bytes: the data's size as the manifest states it, which caps the default window; 0 where unknown.

    Raises `ConfigurationError` for arguments that cannot work. No samples are legal here; `Split.check` refuses them.
    """

    def __init__(
        self,
        piece_rows: SequenceOf[int] | Int64,
        *,
        seed: int,
        shuffle: Shuffle = "window",
        options: OrderOptions | None = None,
        total_bytes: int = 0,
        selected: SelectedRows | None = None,
    ) -> None:
        if shuffle is not False and shuffle not in _ALGORITHMS:
            raise ConfigurationError(f"shuffle={shuffle!r}: give 'window', 'global' or False")
        options = options or OrderOptions()
        whole = np.array(piece_rows, dtype=np.int64)
        rows = whole if selected is None else selected.counts
        self._rows = rows
        self._selected = selected
        self._first_sample = np.cumsum(whole) - whole
        self._seed = integer("seed", seed)
        self._shuffle = shuffle
        self._sticky = options.sticky
        self._has_pieces = True
        self._digest = philox.seed_digest(self._seed)
        self._lanes = cut_lanes(int(rows.sum()), resolve_lanes(options, shuffle))
        self._window = max(1, self.samples) if shuffle == "global" else 1
        if shuffle == "window":
            self._window = resolve_window(
                options.window,
                samples=self.samples,
                pieces=int(np.count_nonzero(rows)),
                lanes=self.lanes,
                total_bytes=total_bytes * int(whole[rows > 0].sum()) // max(1, int(whole.sum())),
            )
        self._fixed_line = self._cut_line(0) if self._sticky or shuffle != "window" else None
        self._recent: tuple[tuple[int, EpochOrder], ...] = ()

    @classmethod
    def of_indices(
        cls,
        samples: int,
        *,
        seed: int,
        shuffle: Literal["global", False] = "global",
        selected: SelectedRows | None = None,
    ) -> Self:
        """The order of the indices [0, samples) of a map-style dataset: sample ids and rows are indices.

        There is one piece, 0, and nothing ever needs it. `selected` is over `Pieces.of_indices(samples)`.
        """
        if integer("samples", samples) < 0:
            raise ConfigurationError(f"samples={samples}: give the length of the dataset, 0 or more")
        order = cls([samples], seed=seed, shuffle=shuffle, selected=selected)
        order._has_pieces = False
        return order

    @property
    def algorithm(self) -> str:
        return _ALGORITHMS[self._shuffle]

    @property
    def samples(self) -> int:
        return self._lanes.samples

    @property
    def has_pieces(self) -> bool:
        """False for the order of indices: its one piece stands for the dataset."""
        return self._has_pieces

    @property
    def lanes(self) -> int:
        return self._lanes.count

    @property
    def pieces(self) -> int:
        """Pieces of the dataset, with or without rows."""
        return len(self._rows)

    @property
    def sticky(self) -> bool:
        """Whether every epoch has the same pieces in each lane."""
        return self._fixed_line is not None

    @property
    def lane_starts(self) -> Int64:
        """Where on the line each lane begins, and where the last one ends: int64[lanes + 1]."""
        return np.append(self._lanes.start, self.samples)

    @property
    def window(self) -> int:
        """A sample moves less than this within its lane, in samples; 1 without a shuffle, all with the global one."""
        return self._window

    def spec(self) -> dict[str, Any]:
        """What a state records of the order, as JSON values. Equal specs over equal pieces are equal orders."""
        spec = {"algorithm": self.algorithm, "seed": self._seed}
        if self._shuffle != "global":
            spec |= {"lanes": self.lanes, "window": self.window, "sticky": self._sticky}
        if self._selected is not None:
            spec["selection"] = self._selected.selection.spec()
        return spec

    def epoch(self, epoch: int) -> EpochOrder:
        """The order of one epoch, 0 or more. The two asked for last are kept."""
        for number, made in self._recent:
            if number == epoch:
                return made
        if epoch < 0:
            raise ConfigurationError(f"epoch {epoch}: epochs count from 0")
        made = EpochOrder(self._sequence(epoch), has_pieces=self._has_pieces)
        self._recent = ((epoch, made), *self._recent)[:_KEPT_EPOCHS]
        return made

    def _cut_line(self, epoch: int) -> line.Parts:
        pieces = np.flatnonzero(self._rows)
        if self._shuffle == "window":
            pieces = line.permuted_pieces(self._rows, self._digest, epoch)
        return line.cut_parts(pieces, self._rows, self._lanes)

    def _sequence(self, epoch: int) -> Sequence:
        parts = self._cut_line(epoch) if self._fixed_line is None else self._fixed_line
        track = line.track(parts, self._lanes, self._digest, epoch) if self._shuffle == "window" else parts
        return Sequence(self._lanes, track, self._reader(epoch), self._first_sample, self._selected)

    def _reader(self, epoch: int) -> LaneReader:
        if self._shuffle == "global":
            return Permutation(self._digest, epoch, self.samples)
        return Window(self._digest, epoch, self._lanes, self._window)
