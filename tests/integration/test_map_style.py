"""Map-style datasets, unchanged: exactly once, one order, exact positions, random numbers by sample. No daemon runs."""

import json
import random
import sqlite3
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import StackDataset, Subset, TensorDataset

import forebay
from forebay.order import Order
from forebay_core.errors import ConfigurationError, ForebayError, StateMismatch

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Numbers:
    """`dataset[i]` is i, with a number drawn for it."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": index, "noise": forebay.sample_rng().random()}


class Plain:
    """A user's own dataset that knows nothing of forebay."""

    def __len__(self) -> int:
        return 37

    def __getitem__(self, index: int) -> tuple[torch.Tensor, str]:
        return torch.full((2,), index), f"sample {index}"


@dataclass(frozen=True)
class Stretch:
    """Some steps of a run under one topology; `steps=None` to the end of the epoch."""

    world_size: int
    batch_size: int
    steps: int | None


def run(
    samples: int, stretches: Sequence[Stretch], *, tail: Any = "even", **options: Any
) -> tuple[list[tuple[int, int, int]], dict[str, Any]]:
    """(epoch, position, sample) of all that was handed out and is no pad, and the last state."""
    seen: list[tuple[int, int, int]] = []
    state: dict[str, Any] | None = None
    for stretch in stretches:
        loaders = [
            forebay.DataLoader(
                Numbers(samples),
                stretch.batch_size,
                tail=tail,
                rank=rank,
                world_size=stretch.world_size,
                extras=(forebay.POSITION, forebay.IS_PAD),
                **options,
            )
            for rank in range(stretch.world_size)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
        assert len({loader.remaining for loader in loaders}) == 1
        epoch = loaders[0].epoch
        steps = [list(zip(range(stretch.steps or samples), loader, strict=False)) for loader in loaders]
        assert len({len(of_rank) for of_rank in steps}) == 1, "all ranks make the same number of steps"
        for batch in (batch for of_rank in steps for _, batch in of_rank):
            real = ~batch[forebay.IS_PAD]
            seen += [
                (epoch, position, sample)
                for position, sample in zip(
                    batch[forebay.POSITION][real].tolist(), batch["x"][real].tolist(), strict=True
                )
            ]
        state = loaders[0].state_dict()
        assert all(loader.state_dict() == state for loader in loaders), "a state is the same on every rank"
        for loader in loaders:
            loader.close()
    assert state is not None
    return seen, state


def order_of(samples: int, seed: int, epochs: int, shuffle: bool = True) -> list[tuple[int, int, int]]:
    """What an epoch's order says, position by position."""
    order = Order.of_indices(samples, seed=seed, shuffle="global" if shuffle else False)
    return [
        (epoch, position, sample)
        for epoch in range(epochs)
        for position, sample in enumerate(order.epoch(epoch).sample_ids(0, samples).tolist())
    ]


@settings(max_examples=40)
@given(
    samples=st.sampled_from([1, 2, 3, 7, 8, 13, 31, 60]),
    stretches=st.lists(st.builds(Stretch, st.integers(1, 5), st.integers(1, 9), st.integers(1, 6)), max_size=4),
    last=st.builds(Stretch, st.integers(1, 5), st.integers(1, 9), st.none()),
    tail=st.sampled_from(["even", "pad"]),
    seed=st.integers(0, 3),
    shuffle=st.booleans(),
)
@example(samples=1, stretches=[], last=Stretch(1, 1, None), tail="even", seed=0, shuffle=True)
@example(
    samples=31,
    stretches=[Stretch(3, 2, 2), Stretch(5, 3, 1)],
    last=Stretch(2, 1, None),
    tail="pad",
    seed=0,
    shuffle=True,
)
def test_any_topologies_one_after_another_see_each_sample_once_an_epoch_in_one_order(
    samples: int, stretches: list[Stretch], last: Stretch, tail: str, seed: int, shuffle: bool
) -> None:
    fitting = [stretch for stretch in [*stretches, last] if stretch.world_size <= samples]
    fitting = [*fitting, Stretch(1, 4, None)]
    seen, state = run(samples, fitting, tail=tail, seed=seed, shuffle=shuffle)
    assert state["position"] == 0, "the last stretch went to the end of its epoch"
    assert sorted(seen) == order_of(samples, seed, state["epoch"], shuffle)


def test_a_tail_that_drops_hands_out_whole_steps_only() -> None:
    seen, state = run(31, [Stretch(2, 4, None)], tail="drop", seed=1, shuffle=True)
    assert sorted(seen) == order_of(31, 1, 1)[:24]
    assert (state["epoch"], state["position"]) == (1, 0)


def test_a_resumed_epoch_with_no_whole_step_left_is_over_and_epochs_are_counted_so() -> None:
    first = forebay.DataLoader(Numbers(40), 10, True, tail="drop")
    next(iter(first))
    resumed = forebay.DataLoader(Numbers(40), 40, True, tail="drop")
    resumed.load_state_dict(first.state_dict())
    assert (resumed.epoch, resumed.position, resumed.remaining) == (1, 0, 1)
    trained = [epoch for epoch in range(resumed.epoch, 2) for _ in resumed]
    assert trained == [1], "as many epochs as were left"
    assert (resumed.epoch, resumed.position) == (2, 0)


@pytest.mark.parametrize("tail", ["even", "pad"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 6])
def test_an_evaluation_counts_every_sample_once(world_size: int, tail: Any) -> None:
    total, count = 0, 0
    for rank in range(world_size):
        loader = forebay.DataLoader(
            Numbers(17), 4, tail=tail, rank=rank, world_size=world_size, extras=[forebay.IS_PAD]
        )
        for batch in loader:
            real = ~batch[forebay.IS_PAD]
            total, count = total + int(batch["x"][real].sum()), count + int(real.sum())
    assert (total, count) == (sum(range(17)), 17)


WORKERS = [
    {"num_workers": 1},
    {"num_workers": 4},
    {"num_workers": 1, "worker_type": "thread"},
    {"num_workers": 4, "worker_type": "thread"},
]


@pytest.mark.parametrize("workers", WORKERS, ids=str)
def test_workers_change_neither_batches_nor_random_numbers_nor_state(workers: dict[str, Any]) -> None:
    alone = forebay.DataLoader(Numbers(53), 5, True, seed=4)
    helped = forebay.DataLoader(Numbers(53), 5, True, seed=4, **workers)
    for _ in range(2):
        for number, (one, other) in enumerate(zip(alone, helped, strict=True)):
            assert one["x"].tolist() == other["x"].tolist()
            assert one["noise"].tolist() == other["noise"].tolist()
            assert alone.state_dict() == helped.state_dict()
            if number == 7:
                break
    helped.close()


def test_a_samples_random_numbers_hold_in_any_topology_and_after_any_resume_and_differ_by_epoch() -> None:
    def noise(loader: forebay.DataLoader) -> dict[int, float]:
        return {
            sample: value
            for batch in loader
            for sample, value in zip(batch["x"].tolist(), batch["noise"].tolist(), strict=True)
        }

    whole = forebay.DataLoader(Numbers(20), 6, True, seed=2)
    first, second = noise(whole), noise(whole)
    assert len(set(first.values())) == 20
    assert all(first[sample] != second[sample] for sample in range(20))
    for rank in range(3):
        part = noise(forebay.DataLoader(Numbers(20), 2, True, seed=2, rank=rank, world_size=3))
        assert part == {sample: first[sample] for sample in part}


@pytest.mark.parametrize("batch_size", [1, 7, 37, 50, None])
@pytest.mark.parametrize("drop_last", [False, True])
def test_without_a_shuffle_it_is_torchs_own_loader_batch_for_batch(batch_size: int | None, drop_last: bool) -> None:
    if drop_last and batch_size in (None, 50):
        return
    options: dict[str, Any] = {"batch_size": batch_size, "drop_last": drop_last}
    ours = forebay.DataLoader(Plain(), **options)
    torchs: TorchDataLoader[Any] = TorchDataLoader(Plain(), **options)  # type: ignore[arg-type]
    assert len(ours) == len(torchs)
    for mine, theirs in zip(ours, torchs, strict=True):
        assert torch.equal(mine[0], theirs[0])
        assert mine[1] == theirs[1]


def test_the_users_dataset_and_collate_function_are_used_as_they_are() -> None:
    dataset = TensorDataset(torch.arange(10), torch.arange(10) * 2)
    loader = forebay.DataLoader(
        dataset, 4, collate_fn=lambda samples: [int(first + second) for first, second in samples]
    )
    assert loader.dataset is dataset
    assert list(loader) == [[0, 3, 6, 9], [12, 15, 18, 21], [24, 27]]


class Many:
    """Reads several at once, as torch prefers where it can."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        raise AssertionError("one by one")

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.calls.append(indices)
        return [index * 10 for index in indices]


def test_a_dataset_that_reads_many_at_once_is_asked_for_a_batch_at_once() -> None:
    dataset = Many()
    assert [batch.tolist() for batch in forebay.DataLoader(dataset, 4)] == [[0, 10, 20, 30], [40, 50, 60, 70], [80, 90]]
    assert dataset.calls == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


class Fewer(Many):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices[1:]


def test_a_dataset_that_gives_fewer_samples_than_asked_for_is_refused_where_extras_would_stand_beside_others() -> None:
    assert len(next(iter(forebay.DataLoader(Fewer(), 4)))) == 3
    loader = forebay.DataLoader(Fewer(), 4, extras=[forebay.POSITION], collate_fn=lambda samples: {"x": samples})
    with pytest.raises(ConfigurationError, match="3 samples for 4 indices"):
        next(iter(loader))


def test_a_subset_is_read_sample_by_sample_so_that_each_has_its_random_numbers() -> None:
    noise = [batch["noise"].tolist() for batch in forebay.DataLoader(Subset(Numbers(9), [4, 2, 8]), 3)]  # type: ignore[arg-type]
    assert len(set(noise[0])) == 3


def test_a_subset_of_a_subset_and_a_stack_are_read_sample_by_sample_too() -> None:
    numbers: Any = Numbers(9)
    subset = Subset(Subset(numbers, range(9)), [4, 2, 8])
    (batch,) = forebay.DataLoader(subset, 3)
    for stacked in (StackDataset(x=subset), StackDataset(x=StackDataset(x=subset))):
        (inner,) = forebay.DataLoader(stacked, 3)
        while "noise" not in inner:
            inner = inner["x"]
        assert inner["noise"].tolist() == batch["noise"].tolist()
    assert len(set(batch["noise"].tolist())) == 3


def test_a_subset_or_a_stack_of_what_reads_many_at_once_asks_it_for_a_batch_at_once() -> None:
    dataset: Any = Many()
    assert [batch.tolist() for batch in forebay.DataLoader(Subset(Subset(dataset, range(1, 10)), [0, 8, 4]), 2)] == [
        [10, 90],
        [50],
    ]
    assert dataset.calls == [[1, 9], [5]]
    plain: Any = range(10)
    (batch,) = forebay.DataLoader(StackDataset(dataset, plain), 10)
    assert [column.tolist() for column in batch] == [list(range(0, 100, 10)), list(range(10))]
    assert dataset.calls[2:] == [list(range(10))]


def test_without_workers_the_trainers_own_thread_reads(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "data.db")
    connection.execute("create table samples (id integer primary key, value text)")
    connection.executemany("insert into samples values (?, ?)", [(number, f"row {number}") for number in range(8)])

    class Database:
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> str:
            (value,) = connection.execute("select value from samples where id = ?", (index,)).fetchone()
            return str(value)

    assert [value for batch in forebay.DataLoader(Database(), 3) for value in batch] == [f"row {n}" for n in range(8)]
    connection.close()


def test_a_state_of_a_dataset_of_another_length_seed_or_tail_is_refused_by_name() -> None:
    state = forebay.DataLoader(Numbers(20), 4, True, seed=1).state_dict()
    for loader, field in (
        (forebay.DataLoader(Numbers(21), 4, True, seed=1), "dataset.samples"),
        (forebay.DataLoader(Numbers(20), 4, True, seed=2), "order.seed"),
        (forebay.DataLoader(Numbers(20), 4, False, seed=1), "order.algorithm"),
        (forebay.DataLoader(Numbers(20), 4, True, seed=1, tail="pad"), "order.tail"),
    ):
        with pytest.raises(StateMismatch, match=field):
            loader.load_state_dict(state)


class Growing(Numbers):
    pass


def test_a_dataset_that_has_grown_between_epochs_is_read_whole_in_the_next() -> None:
    dataset = Growing(6)
    loader = forebay.DataLoader(dataset, 4, True)
    assert sorted(sample for batch in loader for sample in batch["x"].tolist()) == list(range(6))
    dataset.samples = 9
    assert sorted(sample for batch in loader for sample in batch["x"].tolist()) == list(range(9))


def test_a_length_that_changes_within_an_epoch_counts_from_the_next_and_a_state_says_which_one_it_is_of() -> None:
    dataset = Growing(6)
    loader = forebay.DataLoader(dataset, 2, True)
    batches = iter(loader)
    seen = next(batches)["x"].tolist()
    dataset.samples = 9
    assert loader.remaining == 2
    state = loader.state_dict()
    for other in (forebay.DataLoader(dataset, 2, True), loader):
        with pytest.raises(StateMismatch, match=r"dataset.samples is 9 here, 6 in the state"):
            other.load_state_dict(state)
    assert loader.state_dict() == state
    assert sorted([*seen, *(sample for batch in batches for sample in batch["x"].tolist())]) == list(range(6))
    assert sorted(sample for batch in loader for sample in batch["x"].tolist()) == list(range(9))


class Unsized:
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("dataset", "options", "words"),
    [
        (Unsized(), {}, "no length"),
        (iter([1, 2]), {}, "no position"),
        ([], {}, "no samples"),
        ([1], {"rank": 0, "world_size": 2}, "fewer than the 2 ranks"),
        ([1, 2], {"address": "/run/x.sock"}, "does without"),
        ([1, 2], {"shuffle": "window"}, "permutation of all"),
        ([1, 2], {"drop_last": True, "tail": "pad"}, "contradict"),
        ([1, 2], {"rank": 0}, "go together"),
        ([1, 2], {"rank": "0", "world_size": "1"}, "rank='0': give a whole number"),
        (Numbers(sys.maxsize + 1), {}, "no length"),
        ([1, 2], {"extras": ["position"]}, "can carry"),
        ([1, 2], {"extras": forebay.POSITION}, "is one name"),
        ([1, 2], {"seed": "one"}, "seed"),
        ([1, 2], {"batch_transform": 3}, "cannot be called"),
        ([1, 2], {"steps": 0}, "steps"),
        ([1, 2], {"steps": 3, "repeat": True}, "contradict"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_cannot_be_loaded_is_refused_with_the_reason(dataset: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ForebayError, match=words):
        iter(forebay.DataLoader(dataset, **options))


def test_describe_names_the_next_index() -> None:
    loader = forebay.DataLoader(Numbers(10), 4, True, seed=1)
    next(iter(loader))
    described = loader.describe()
    assert described == {"epoch": 0, "position": 4, "samples": 10, "index": order_of(10, 1, 1)[4][2]}


def test_a_transform_of_whole_batches_gets_them_with_their_extras() -> None:
    def scaled(batch: dict[str, Any]) -> Any:
        return (batch["x"] * 10 + batch[forebay.POSITION]).tolist()

    cases: list[dict[str, Any]] = [{}, {"num_workers": 1, "worker_type": "thread"}]
    for workers in cases:
        loader = forebay.DataLoader(Numbers(5), 3, extras=[forebay.POSITION], batch_transform=scaled, **workers)
        assert list(loader) == [[0, 11, 22], [33, 44]]


def test_a_global_batch_size_holds_over_changes_of_the_world_size() -> None:
    seen: list[list[int]] = []
    state = None
    for world_size in (3, 2, 4):
        step: list[int] = []
        for rank in range(world_size):
            loader = forebay.DataLoader(
                Numbers(36), shuffle=True, global_batch_size=12, rank=rank, world_size=world_size
            )
            if state is not None:
                loader.load_state_dict(state)
            step += next(iter(loader))["x"].tolist()
        state = loader.state_dict()
        seen.append(sorted(step))
    order = [sample for _, _, sample in order_of(36, 0, 1)]
    assert seen == [sorted(order[begin : begin + 12]) for begin in (0, 12, 24)]


def noise_of(batch: dict[str, Any]) -> list[float]:
    values: list[float] = np.asarray(batch["noise"]).tolist()
    return values


def test_any_batch_is_replayed_with_its_random_numbers_and_nothing_moves() -> None:
    loader = forebay.DataLoader(Numbers(23), 5, True, seed=6, rank=1, world_size=2)
    epochs = [list(loader) for _ in range(2)]
    loader.set_epoch(2)
    next(iter(loader))
    state = loader.state_dict()
    for epoch, batches in enumerate(epochs):
        for step, batch in enumerate(batches):
            again = loader.replay(epoch, step)
            assert again["x"].tolist() == batch["x"].tolist()
            assert noise_of(again) == noise_of(batch)
    assert noise_of(loader.replay(0, position=10)) == noise_of(epochs[0][1])
    assert loader.state_dict() == state
    wrongs: list[dict[str, int]] = [{"step": 3}, {"step": -1}, {"position": 23}, {"step": 0, "position": 0}, {}]
    for wrong in wrongs:
        with pytest.raises(ConfigurationError):
            loader.replay(0, **wrong)


class Drawing(Numbers):
    """Draws from the process's own generators, as many users' datasets do."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": index, "noise": random.random() + float(np.random.random()) + float(torch.rand(()))}


