"""Reads chunks of a stream: maps local files, gathers rows, transforms. Stateless but for its open mappings.

Two paths. Where no Python has to run per sample (no transform, no collate function) a step's rows are gathered column
by column, one array each. Else samples are dicts that pass through the transform one by one. What is random in a
transform follows from (seed, epoch, sample id).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from forebay.loading.assembly import Assembly, Clock
from forebay.loading.attempts import Attempt
from forebay.loading.chunk import Batch, Chunk, Int64
from forebay.loading.open_pieces import OpenPiece, OpenPieces
from forebay.loading.places import shard_row
from forebay.sampling import SampleStream, begin_step, takes_rng
from forebay_core.errors import PieceGone
from forebay_core.formats.base import Column
from forebay_core.manifest import Manifest


@dataclass(frozen=True)
class StreamReaderSpec:
    """Makes readers of the dataset that a manifest describes.

    `wait_seconds` is how long a piece in fill is waited for before the planner is asked to look after it again.
    """

    manifest_path: Path
    columns: tuple[str, ...]
    seed: int
    transform: Callable[..., Any] | None = None
    assembly: Assembly = field(default_factory=Assembly)
    wait_seconds: float = 2.0
    #: Where the manifest is by now, asked in the trainer's process alone.
    find_manifest: Callable[[], Path] | None = field(default=None, repr=False, compare=False)

    @property
    def columnar(self) -> bool:
        """True where no Python runs per sample."""
        return self.transform is None and self.assembly.collate_fn is None and self.assembly.batched

    def place(self, piece: int, row: int) -> str:
        """Where a sample lies, in words: its number among the rows of its shard."""
        shard, number = shard_row(Manifest.open(self.manifest_path), piece, row)
        return f"row {number} of {shard}"

    def located(self) -> "StreamReaderSpec":
        """With the manifest where it is by now, fit for other processes."""
        if self.find_manifest is None:
            return self
        return replace(self, manifest_path=self.find_manifest(), find_manifest=None)

    def reader(self, *, is_closed: Callable[[], bool] = lambda: False) -> "StreamReader":
        """A reader for this thread; `is_closed` ends its waits for pieces."""
        return StreamReader(self, is_closed=is_closed)


class Gathering:
    """Rows of one chunk, by ranges of its samples."""

    def __init__(self, chunk: Chunk, pieces: OpenPieces, opened: Mapping[int, OpenPiece]) -> None:
        self.chunk = chunk
        self._pieces, self._opened = pieces, opened
        self._on_grid = pieces.on_grid(chunk.piece, chunk.row)

    def of(self, chunk: Chunk) -> "Gathering":
        """The rows of another chunk of the same pieces."""
        return self if chunk is self.chunk else Gathering(chunk, self._pieces, self._opened)

    def let_go(self) -> None:
        """Ends its hold on the pieces."""
        self._opened = {}
        self._on_grid = None

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

    def sample(self, names: Sequence[str], index: int) -> dict[str, Any]:
        """One sample's dict."""
        return self._opened[int(self.chunk.piece[index])].reader.sample(int(self.chunk.row[index]), names)

    def _runs(self, cut: slice) -> Iterator[tuple[OpenPiece, Int64, slice]]:
        """For each stretch of samples of one piece: the piece, the rows, and where in the cut they go."""
        piece, row = self.chunk.piece[cut], self.chunk.row[cut]
        if len(piece) == 0:
            return
        starts = [0, *(np.flatnonzero(np.diff(piece)) + 1).tolist()]
        for start, stop in zip(starts, [*starts[1:], len(piece)], strict=True):
            yield self._opened[int(piece[start])], row[start:stop], slice(start, stop)


