"""Loaders over map-style datasets with samplers: what torch reads, at exact positions, on any number of ranks."""

import copy
import json
import pickle
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import forebay

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

SAMPLES = 101


class Numbers(Dataset[int]):
    """The sample is its index."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> int:
        return index


class Keyed(Sampler[int]):
    """A user's own: a permutation that follows from the epoch, and on several ranks every n-th of it."""

    def __init__(self, samples: int = SAMPLES, rank: int = 0, ranks: int = 1, salt: int = 0) -> None:
        self.samples, self.rank, self.ranks, self.salt, self.epoch = samples, rank, ranks, salt, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(range(self.rank, self.samples, self.ranks))

    def __iter__(self) -> Iterator[int]:
        order = list(range(self.samples))
        random.Random(1000 * self.epoch + self.salt).shuffle(order)
        return iter(order[self.rank :: self.ranks])


class Unseeded(Sampler[int]):
    """A user's own that draws from the process's generator, as torch's do without a generator."""

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(SAMPLES).tolist())


class Buckets(Sampler[list[int]]):
    """A user's own batch sampler: batches of many sizes, another number of them in each epoch."""

    def __init__(self, salt: int = 0) -> None:
        self.salt, self.epoch = salt, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def batches(self) -> list[list[int]]:
        drawn = random.Random(1000 * self.epoch + self.salt)
        order = list(range(SAMPLES))
        drawn.shuffle(order)
        batches = []
        while order:
            size = drawn.randint(1, 9)
            batches.append(order[:size])
            del order[:size]
        return batches

    def __len__(self) -> int:
        return len(self.batches())

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches())


class Ranks:
    """Loaders of one job side by side, one a rank."""

    def __init__(self, loaders: Sequence[forebay.DataLoader]) -> None:
        self.loaders = loaders

    def run(self, steps: int | None = None) -> list[int]:
        """The samples of the next steps, or of the rest of the epoch, by position."""
        iterators = [iter(loader) for loader in self.loaders]
        seen: list[tuple[int, int]] = []
        while steps is None or steps > 0:
            step = [next(iterator, None) for iterator in iterators]
            assert len({batch is None for batch in step}) == 1, "ranks disagree on the number of steps"
            if step[0] is None:
                break
            for batch in step:
                assert batch is not None
                seen += [
                    (position, value)
                    for position, value, pad in zip(
                        batch[forebay.POSITION].tolist(),
                        batch["value"].tolist(),
                        batch[forebay.IS_PAD].tolist(),
                        strict=True,
                    )
                    if not pad
                ]
            steps = None if steps is None else steps - 1
        return [value for _, value in sorted(seen)]

    @property
    def state(self) -> dict[str, Any]:
        states = [loader.state_dict() for loader in self.loaders]
        assert all(state == states[0] for state in states)
        found: dict[str, Any] = json.loads(json.dumps(states[0]))
        return found


class Rows(Numbers):
    """Samples that are dicts, so that batches can carry extras."""

    def __getitem__(self, index: int) -> Any:
        return {"value": index}


EXTRAS = (forebay.POSITION, forebay.IS_PAD)


def ranks(
    stack: ExitStack, make: Any, world_size: int, *, state: dict[str, Any] | None = None, **options: Any
) -> Ranks:
    """A job over the sampler that `make` makes for each rank."""
    loaders = []
    for rank in range(world_size):
        loader = forebay.DataLoader(
            Rows(), sampler=make(), rank=rank, world_size=world_size, extras=EXTRAS, **{"batch_size": 4, **options}
        )
        if state is not None:
            loader.load_state_dict(state)
        loaders.append(stack.enter_context(closing(loader)))
    return Ranks(loaders)


def values(loader: Any, steps: int | None = None) -> list[list[int]]:
    """The batches of the next steps as lists."""
    found = []
    for batch in loader:
        found.append(batch.tolist())
        if len(found) == steps:
            break
    return found


