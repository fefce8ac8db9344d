"""What a dataset, a sampler and the loader's arguments come to together, and which of them contradict each other."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from forebay.adoption import Wanted, adopt
from forebay.indexed import IndexedDataset
from forebay.listed import ListedDataset, SampledDataset
from forebay.samplers import SamplerEpochs, pick
from forebay.topology import Ranks
from forebay_core.errors import ConfigurationError

DATA: Any = list(range(20))


class Mine(RandomSampler):
    """A subclass with an order of its own."""

    def __iter__(self) -> Iterator[int]:
        return iter([3, 1])


class Renamed(RandomSampler):
    """A subclass that draws as torch's does."""


class Epochs(Sampler[int]):
    """One that is told the epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[int]:
        return iter([self.epoch])


@pytest.mark.parametrize(
    ("sampler", "shuffle", "indices"),
    [
        (SequentialSampler(DATA), False, None),
        (SequentialSampler(DATA[:7]), False, list(range(7))),
        (RandomSampler(DATA), "global", None),
        (Renamed(DATA), "global", None),
        (RandomSampler(DATA, num_samples=20), "global", None),
        (RandomSampler(DATA[:7]), "global", list(range(7))),
        (DistributedSampler(DATA, 3, 1), "global", None),
        (DistributedSampler(DATA, 3, 1, shuffle=False), False, None),
        (DistributedSampler(DATA[:5], 3, 1), "global", list(range(5))),
        (SubsetRandomSampler([4, 2, 9]), "global", [4, 2, 9]),
        ([4, 2, 9], False, [4, 2, 9]),
        ((4, 2), False, [4, 2]),
        (range(3, 9), False, list(range(3, 9))),
        (np.array([4, 2]), False, [4, 2]),
        (torch.tensor([4, 2]), False, [4, 2]),
    ],
)
def test_a_sampler_over_known_indices_is_a_shuffle_or_a_list(sampler: Any, shuffle: Any, indices: Any) -> None:
    picked = pick(sampler, DATA)
    assert picked.drawn is None
    assert picked.shuffle == shuffle
    assert (None if picked.indices is None else picked.indices.tolist()) == indices


@pytest.mark.parametrize(
    ("sampler", "is_shared"),
    [
        (WeightedRandomSampler([1.0, 2.0], 5), True),
        (RandomSampler(DATA, replacement=True), True),
        (RandomSampler(DATA, num_samples=7), True),
        (Mine(DATA), False),
        (Epochs(), False),
    ],
)
def test_a_sampler_that_draws_is_asked_each_epoch(sampler: Any, is_shared: bool) -> None:
    drawn = pick(sampler, DATA).drawn
    assert drawn is not None
    assert drawn.sampler is sampler
    assert drawn.is_shared == is_shared


def test_what_is_shared_is_drawn_from_seed_and_epoch_alone() -> None:
    def draw(epoch: int, seed: int) -> list[int]:
        drawn = pick(WeightedRandomSampler([1.0] * 9, 30), DATA).drawn
        assert drawn is not None
        found: list[int] = drawn.draw(epoch, seed).indices.tolist()
        return found

    assert draw(3, 5) == draw(3, 5)
    assert len({tuple(draw(epoch, seed)) for epoch in range(3) for seed in range(3)}) == 9


def test_a_sampler_of_ones_own_is_told_the_epoch_and_one_that_was_set_is_followed() -> None:
    sampler = Epochs()
    epochs, followed = SamplerEpochs(sampler), list[int]()
    epochs.follow(followed.append)
    assert followed == []
    epochs.announce(4)
    assert sampler.epoch == 4
    epochs.follow(followed.append)
    sampler.set_epoch(7)
    epochs.follow(followed.append)
    epochs.follow(followed.append)
    assert followed == [7]


def test_an_epoch_that_cannot_be_followed_is_not_forgotten() -> None:
    sampler = Epochs()
    epochs, followed = SamplerEpochs(BatchSampler(sampler, 2, False)), list[int]()

    def refuse(epoch: int) -> None:
        raise ValueError(epoch)

    sampler.set_epoch(7)
    for _ in range(2):
        with pytest.raises(ValueError, match="7"):
            epochs.follow(refuse)
    epochs.follow(followed.append)
    assert followed == [7]


def test_a_distributed_sampler_says_the_rank_the_seed_and_the_tail() -> None:
    sampler: Any = DistributedSampler(DATA, 4, 2, seed=9, drop_last=True)
    for wanted in (
        Wanted(batch_size=2, sampler=sampler),
        Wanted(batch_sampler=BatchSampler(sampler, 2, drop_last=False)),
        Wanted(batch_size=2, sampler=sampler, seed=9, ranks=Ranks(2, 4), tail="drop"),
    ):
        made = adopt(DATA, wanted)
        assert type(made) is IndexedDataset
        assert (made.seed, made.tail, made._ranks, made.shuffle) == (9, "drop", Ranks(2, 4), "global")
        assert made.batch_size == 2


def test_without_drop_last_the_tail_is_the_loaders() -> None:
    sampler: Any = DistributedSampler(DATA, 4, 2)
    assert adopt(DATA, Wanted(sampler=sampler)).tail == "even"
    assert adopt(DATA, Wanted(sampler=sampler, tail="pad")).tail == "pad"
    assert adopt(DATA, Wanted(sampler=sampler, seed=3)).seed == 3  # type: ignore[union-attr]


def test_the_kinds_of_datasets() -> None:
    kinds = {
        ListedDataset: Wanted(sampler=[1, 2]),
        SampledDataset: Wanted(sampler=Epochs()),
        IndexedDataset: Wanted(sampler=RandomSampler(DATA)),
    }
    for kind, wanted in kinds.items():
        assert type(adopt(DATA, wanted)) is kind
    assert type(adopt(DATA, Wanted(batch_sampler=[[1], [2]]))) is SampledDataset
    assert type(adopt(DATA, Wanted(batch_sampler=BatchSampler([1, 2], 2, False)))) is ListedDataset


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (Wanted(sampler=DistributedSampler(DATA, 4, 2), ranks=Ranks(1, 4)), "rank 2 of 4 in the sampler"),
        (Wanted(sampler=DistributedSampler(DATA, 4, 2, seed=5), seed=6), "seed=6 here, 5 in the sampler"),
        (Wanted(sampler=DistributedSampler(DATA, 4, 2, drop_last=True), tail="pad"), "contradict"),
        (Wanted(sampler=Epochs(), ranks=Ranks(0, 2)), "rank= and world_size=: the list of .*Epochs is this rank's"),
        (Wanted(sampler=Epochs(), global_batch_size=8), "global_batch_size=: the list of .*Epochs is this rank's"),
        (Wanted(batch_sampler=[[1]], ranks=Ranks(0, 2)), "rank= and world_size=: the list of builtins.list"),
        (Wanted(batch_sampler=[[1]], tail="drop"), "leave tail= out"),
        (Wanted(batch_sampler=BatchSampler([1, 2], 2, False), global_batch_size=4), "contradict each other"),
        (Wanted(sampler=[1], shuffle=True), "mutually exclusive with shuffle"),
        (Wanted(batch_sampler=[[1]], batch_size=3), "mutually exclusive"),
        (Wanted(sampler=iter([1])), "has no length"),
        (Wanted(sampler=["x"]), r"gives 'x' \(str\)"),
    ],
)
def test_arguments_that_contradict_a_sampler_are_refused(wanted: Wanted, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        adopt(DATA, wanted)


def test_a_dataset_without_a_length_can_be_read_by_a_sampler_that_has_one() -> None:
    class Bare:
        def __getitem__(self, index: int) -> int:
            return index

    assert adopt(Bare(), Wanted(sampler=[5, 6])).batch_size == 1
