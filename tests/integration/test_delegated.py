"""Loaders over iterable datasets that keep their own position: torch's batches, resumed after those handed out."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

import forebay

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

SAMPLES = 53


class Stream(IterableDataset[int]):
    """Every n-th number in each of n workers, other numbers in each epoch; it goes on where its state says."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self.samples, self.epoch = samples, 0
        self.done, self.is_resumed = 0, False

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done, self.is_resumed = state["done"], True

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        self.done = self.done if self.is_resumed else 0
        self.is_resumed = False
        while (number := worker + workers * self.done) < self.samples:
            self.done += 1
            yield 1000 * self.epoch + number


class Sized(Stream):
    """One that knows its length."""

    def __len__(self) -> int:
        return self.samples


class WholeBatches(Stream):
    """One whose last batch is full, so that nothing shows that it is the last."""

    def __init__(self) -> None:
        super().__init__(48)


class Counting(Stream):
    """One that counts its epochs by itself, and so must go on with the state that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done, "passes": self.passes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.passes = state["passes"]

    def set_epoch(self, epoch: int) -> None:
        """Nobody tells it."""

    def __iter__(self) -> Iterator[int]:
        for number in super().__iter__():
            yield 1000 * self.passes + number
        self.passes, self.done = self.passes + 1, 0


class Failing(Stream):
    """One that fails in the middle."""

    def __iter__(self) -> Iterator[int]:
        for number in super().__iter__():
            if number == 20:
                raise OSError("no more")
            yield number


WAYS: dict[str, dict[str, Any]] = {
    "in turn": {},
    "a thread": {"num_workers": 2, "worker_type": "thread"},
    "1 process": {"num_workers": 1},
    "3 processes": {"num_workers": 3},
    "2 persistent": {"num_workers": 2, "persistent_workers": True},
}


def read_a_part(worker: int) -> None:
    """A `worker_init_fn` that tells each worker's dataset its part, as torch's documentation has it."""
    info = get_worker_info()
    assert info is not None
    assert type(info.dataset) is Stream
    info.dataset.samples = 10 + worker


def values(loader: Any, steps: int | None = None) -> list[list[int]]:
    """The batches of the next steps as lists."""
    found = []
    for batch in loader:
        found.append(batch.tolist())
        if len(found) == steps:
            break
    return found


def a_loader(dataset: Any, way: str, **options: Any) -> forebay.DataLoader:
    """A loader that reads it in that way."""
    return forebay.DataLoader(dataset, **{"batch_size": 4, **WAYS[way], **options})


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_the_batches_are_those_of_torchs_loader(way: str, drop_last: bool) -> None:
    processes = {name: value for name, value in WAYS[way].items() if "thread" not in WAYS[way].values()}
    theirs = Stream()
    torchs = torch.utils.data.DataLoader(theirs, 4, drop_last=drop_last, **{**processes, "persistent_workers": False})
    with closing(a_loader(Stream(), way, drop_last=drop_last)) as loader:
        for epoch in range(3):
            theirs.set_epoch(epoch)
            assert loader.epoch == epoch
            assert values(loader) == values(torchs)


@pytest.mark.parametrize(
    ("way", "dataset"),
    [
        *((way, Stream) for way in WAYS),
        *((way, WholeBatches) for way in ("in turn", "1 process", "2 persistent")),
        # Workers that end with the epoch forget what a dataset counts over epochs, as torch's do.
        *((way, Counting) for way in ("in turn", "a thread", "2 persistent")),
    ],
)
def test_a_run_is_resumed_after_every_batch(way: str, dataset: Any) -> None:
    with closing(a_loader(dataset(), way)) as whole:
        batches, states = [], [whole.state_dict()]
        for _ in range(2):
            for batch in whole:
                batches.append(batch.tolist())
                states.append(json.loads(json.dumps(whole.state_dict())))
        ended = whole.state_dict()
        third = values(whole)
    assert (ended["epoch"], ended["steps"], ended["workers"] == []) == (2, 0, way in ("1 process", "3 processes"))
    stride = 1 if way in ("in turn", "a thread") else 5
    for taken in [*range(0, len(states), stride), len(states) - 1]:
        with closing(a_loader(dataset(), way)) as resumed:
            resumed.load_state_dict(states[taken])
            assert resumed.state_dict() == states[taken]
            seen: list[list[int]] = []
            while len(seen) < len(batches) - taken:
                seen += values(resumed)
            assert (seen or third) == (batches[taken:] or third)
            if taken < len(batches):
                assert resumed.state_dict() == ended
            assert values(resumed) == third
    with closing(a_loader(dataset(), way)) as resumed:
        resumed.load_state_dict(ended)
        assert values(resumed) == third


@pytest.mark.parametrize("way", ["in turn", "3 processes"])
def test_a_state_is_taken_and_loaded_again_and_again_within_an_epoch(way: str) -> None:
    with closing(a_loader(Stream(), way)) as whole:
        expected = values(whole)
    seen: list[list[int]] = []
    state = None
    for steps in (1, 1, 3, 2, 6, None):
        with closing(a_loader(Stream(), way)) as loader:
            if state is not None:
                loader.load_state_dict(state)
            seen += values(loader, steps)
            state = loader.state_dict()
    assert seen == expected


@pytest.mark.parametrize("way", WAYS)
def test_after_a_break_comes_the_next_epoch_unless_the_present_one_is_chosen(way: str) -> None:
    with closing(a_loader(Stream(), way)) as loader:
        first = values(loader, 3)
        second = values(loader, 2)
        assert loader.epoch == 1
        assert {number // 1000 for batch in first for number in batch} == {0}
        assert {number // 1000 for batch in second for number in batch} == {1}
        loader.set_epoch(1)
        rest = values(loader)
        assert sorted(number for batch in second + rest for number in batch) == list(range(1000, 1000 + SAMPLES))


@pytest.mark.parametrize("way", WAYS)
def test_an_error_of_the_dataset_reaches_the_trainer_and_stays_until_it_iterates_anew(way: str) -> None:
    with closing(a_loader(Failing(), way)) as loader:
        iterator = iter(loader)
        with pytest.raises(OSError, match="no more"):
            list(iterator)
        with pytest.raises(OSError, match="no more"):
            next(iterator)
        assert values(loader, 1)[0][0] % 1000 == 0


class Refusing(Stream):
    """One that raises an error of forebay's."""

    def __iter__(self) -> Iterator[int]:
        raise forebay.BadObject("the shard 'a' is damaged: mend it")
        yield 0