def test_a_batch_that_worker_processes_drew_is_replayed_and_the_trainers_generators_stay_as_they_are() -> None:
    loader = forebay.DataLoader(Drawing(20), 6, True, seed=6, num_workers=2)
    batches = list(loader)
    loader.close()
    states = random.getstate(), torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index]
    for step, batch in enumerate(batches):
        again = loader.replay(0, step)
        assert (again["x"].tolist(), noise_of(again)) == (batch["x"].tolist(), noise_of(batch))
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    assert np.random.get_state()[1].tolist() == states[2]  # type: ignore[index]


def samples_of(batches: Any) -> list[int]:
    return [sample for batch in batches for sample in batch["x"].tolist()]


def test_a_pass_of_steps_runs_over_epochs_and_is_resumed_where_it_was() -> None:
    whole = [sample for _, _, sample in order_of(10, 0, 6)]

    def steps_of(stop: int) -> list[list[int]]:
        """The order, in the steps of a loader that starts anew with each epoch."""
        bounds = [*range(0, 10, 4), 10]
        steps = [
            sorted(whole[epoch * 10 + low : epoch * 10 + high]) for epoch in range(6) for low, high in pairwise(bounds)
        ]
        return steps[:stop]

    loader = forebay.DataLoader(Numbers(10), 4, True, steps=5)
    assert len(loader) == loader.remaining == 5
    first, second = list(loader), list(loader)
    assert [batch["x"].tolist() for batch in first + second] == steps_of(10)
    third = iter(loader)
    got = [next(third)["x"].tolist() for _ in range(2)]
    assert loader.remaining == 3
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = forebay.DataLoader(Numbers(10), 4, True, steps=5)
    resumed.load_state_dict(state)
    assert resumed.remaining == 3
    got += [batch["x"].tolist() for batch in resumed]
    assert got == steps_of(15)[10:]
    assert resumed.remaining == 5
    left = iter(resumed)
    next(left)
    assert next(iter(resumed))["x"].tolist() == steps_of(17)[16], "after a break it goes on, and begins another pass"
    assert resumed.remaining == 4


def test_a_resumed_pass_that_is_over_hands_out_nothing_and_the_next_one_is_whole() -> None:
    loader = forebay.DataLoader(Numbers(10), 4, True, steps=5)
    it = iter(loader)
    for _ in range(3):
        next(it)
    shorter = forebay.DataLoader(Numbers(10), 4, True, steps=2)
    shorter.load_state_dict(loader.state_dict())
    assert list(shorter) == []
    assert len(list(shorter)) == 2


def test_a_repeated_loader_has_no_end_and_no_length() -> None:
    loader = forebay.DataLoader(Numbers(4), 2, repeat=True)
    with pytest.raises(TypeError, match="no length"):
        len(loader)
    forever = iter(loader)
    assert samples_of(next(forever) for _ in range(5)) == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, "worker_type": "thread"}], ids=str)
def test_the_trainers_own_random_numbers_are_left_alone(workers: dict[str, Any]) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    loader = forebay.DataLoader(Numbers(12), 4, True, **workers)
    list(loader)
    assert torch.equal(before, torch.get_rng_state())
    loader.close()
