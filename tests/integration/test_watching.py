"""Who watches a loader hears before each batch is read; reading ahead moves nothing."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

import forebay


@pytest.fixture
def loader(data: Path, address: str) -> Iterator[forebay.DataLoader]:
    dataset = forebay.StreamingDataset(str(data), columns=["id"], seed=3, address=address)
    with closing(forebay.DataLoader(dataset, 50)) as made:
        yield made


def test_a_watcher_is_told_before_each_batch_and_until_it_leaves(loader: forebay.DataLoader) -> None:
    positions: list[int] = []
    leave = loader.watch(lambda: positions.append(loader.position))
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    leave()
    next(batches)
    assert positions == [0, 50, 100]


def test_what_a_watcher_raises_comes_out_of_next_and_costs_no_batch(loader: forebay.DataLoader) -> None:
    failures = [None, RuntimeError("a checkpoint failed"), None]

    def told() -> None:
        if failure := failures.pop(0):
            raise failure

    loader.watch(told)
    batches = iter(loader)
    seen = [next(batches)["id"]]
    with pytest.raises(RuntimeError, match="a checkpoint failed"):
        next(batches)
    assert loader.position == 50
    seen.append(next(batches)["id"])
    assert len(torch.unique(torch.cat(seen))) == 100


def test_reading_ahead_moves_nothing_and_changes_no_batch(loader: forebay.DataLoader, data: Path, address: str) -> None:
    whole = [batch["id"] for batch in loader]
    again = forebay.StreamingDataset(str(data), columns=["id"], seed=3, address=address)
    with closing(forebay.DataLoader(again, 50)) as other:
        batches = iter(other)
        next(batches), next(batches)
        state = other.state_dict()
    third = forebay.StreamingDataset(str(data), columns=["id"], seed=3, address=address)
    with closing(forebay.DataLoader(third, 50)) as resumed:
        resumed.load_state_dict(state)
        resumed.read_ahead()
        resumed.read_ahead()
        assert resumed.state_dict() == state
        rest = [batch["id"] for batch in resumed]
    assert len(rest) == len(whole) - 2
    assert all(torch.equal(one, other) for one, other in zip(rest, whole[2:], strict=True))