@pytest.mark.parametrize("way", WAYS)
def test_an_error_of_forebays_own_is_said_in_its_one_line(way: str) -> None:
    with closing(a_loader(Refusing(), way)) as loader, pytest.raises(forebay.BadObject) as caught:
        list(loader)
    assert str(caught.value) == "the shard 'a' is damaged: mend it"


def test_an_earlier_iterator_has_ended_and_close_can_be_followed_by_another_iteration() -> None:
    loader = a_loader(Stream(), "1 process")
    first = iter(loader)
    next(first)
    second = iter(loader)
    next(second)
    with pytest.raises(forebay.StateError, match="this iterator has ended"):
        next(first)
    loader.close()
    with pytest.raises(forebay.StateError, match="this iterator has ended"):
        next(second)
    with closing(loader):
        assert len(values(loader)) == 14


def test_a_state_of_another_number_of_workers_or_another_dataset_is_refused_with_the_reason() -> None:
    with closing(a_loader(Stream(), "3 processes")) as loader:
        values(loader, 2)
        state = loader.state_dict()
    for way in ("in turn", "a thread", "1 process"):
        with pytest.raises(forebay.StateMismatch, match="3 worker processes"):
            a_loader(Stream(), way).load_state_dict(state)
    with pytest.raises(forebay.StateMismatch, match=r"Stream, the dataset is a .*Counting"):
        a_loader(Counting(), "3 processes").load_state_dict(state)
    with pytest.raises(forebay.StateError, match="not a state"):
        a_loader(Stream(), "3 processes").load_state_dict({**state, "workers": state["workers"][:2]})
    with pytest.raises(forebay.StateError, match="not a state"):
        a_loader(Stream(), "in turn").load_state_dict(forebay.DataLoader([1, 2]).state_dict())
    with pytest.raises(forebay.StateError, match="not a state"):
        forebay.DataLoader([1, 2]).load_state_dict(state)


def test_worker_init_fn_sees_and_sets_up_each_workers_dataset() -> None:
    with closing(a_loader(Stream(), "1 process", num_workers=2, worker_init_fn=read_a_part)) as loader:
        assert sorted(number for batch in loader for number in batch.tolist()) == list(range(10))


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("way", WAYS)
def test_a_loader_that_is_dropped_in_the_middle_of_an_epoch_leaves_nothing_behind(way: str) -> None:
    loader = a_loader(Stream(), way)
    assert len(values(loader, 3)) == 3
    del loader


def test_a_state_in_the_trainers_process_fits_the_reading_thread_too() -> None:
    with closing(a_loader(Stream(), "in turn")) as loader:
        first = values(loader, 5)
        state = loader.state_dict()
    with closing(a_loader(Stream(), "a thread")) as loader:
        loader.load_state_dict(state)
        assert [number for batch in first + values(loader) for number in batch] == list(range(SAMPLES))


def test_in_turn_nothing_is_read_before_it_is_asked_for() -> None:
    dataset = Stream()
    iterator = iter(a_loader(dataset, "in turn"))
    assert dataset.done == 0
    next(iterator)
    assert dataset.done == 4


def test_the_length_is_what_torch_reckons_and_none_where_the_dataset_has_none() -> None:
    ways: list[dict[str, Any]] = [{}, {"drop_last": True}, {"batch_size": None}]
    for options in ways:
        loader = a_loader(Sized(), "in turn", **options)
        theirs: Any = torch.utils.data.DataLoader(Sized(), **{"batch_size": 4, **options})
        assert len(loader) == len(theirs) == len(list(loader))
    with pytest.raises(TypeError, match="len"):
        len(a_loader(Stream(), "in turn"))


def test_batches_are_collated_transformed_and_timed() -> None:
    def collate(samples: list[int]) -> list[int]:
        return [sample + 1 for sample in samples]

    for way in ("in turn", "a thread", "1 process"):
        loader = a_loader(Stream(), way, collate_fn=collate, batch_transform=sum, report_to=None)
        with closing(loader):
            assert list(loader)[:2] == [10, 26]
            assert [timing.step for timing in loader.timings] == list(range(14))
            assert all(timing.samples == 4 for timing in loader.timings[:-1])
        with closing(a_loader(Stream(), way, batch_size=None)) as singles:
            assert list(singles)[:3] == [0, 1, 2]


def test_what_only_the_dataset_can_do_is_refused_on_the_loader() -> None:
    told: list[dict[str, Any]] = [{"shuffle": True}, {"seed": 1}, {"rank": 0, "world_size": 2}, {"extras": ["x"]}]
    for options in told:
        with pytest.raises(forebay.ConfigurationError, match="keeps its own order and position"):
            a_loader(Stream(), "in turn", **options)


def test_the_position_is_described() -> None:
    with closing(a_loader(Stream(), "1 process")) as loader:
        values(loader, 3)
        assert loader.describe() == {
            "delegated": f"{__name__}.Stream",
            "epoch": 0,
            "steps": 3,
            "num_workers": 1,
        }
