"""Reading the samples of a step one by one, so that what fails is known by its sample, and what becomes of it then.

`"raise"`: the exception passes as it is, with a note that says which sample it was. `"skip"`: the sample is replaced by
the next good one of its batch, cyclically, which is read once more, so that no two places of a batch share an object.
Which one that is follows from the batch and from what fails in it alone. The replacement is a pad: it is handed out
twice, so it carries its own id and position and is marked `IS_PAD`.

Not an error of a sample, and so never skipped: what forebay says of its options, its daemon or its source, and memory
that has run out. A `BadObject` is one: rows that a reader cannot decode are said so. Used by the thread that reads.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch

from forebay.loading.chunk import Chunk, Closed, StepEnd, StillFilling
from forebay.skipping import SamplePlace, SkippedSample
from forebay_core.errors import BadObject, ForebayError, SampleError

OnError = Literal["raise", "skip"]
ShardRow = Callable[[int, int], tuple[str | None, int]]


class Attempt:
    """One step of a chunk, while its samples are read. Samples go by their index in the chunk, those in `cut`."""

    __slots__ = ("_chunk", "_end", "_failed", "_shard_row", "_skips", "_standing", "cut")

    def __init__(self, chunk: Chunk, cut: slice, end: StepEnd, *, on_error: OnError, shard_row: ShardRow) -> None:
        self._chunk, self.cut, self._end = chunk, cut, end
        self._skips = on_error == "skip"
        self._shard_row = shard_row
        self._failed: dict[int, Exception] = {}
        self._standing: dict[int, int] = {}

    def each(self, act: Callable[[int], Any]) -> list[Any]:
        """`act` of every sample that has not failed yet, None for the others. Raises what may not be skipped."""
        values: list[Any] = []
        rest = iter(range(self.cut.start, self.cut.stop))
        index = self.cut.start
        while True:
            try:
                for index in rest:
                    values.append(None if index in self._failed else act(index))
                return values
            except Exception as error:
                if not self.skips(error):
                    _note(error, f"while reading {self._place(index)}")
                    raise
                self._failed[index] = error
                values.append(None)

    def skips(self, error: Exception) -> bool:
        """Whether it is an error of a sample, and such are skipped."""
        return self._skips and _is_of_a_sample(error)

    def filled(self, values: list[Any], again: Callable[[int], Any]) -> list[Any]:
        """The values of `each`, with those of other samples in place of what failed, had by `again`.

        Raises `SampleError` where none is good.
        """
        for index in self._failed:
            values[index - self.cut.start] = self._replacement(index, again)
        return values

    @property
    def chunk(self) -> Chunk:
        """The chunk as it is handed out: in the place of each sample that failed stands another."""
        if not self._standing:
            return self._chunk
        chunk = self._chunk
        index = np.arange(len(chunk.sample_id))
        index[list(self._standing)] = list(self._standing.values())
        is_pad = chunk.is_pad[index]
        is_pad[list(self._standing)] = True
        return replace(
            chunk,
            sample_id=chunk.sample_id[index],
            piece=chunk.piece[index],
            row=chunk.row[index],
            position=chunk.position[index],
            is_pad=is_pad,
            source=None if chunk.source is None else chunk.source[index],
            source_epoch=None if chunk.source_epoch is None else chunk.source_epoch[index],
        )

    @property
    def skipped(self) -> tuple[SkippedSample, ...]:
        """What failed, in the batch's order."""
        return tuple(self._record(index) for index in sorted(self._failed)) if self._failed else ()

    def note(self, error: Exception) -> None:
        """Notes on an error that befell all samples together which ones they were."""
        ids = self._chunk.sample_id[self.cut].tolist()
        more = ", …" if len(ids) > 8 else ""
        _note(
            error,
            f"while reading {len(ids)} samples together ({', '.join(map(str, ids[:8]))}{more}; "
            f"epoch {self._chunk.epoch}, step {self._end.step})",
        )

    def _replacement(self, index: int, again: Callable[[int], Any]) -> Any:
        for other in self._others(index):
            try:
                value = again(other)
            except Exception as error:
                if not self.skips(error):
                    _note(error, f"while reading {self._place(other)}")
                    raise
                continue
            self._standing[index] = other
            return value
        first = next(iter(self._failed))
        raise SampleError(
            f"not one of the {self.cut.stop - self.cut.start} samples of epoch {self._chunk.epoch}, step "
            f"{self._end.step} could be read, and on_error='skip' puts another of the same batch in a sample's place: "
            f"repair the data or the transform, or give larger batches; the first was {self._record(first)}"
        ) from self._failed[first]

    def _others(self, index: int) -> Iterator[int]:
        """The samples that were good at first, from the one after `index` on."""
        cut = self.cut
        return (other for other in [*range(index + 1, cut.stop), *range(cut.start, index)] if other not in self._failed)

    def _record(self, index: int) -> SkippedSample:
        return SkippedSample.of(self._place(index), self._end.step, self._failed[index])

    def _place(self, index: int) -> SamplePlace:
        chunk = self._chunk
        shard, row = self._shard_row(int(chunk.piece[index]), int(chunk.row[index]))
        (epoch,) = chunk.epochs(slice(index, index + 1))
        return SamplePlace(epoch, int(chunk.position[index]), int(chunk.sample_id[index]), shard, row)


def _is_of_a_sample(error: Exception) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError | Closed | StillFilling):
        return False
    return isinstance(error, BadObject) or not isinstance(error, ForebayError)


def _note(error: Exception, note: str) -> None:
    """Once: some code raises the same object again and again."""
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)
