"""Reads chunks: maps local files, gathers rows, transforms and collates. Stateless but for its open mappings.

Two paths. Where no Python has to run per sample (no transform, no collate function) a step's rows are gathered column
by column, one array each. Else samples are dicts that pass through the transform one by one. What a batch contains
follows from the chunk alone; what is random in a transform follows from (seed, epoch, sample id).

Each reader thread or worker process owns one `Reader`; it is made there, from a picklable `ReaderSpec`.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import default_collate

from forebay.keys import EXTRAS, IS_PAD, POSITION, SAMPLE_ID
from forebay.loading.chunk import Batch, Chunk, Failed, Int64, Lost, StillFilling
from forebay.loading.open_pieces import OpenPiece, OpenPieces
from forebay.sampling import SampleStream, takes_rng
from forebay.timing import Stage, StageName
from forebay_core.errors import ConfigurationError, ForebayError, PieceGone
from forebay_core.formats.base import Column
from forebay_core.manifest import Manifest


@dataclass(frozen=True)
class ReaderSpec:
    """All that a reader needs, wherever it runs.

    `batched=False` hands single samples over, one a step. `wait_seconds` is how long a piece in fill is waited for
    before the planner is asked to look after it again.
    """

    manifest_path: Path
    columns: tuple[str, ...]
    seed: int
    transform: Callable[..., Any] | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    extras: tuple[str, ...] = ()
    batched: bool = True
    wait_seconds: float = 10.0

    def __post_init__(self) -> None:
        unknown = [name for name in self.extras if name not in EXTRAS]
        if unknown:
            raise ConfigurationError(f"extras={unknown!r}: a batch can carry {', '.join(EXTRAS)}")

    @property
    def columnar(self) -> bool:
        """True where no Python runs per sample."""
        return self.transform is None and self.collate_fn is None and self.batched


class Clock:
    """Collects the stages of a step."""

    def __init__(self) -> None:
        self._stages: list[Stage] = []
        self._at = time.monotonic()

    def lap(self, name: StageName) -> None:
        """What ran since the last lap was this stage."""
        now = time.monotonic()
        self._stages.append(Stage(name, self._at, now))
        self._at = now

    def begin(self) -> None:
        """What ran since the last lap belongs to no stage."""
        self._at = time.monotonic()

    def take(self) -> tuple[Stage, ...]:
        """The stages since the last call."""
        stages = tuple(self._stages)
        self._stages.clear()
        return stages


class Reader:
    """Turns chunks into batches. Not for several threads at once."""

    def __init__(self, spec: ReaderSpec, *, is_closed: Callable[[], bool] = lambda: False) -> None:
        self._spec = spec
        manifest = Manifest.open(spec.manifest_path)
        columns = manifest.columns(list(spec.columns))
        self._pieces = OpenPieces(manifest, spec.columns, wait_seconds=spec.wait_seconds, is_closed=is_closed)
        self._assembly = Columnar(spec, columns) if spec.columnar else BySample(spec, columns)

    def read(self, chunk: Chunk) -> list[Batch] | Lost | Failed:
        """The chunk's batches, step after step; forebay's own errors come back as values, so that they cross processes.

        An error that a transform raises is the user's and passes through as it is.
        """
        try:
            return list(self.batches(chunk))
        except PieceGone as error:
            return Lost(chunk, str(error), gone=True)
        except StillFilling as error:
            return Lost(chunk, str(error), gone=False)
        except ForebayError as error:
            return Failed(type(error).__name__, str(error))

    def batches(self, chunk: Chunk) -> Iterator[Batch]:
        """The chunk's batches, each read when asked for. `PieceGone` and `StillFilling` only come before the first."""
        clock = Clock()
        self._pieces.pass_by(chunk.begin)
        try:
            opened = self._open(chunk, clock)
        except PieceGone:
            self._pieces.discard(file.piece for file in chunk.files)
            raise
        in_place = [piece for piece in opened.values() if piece.file.in_place]
        self._pieces.check_in_place(in_place)
        gathering = Gathering(chunk, self._pieces, opened)
        bounds = chunk.offsets.tolist()
        for end, start, stop in zip(chunk.ends, bounds[:-1], bounds[1:], strict=True):
            clock.begin()
            data = self._assembly.batch(gathering, slice(start, stop), clock)
            if in_place:
                self._pieces.check_in_place(in_place)
            yield Batch(data, end, stop - start, clock.take())
        self._pieces.pass_by(chunk.end)

    def close(self) -> None:
        """Unmaps everything."""
        self._pieces.close()

    def _open(self, chunk: Chunk, clock: Clock) -> dict[int, OpenPiece]:
        opened = {}
        for file in chunk.files:
            piece = self._pieces.get(file)
            if piece is None:
                piece = self._pieces.open(file)
                clock.lap("remote_wait" if not file.inode else "read")
            opened[file.piece] = piece
        return opened


