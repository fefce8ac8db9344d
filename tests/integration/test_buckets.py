"""Batches of like lengths over a real daemon and over map-style datasets: one order, exact resumes, little padding."""

import json
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch

import forebay
from tests.integration.trainers import in_order, job, reference, same_batches
from tests.server.daemons import Daemon
from tests.support.data import write_parquet

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

SAMPLES = 420
LENGTHS = np.exp(np.random.default_rng(1).normal(4, 1, SAMPLES)).astype(np.int32)
BUCKETS = forebay.Buckets(LENGTHS, window=100, unit=8)
DATASET: dict[str, Any] = {
    "format": forebay.Parquet(piece_bytes=1),
    "order": forebay.OrderOptions(lanes=4, window=50),
    "buckets": BUCKETS,
}


@pytest.fixture(scope="module")
def source(node: Daemon) -> str:
    """42 pieces of 10 samples."""
    directory = node.socket.parent.parent / "data"
    write_parquet(directory, shards=6, rows=70, row_group_rows=10)
    return str(directory)


@pytest.fixture(scope="module")
def order(node: Daemon, source: str) -> list[tuple[int, int, int]]:
    """What one process sees in two epochs."""
    return in_order(reference(source, str(node.socket), 2, **DATASET))


def test_a_stream_in_buckets_is_one_order_of_every_sample_once_whatever_the_topology_and_the_cuts(
    order: list[tuple[int, int, int]], source: str, address: str
) -> None:
    for epoch in range(2):
        assert sorted(sample for number, _, sample in order if number == epoch) == list(range(SAMPLES))
    seen: list[tuple[int, int, int]] = []
    state = None
    for world_size, batch_size, steps in ((2, 8, 5), (3, 5, 7), (1, 32, 2), (4, 4, None), (2, 30, 3), (3, 11, None)):
        with job(source, address, world_size=world_size, batch_size=batch_size, state=state, dataset=DATASET) as ranks:
            ranks.run(steps)
            seen += ranks.seen
            state = json.loads(json.dumps(ranks.state))
    assert in_order(seen) == order


def test_workers_change_nothing(source: str, address: str) -> None:
    with (
        job(source, address, world_size=2, batch_size=16, dataset=DATASET) as alone,
        job(source, address, world_size=2, batch_size=16, dataset=DATASET, loader={"num_workers": 2}) as helped,
    ):
        for steps in (None, 5, None):
            assert alone.run(steps) == helped.run(steps)
            assert alone.state == helped.state
        assert same_batches(alone, helped)


def test_batches_are_of_like_lengths(source: str, address: str) -> None:
    def padding(dataset: dict[str, Any]) -> float:
        with job(source, address, world_size=2, batch_size=4, dataset=dataset) as ranks:
            ranks.run()
            batches = [LENGTHS[batch[forebay.SAMPLE_ID]] for step in ranks.batches for batch in step]
        return float(sum(len(batch) * batch.max() for batch in batches) / LENGTHS.sum() - 1)

    assert padding({**DATASET, "buckets": None}) > 0.5
    assert padding(DATASET) < 0.25


def test_a_state_of_other_buckets_is_refused_by_the_field(source: str, address: str) -> None:
    def dataset(buckets: forebay.Buckets | None) -> forebay.StreamingDataset:
        return forebay.StreamingDataset(source, **{**DATASET, "buckets": buckets}, address=address)

    state = dataset(BUCKETS).state_dict()
    dataset(forebay.Buckets(LENGTHS.tolist(), window=100, unit=8)).load_state_dict(state)
    for says, other in (
        (r"order\.buckets\.window is 101 here, 100", forebay.Buckets(LENGTHS, window=101, unit=8)),
        (r"order\.buckets\.unit is 9 here, 8", forebay.Buckets(LENGTHS, window=100, unit=9)),
        (r"order\.buckets\.lengths is sha256", forebay.Buckets(LENGTHS + 1, window=100, unit=8)),
        (r"order\.buckets is None here", None),
    ):
        with pytest.raises(forebay.StateMismatch, match=says):
            dataset(other).load_state_dict(state)


def test_a_position_in_buckets_is_described_by_the_begin_of_its_window(source: str, address: str) -> None:
    plain = {**DATASET, "buckets": None}
    with (
        job(source, address, world_size=1, batch_size=50, dataset=DATASET) as bucketed,
        job(source, address, world_size=1, batch_size=50, dataset=plain) as straight,
    ):
        bucketed.run(5)
        straight.run(4)
        here, there = bucketed.loaders[0].describe(), straight.loaders[0].describe()
    assert (here["position"], there["position"]) == (250, 200)
    assert here["lanes"] == there["lanes"]


def test_lengths_of_another_number_are_refused_when_the_dataset_is_opened(source: str, address: str) -> None:
    few = forebay.Buckets(LENGTHS[1:], window=100, unit=8)
    data = forebay.StreamingDataset(source, **{**DATASET, "buckets": few}, address=address)
    with pytest.raises(forebay.ConfigurationError, match="419 lengths and the dataset 420 samples"):
        data.open()
    with pytest.raises(forebay.ConfigurationError, match="419 lengths and the dataset 420 samples"):
        iter(forebay.DataLoader(torch.arange(SAMPLES), 4, buckets=few))


def numbers(**options: Any) -> forebay.DataLoader:
    """A loader of the numbers [0, 420)."""
    return forebay.DataLoader(torch.arange(SAMPLES), buckets=BUCKETS, shuffle=True, seed=2, **options)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_map_style_dataset_is_loaded_in_buckets_and_resumed_at_any_world_size(num_workers: int) -> None:
    state, seen = None, []
    for world_size, steps in ((2, 5), (3, 4), (1, 10**6)):
        loaders = [
            numbers(batch_size=8, rank=rank, world_size=world_size, num_workers=num_workers)
            for rank in range(world_size)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
            for step, batch in enumerate(loader, start=1):
                seen += batch.tolist()
                if step == steps:
                    break
        state = loaders[0].state_dict()
        for loader in loaders:
            loader.close()
    assert sorted(seen) == list(range(SAMPLES))


def test_a_map_style_dataset_says_which_index_is_next() -> None:
    with closing(numbers(batch_size=1)) as loader:
        for _ in range(2):
            said = [loader.describe()["index"]]
            read = []
            for batch in loader:
                read += batch.tolist()
                said.append(loader.describe()["index"])
            assert said[:-1] == read


def test_buckets_in_the_wrong_place_are_refused(source: str, address: str) -> None:
    plain = forebay.StreamingDataset(source, **{**DATASET, "buckets": None}, address=address)
    with pytest.raises(forebay.ConfigurationError, match="give it to the StreamingDataset"):
        forebay.DataLoader(plain, 4, buckets=BUCKETS)
    with pytest.raises(forebay.ConfigurationError, match=r"^buckets= is a ndarray: give forebay\.Buckets"):
        forebay.StreamingDataset(source, buckets=LENGTHS, address=address)  # type: ignore[arg-type]
    bucketed = forebay.StreamingDataset(source, **DATASET, address=address)
    assert len(forebay.DataLoader(bucketed, 4, buckets=BUCKETS)) == 105
    with pytest.raises(forebay.ConfigurationError, match="source 'a' has buckets of its own"):
        forebay.Mixture({"a": (bucketed, 1)})
