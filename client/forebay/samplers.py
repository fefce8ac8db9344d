"""What torch's samplers, and a user's own, come to in an exact order.

`pick` says which of four things a sampler is: a shuffle of everything, a list of indices, a list that is drawn anew
each epoch and that all ranks can draw alike (`Drawn.is_shared`), or a list that is this rank's own, as all lists are to
torch. `Drawn.draw` asks the sampler for the whole list of an epoch; `SamplerEpochs` follows the epoch that scripts set
on their sampler. All on the trainer's thread.
"""

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from forebay.order import Listing, Order, philox
from forebay.order.lanes import Int64
from forebay_core.errors import ConfigurationError, one_line

SAMPLER = 6
"""Domain of the seeds of samplers' generators."""

_Shuffle = Literal["global", False]


@dataclass(frozen=True)
class Replicas:
    """What a `DistributedSampler` says beside the indices."""

    rank: int
    world_size: int
    seed: int
    drop_last: bool


@dataclass(frozen=True)
class Drawn:
    """A sampler that is asked for the list of each epoch.

    is_shared: the list is a function of (seed, epoch) alone, so all ranks draw the same one and share it out. Otherwise
        it is whatever the sampler gives this rank.
    in_batches: it gives the batches of an epoch, lists of indices, instead of indices.

    Raises `ConfigurationError` for a sampler without a length.
    """

    sampler: Any
    is_shared: bool = False
    in_batches: bool = False

    def __post_init__(self) -> None:
        _stated_length(self.sampler)

    @property
    def name(self) -> str:
        """The class of the sampler."""
        return _name(self.sampler)

    @property
    def length(self) -> int:
        """What the sampler says its length is: indices, or batches."""
        return _stated_length(self.sampler)

    def draw(self, epoch: int, seed: int) -> Listing:
        """The list of an epoch; the sampler is iterated once. `ConfigurationError` for what is no list of indices."""
        given = self._keyed(epoch, seed) if self.is_shared else self._all(self.sampler)
        if not self.in_batches:
            return listing(whole_numbers(given, self.name))
        batches = [whole_numbers(batch, self.name) for batch in given]
        sizes = np.array([len(batch) for batch in batches], dtype=np.int64)
        if not sizes.all():
            raise ConfigurationError(f"the batch sampler {self.name} gives an empty batch in epoch {epoch}")
        offsets = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes)))
        return listing(np.concatenate(batches) if batches else np.zeros(0, dtype=np.int64), offsets)

    def _keyed(self, epoch: int, seed: int) -> list[Any]:
        """The list as a generator gives it that follows from (seed, epoch); the sampler's own is left as it was."""
        word = philox.raw_words(philox.seed_digest(seed), SAMPLER, 1, epoch=epoch)[0]
        before = self.sampler.generator
        self.sampler.generator = torch.Generator().manual_seed(int(word) >> 1)
        try:
            return self._all(self.sampler)
        finally:
            self.sampler.generator = before

    def _all(self, sampler: Iterable[Any]) -> list[Any]:
        endless = 10 * self.length + 10_000
        given = []
        for item in sampler:
            given.append(item)
            if len(given) > endless:
                raise ConfigurationError(
                    f"the sampler {self.name} goes on after {endless} of the {self.length} that len() states: the list "
                    f"of an epoch is drawn whole, so it must end"
                )
        return given


@dataclass(frozen=True)
class Picked:
    """What a sampler comes to: all of the dataset, some `indices` of it, or what is `drawn` each epoch."""

    shuffle: _Shuffle = False
    indices: Int64 | None = None
    drawn: Drawn | None = None
    replicas: Replicas | None = None


def pick(sampler: Any, dataset: Any) -> Picked:
    """What this sampler of indices comes to."""
    inner = _wrapped_by_lightning(sampler, dataset)
    if _is_plain(sampler, DistributedSampler) or inner is not None:
        picked = Picked("global" if sampler.shuffle else False, _all_of(sampler.dataset, dataset))
        picked = picked if inner is None else pick(inner, dataset)
        replicas = Replicas(sampler.rank, sampler.num_replicas, sampler.seed, sampler.drop_last)
        return Picked(picked.shuffle, picked.indices, picked.drawn, replicas)
    if _is_plain(sampler, SequentialSampler):
        return Picked(False, _all_of(sampler.data_source, dataset))
    if _is_plain(sampler, RandomSampler):
        source = sampler.data_source
        is_drawn = sampler.replacement or sampler.num_samples != len(source)
        return Picked(drawn=Drawn(sampler, is_shared=True)) if is_drawn else Picked("global", _all_of(source, dataset))
    if _is_plain(sampler, SubsetRandomSampler):
        return Picked("global", whole_numbers(sampler.indices, "SubsetRandomSampler"))
    if _is_plain(sampler, WeightedRandomSampler):
        return Picked(drawn=Drawn(sampler, is_shared=True))
    if isinstance(sampler, list | tuple | range | np.ndarray | torch.Tensor):
        return Picked(indices=whole_numbers(sampler, "sampler="))
    return Picked(drawn=Drawn(sampler))


