"""Reads chunks of a mixture: the rows of each source by its own reader, put together in the order of the step.

A chunk is cut into one for each source, in the source's own numbering of pieces; files, random numbers and transforms
are those of the source. Where no Python runs per sample, the columns of all sources agree (`agreed_columns`) and a step
is put together column by column.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from forebay.loading.assembly import Assembly, Clock
from forebay.loading.attempts import Attempt
from forebay.loading.chunk import Batch, Chunk, Int64
from forebay.loading.stream_reader import (
    BySample,
    Gathering,
    StreamFiles,
    StreamReaderSpec,
    attempted,
    batched,
    gathered_around_the_bad,
)
from forebay.order.mixture_plan import sources_of
from forebay.sampling import begin_step
from forebay_core.errors import ConfigurationError, PieceGone
from forebay_core.formats.base import Column


@dataclass(frozen=True)
class MixtureReaderSpec:
    """Makes readers of `sources`, whose pieces are numbered from `first_pieces[i]` on in a chunk of the mixture."""

    sources: tuple[StreamReaderSpec, ...]
    first_pieces: tuple[int, ...]
    seed: int
    assembly: Assembly = field(default_factory=Assembly)

    @property
    def columnar(self) -> bool:
        """True where no Python runs per sample."""
        per_sample = any(source.transform is not None for source in self.sources)
        return not per_sample and self.assembly.collate_fn is None and self.assembly.batched

    def place(self, piece: int, row: int) -> str:
        """Where a sample lies, in words: its number among the rows of its shard."""
        source = int(sources_of(self.first_pieces, piece))
        return self.sources[source].place(piece - self.first_pieces[source], row)

    def located(self) -> "MixtureReaderSpec":
        """With the manifests where they are by now, fit for other processes."""
        return replace(self, sources=tuple(source.located() for source in self.sources))

    def reader(self, *, is_closed: Callable[[], bool] = lambda: False) -> "MixtureReader":
        """A reader for this thread; `is_closed` ends its waits for pieces."""
        return MixtureReader(self, is_closed=is_closed)


class _Portion(NamedTuple):
    """One source's part of a chunk: its rows, and which of the chunk's samples they are, ascending."""

    source: int
    gathering: Gathering
    places: Int64

    def cut(self, of_chunk: slice) -> tuple[slice, Int64]:
        """This source's part of some of the chunk's samples: its own cut, and where in the cut they go."""
        start, stop = np.searchsorted(self.places, (of_chunk.start, of_chunk.stop)).tolist()
        return slice(start, stop), self.places[start:stop] - of_chunk.start

    def place_of(self, of_chunk: int) -> int:
        """The index in this part of a sample of the chunk."""
        return int(np.searchsorted(self.places, of_chunk))


class MixtureReader:
    """Turns chunks into batches. Not for several threads at once."""

    def __init__(self, spec: MixtureReaderSpec, *, is_closed: Callable[[], bool] = lambda: False) -> None:
        self._spec, self._assembly = spec, spec.assembly
        self._files = [StreamFiles(source, is_closed=is_closed) for source in spec.sources]
        self._columns = self._files[0].columns if spec.columnar else None
        self._by_sample = [
            BySample(source, files.columns) for source, files in zip(spec.sources, self._files, strict=True)
        ]

    def batches(self, chunk: Chunk) -> Iterator[Batch]:
        """The chunk's batches, each read when asked for. `PieceGone` and `StillFilling` only come before the first."""
        clock = Clock()
        portions = self._open(chunk, clock)
        bounds = chunk.offsets.tolist()
        for end, start, stop in zip(chunk.ends, bounds[:-1], bounds[1:], strict=True):
            clock.begin()
            begin_step(chunk.epochs(slice(start, start + 1))[0], int(chunk.sample_id[start]))
            attempt = Attempt(
                chunk, slice(start, stop), end, on_error=self._assembly.on_error, shard_row=self._shard_row
            )
            data = self._batch(portions, attempt, chunk, clock)
            for portion in portions:
                self._files[portion.source].check_in_place()
                if end is chunk.ends[-1]:
                    self._files[portion.source].finish(portion.gathering, chunk)
            yield Batch(data, end, stop - start, clock.take(), attempt.skipped)

    def close(self) -> None:
        """Unmaps everything."""
        for files in self._files:
            files.close()

    def _open(self, chunk: Chunk, clock: Clock) -> list[_Portion]:
        cut = list(self._cut(chunk))
        portions = []
        try:
            for source, part, index in cut:
                portions.append(_Portion(source, self._files[source].gathering(part, clock), index))
        except PieceGone:
            for source, part, _ in cut:
                self._files[source].forget(part)
            raise
        return portions

    def _cut(self, chunk: Chunk) -> Iterator[tuple[int, Chunk, Int64]]:
        """The chunk of each source that has samples in it; the files of the others are passed by."""
        assert chunk.source is not None
        assert chunk.source_epoch is not None
        file_source = sources_of(self._spec.first_pieces, [file.piece for file in chunk.files])
        for source, first_piece in enumerate(self._spec.first_pieces):
            index = np.flatnonzero(chunk.source == source)
            if len(index) == 0:
                self._files[source].rest(chunk)
                continue
            files = [file for file, owner in zip(chunk.files, file_source, strict=True) if owner == source]
            part = replace(
                chunk,
                offsets=np.searchsorted(index, chunk.offsets),
                sample_id=chunk.sample_id[index],
                piece=chunk.piece[index] - first_piece,
                row=chunk.row[index],
                position=chunk.position[index],
                is_pad=chunk.is_pad[index],
                files=tuple(file._replace(piece=file.piece - first_piece) for file in files),
                source=chunk.source[index],
                source_epoch=chunk.source_epoch[index],
            )
            yield source, part, index

    def _shard_row(self, piece: int, row: int) -> tuple[str, int]:
        source = int(sources_of(self._spec.first_pieces, piece))
        return self._files[source].shard_row(piece - self._spec.first_pieces[source], row)

    def _batch(self, portions: Sequence[_Portion], attempt: Attempt, chunk: Chunk, clock: Clock) -> Any:
        if self._columns is not None:
            batch: Any = self._columnar(portions, attempt, chunk, self._columns)
            clock.lap("read")
        else:
            batch = self._assembly.collated(self._samples(portions, attempt, chunk, clock))
        batch = self._assembly.with_extras(batch, attempt.chunk, attempt.cut)
        clock.lap("collate")
        return self._assembly.transformed(batch, clock)

    def _columnar(
        self, portions: Sequence[_Portion], attempt: Attempt, chunk: Chunk, columns: Mapping[str, Column]
    ) -> dict[str, Any]:
        def gathered(of: Chunk, cut: slice) -> dict[str, Any]:
            return _put_together(portions if of is chunk else self._cut_again(portions, of), columns, cut)

        whole = gathered_around_the_bad(attempt, chunk, gathered)
        return {name: batched(values) for name, values in whole.items()}

    def _cut_again(self, portions: Sequence[_Portion], chunk: Chunk) -> list[_Portion]:
        """The parts of a chunk that has others of the same chunk's samples in some places."""
        opened = {portion.source: portion.gathering for portion in portions}
        return [_Portion(source, opened[source].of(part), index) for source, part, index in self._cut(chunk)]

    def _samples(self, portions: Sequence[_Portion], attempt: Attempt, chunk: Chunk, clock: Clock) -> list[Any]:
        assert chunk.source is not None
        portion_of = {portion.source: portion for portion in portions}
        source_of, first = chunk.source[attempt.cut].tolist(), attempt.cut.start
        transforms = {
            portion.source: self._by_sample[portion.source].transformer(
                portion.gathering.chunk, portion.cut(attempt.cut)[0]
            )
            for portion in portions
        }

        def read(index: int) -> Any:
            portion = portion_of[source_of[index - first]]
            return self._by_sample[portion.source].sample(portion.gathering, portion.place_of(index))

        def transformed(index: int, sample: Any) -> Any:
            source = source_of[index - first]
            transform = transforms[source]
            return sample if transform is None else transform(portion_of[source].place_of(index), sample)

        has_any = any(transform is not None for transform in transforms.values())
        return attempted(attempt, read, transformed if has_any else None, clock)


