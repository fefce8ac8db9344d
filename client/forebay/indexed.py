"""A map-style dataset in an exact order: what a loader makes of any `dataset[index]` that it is given.

The dataset is the user's object, unchanged; its rows are had by index, so no daemon takes part. What binds a state to
it is its length alone: nothing more can be known of an object that only answers `len` and indices.
"""

from typing import Any, Literal

import numpy as np

from forebay.loading.assembly import Assembly
from forebay.loading.engine import Feed
from forebay.loading.indexed_reader import IndexedReaderSpec
from forebay.loading.leases import NoLeases
from forebay.loading.lookahead import Depth
from forebay.order import Buckets, Order, RankOrder, Split, shared, spec_of
from forebay.order.steps import Tail
from forebay.ordered import Ordered, checked_buckets
from forebay.progress import Identity, SavedState
from forebay.samplers import SamplerEpochs
from forebay.topology import Ranks
from forebay_core.errors import ConfigurationError

_CHUNK_STEPS = 256
"""Steps are planned together and read one by one, each when the trainer asks for it. So many take a fast trainer longer
than the planner's thread needs to get its turn."""
_CHUNK_SAMPLES = 1 << 14


class IndexedDataset(Ordered):
    """`dataset[index]` for the indices [0, len(dataset)): each exactly once an epoch over all ranks.

    The trainer's own thread reads, as with torch's loader without workers: a dataset may hold what belongs to one
    thread, and may draw from the process's random generators. `epochs` is the sampler on which scripts set the epoch.
    """

    reads_ahead = False
    _repeats = False
    """Whether an epoch may have an index several times."""
    _ends_with_epoch = False
    """Whether the next epoch is only known when it is begun."""

    def __init__(
        self,
        dataset: Any,
        *,
        shuffle: Literal["global", False],
        seed: int,
        batch_size: int | None,
        tail: Tail,
        ranks: Ranks,
        extras: tuple[str, ...] = (),
        epochs: SamplerEpochs | None = None,
        buckets: Buckets | None = None,
    ) -> None:
        super().__init__(batch_size=batch_size, tail=tail, ranks=ranks, extras=extras)
        self.dataset = dataset
        self._epochs = epochs or SamplerEpochs()
        self.shuffle: Literal["global", False] = shuffle
        self.seed = seed
        self.buckets = checked_buckets(buckets)
        self._latest: Order | None = None
        self._begun: Order | None = None
        Order.of_indices(0, seed=seed, shuffle=shuffle)
        self._progress.set_epoch(self._epochs.chosen)

    @property
    def samples(self) -> int:
        """The dataset's length."""
        return self._ordered().samples

    def describe(self) -> dict[str, Any]:
        """`{"epoch", "position", "samples", "index"}`: the index that is read next, None at the end of the epoch."""
        order = self._ordered()
        plan = shared(order, self.buckets, self.seed, Split(1, 1), 0).plan(self.epoch, self.position, 1)
        index = int(plan.sample_id[0]) if plan.steps else None
        return {"epoch": self.epoch, "position": self.position, "samples": order.samples, "index": index}

    def _prepare(self, split: Split, *, runs_on: bool) -> None:
        self._epochs.follow(self.set_epoch)
        _, position = self._progress.upcoming(runs_on=runs_on)
        if position == 0:
            self._begun = None

    def _accept(self, saved: SavedState, *, strict: bool) -> None:
        begun, self._begun = self._begun, None
        try:
            super()._accept(saved, strict=strict)
        except BaseException:
            self._begun = begun
            raise

    def _ordered(self) -> Order:
        """The order that the position is of: of as many indices as the dataset has now, or had as the epoch began."""
        if self._begun is None:
            self._begun = self._of_now()
        return self._begun if self.position else self._of_now()

    def _of_now(self) -> Order:
        length = _length(self.dataset)
        if self._latest is None or self._latest.samples != length:
            if self.buckets is not None:
                self.buckets.check(length)
            self._latest = Order.of_indices(length, seed=self.seed, shuffle=self.shuffle)
        return self._latest

    def _identity(self) -> Identity:
        order = self._ordered()
        return Identity("indices", order.samples, {**spec_of(order, self.buckets), "tail": self.tail})

    def _rank_order(self, split: Split) -> RankOrder:
        """What this rank reads."""
        return shared(self._ordered(), self.buckets, self.seed, split, self._topology().rank)

    def _feed(self, split: Split) -> Feed:
        no_pieces = np.zeros(0, dtype=np.int64)
        return Feed(self._rank_order(split), NoLeases, no_pieces, ends_with_epoch=self._ends_with_epoch)

    def _depth(self, split: Split) -> Depth:
        chunk_steps = max(1, min(_CHUNK_STEPS, _CHUNK_SAMPLES * split.world_size // split.global_batch))
        return Depth(steps=2 * chunk_steps, chunk_steps=chunk_steps)

    def _reader_spec(self, assembly: Assembly) -> IndexedReaderSpec:
        return IndexedReaderSpec(self.dataset, self.seed, assembly, self._repeats)


def _length(dataset: Any) -> int:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError, OverflowError) as error:
        raise ConfigurationError(
            f"{type(dataset).__name__} has no length ({error}): an exact order needs one; define __len__"
        ) from error
