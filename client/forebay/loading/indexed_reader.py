"""Reads chunks of a map-style dataset: `dataset[index]` for each sample, as torch's own loader does.

The dataset is the user's object, unchanged; in worker processes it is their copy of it. `forebay.sample_rng()` within
`__getitem__` is the sample's own generator.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import StackDataset, Subset

from forebay.loading.assembly import Assembly, Clock
from forebay.loading.attempts import Attempt
from forebay.loading.chunk import Batch, Chunk
from forebay.sampling import SampleStream, begin_step
from forebay_core.errors import ConfigurationError


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

    def located(self) -> "IndexedReaderSpec":
        """The data is with the dataset."""
        return self

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
            begin_step(chunk.epoch, int(chunk.sample_id[start]))
            on_error = self._assembly.on_error
            attempt = Attempt(chunk, slice(start, stop), end, on_error=on_error, shard_row=_index)
            samples = self._samples(chunk, attempt)
            clock.lap("read")
            batch = self._assembly.with_extras(self._assembly.collated(samples), attempt.chunk, attempt.cut)
            clock.lap("collate")
            batch = self._assembly.transformed(batch, clock)
            yield Batch(batch, end, stop - start, clock.take(), attempt.skipped)

    def close(self) -> None:
        """The dataset is the user's."""

    def _samples(self, chunk: Chunk, attempt: Attempt) -> list[Any]:
        indices, first = chunk.row[attempt.cut].tolist(), attempt.cut.start
        get, call, epoch = self._dataset.__getitem__, self._stream.call, chunk.epoch
        positions = chunk.position[attempt.cut].tolist() if self._repeats else None

        def sample(place: int) -> Any:
            index = indices[place - first]
            draw = 0 if positions is None else positions[place - first]
            return call(get, index, epoch, index, with_rng=False, draw=draw)

        together = None if self._many is None else self._together(self._many, indices, attempt)
        return together if together is not None else attempt.filled(attempt.each(sample), sample)

    def _together(
        self, many: Callable[[list[int]], list[Any]], indices: list[int], attempt: Attempt
    ) -> list[Any] | None:
        """The samples, had by one call; None where they have to be had one by one to know which one is bad."""
        try:
            samples = many(indices)
        except Exception as error:
            if attempt.skips(error):
                return None
            attempt.note(error)
            raise
        if self._assembly.extras and len(samples) != len(indices):
            raise ConfigurationError(
                f"__getitems__ gave {len(samples)} samples for {len(indices)} indices, so "
                f"extras={self._assembly.extras!r} would not stand beside their samples: give one for each, or leave "
                f"extras out"
            )
        return samples


def _index(piece: int, row: int) -> tuple[None, int]:
    """A map-style dataset has no shards."""
    return None, row


def _reads_many(dataset: Any) -> Callable[[list[int]], list[Any]] | None:
    """`dataset.__getitems__`, which torch prefers; not where it would only hide the single samples from us."""
    many = getattr(dataset, "__getitems__", None)
    if not callable(many):
        return None
    wrapped = _wrapped(dataset)
    return many if wrapped is None or any(_reads_many(inner) is not None for inner in wrapped) else None


def _wrapped(dataset: Any) -> list[Any] | None:
    """What one of torch's own datasets passes the call on to, which has `__getitems__` whatever it wraps."""
    many = getattr(type(dataset), "__getitems__", None)
    if many is Subset.__getitems__:
        return [dataset.dataset]
    if many is StackDataset.__getitems__:
        return list(dataset.datasets.values() if isinstance(dataset.datasets, dict) else dataset.datasets)
    return None
