"""Reads chunks: maps local files, gathers rows, transforms and collates. Stateless but for its open mappings.

Two paths. Where no Python has to run per sample (no transform, no collate function) a chunk's rows are gathered column
by column into one array for all its steps, of which each batch is a slice. Else samples are dicts that pass through the
transform one by one. What a batch contains follows from the chunk alone; what is random in a transform follows from
(seed, epoch, sample id).

Each reader thread or worker process owns one `Reader`; it is made there, from a picklable `ReaderSpec`.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import default_collate

from forebay.keys import EXTRAS, IS_PAD, POSITION, SAMPLE_ID
from forebay.loading.chunk import Batch, Chunk, Failed, Lost
from forebay.loading.open_pieces import OpenPiece, OpenPieces, StillFilling
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
    """Collects the stages of one chunk."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self._at = time.monotonic()

    def lap(self, name: StageName) -> None:
        """What ran since the last lap was this stage."""
        now = time.monotonic()
        self.stages.append(Stage(name, self._at, now))
        self._at = now


class Reader:
    """Turns chunks into batches. Not for several threads at once."""

    def __init__(self, spec: ReaderSpec) -> None:
        self._spec = spec
        manifest = Manifest.open(spec.manifest_path)
        self._columns: Mapping[str, Column] = manifest.columns(list(spec.columns))
        self._names = list(self._columns)
        self._pieces = OpenPieces(manifest, spec.columns, wait_seconds=spec.wait_seconds)
        self._stream = SampleStream(spec.seed)
        self._with_rng = spec.transform is not None and takes_rng(spec.transform)

    def read(self, chunk: Chunk) -> list[Batch] | Lost | Failed:
        """The chunk's batches, step after step; forebay's own errors come back as values, so that they cross processes.

        An error that a transform raises is the user's and passes through as it is.
        """
        try:
            return self._read(chunk)
        except PieceGone as error:
            self._pieces.discard(file.piece for file in chunk.files)
            return Lost(chunk, str(error), gone=not isinstance(error, StillFilling))
        except ForebayError as error:
            return Failed(type(error).__name__, str(error))

    def close(self) -> None:
        """Unmaps everything."""
        self._pieces.close()

    def _read(self, chunk: Chunk) -> list[Batch]:
        clock = Clock()
        self._pieces.pass_by(chunk.begin)
        opened = self._open(chunk, clock)
        data = self._columnar(chunk, opened, clock) if self._spec.columnar else self._by_sample(chunk, opened, clock)
        self._pieces.pass_by(chunk.end)
        sizes = np.diff(chunk.offsets).tolist()
        stages = tuple(clock.stages)
        return [Batch(*fields, stages) for fields in zip(data, chunk.ends, sizes, strict=True)]

    def _open(self, chunk: Chunk, clock: Clock) -> dict[int, OpenPiece]:
        opened = {}
        for file in chunk.files:
            piece = self._pieces.get(file)
            if piece is None:
                piece = self._pieces.open(file)
                clock.lap("remote_wait" if not file.inode else "read")
            opened[file.piece] = piece
        return opened

    def _columnar(self, chunk: Chunk, opened: Mapping[int, OpenPiece], clock: Clock) -> list[Any]:
        runs = _runs(chunk.piece)
        gathered = {name: self._gather(name, chunk, opened, runs) for name in self._names}
        clock.lap("read")
        cuts = [slice(*cut) for cut in zip(chunk.offsets[:-1].tolist(), chunk.offsets[1:].tolist(), strict=True)]
        batches = [self._slice(gathered, chunk, cut) for cut in cuts]
        clock.lap("collate")
        return batches

    def _gather(
        self, name: str, chunk: Chunk, opened: Mapping[int, OpenPiece], runs: list[tuple[int, int, int]]
    ) -> npt.NDArray[Any] | list[Any]:
        column = self._columns[name]
        if column.dtype is None:
            values: list[Any] = []
            for piece, start, stop in runs:
                values += opened[piece].reader.values(name, chunk.row[start:stop])
            return values
        out = np.empty((len(chunk.row), *column.shape), dtype=column.dtype)
        for piece, start, stop in runs:
            opened[piece].reader.take(name, chunk.row[start:stop], out[start:stop])
        return out

    def _slice(self, gathered: Mapping[str, Any], chunk: Chunk, cut: slice) -> dict[str, Any]:
        batch = {name: _batched(values[cut]) for name, values in gathered.items()}
        batch.update(self._extras(chunk, cut))
        return batch

    def _by_sample(self, chunk: Chunk, opened: Mapping[int, OpenPiece], clock: Clock) -> list[Any]:
        batches = []
        for start, stop in zip(chunk.offsets[:-1].tolist(), chunk.offsets[1:].tolist(), strict=True):
            samples = self._samples(chunk, opened, start, stop)
            clock.lap("read")
            if self._spec.transform is not None:
                samples = self._transformed(chunk, samples, start)
                clock.lap("transform")
            batches.append(self._collated(chunk, samples, slice(start, stop)))
            clock.lap("collate")
        return batches

    def _samples(self, chunk: Chunk, opened: Mapping[int, OpenPiece], start: int, stop: int) -> list[Any]:
        places = zip(chunk.piece[start:stop].tolist(), chunk.row[start:stop].tolist(), strict=True)
        return [opened[piece].reader.sample(row, self._names) for piece, row in places]

    def _transformed(self, chunk: Chunk, samples: list[Any], start: int) -> list[Any]:
        transform, call = self._spec.transform, self._stream.call
        assert transform is not None
        ids = chunk.sample_id[start : start + len(samples)].tolist()
        return [
            call(transform, sample, chunk.epoch, sample_id, with_rng=self._with_rng)
            for sample, sample_id in zip(samples, ids, strict=True)
        ]

    def _collated(self, chunk: Chunk, samples: list[Any], cut: slice) -> Any:
        if not self._spec.batched:
            batch: Any = samples[0]
        elif self._spec.collate_fn is not None:
            batch = self._spec.collate_fn(samples)
        else:
            batch = default_collate(samples)
        if not self._spec.extras:
            return batch
        if not isinstance(batch, dict):
            raise ConfigurationError(
                f"extras={self._spec.extras!r} need a batch that is a dict, but the transform or collate_fn gives "
                f"{type(batch).__name__}: return a dict, or leave extras out"
            )
        extras = self._extras(chunk, cut)
        return {**batch, **(extras if self._spec.batched else {name: value[0] for name, value in extras.items()})}

    def _extras(self, chunk: Chunk, cut: slice) -> dict[str, torch.Tensor]:
        columns = {SAMPLE_ID: chunk.sample_id, POSITION: chunk.position, IS_PAD: chunk.is_pad}
        return {name: torch.from_numpy(columns[name][cut]) for name in self._spec.extras}


def _runs(piece: npt.NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """(piece, start, stop) of each stretch of equal pieces."""
    if len(piece) == 0:
        return []
    starts = np.concatenate(([0], np.flatnonzero(np.diff(piece)) + 1))
    stops = np.append(starts[1:], len(piece))
    return list(zip(piece[starts].tolist(), starts.tolist(), stops.tolist(), strict=True))


def _batched(values: npt.NDArray[Any] | list[Any]) -> Any:
    """One tensor for a fixed-width column, else a list whose arrays are tensors."""
    if isinstance(values, list):
        return [torch.from_numpy(value) if isinstance(value, np.ndarray) else value for value in values]
    return torch.from_numpy(values)