class StreamFiles:
    """The mapped files of one stream, opened for one chunk after another."""

    def __init__(self, spec: StreamReaderSpec, *, is_closed: Callable[[], bool]) -> None:
        self._manifest = manifest = Manifest.open(spec.manifest_path)
        self.columns = manifest.columns(list(spec.columns))
        self._pieces = OpenPieces(manifest, spec.columns, wait_seconds=spec.wait_seconds, is_closed=is_closed)
        self._in_place: list[OpenPiece] = []

    def gathering(self, chunk: Chunk, clock: Clock) -> Gathering:
        """The chunk's rows, its files opened. Raises `PieceGone`, `StillFilling`, `ObjectChanged`, a fill's error."""
        self._pieces.pass_by(chunk.begin)
        if chunk.is_frugal:
            self._pieces.keep(file.piece for file in chunk.files)
        opened = self._open(chunk, clock)
        self._in_place = [piece for piece in opened.values() if piece.file.in_place]
        self.check_in_place()
        return Gathering(chunk, self._pieces, opened)

    def check_in_place(self) -> None:
        """Raises `ObjectChanged` where a file of the chunk that is read in place was written meanwhile."""
        if self._in_place:
            self._pieces.check_in_place(self._in_place)

    def shard_row(self, piece: int, row: int) -> tuple[str, int]:
        """A row of a piece: its shard's URL, and its number among the shard's rows."""
        return shard_row(self._manifest, piece, row)

    def rest(self, chunk: Chunk) -> None:
        """The chunk has nothing of this stream: closes what nobody wants any more, and everything in a small cache."""
        self._pieces.pass_by(chunk.begin)
        if chunk.is_frugal:
            self._pieces.keep(())

    def finish(self, gathering: Gathering, chunk: Chunk) -> None:
        """The chunk's rows have been read: closes what nobody wants from its end on."""
        gathering.let_go()
        self._in_place.clear()
        self._pieces.pass_by(chunk.end)

    def forget(self, chunk: Chunk) -> None:
        """Closes the chunk's files, which are to be leased anew."""
        self._pieces.discard(file.piece for file in chunk.files)

    def close(self) -> None:
        """Unmaps everything."""
        self._pieces.close()

    def _open(self, chunk: Chunk, clock: Clock) -> dict[int, OpenPiece]:
        opened = {}
        self._pieces.make_room(chunk.files)
        for file in chunk.files:
            piece = self._pieces.get(file)
            if piece is None:
                piece = self._pieces.open(file)
                clock.lap("remote_wait" if not file.inode else "read")
            opened[file.piece] = piece
        return opened


class StreamReader:
    """Turns chunks into batches. Not for several threads at once."""

    def __init__(self, spec: StreamReaderSpec, *, is_closed: Callable[[], bool] = lambda: False) -> None:
        self._files = StreamFiles(spec, is_closed=is_closed)
        self._assembly = spec.assembly
        columns = self._files.columns
        self._source = Columnar(columns) if spec.columnar else BySample(spec, columns)

    def batches(self, chunk: Chunk) -> Iterator[Batch]:
        """The chunk's batches, each read when asked for. `PieceGone` and `StillFilling` only come before the first."""
        clock = Clock()
        try:
            gathering = self._files.gathering(chunk, clock)
        except PieceGone:
            self._files.forget(chunk)
            raise
        bounds = chunk.offsets.tolist()
        for end, start, stop in zip(chunk.ends, bounds[:-1], bounds[1:], strict=True):
            clock.begin()
            begin_step(chunk.epoch, int(chunk.sample_id[start]))
            attempt = Attempt(
                chunk, slice(start, stop), end, on_error=self._assembly.on_error, shard_row=self._files.shard_row
            )
            data = self._batch(gathering, attempt, clock)
            self._files.check_in_place()
            if end is chunk.ends[-1]:
                self._files.finish(gathering, chunk)
            yield Batch(data, end, stop - start, clock.take(), attempt.skipped)

    def close(self) -> None:
        """Unmaps everything."""
        self._files.close()

    def _batch(self, gathering: Gathering, attempt: Attempt, clock: Clock) -> Any:
        batch = self._source.batch(gathering, attempt, clock)
        batch = self._assembly.with_extras(batch, attempt.chunk, attempt.cut)
        clock.lap("collate")
        return self._assembly.transformed(batch, clock)


