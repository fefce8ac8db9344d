"""A loader whose reading has failed ends with its last reference, as one that has not."""

import gc
import multiprocessing
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

import forebay
from tests.server.daemons import daemon
from tests.support.leaks import threads_beyond
from tests.support.processes import eventually

SECONDS = 20.0
WAYS: list[dict[str, Any]] = [
    {},
    {"num_workers": 2, "worker_type": "thread"},
    {"num_workers": 2, "worker_type": "process"},
]


class Damaged:
    """A map-style dataset one of whose samples cannot be read."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> int:
        if index == 24:
            raise ValueError("sample 24 is damaged")
        return index


class DamagedStream(IterableDataset[torch.Tensor]):
    """A stream that delegates its position, and ends in an error."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from torch.arange(24)
        raise ValueError("sample 24 is damaged")

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert not state


def fails(dataset: Any, **options: Any) -> None:
    """The frame in which the error is caught holds the loader, and the iterator raises it again."""
    loader = forebay.DataLoader(dataset, 8, **options)
    batches = iter(loader)
    with pytest.raises(ValueError, match="sample 24 is damaged"):
        list(batches)
    with pytest.raises(ValueError, match="sample 24 is damaged"):
        next(batches)


@pytest.mark.parametrize("way", WAYS, ids=["in process", "threads", "processes"])
@pytest.mark.parametrize("dataset", [Damaged, DamagedStream])
def test_a_loader_whose_dataset_has_raised_ends_with_its_last_reference(
    dataset: type[Any], way: dict[str, Any]
) -> None:
    before, children = set(threading.enumerate()), set(multiprocessing.active_children())
    if dataset is DamagedStream:
        way = {name: value for name, value in way.items() if name != "worker_type"}
    fails(dataset(), **way)

    def is_over() -> bool:
        gc.collect()
        return not threads_beyond(before) and set(multiprocessing.active_children()) <= children

    eventually(is_over, SECONDS, "the loader to end")


@pytest.mark.parametrize("way", WAYS, ids=["in process", "threads", "processes"])
def test_a_loader_whose_daemon_cannot_fetch_ends_with_its_last_reference(
    way: dict[str, Any], home: Path, data: Path
) -> None:
    before = set(threading.enumerate())

    def refused(address: str) -> None:
        stream = forebay.StreamingDataset(str(data), address=address, shuffle=False)
        loader = forebay.DataLoader(stream, 10, **way)
        len(loader)
        (data / "shard-00002.parquet").rename(data / "elsewhere")
        batches = iter(loader)
        for _ in range(2):
            with pytest.raises(forebay.SourceError, match="shard-00002"):
                list(batches)

    with daemon(home, "--read-in-place", "never") as node:
        refused(str(node.socket))
        eventually(lambda: not threads_beyond(before), SECONDS, "the loader to end")