def unpacked(batch_sampler: Any) -> tuple[Any, int, bool] | None:
    """Sampler, batch size and drop_last of torch's own batch sampler; None for any other."""
    if not _is_plain(batch_sampler, BatchSampler):
        return None
    return batch_sampler.sampler, batch_sampler.batch_size, batch_sampler.drop_last


def listing(indices: Int64, offsets: Int64 | None = None, *, shuffle: _Shuffle = False, seed: int = 0) -> Listing:
    """These indices, in their order or shuffled."""
    return Listing(indices, Order.of_indices(len(indices), seed=seed, shuffle=shuffle), offsets)


def whole_numbers(given: Iterable[Any], name: str) -> Int64:
    """The indices as int64. `ConfigurationError`, naming the first that is none."""
    try:
        return np.fromiter(map(_whole, given), dtype=np.int64)
    except (TypeError, OverflowError) as error:
        raise ConfigurationError(
            f"{name} gives {one_line(error)}: an exact order is one of whole numbers from 0; let the sampler give "
            f"indices, and a batch_sampler= lists of them"
        ) from error


class SamplerEpochs:
    """The epoch that a script sets on its sampler before each epoch, as scripts for several ranks do."""

    def __init__(self, *samplers: Any) -> None:
        candidates = [*samplers, *(getattr(sampler, "sampler", None) for sampler in samplers)]
        self._samplers = [sampler for sampler in candidates if callable(getattr(sampler, "set_epoch", None))]
        self._seen = self._epoch()

    @property
    def chosen(self) -> int:
        """The epoch that was set before the loader was made; 0 where none was."""
        return max(0, self._seen or 0)

    def follow(self, set_epoch: Callable[[int], None]) -> None:
        """Passes the sampler's epoch on where it has been set since."""
        epoch = self._epoch()
        if epoch is not None and epoch != self._seen:
            set_epoch(epoch)
        self._seen = epoch

    def announce(self, epoch: int) -> None:
        """Sets the epoch on the sampler, before it is asked for its list."""
        for sampler in self._samplers:
            sampler.set_epoch(epoch)
        self._seen = self._epoch()

    def _epoch(self) -> int | None:
        found = [getattr(sampler, "epoch", None) for sampler in self._samplers]
        return next((epoch for epoch in found if type(epoch) is int), None)


def _whole(index: Any) -> int:
    try:
        number = operator.index(index)
    except TypeError:
        raise TypeError(f"{index!r:.60} ({type(index).__name__})") from None
    if number < 0:
        raise TypeError(f"the negative index {number}")
    return number


def _name(sampler: Any) -> str:
    return f"{type(sampler).__module__}.{type(sampler).__qualname__}"


def _stated_length(sampler: Any) -> int:
    try:
        return len(sampler)
    except (TypeError, NotImplementedError) as error:
        raise ConfigurationError(
            f"the sampler {_name(sampler)} has no length ({one_line(error)}): the list of an epoch is drawn whole, so "
            f"it must end; define __len__, or give a list of indices"
        ) from error


def _is_plain(sampler: Any, kind: type) -> bool:
    """Whether it gives what torch's own class gives; a subclass with an iteration of its own does not."""
    return isinstance(sampler, kind) and type(sampler).__iter__ is kind.__iter__  # type: ignore[attr-defined]


def _all_of(source: Any, dataset: Any) -> Int64 | None:
    """The indices of a sampler's own source; None where they are all of the dataset."""
    samples = len(source)
    return None if source is dataset or samples == len(dataset) else np.arange(samples)


def _wrapped_by_lightning(sampler: Any, dataset: Any) -> Any:
    """The user's sampler where Lightning has put its `DistributedSamplerWrapper` around one that ranks can share."""
    inner = getattr(getattr(sampler, "dataset", None), "_sampler", None)
    if type(sampler).__name__ != "DistributedSamplerWrapper" or inner is None:
        return None
    drawn = pick(inner, dataset).drawn
    return inner if drawn is None or drawn.is_shared else None
