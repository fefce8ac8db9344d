"""A `StreamingDataset` in torch's own loader and in torchdata's: exact with its state, or refused."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import forebay
from tests.integration.worker_trainers import Numbers
from tests.server.daemons import daemon
from tests.support.data import write_parquet
from tests.support.processes import HOME_VARIABLE, end_processes_of

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")

SAMPLES = 210
LOADERS = [torch.utils.data.DataLoader, StatefulDataLoader]


class Node:
    def __init__(self, source: Path, socket: Path) -> None:
        self.source, self.socket = source, socket

    def stream(self, **options: Any) -> forebay.StreamingDataset:
        fmt = forebay.Parquet(piece_bytes=1)
        return forebay.StreamingDataset(
            str(self.source), columns=["id"], seed=3, address=str(self.socket), format=fmt, **options
        )


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="fb-") as directory:
        home = Path(directory)
        write_parquet(home / "data", shards=3, rows=70, row_group_rows=10)
        with daemon(home, env={"PATH": "/usr/bin:/bin", HOME_VARIABLE: str(home)}) as started:
            yield Node(home / "data", started.socket)
        end_processes_of(home)


def steps_of(batches: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


@pytest.fixture(scope="module")
def two_epochs(node: Node) -> list[list[list[int]]]:
    """What a loader of ours hands out."""
    loader = forebay.DataLoader(node.stream(), 8)
    epochs = [steps_of(loader) for _ in range(2)]
    loader.close()
    return epochs


@pytest.mark.parametrize("kind", LOADERS)
def test_without_workers_it_yields_the_datasets_own_batches_epoch_after_epoch(
    kind: Any, node: Node, two_epochs: list[list[list[int]]]
) -> None:
    data = node.stream(batch_size=8)
    loader = kind(data, batch_size=None, num_workers=0)
    assert len(loader) == 27
    assert [steps_of(loader) for _ in range(2)] == two_epochs
    data.close()


@pytest.mark.parametrize("kind", LOADERS)
def test_without_a_batch_size_torch_makes_the_batches_of_single_samples(kind: Any, node: Node) -> None:
    data = node.stream()
    loader = kind(data, batch_size=8, num_workers=0)
    steps = steps_of(loader)
    assert len(steps) == len(loader) == 27
    assert [len(step) for step in steps] == [8] * 26 + [2]
    assert sorted(sample for step in steps for sample in step) == list(range(SAMPLES))
    data.close()


def test_a_state_of_the_dataset_in_torchs_loader_goes_on_with_the_very_next_batch(
    node: Node, two_epochs: list[list[list[int]]]
) -> None:
    data = node.stream(batch_size=8)
    iterator = iter(torch.utils.data.DataLoader(data, batch_size=None))
    steps = steps_of(next(iterator) for _ in range(5))
    state = data.state_dict()
    data.close()
    resumed = node.stream(batch_size=8)
    resumed.load_state_dict(state)
    steps += steps_of(torch.utils.data.DataLoader(resumed, batch_size=None))
    resumed.close()
    assert steps == two_epochs[0]


@pytest.mark.parametrize("taken", [0, 1, 9, 26, 27])
def test_a_stateful_loaders_state_goes_on_with_the_very_next_batch_and_the_next_epoch(
    taken: int, node: Node, two_epochs: list[list[list[int]]]
) -> None:
    data = node.stream(batch_size=8)
    loader = StatefulDataLoader(data, batch_size=None, num_workers=0)
    iterator = iter(loader)
    steps = steps_of(next(iterator) for _ in range(taken))
    state = loader.state_dict()
    data.close()
    again = node.stream(batch_size=8)
    resumed = StatefulDataLoader(again, batch_size=None, num_workers=0)
    resumed.load_state_dict(state)
    steps += [step for _ in range(2) for step in steps_of(resumed)]
    again.close()
    whole = [step for epoch in two_epochs for step in epoch]
    assert steps[: len(whole)] == whole
    assert len(steps) >= len(whole)


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("batch_size", [None, 4])
def test_with_workers_it_is_refused_in_one_line_that_names_the_fix(
    kind: Any, batch_size: int | None, node: Node
) -> None:
    data = node.stream(batch_size=None if batch_size else 8)
    with pytest.raises(forebay.ConfigurationError) as caught:
        next(iter(kind(data, batch_size=batch_size, num_workers=1)))
    assert "use forebay.DataLoader(dataset, num_workers=…)" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_a_state_read_in_a_worker_of_torch_is_an_error_and_not_a_stale_one(node: Node) -> None:
    loader: Any = torch.utils.data.DataLoader(Numbers(1), num_workers=1, collate_fn=Asks(node.stream()))
    with pytest.raises(forebay.ConfigurationError, match=r"^state_dict\(\) in a worker process"):
        next(iter(loader))


class Asks:
    def __init__(self, data: forebay.StreamingDataset) -> None:
        self.data = data

    def __call__(self, _: Any) -> Any:
        return self.data.state_dict()
