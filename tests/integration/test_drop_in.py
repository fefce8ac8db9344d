"""A loader of forebay where code expects one of torch: arguments, attributes, errors, workers (map-style datasets)."""

import copy
import inspect
import pickle
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, Dataset, IterableDataset, RandomSampler, SequentialSampler, get_worker_info

import forebay

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Numbers(Dataset[tuple[int, int]]):
    """The sample is its index, and `opened` what a worker has set."""

    def __init__(self, samples: int = 30) -> None:
        self.samples = samples
        self.opened = 0

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[int, int]:
        info = get_worker_info()
        assert info is None or info.dataset is self
        return index, self.opened


class Plain(IterableDataset[int]):
    """An iterable without a state."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def open_the_dataset(worker: int) -> None:
    """A `worker_init_fn`, as they are written for torch."""
    info = get_worker_info()
    assert info is not None
    assert type(info.dataset) is Numbers
    info.dataset.opened = 7 + worker


def first(samples: list[Any]) -> Any:
    """A `collate_fn`."""
    return samples[0]


def test_in_a_worker_process_the_dataset_is_the_users_own_and_worker_init_fn_can_set_it_up() -> None:
    with closing(forebay.DataLoader(Numbers(), 5, num_workers=2, worker_init_fn=open_the_dataset)) as loader:
        opened = {number for _, numbers in loader for number in numbers.tolist()}
    assert opened == {7, 8}


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "worker_type": "thread"}], ids=["in process", "threads"])
def test_outside_worker_processes_there_is_no_worker_info(options: dict[str, Any]) -> None:
    seen = []

    class Asking(Numbers):
        def __getitem__(self, index: int) -> tuple[int, int]:
            seen.append(get_worker_info())
            return index, 0

    with closing(forebay.DataLoader(Asking(), 5, **options)) as loader:
        assert len(list(loader)) == 6
    assert set(seen) == {None}


OPTIONS: list[dict[str, Any]] = [
    {},
    {"batch_size": 4},
    {"batch_size": None},
    {"batch_size": 4, "shuffle": True, "drop_last": True},
    {"batch_size": 4, "sampler": [3, 1, 2]},
    {"batch_sampler": BatchSampler(SequentialSampler(range(30)), 7, True)},
    {"batch_sampler": [[1, 2], [3]]},
    {"num_workers": 2},
    {"num_workers": 1, "prefetch_factor": 5, "persistent_workers": True, "timeout": 9},
    {"num_workers": 1, "multiprocessing_context": "forkserver", "worker_init_fn": open_the_dataset},
    {"collate_fn": first, "pin_memory": False, "pin_memory_device": ""},
    {"generator": torch.Generator().manual_seed(3), "shuffle": True},
]
_TORCH = list(inspect.signature(torch.utils.data.DataLoader.__init__).parameters)[1:]


@pytest.mark.parametrize("options", OPTIONS, ids=[", ".join(options) or "nothing" for options in OPTIONS])
def test_every_attribute_of_torchs_loader_has_torchs_value(options: dict[str, Any]) -> None:
    dataset = Numbers()
    theirs, ours = torch.utils.data.DataLoader(dataset, **options), forebay.DataLoader(dataset, **options)
    assert isinstance(ours, torch.utils.data.DataLoader)
    for name in (*_TORCH, "batch_sampler", "sampler"):
        if name == "shuffle":
            continue
        one, other = getattr(theirs, name), getattr(ours, name)
        if isinstance(one, RandomSampler | SequentialSampler) or type(one) is BatchSampler:
            assert type(one) is type(other)
        else:
            assert one == other, name
    assert ours.dataset is dataset
    assert len(ours) == len(theirs)


def test_the_positional_parameters_are_torchs_and_there_is_an_attribute_for_every_argument() -> None:
    parameters = list(inspect.signature(forebay.DataLoader.__init__).parameters.values())[1:]
    assert [parameter.name for parameter in parameters][: len(_TORCH)] == _TORCH
    loader = forebay.DataLoader(Numbers())
    given = {parameter.name: getattr(loader, parameter.name) for parameter in parameters}
    assert len(given) == len(parameters)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 4, "shuffle": True, "seed": 3, "extras": ["forebay.position"], "rank": 1, "world_size": 2},
        {"global_batch_size": 12, "tail": "drop"},
        {"batch_size": 4, "drop_last": True, "num_workers": 1, "worker_type": "thread"},
        {"sampler": [5, 6, 7, 8], "collate_fn": first, "report_to": None},
        {"batch_size": None},
    ],
    ids=", ".join,
)
def test_a_loader_rebuilt_from_its_attributes_is_the_same_loader(options: dict[str, Any]) -> None:
    loader = forebay.DataLoader(Numbers(), **options)
    parameters = list(inspect.signature(forebay.DataLoader.__init__).parameters.values())[1:]
    given = {parameter.name: getattr(loader, parameter.name) for parameter in parameters}
    if "sampler" not in options:
        given |= {"sampler": None}
    rebuilt = forebay.DataLoader(**{**given, "batch_sampler": None})
    assert len(rebuilt) == len(loader)
    assert rebuilt.state_dict() == loader.state_dict()
    assert rebuilt._assembly == loader._assembly
    for parameter in parameters:
        if parameter.name not in ("sampler", "batch_sampler"):
            assert getattr(rebuilt, parameter.name) == given[parameter.name], parameter.name


WRONG: list[dict[str, Any]] = [
    {"num_workers": -1},
    {"timeout": -1},
    {"prefetch_factor": 2},
    {"persistent_workers": True},
    {"batch_size": 0},
    {"batch_size": -3},
    {"batch_size": 2.5},
    {"batch_size": None, "drop_last": True},
    {"sampler": [1], "shuffle": True},
    {"batch_sampler": [[1]], "batch_size": 2},
    {"batch_sampler": [[1]], "shuffle": True},
    {"batch_sampler": [[1]], "sampler": [1]},
    {"batch_sampler": [[1]], "drop_last": True},
    {"multiprocessing_context": "fork"},
    {"num_workers": 1, "multiprocessing_context": "spoon"},
]


@pytest.mark.parametrize("options", WRONG, ids=[", ".join(options) for options in WRONG])
def test_what_torch_refuses_with_a_value_error_is_refused_with_one(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each in its own words
        torch.utils.data.DataLoader(Numbers(), **options)
    with pytest.raises(ValueError):  # noqa: PT011 - each in its own words
        forebay.DataLoader(Numbers(), **options)


def test_a_subclass_can_set_its_own_arguments_and_attributes() -> None:
    class Mine(forebay.DataLoader):
        def __init__(self, samples: int, **options: Any) -> None:
            self.note = "before"
            super().__init__(Numbers(samples), 4, **options)

        def __iter__(self) -> Any:
            return (batch for batch in super().__iter__())

    loader = Mine(10, shuffle=True)
    assert loader.note == "before"
    assert len(list(loader)) == len(loader) == 3
    assert loader.epoch == 1


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_of_a_loader_starts_where_the_loader_is_and_moves_alone(copied: Any) -> None:
    loader = forebay.DataLoader(Numbers(), 5, shuffle=True)
    iterator = iter(loader)
    next(iterator)
    other = copied(loader)
    assert other.state_dict() == loader.state_dict()
    other.set_epoch(0)
    assert len(list(other)) == 5
    assert (loader.epoch, loader.position) == (0, 5)
    assert len(list(iterator)) == 5


def test_an_iterable_without_a_state_is_refused_with_what_it_needs() -> None:
    with pytest.raises(forebay.ConfigurationError, match="state_dict and load_state_dict"):
        forebay.DataLoader(Plain())