WEIGHTS = [float(index % 7) for index in range(SAMPLES)]
SHARED: dict[str, Any] = {
    "sequential": lambda: SequentialSampler(Numbers()),
    "random": lambda: RandomSampler(Numbers()),
    "subset": lambda: SubsetRandomSampler(range(3, 90, 2)),
    "list": lambda: [5, 3, 99, 3, 0, 41, 7, 8, 12, 60, 61],
    "weighted": lambda: WeightedRandomSampler(WEIGHTS, 150),
    "weighted without replacement": lambda: WeightedRandomSampler(WEIGHTS, 40, replacement=False),
    "replacement": lambda: RandomSampler(Numbers(), replacement=True),
    "num_samples": lambda: RandomSampler(Numbers(), num_samples=260),
}


@pytest.mark.parametrize("make", SHARED.values(), ids=SHARED)
def test_a_list_that_ranks_share_is_one_order_at_any_world_size_through_stops_and_resizes(make: Any) -> None:
    with ExitStack() as stack:
        alone = ranks(stack, make, 1, seed=5)
        whole = [alone.run(), alone.run()]
        seen: list[int] = []
        state = None
        for world_size, batch_size, steps in ((2, 2, 1), (3, 1, 1), (1, 5, None), (2, 3, 1), (4, 1, None)):
            job = ranks(stack, make, world_size, state=state, batch_size=batch_size, seed=5)
            seen += job.run(steps)
            state = job.state
        assert seen == whole[0] + whole[1]
        assert len(whole[0]) == len(make())


@pytest.mark.parametrize("make", SHARED.values(), ids=SHARED)
def test_a_shared_list_has_the_indices_that_torchs_sampler_may_give(make: Any) -> None:
    with ExitStack() as stack:
        job = ranks(stack, make, 1)
        first, second = job.run(), job.run()
    theirs = list(make())
    allowed = set(theirs) if len(set(theirs)) == len(theirs) else set(range(SAMPLES))
    assert set(first) <= allowed | {index for index in range(SAMPLES) if WEIGHTS[index] > 0}
    if isinstance(make(), SequentialSampler | list):
        assert first == second == theirs
    else:
        assert first != second
    if isinstance(make(), RandomSampler) and make().num_samples == SAMPLES and not make().replacement:
        assert sorted(first) == sorted(second) == list(range(SAMPLES))
    if isinstance(make(), SubsetRandomSampler):
        assert sorted(first) == sorted(second) == list(range(3, 90, 2))


def test_a_weighted_sampler_draws_by_its_weights_from_the_seed_and_leaves_all_generators_alone() -> None:
    own = torch.Generator().manual_seed(3)
    sampler = WeightedRandomSampler([1.0, 0.0, 3.0], 4000, generator=own)
    before = torch.get_rng_state(), own.get_state()
    with closing(forebay.DataLoader(Numbers(3), 100, sampler=sampler, seed=1)) as loader:
        drawn = np.bincount(np.concatenate(values(loader)), minlength=3)
    assert drawn[1] == 0
    assert 2700 < drawn[2] < 3300
    assert sampler.generator is own
    assert torch.equal(before[0], torch.get_rng_state())
    assert torch.equal(before[1], own.get_state())


class Augmented(Numbers):
    """The sample's own random number."""

    def __getitem__(self, index: int) -> int:
        return int(forebay.sample_rng().integers(1 << 40))


def test_a_sample_that_an_epoch_has_several_times_is_augmented_differently_each_time() -> None:
    with closing(forebay.DataLoader(Augmented(), 4, sampler=[7] * 12)) as loader:
        numbers = np.concatenate(values(loader))
    assert len(set(numbers.tolist())) == 12


class Drawing(Numbers):
    """The sample is a number from the process's generator."""

    def __getitem__(self, index: int) -> int:
        return random.getrandbits(40)