class Gathering:
    """Rows of one chunk, by ranges of its samples."""

    def __init__(self, chunk: Chunk, pieces: OpenPieces, opened: Mapping[int, OpenPiece]) -> None:
        self.chunk = chunk
        self._opened = opened
        self._on_grid = pieces.on_grid(chunk.piece, chunk.row)

    def column(self, column: Column, cut: slice) -> npt.NDArray[Any] | list[Any]:
        """An array [n, *shape] of a fixed-width column, else a list of n values."""
        if column.dtype is None:
            values: list[Any] = []
            for piece, rows, _ in self._runs(cut):
                values += piece.reader.values(column.name, rows)
            return values
        out = np.empty((cut.stop - cut.start, *column.shape), dtype=column.dtype)
        if self._on_grid is not None:
            grid, rows = self._on_grid
            grid.take(rows[cut], axis=0, out=out, mode="clip")
            return out
        for piece, rows, into in self._runs(cut):
            piece.reader.take(column.name, rows, out[into])
        return out

    def samples(self, names: Sequence[str], cut: slice) -> list[dict[str, Any]]:
        """One dict a sample."""
        places = zip(self.chunk.piece[cut].tolist(), self.chunk.row[cut].tolist(), strict=True)
        return [self._opened[piece].reader.sample(row, names) for piece, row in places]

    def _runs(self, cut: slice) -> Iterator[tuple[OpenPiece, Int64, slice]]:
        """For each stretch of samples of one piece: the piece, the rows, and where in the cut they go."""
        piece, row = self.chunk.piece[cut], self.chunk.row[cut]
        if len(piece) == 0:
            return
        starts = [0, *(np.flatnonzero(np.diff(piece)) + 1).tolist()]
        for start, stop in zip(starts, [*starts[1:], len(piece)], strict=True):
            yield self._opened[int(piece[start])], row[start:stop], slice(start, stop)


class Columnar:
    """Batches of columns; no Python runs per sample."""

    def __init__(self, spec: ReaderSpec, columns: Mapping[str, Column]) -> None:
        self._extras = spec.extras
        self._columns = columns

    def batch(self, gathering: Gathering, cut: slice, clock: Clock) -> dict[str, Any]:
        """One step's dict of tensors and lists."""
        gathered = {name: gathering.column(column, cut) for name, column in self._columns.items()}
        clock.lap("read")
        batch = {name: _batched(values) for name, values in gathered.items()}
        if self._extras:
            batch.update(_extras(self._extras, gathering.chunk, cut))
        clock.lap("collate")
        return batch


class BySample:
    """Batches of samples that pass through the user's functions one by one."""

    def __init__(self, spec: ReaderSpec, columns: Mapping[str, Column]) -> None:
        self._spec = spec
        self._names = list(columns)
        self._stream = SampleStream(spec.seed)
        self._with_rng = spec.transform is not None and takes_rng(spec.transform)

    def batch(self, gathering: Gathering, cut: slice, clock: Clock) -> Any:
        """One step's batch, as the collate function makes it; a single sample where there are no batches."""
        samples: list[Any] = gathering.samples(self._names, cut)
        clock.lap("read")
        if self._spec.transform is not None:
            samples = self._transformed(gathering.chunk, samples, cut)
            clock.lap("transform")
        batch = self._collated(samples)
        if self._spec.extras:
            batch = self._with_extras(batch, gathering.chunk, cut)
        clock.lap("collate")
        return batch

    def _transformed(self, chunk: Chunk, samples: list[Any], cut: slice) -> list[Any]:
        transform, call = self._spec.transform, self._stream.call
        assert transform is not None
        return [
            call(transform, sample, chunk.epoch, sample_id, with_rng=self._with_rng)
            for sample, sample_id in zip(samples, chunk.sample_id[cut].tolist(), strict=True)
        ]

    def _collated(self, samples: list[Any]) -> Any:
        if not self._spec.batched:
            return samples[0]
        if self._spec.collate_fn is not None:
            return self._spec.collate_fn(samples)
        return default_collate(samples)

    def _with_extras(self, batch: Any, chunk: Chunk, cut: slice) -> dict[str, Any]:
        if not isinstance(batch, dict):
            raise ConfigurationError(
                f"extras={self._spec.extras!r} need a batch that is a dict, but the transform or collate_fn gives "
                f"{type(batch).__name__}: return a dict, or leave extras out"
            )
        extras = _extras(self._spec.extras, chunk, cut)
        return {**batch, **(extras if self._spec.batched else {name: value[0] for name, value in extras.items()})}


def _extras(names: Sequence[str], chunk: Chunk, cut: slice) -> dict[str, torch.Tensor]:
    columns = {SAMPLE_ID: chunk.sample_id, POSITION: chunk.position, IS_PAD: chunk.is_pad}
    return {name: torch.from_numpy(columns[name][cut].copy()) for name in names}


def _batched(values: npt.NDArray[Any] | list[Any]) -> Any:
    """One tensor for a fixed-width column, else a list whose arrays are tensors."""
    if isinstance(values, list):
        return [torch.from_numpy(value) if isinstance(value, np.ndarray) else value for value in values]
    return torch.from_numpy(values)
