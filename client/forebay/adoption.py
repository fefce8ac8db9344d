"""Makes something `Ordered` of whatever dataset a loader is given, or says why it cannot be loaded exactly.

A `forebay` dataset has its order already: what the loader was given must agree with it. Any other dataset with
`dataset[index]` gets an order of its own, or the one that its sampler comes to. An iterable that keeps its own position
is delegated to. `adopt` changes nothing; `settle` then sets on the dataset, which the loader shares, what only the
loader was told.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch.utils.data import IterableDataset

from forebay.daemon.choice import DaemonChoice
from forebay.delegated import DelegatedDataset, is_stateful
from forebay.indexed import IndexedDataset
from forebay.listed import ListedDataset, SampledDataset
from forebay.order.buckets import Buckets
from forebay.order.options import Shuffle
from forebay.order.steps import Tail
from forebay.ordered import Ordered, checked_batch_size
from forebay.samplers import Drawn, Picked, Replicas, SamplerEpochs, pick, unpacked
from forebay.topology import Ranks, Topology
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
    daemon: DaemonChoice = field(default_factory=DaemonChoice)
    processes: int = 0
    runs_on: bool = False

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


def adopt(dataset: object, wanted: Wanted) -> Ordered | DelegatedDataset:
    """The order of a dataset, or its own. Raises `ConfigurationError` for what cannot be."""
    if isinstance(dataset, Ordered):
        return _agreed(dataset, wanted)
    if not isinstance(dataset, IterableDataset) and hasattr(dataset, "__getitem__"):
        return _indexed(dataset, wanted)
    if hasattr(dataset, "__iter__") and is_stateful(dataset):
        return _delegated(dataset, wanted)
    raise ConfigurationError(
        f"forebay.DataLoader loads a forebay.StreamingDataset or Mixture, a map-style dataset (__len__ and "
        f"__getitem__) or an iterable that can say and take its own position (state_dict and load_state_dict, as "
        f"torchdata has them): {type(dataset).__name__} is none of them and has no position to come back to; define "
        f"these two methods"
    )


def settle(ordered: Ordered | DelegatedDataset, wanted: Wanted) -> None:
    """Sets what only the loader was told, once nothing can be refused any more."""
    if isinstance(ordered, DelegatedDataset):
        return
    ordered.tail = wanted.tail_beside(ordered.tail)
    ordered._ranks = ordered._ranks if wanted.ranks == Ranks() else wanted.ranks
    ordered.extras = ordered.extras or wanted.extras or ()
    ordered.daemon = ordered.daemon.or_else(wanted.daemon)


def _delegated(dataset: Any, wanted: Wanted) -> DelegatedDataset:
    """A dataset with an order of its own can be told nothing of it."""
    told = {
        "shuffle": bool(wanted.shuffle),
        "sampler": wanted.sampler is not None,
        "batch_sampler": wanted.batch_sampler is not None,
        "seed": wanted.seed is not None,
        "tail": wanted.tail not in (None, "even"),
        "rank, world_size, device_mesh or process_group": wanted.ranks != Ranks(),
        "extras": bool(wanted.extras),
        "global_batch_size": wanted.global_batch_size is not None,
        **dict.fromkeys(wanted.daemon.said(), True),
        "steps or repeat": wanted.runs_on,
    }
    unfit = [name for name, is_told in told.items() if is_told]
    if unfit:
        raise ConfigurationError(
            f"{', '.join(unfit)}: {type(dataset).__name__} keeps its own order and position and shares itself out, so "
            f"the loader cannot; leave it out, and tell the dataset"
        )
    return DelegatedDataset(
        dataset, batch_size=wanted.batch_size_beside(None), drop_last=wanted.drop_last, processes=wanted.processes
    )


def _indexed(dataset: Any, wanted: Wanted) -> IndexedDataset:
    for option in wanted.daemon.said():
        raise ConfigurationError(f"{option}= is the daemon's, which a map-style dataset does without: leave it out")
    if wanted.shuffle not in (None, False, True, "global"):
        raise ConfigurationError(
            f"shuffle={wanted.shuffle!r} of a map-style dataset: give True (a permutation of all of it) or False"
        )
    epochs = SamplerEpochs(*(given for given in (wanted.sampler, wanted.batch_sampler) if given is not None))
    picked, wanted = _picked(dataset, wanted)
    options: dict[str, Any] = {
        "seed": wanted.seed or 0,
        "batch_size": wanted.batch_size_beside(None),
        "tail": wanted.tail_beside("even"),
        "ranks": wanted.ranks,
        "extras": wanted.extras or (),
        "epochs": epochs,
    }
    if wanted.buckets is not None and (picked.drawn is not None or picked.indices is not None):
        raise ConfigurationError("buckets= group the samples that a sampler= would list: leave one of them out")
    if picked.drawn is not None:
        return SampledDataset(dataset, picked.drawn, **options)
    if picked.indices is not None:
        return ListedDataset(dataset, picked.indices, shuffle=picked.shuffle, **options)
    return IndexedDataset(dataset, shuffle=picked.shuffle, buckets=wanted.buckets, **options)


def _picked(dataset: Any, wanted: Wanted) -> tuple[Picked, Wanted]:
    """What the sampler, or `shuffle`, comes to, and what else is wanted once the sampler has had its say."""
    _check_samplers(wanted)
    if wanted.batch_sampler is not None:
        parts = unpacked(wanted.batch_sampler)
        if parts is None:
            return _own_batches(wanted), replace(wanted, batch_sampler=None)
        sampler, batch_size, drop_last = parts
        wanted = replace(wanted, sampler=sampler, batch_sampler=None, batch_size=batch_size, drop_last=drop_last)
    if wanted.sampler is None:
        return Picked("global" if wanted.shuffle else False), wanted
    picked = pick(wanted.sampler, dataset)
    if picked.replicas is not None:
        wanted = _replicated(wanted, picked.replicas)
    elif picked.drawn is not None and not picked.drawn.is_shared:
        _refuse_sharing(wanted, picked.drawn)
    return picked, wanted


def _check_samplers(wanted: Wanted) -> None:
    """What torch refuses, in its words."""
    if wanted.sampler is not None and wanted.shuffle:
        raise ConfigurationError("sampler option is mutually exclusive with shuffle")
    if wanted.batch_sampler is None:
        return
    if wanted.batch_size != 1 or wanted.shuffle or wanted.sampler is not None or wanted.drop_last:
        raise ConfigurationError(
            "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last"
        )


def _own_batches(wanted: Wanted) -> Picked:
    drawn = Drawn(wanted.batch_sampler, in_batches=True)
    _refuse_sharing(wanted, drawn)
    if wanted.tail is not None and wanted.tail != "even":
        raise ConfigurationError(f"tail={wanted.tail!r}: the batches are those of {drawn.name}; leave tail= out")
    return Picked(drawn=drawn)


def _refuse_sharing(wanted: Wanted, drawn: Drawn) -> None:
    given = "global_batch_size=" if wanted.global_batch_size is not None else "rank= and world_size="
    if wanted.global_batch_size is not None or wanted.ranks != Ranks():
        raise ConfigurationError(
            f"{given}: the list of {drawn.name} is this rank's own, as torch has it, and not shared out; leave "
            f"{given} out, and let the sampler give each rank its part"
        )


def _replicated(wanted: Wanted, replicas: Replicas) -> Wanted:
    """With what a `DistributedSampler` says; `ConfigurationError` where the loader was told otherwise."""
    here = Topology(replicas.rank, replicas.world_size)
    if wanted.ranks == Ranks():
        wanted = replace(wanted, ranks=Ranks(here.rank, here.world_size))
    elif wanted.ranks.resolve({}) != here:
        raise ConfigurationError(
            f"rank {here.rank} of {here.world_size} in the sampler, {wanted.ranks.resolve({})} here: give it in one "
            f"place"
        )
    if wanted.seed is None:
        wanted = replace(wanted, seed=replicas.seed)
    elif replicas.seed not in (wanted.seed, *_seeds_that_nobody_chose(os.environ)):
        raise ConfigurationError(f"seed={wanted.seed} here, {replicas.seed} in the sampler: give it in one place")
    return replace(wanted, drop_last=wanted.drop_last or replicas.drop_last)


def _seeds_that_nobody_chose(environment: Mapping[str, str]) -> set[int]:
    """torch's default, and the one that Lightning gives the samplers that it puts into a user's loader."""
    given = environment.get("PL_GLOBAL_SEED", "")
    return {0, int(given)} if given.isdecimal() else {0}


def _agreed(dataset: Ordered, wanted: Wanted) -> Ordered:
    """The dataset, where what the loader was told agrees with it."""
    _refuse_samplers(wanted, "the dataset has an order of its own, shared out over the ranks; choose shuffle= there")
    _check_shuffle(dataset, wanted)
    if wanted.drop_last and dataset.tail == "pad":
        raise ConfigurationError("drop_last=True here, tail='pad' in the dataset: leave one of them out")
    if wanted.seed is not None:
        _same("seed", wanted.seed, dataset.seed)
    if wanted.tail is not None and dataset.tail != "even":
        _same("tail", wanted.tail, dataset.tail)
    if wanted.ranks != Ranks() and dataset._ranks != Ranks():
        _same("rank and world_size", wanted.ranks, dataset._ranks)
    if wanted.extras is not None and dataset.extras:
        _same("extras", wanted.extras, dataset.extras)
    if wanted.buckets is not None and wanted.buckets is not dataset.buckets:
        raise ConfigurationError("buckets= here is for a map-style dataset: give it to the StreamingDataset instead")
    _daemon(dataset, wanted.daemon)
    wanted.batch_size_beside(dataset.batch_size)
    wanted.tail_beside(dataset.tail)
    return dataset


def _same(name: str, here: object, theirs: object) -> None:
    if here != theirs:
        raise ConfigurationError(f"{name}={here!r} here, {theirs!r} in the dataset: give it in one place")


def _daemon(dataset: Ordered, here: DaemonChoice) -> None:
    difference = here.contradicts(dataset.daemon, is_settled=dataset.is_open)
    if difference is not None:
        raise ConfigurationError(f"{difference} in the StreamingDataset, or it is open already: give it there")


def _check_shuffle(dataset: Ordered, wanted: Wanted) -> None:
    if wanted.shuffle is not None and bool(wanted.shuffle) != bool(dataset.shuffle):
        raise ConfigurationError(
            f"shuffle={wanted.shuffle} here, shuffle={dataset.shuffle!r} in the StreamingDataset: give it in the "
            f"dataset"
        )


def _refuse_samplers(wanted: Wanted, why: str) -> None:
    if wanted.sampler is not None or wanted.batch_sampler is not None:
        raise ConfigurationError(f"sampler= and batch_sampler= cannot be kept: {why}; leave them out")