def _put_together(portions: Sequence[_Portion], columns: Mapping[str, Column], cut: slice) -> dict[str, Any]:
    """One step's columns, by name: arrays and lists."""
    cuts = [(portion.gathering, *portion.cut(cut)) for portion in portions]
    whole: dict[str, Any] = {}
    for name, column in columns.items():
        size = cut.stop - cut.start
        values: Any = [None] * size if column.dtype is None else np.empty((size, *column.shape), column.dtype)
        for gathering, mine, places in cuts:
            found = gathering.column(column, mine)
            if column.dtype is not None:
                values[places] = found
                continue
            for place, value in zip(places.tolist(), found, strict=True):
                values[place] = value
        whole[name] = values
    return whole


def agreed_columns(sources: Mapping[str, Mapping[str, Column]]) -> None:
    """Raises `ConfigurationError`, naming sources and column, where batches of these columns cannot be put together."""
    names = list(sources)
    for name in names[1:]:
        first, other = sources[names[0]], sources[name]
        for column in (*first, *(extra for extra in other if extra not in first)):
            here, there = (_said(columns.get(column)) for columns in (first, other))
            if here != there:
                raise ConfigurationError(
                    f"the sources of a mixture have columns that do not fit into one batch: {column!r} is {here} in "
                    f"{names[0]!r} and {there} in {name!r}: choose columns= that all have, or give each a transform "
                    f"that makes its samples alike, or the loader a collate_fn"
                )


def _said(column: Column | None) -> str:
    if column is None:
        return "missing"
    if column.dtype is None:
        return "a list of values"
    return f"{column.dtype}[{', '.join(map(str, ('n', *column.shape)))}]"