def test_in_worker_processes_the_global_generators_tell_the_draws_of_a_sample_apart_too() -> None:
    drawn = []
    for workers in (1, 2):
        with closing(forebay.DataLoader(Drawing(), 4, sampler=[7] * 12, num_workers=workers)) as loader:
            drawn.append(np.concatenate(values(loader)).tolist())
    assert len(set(drawn[0])) == 12
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_a_distributed_sampler_becomes_the_loaders_own_order(shuffle: bool, drop_last: bool) -> None:
    with ExitStack() as stack:
        translated, plain = [], []
        for rank in range(3):
            sampler: Any = DistributedSampler(Rows(), 3, rank, shuffle=shuffle, seed=9, drop_last=drop_last)
            options: dict[str, Any] = {"batch_size": 4, "extras": EXTRAS}
            made = forebay.DataLoader(Rows(), sampler=sampler, **options)
            translated.append(stack.enter_context(closing(made)))
            made = forebay.DataLoader(
                Rows(), shuffle=shuffle, seed=9, drop_last=drop_last, rank=rank, world_size=3, **options
            )
            plain.append(stack.enter_context(closing(made)))
            assert len(translated[-1]) == len(plain[-1])
        one, other = Ranks(translated), Ranks(plain)
        for _ in range(2):
            assert one.run() == other.run()
        assert one.state == other.state


def test_the_epoch_that_a_script_sets_on_its_sampler_is_followed() -> None:
    def make() -> tuple[Any, forebay.DataLoader]:
        sampler: Any = DistributedSampler(Numbers(), 1, 0, seed=2)
        return sampler, forebay.DataLoader(Numbers(), 10, sampler=sampler)

    sampler, loader = make()
    epochs = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        epochs.append(values(loader))
        assert loader.epoch == epoch + 1
    assert epochs[0] != epochs[1]
    sampler, later = make()
    sampler.set_epoch(2)
    assert values(later) == epochs[2]
    sampler.set_epoch(1)
    assert values(later) == epochs[1]


@pytest.mark.parametrize("make", [lambda: DistributedSampler(Numbers(), 1, 0, seed=2), Keyed], ids=["torchs", "own"])
def test_a_loader_begins_with_the_epoch_that_its_sampler_was_set_to_before(make: Any) -> None:
    epochs = []
    sampler = make()
    loader = forebay.DataLoader(Numbers(), 10, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        epochs.append(values(loader))
    sampler = make()
    for epoch in (0, 2, 1):
        sampler.set_epoch(epoch)
        later = forebay.DataLoader(Numbers(), 10, sampler=sampler)
        assert later.epoch == epoch
        assert values(later) == epochs[epoch]
    resumed = forebay.DataLoader(Numbers(), 10, sampler=sampler)
    resumed.load_state_dict(loader.state_dict())
    assert resumed.epoch == 3


def test_an_epoch_set_on_the_sampler_does_not_drop_a_loaded_position() -> None:
    def make() -> tuple[Any, forebay.DataLoader]:
        sampler: Any = DistributedSampler(Numbers(), 1, 0)
        return sampler, forebay.DataLoader(Numbers(), 10, sampler=sampler)

    _, loader = make()
    loader.set_epoch(2)
    first = values(loader, 4)
    state = loader.state_dict()
    sampler, resumed = make()
    resumed.load_state_dict(state)
    sampler.set_epoch(2)
    assert sorted(np.concatenate(first + values(resumed)).tolist()) == list(range(SAMPLES))
    sampler, resumed = make()
    resumed.load_state_dict(state)
    sampler.set_epoch(1)
    for _ in range(2):
        with pytest.raises(forebay.StateError, match=r"set_epoch\(1\) would drop the loaded position"):
            iter(resumed)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, "worker_type": "thread"}])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_users_own_sampler_is_read_as_torch_reads_it(workers: dict[str, Any], drop_last: bool) -> None:
    theirs, ours = Keyed(), Keyed()
    torchs = torch.utils.data.DataLoader(Numbers(), 8, sampler=theirs, drop_last=drop_last)
    with closing(forebay.DataLoader(Numbers(), 8, sampler=ours, drop_last=drop_last, **workers)) as loader:
        for epoch in range(3):
            theirs.set_epoch(epoch)
            assert len(loader) == len(torchs)
            assert values(loader) == values(torchs)
        assert loader.sampler is ours


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, "worker_type": "thread"}])
def test_a_users_own_batch_sampler_is_read_as_torch_reads_it(workers: dict[str, Any]) -> None:
    theirs, ours = Buckets(), Buckets()
    torchs = torch.utils.data.DataLoader(Numbers(), batch_sampler=theirs)
    with closing(forebay.DataLoader(Numbers(), batch_sampler=ours, **workers)) as loader:
        for epoch in range(3):
            theirs.set_epoch(epoch)
            ours.set_epoch(epoch)
            assert len(loader) == len(torchs)
            assert loader.remaining == len(torchs)
            assert values(loader) == values(torchs)
        assert loader.batch_sampler is ours
        assert loader.batch_size is None


