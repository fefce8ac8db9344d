"""Makes something `Ordered` of whatever dataset a loader is given, or says why it cannot be loaded exactly.

A `forebay` dataset has its order already: what the loader was given must agree with it. Any other dataset with a length
and `dataset[index]` gets an order of its own. `adopt` changes nothing; `settle` then sets on the dataset, which the
loader shares, what only the loader was told.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from torch.utils.data import IterableDataset

from forebay.indexed import IndexedDataset
from forebay.order.buckets import Buckets
from forebay.order.options import Shuffle
from forebay.order.steps import Tail
from forebay.ordered import Ordered, checked_batch_size
from forebay.topology import Ranks
from forebay_core.errors import ConfigurationError


class _NotGiven(int):
    """torch's default batch size, told from a 1 that was given."""

    def __repr__(self) -> str:
        return "1"


BATCH_SIZE = _NotGiven(1)


@dataclass(frozen=True)
class Wanted:
    """What a loader was told of the order; None where nothing was."""

    batch_size: int | None = BATCH_SIZE
    global_batch_size: int | None = None
    shuffle: Shuffle | bool | None = None
    sampler: Iterable[Any] | None = None
    batch_sampler: Iterable[Any] | None = None
    drop_last: bool = False
    seed: int | None = None
    tail: Tail | None = None
    ranks: Ranks = field(default_factory=Ranks)
    extras: tuple[str, ...] | None = None
    buckets: Buckets | None = None
    address: str | None = None

    def batch_size_beside(self, theirs: int | None) -> int | None:
        """The batch size of a rank; None where the global one decides, or where samples come one by one."""
        is_given = self.batch_size is not BATCH_SIZE and self.batch_size is not None
        if self.global_batch_size is not None:
            if is_given or theirs is not None:
                raise ConfigurationError("batch_size= and global_batch_size= contradict each other: give one of them")
            return None
        if not is_given:
            return theirs if theirs is not None or self.batch_size is None else 1
        checked_batch_size(self.batch_size)
        if theirs not in (None, self.batch_size):
            raise ConfigurationError(
                f"batch_size={self.batch_size} here, {theirs} in the dataset: give it in one place"
            )
        return self.batch_size

    def tail_beside(self, theirs: Tail) -> Tail:
        """The tail; `drop_last=True` is "drop"."""
        wanted = "drop" if self.drop_last else self.tail
        if self.drop_last and self.tail not in (None, "drop"):
            raise ConfigurationError(f"drop_last=True and tail={self.tail!r} contradict each other: give one of them")
        return theirs if wanted is None else wanted


def adopt(dataset: object, wanted: Wanted) -> Ordered:
    """The order of a dataset. Raises `ConfigurationError` for what cannot be."""
    if isinstance(dataset, Ordered):
        return _agreed(dataset, wanted)
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise ConfigurationError(
            f"forebay.DataLoader loads a forebay.StreamingDataset or Mixture, or a map-style dataset (__len__ and "
            f"__getitem__), not {type(dataset).__name__}: a plain iterable has no position to come back to"
        )
    return _indexed(dataset, wanted)


def settle(ordered: Ordered, wanted: Wanted) -> None:
    """Sets what only the loader was told, once nothing can be refused any more."""
    ordered.tail = wanted.tail_beside(ordered.tail)
    ordered._ranks = ordered._ranks if wanted.ranks == Ranks() else wanted.ranks
    ordered.extras = ordered.extras or wanted.extras or ()
    if wanted.address is not None:
        cast("Any", ordered).address = wanted.address


def _indexed(dataset: Any, wanted: Wanted) -> IndexedDataset:
    _refuse_samplers(wanted, "the loader shuffles and shares out by itself")
    if wanted.address is not None:
        raise ConfigurationError("address= is the daemon's, which a map-style dataset does without: leave it out")
    if wanted.shuffle not in (None, False, True, "global"):
        raise ConfigurationError(
            f"shuffle={wanted.shuffle!r} of a map-style dataset: give True (a permutation of all of it) or False"
        )
    return IndexedDataset(
        dataset,
        shuffle="global" if wanted.shuffle else False,
        seed=wanted.seed or 0,
        batch_size=wanted.batch_size_beside(None),
        tail=wanted.tail_beside("even"),
        ranks=wanted.ranks,
        extras=wanted.extras or (),
        buckets=wanted.buckets,
    )


def _agreed(dataset: Ordered, wanted: Wanted) -> Ordered:
    """The dataset, where what the loader was told agrees with it."""
    _refuse_samplers(wanted, "the dataset has an order of its own, shared out over the ranks; choose shuffle= there")
    _check_shuffle(dataset, wanted)
    if wanted.drop_last and dataset.tail == "pad":
        raise ConfigurationError("drop_last=True here, tail='pad' in the dataset: leave one of them out")
    if wanted.seed is not None:
        _same("seed", wanted.seed, getattr(dataset, "seed", None))
    if wanted.tail is not None and dataset.tail != "even":
        _same("tail", wanted.tail, dataset.tail)
    if wanted.ranks != Ranks() and dataset._ranks != Ranks():
        _same("rank and world_size", wanted.ranks, dataset._ranks)
    if wanted.extras is not None and dataset.extras:
        _same("extras", wanted.extras, dataset.extras)
    if wanted.buckets is not None and wanted.buckets is not getattr(dataset, "buckets", None):
        raise ConfigurationError("buckets= here is for a map-style dataset: give it to the StreamingDataset instead")
    _address(dataset, wanted.address)
    wanted.batch_size_beside(dataset.batch_size)
    wanted.tail_beside(dataset.tail)
    return dataset


def _same(name: str, here: object, theirs: object) -> None:
    if here != theirs:
        raise ConfigurationError(f"{name}={here!r} here, {theirs!r} in the dataset: give it in one place")


def _address(dataset: Ordered, address: str | None) -> None:
    theirs = getattr(dataset, "address", None)
    if address is None or address == theirs:
        return
    if theirs is not None or getattr(dataset, "_stream", None) is not None:
        raise ConfigurationError(
            f"address={address!r} here, {theirs!r} in the StreamingDataset, or it is open already: give it there"
        )


def _check_shuffle(dataset: Ordered, wanted: Wanted) -> None:
    theirs: Shuffle | Literal[True] = getattr(dataset, "shuffle", True)
    if wanted.shuffle is not None and bool(wanted.shuffle) != bool(theirs):
        raise ConfigurationError(
            f"shuffle={wanted.shuffle} here, shuffle={theirs!r} in the StreamingDataset: give it in the dataset"
        )


def _refuse_samplers(wanted: Wanted, why: str) -> None:
    if wanted.sampler is not None or wanted.batch_sampler is not None:
        raise ConfigurationError(f"sampler= and batch_sampler= cannot be kept: {why}; leave them out")
