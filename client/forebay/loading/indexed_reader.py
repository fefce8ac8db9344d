"""Reads chunks of a map-style dataset: `dataset[index]` for each sample, as torch's own loader does.

The dataset is the user's object, unchanged; in worker processes it is their copy of it. `forebay.sample_rng()` within
`__getitem__` is the sample's own generator.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import Subset

from forebay.loading.assembly import Assembly, Clock
from forebay.loading.chunk import Batch, Chunk
from forebay.sampling import SampleStream, begin_step


@dataclass(frozen=True)
class IndexedReaderSpec:
    """Makes readers of `dataset`; the chunks' rows are its indices.

    repeats: an epoch may have an index several times, each with random numbers of its own.
    """

    dataset: Any
    seed: int
    assembly: Assembly = field(default_factory=Assembly)
    repeats: bool = False

    def place(self, piece: int, row: int) -> str:
        """Where a sample lies, in words."""
        return f"index {row}"

    def reader(self, *, is_closed: Callable[[], bool] = lambda: False) -> "IndexedReader":
        """A reader for this thread; nothing that it does waits."""
        return IndexedReader(self)


class IndexedReader:
    """Turns chunks into batches of `dataset[index]`."""

    def __init__(self, spec: IndexedReaderSpec) -> None:
        self._dataset = spec.dataset
        self._assembly = spec.assembly
        self._stream = SampleStream(spec.seed)
        self._many = _reads_many(spec.dataset)
        self._repeats = spec.repeats

    def batches(self, chunk: Chunk) -> Iterator[Batch]:
        """The chunk's batches, each read when asked for."""
        clock = Clock()
        bounds = chunk.offsets.tolist()
        for end, start, stop in zip(chunk.ends, bounds[:-1], bounds[1:], strict=True):
            clock.begin()
            cut = slice(start, stop)
            begin_step(chunk.epoch, int(chunk.sample_id[start]))
            samples = self._samples(chunk, cut)
            clock.lap("read")
            batch = self._assembly.with_extras(self._assembly.collated(samples), chunk, cut)
            clock.lap("collate")
            if self._assembly.batch_transform is not None:
                batch = self._assembly.transformed(batch)
                clock.lap("transform")
            yield Batch(batch, end, stop - start, clock.take())

    def close(self) -> None:
        """The dataset is the user's."""

    def _samples(self, chunk: Chunk, cut: slice) -> list[Any]:
        indices = chunk.row[cut].tolist()
        if self._many is not None:
            samples: list[Any] = self._many(indices)
            return samples
        get, call, epoch = self._dataset.__getitem__, self._stream.call, chunk.epoch
        if not self._repeats:
            return [call(get, index, epoch, index, with_rng=False) for index in indices]
        draws = zip(indices, chunk.position[cut].tolist(), strict=True)
        return [call(get, index, epoch, index, with_rng=False, draw=position) for index, position in draws]


def _reads_many(dataset: Any) -> Callable[[list[int]], list[Any]] | None:
    """`dataset.__getitems__`, which torch prefers; not where it would only hide the single samples from us."""
    many = getattr(dataset, "__getitems__", None)
    if isinstance(dataset, Subset) and not callable(getattr(dataset.dataset, "__getitems__", None)):
        return None
    return many if callable(many) else None