OWN: dict[str, Any] = {
    "sampler": lambda salt=0: {"batch_size": 7, "sampler": Keyed(salt=salt)},
    "batch sampler": lambda salt=0: {"batch_sampler": Buckets(salt=salt)},
}


@pytest.mark.parametrize("make", OWN.values(), ids=OWN)
@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}], ids=["in process", "2 workers"])
def test_a_users_own_sampler_is_resumed_at_every_batch(make: Any, workers: dict[str, Any]) -> None:
    with closing(forebay.DataLoader(Numbers(), **make())) as whole:
        whole.set_epoch(3)
        states, batches = [whole.state_dict()], []
        for batch in whole:
            batches.append(batch.tolist())
            states.append(json.loads(json.dumps(whole.state_dict())))
        following = values(whole)
    for taken, state in list(enumerate(states))[:: 5 if workers else 1]:
        with closing(forebay.DataLoader(Numbers(), **make(), **workers)) as resumed:
            resumed.load_state_dict(state)
            assert place(resumed.state_dict()) == place(state)
            if taken < len(batches):
                assert values(resumed) == batches[taken:]
            assert values(resumed) == following


def place(state: dict[str, Any]) -> tuple[Any, ...]:
    """What a state says of where it was taken."""
    return state["epoch"], state["position"], state.get("list")


@pytest.mark.parametrize("make", OWN.values(), ids=OWN)
def test_a_sampler_that_draws_another_list_after_a_restart_is_refused(make: Any) -> None:
    with closing(forebay.DataLoader(Numbers(), **make())) as loader:
        values(loader, 3)
        state = loader.state_dict()
    with closing(forebay.DataLoader(Numbers(), **make(salt=1))) as other:
        other.load_state_dict(state)
        for _ in range(2):
            with pytest.raises(forebay.StateMismatch, match=r"draws another list for epoch 0"):
                iter(other)
        assert other.state_dict() == state
    with closing(forebay.DataLoader(Numbers(), 7, sampler=Keyed(salt=1))) as lenient:
        lenient.load_state_dict({**state, "position": 21}, strict=False)
        assert values(lenient)[0] == list(Keyed(salt=1))[21:28]


@pytest.mark.parametrize("make", OWN.values(), ids=OWN)
@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}], ids=["in process", "2 workers"])
def test_a_pass_of_a_number_of_steps_runs_on_into_the_next_list(make: Any, workers: dict[str, Any]) -> None:
    with closing(forebay.DataLoader(Numbers(), **make())) as by_epochs:
        epochs = [values(by_epochs) for _ in range(3)]
    expected = [batch for epoch in epochs for batch in epoch]
    with closing(forebay.DataLoader(Numbers(), steps=len(epochs[0]) + 3, **make(), **workers)) as loader:
        first = values(loader)
        second = values(loader, 4)
        state = json.loads(json.dumps(loader.state_dict()))
    with closing(forebay.DataLoader(Numbers(), steps=len(epochs[0]) + 3, **make(), **workers)) as resumed:
        resumed.load_state_dict(state)
        found = first + second + values(resumed)
    assert len(found) == 2 * len(epochs[0]) + 6
    assert found == expected[: len(found)]