class Columnar:
    """Batches of columns; no Python runs per sample."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns = columns

    def batch(self, gathering: Gathering, attempt: Attempt, clock: Clock) -> dict[str, Any]:
        """One step's dict of tensors and lists."""

        def gathered(chunk: Chunk, cut: slice) -> dict[str, Any]:
            rows = gathering.of(chunk)
            return {name: rows.column(column, cut) for name, column in self._columns.items()}

        columns = gathered_around_the_bad(attempt, gathering.chunk, gathered)
        clock.lap("read")
        return {name: batched(values) for name, values in columns.items()}


def gathered_around_the_bad(
    attempt: Attempt, chunk: Chunk, gathered: Callable[[Chunk, slice], dict[str, Any]]
) -> dict[str, Any]:
    """The columns of a step; where they cannot be gathered, the bad rows are found one by one and others taken."""
    try:
        return gathered(chunk, attempt.cut)
    except Exception as error:
        failure = error

    def row(index: int) -> dict[str, Any]:
        return gathered(chunk, slice(index, index + 1))

    attempt.filled(attempt.each(row), row)
    if not attempt.skipped:
        raise failure
    return gathered(attempt.chunk, attempt.cut)


class BySample:
    """Batches of samples that pass through the user's functions one by one."""

    def __init__(self, spec: StreamReaderSpec, columns: Mapping[str, Column]) -> None:
        self._transform, self._assembly = spec.transform, spec.assembly
        self._names = list(columns)
        self._stream = SampleStream(spec.seed)
        self._with_rng = spec.transform is not None and takes_rng(spec.transform)

    def batch(self, gathering: Gathering, attempt: Attempt, clock: Clock) -> Any:
        """One step's batch, as the collate function makes it; a single sample where there are no batches."""
        transform = self.transformer(gathering.chunk, attempt.cut)
        samples = attempted(attempt, lambda index: self.sample(gathering, index), transform, clock)
        return self._assembly.collated(samples)

    def sample(self, gathering: Gathering, index: int) -> dict[str, Any]:
        """The sample at an index of the chunk, as it was stored."""
        return gathering.sample(self._names, index)

    def transformer(self, chunk: Chunk, cut: slice) -> Callable[[int, Any], Any] | None:
        """The transform of the chunk's samples `cut`, called with a sample's index in the chunk and the sample."""
        if self._transform is None:
            return None
        transform, call, with_rng = self._transform, self._stream.call, self._with_rng
        ids, epochs, first = chunk.sample_id[cut].tolist(), chunk.epochs(cut), cut.start

        def transformed(index: int, sample: Any) -> Any:
            return call(transform, sample, epochs[index - first], ids[index - first], with_rng=with_rng)

        return transformed


def attempted(
    attempt: Attempt, read: Callable[[int], Any], transform: Callable[[int, Any], Any] | None, clock: Clock
) -> list[Any]:
    """A step's samples, read and transformed one by one, with others in place of those that fail."""
    samples = attempt.each(read)
    clock.lap("read")
    if transform is None:
        return attempt.filled(samples, read)
    first = attempt.cut.start
    transformed = attempt.each(lambda index: transform(index, samples[index - first]))
    transformed = attempt.filled(transformed, lambda index: transform(index, read(index)))
    clock.lap("transform")
    return transformed


def batched(values: npt.NDArray[Any] | list[Any]) -> Any:
    """One tensor for a fixed-width column, else a list whose arrays are tensors."""
    if isinstance(values, list):
        return [torch.from_numpy(value) if isinstance(value, np.ndarray) else value for value in values]
    return torch.from_numpy(values)