def test_a_batch_of_a_drawn_list_is_replayed_where_the_list_is_known() -> None:
    shared = forebay.DataLoader(Numbers(), 7, sampler=WeightedRandomSampler(WEIGHTS, 60), seed=8)
    own = forebay.DataLoader(Numbers(), batch_sampler=Buckets())
    for loader in (shared, own):
        with closing(loader):
            batches = values(loader)
            iterator = iter(loader)
            following = next(iterator).tolist()
            assert [loader.replay(0, step).tolist() for step in (0, 3, len(batches) - 1)] == [
                batches[0],
                batches[3],
                batches[-1],
            ]
            assert loader.replay(0, position=len(batches[0])).tolist() == batches[1]
            assert loader.replay(1, 0).tolist() == following
            with pytest.raises(forebay.ConfigurationError, match="does not exist"):
                loader.replay(0, len(batches))
            assert len(list(iterator)) > 3
    assert len(shared.replay(5, 2)) == 7
    with pytest.raises(forebay.ConfigurationError, match="iterate the epoch first"):
        own.replay(5, 2)


def test_where_another_batch_size_drops_what_is_left_of_an_epoch_the_next_list_is_read() -> None:
    with closing(forebay.DataLoader(Numbers(), 10, sampler=Keyed(), drop_last=True)) as loader:
        values(loader, 9)
        state = loader.state_dict()
    sampler = Keyed()
    with closing(forebay.DataLoader(Numbers(), 16, sampler=sampler, drop_last=True)) as loader:
        loader.load_state_dict(state)
        found = values(loader)
    assert sampler.epoch == 1
    assert found == [list(sampler)[start : start + 16] for start in range(0, 96, 16)]


def test_a_position_that_is_no_border_between_batches_is_refused() -> None:
    with closing(forebay.DataLoader(Numbers(), batch_sampler=[[0, 1, 2], [3, 4], [5]])) as loader:
        values(loader, 1)
        state = loader.state_dict()
        assert state["position"] == 3
        loader.load_state_dict({**state, "position": 4}, strict=False)
        with pytest.raises(forebay.StateError, match="no border between two batches"):
            iter(loader)


def test_the_list_of_an_unseeded_sampler_is_drawn_once_an_epoch_from_the_trainers_generator_as_torch_does() -> None:
    torch.manual_seed(4)
    theirs = [values(torch.utils.data.DataLoader(Numbers(), 8, sampler=Unseeded())) for _ in range(1)]
    torch.manual_seed(4)
    torch.empty((), dtype=torch.int64).random_()  # torch's iterator draws a seed for its workers first
    with closing(forebay.DataLoader(Numbers(), 8, sampler=Unseeded())) as loader:
        assert values(loader) == theirs[0]
        values(loader, 2)
        state = loader.state_dict()
        loader.load_state_dict(state)
        assert len(values(loader)) == 11


def test_a_rank_that_has_a_sampler_of_its_own_reads_its_own_list() -> None:
    seen: list[int] = []
    states = []
    for rank in range(2):
        with closing(forebay.DataLoader(Numbers(), 8, sampler=Keyed(rank=rank, ranks=2))) as loader:
            seen += np.concatenate(values(loader, 4)).tolist()
            states.append(loader.state_dict())
            seen += np.concatenate(values_of_rest(loader)).tolist()
    assert sorted(seen) == list(range(SAMPLES))
    assert states[0]["list"]["digest"] != states[1]["list"]["digest"]


def test_a_state_of_rank_0_is_taken_by_the_other_ranks_which_cannot_know_its_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with closing(forebay.DataLoader(Numbers(), 8, sampler=Keyed(rank=0, ranks=2))) as loader:
        values(loader, 4)
        state = loader.state_dict()
    with closing(forebay.DataLoader(Numbers(), 8, sampler=Keyed(rank=1, ranks=2))) as alone:
        every = values(alone)
        alone.load_state_dict(state)
        with pytest.raises(forebay.StateMismatch, match="draws another list"):
            iter(alone)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with closing(forebay.DataLoader(Numbers(), 8, sampler=Keyed(rank=1, ranks=2))) as other:
        other.load_state_dict(state)
        assert values(other) == every[4:]


def test_a_list_that_is_shared_out_is_said_to_be_once(caplog: pytest.LogCaptureFixture) -> None:
    with closing(forebay.DataLoader(Numbers(), 2, sampler=[1, 2, 3, 4], rank=0, world_size=2)) as loader:
        for _ in range(2):
            values(loader)
    said = [record.message for record in caplog.records if "shared out over 2 ranks" in record.message]
    assert len(said) == 1
    with closing(forebay.DataLoader(Numbers(), 2, sampler=[1, 2, 3, 4], rank=0, world_size=1)) as loader:
        assert values(loader) == [[1, 2], [3, 4]]


def values_of_rest(loader: forebay.DataLoader) -> list[list[int]]:
    """What is left of the epoch that was left."""
    loader.set_epoch(loader.epoch)
    return values(loader)


def test_torchs_batch_sampler_is_what_its_arguments_are() -> None:
    made = BatchSampler(DistributedSampler(Numbers(), 2, 1, seed=3), 8, drop_last=True)
    with (
        closing(forebay.DataLoader(Numbers(), batch_sampler=made)) as one,
        closing(forebay.DataLoader(Numbers(), 8, shuffle=True, seed=3, drop_last=True, rank=1, world_size=2)) as other,
    ):
        assert len(one) == len(other) == 6
        assert values(one) == values(other)
        assert one.state_dict() == other.state_dict()
        assert one.batch_size is None
        assert one.batch_sampler is made


def test_samplers_that_end_nowhere_or_nowhere_known_are_refused() -> None:
    def endless() -> Iterator[int]:
        while True:
            yield 0

    class Endless(Sampler[int]):
        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Iterator[int]:
            return endless()

    with pytest.raises(forebay.ConfigurationError, match="has no length"):
        forebay.DataLoader(Numbers(), sampler=endless())
    with pytest.raises(forebay.ConfigurationError, match=r"goes on after 10030 of the 3"):
        iter(forebay.DataLoader(Numbers(), sampler=Endless()))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sampler": ["a", "b"]}, r"sampler= gives 'a' \(str\)"),
        ({"sampler": [1, -1]}, "negative index -1"),
        ({"batch_sampler": [["a"], ["b"]]}, r"gives 'a' \(str\)"),
        ({"batch_sampler": [[1], []]}, "an empty batch"),
        ({"sampler": BatchSampler(SequentialSampler(Numbers()), 4, False), "batch_size": None}, "batch_sampler="),
        ({"batch_sampler": []}, "no samples"),
    ],
)
def test_lists_that_are_none_are_refused_with_the_reason(options: dict[str, Any], said: str) -> None:
    with pytest.raises(forebay.ForebayError, match=said):
        iter(forebay.DataLoader(Numbers(), **options))


@pytest.mark.parametrize("make", [*SHARED.values(), Keyed], ids=[*SHARED, "own"])
def test_an_unused_loader_can_be_pickled_and_copied(make: Any) -> None:
    sampler = make()
    loader = forebay.DataLoader(Numbers(), 8, sampler=sampler, seed=2)
    expected = values(loader)
    loader = forebay.DataLoader(Numbers(), 8, sampler=sampler, seed=2)
    for copied in (pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader)):
        assert len(copied) == len(loader)
        assert values(copied) == expected
