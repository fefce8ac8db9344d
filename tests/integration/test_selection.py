"""limit=, split() and dataset[index] over a real daemon."""

import json
import pickle
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forebay
from tests.integration.trainers import in_order
from tests.server.daemons import Daemon, daemon
from tests.support.data import row, tokens, write_parquet, write_tokens
from tests.support.processes import HOME_VARIABLE, end_processes_of

SAMPLES = 420
OPTIONS: dict[str, Any] = {
    "format": forebay.Parquet(piece_bytes=1),
    "order": forebay.OrderOptions(lanes=4, window=50),
    "columns": ["id", "text", "embedding"],
    "extras": (forebay.SAMPLE_ID,),
}
HALVES = {"train": 0.7, "eval": 0.3}


@pytest.fixture(scope="module")
def node() -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="fb-") as directory:
        home = Path(directory)
        with daemon(home, env={"PATH": "/usr/bin:/bin", HOME_VARIABLE: str(home)}) as started:
            yield started
        end_processes_of(home)


@pytest.fixture(scope="module")
def source(node: Daemon) -> Path:
    """6 shards, 42 pieces of 10 samples."""
    directory = node.socket.parent.parent / "data"
    write_parquet(directory, shards=6, rows=70, row_group_rows=10)
    return directory


def stream(node: Daemon, source: Path, **options: Any) -> forebay.StreamingDataset:
    return forebay.StreamingDataset(
        source, **{**OPTIONS, "rank": 0, "world_size": 1, "address": str(node.socket), **options}
    )


def ids(dataset: forebay.StreamingDataset) -> list[int]:
    """Those of one epoch, in its order; what is read is what the id says."""
    samples = list(dataset)
    assert [sample["id"] for sample in samples] == [int(sample[forebay.SAMPLE_ID]) for sample in samples]
    return [int(sample["id"]) for sample in samples]


@pytest.mark.parametrize("by", ["sample", "shard"])
def test_the_datasets_of_a_split_hand_out_every_sample_once_between_them(node: Daemon, source: Path, by: Any) -> None:
    parts = stream(node, source).split(HALVES, seed=3, by=by)
    assert list(parts) == ["train", "eval"]
    seen = {name: ids(part) for name, part in parts.items()}
    assert sorted(seen["train"] + seen["eval"]) == list(range(SAMPLES))
    assert {name: part.samples for name, part in parts.items()} == {name: len(each) for name, each in seen.items()}
    if by == "sample":
        assert len(seen["eval"]) == pytest.approx(0.3 * SAMPLES, abs=8)
        assert seen["train"] != sorted(seen["train"])
    assert {sample // 70 for sample in seen["train"]} & {sample // 70 for sample in seen["eval"]} == (
        set(range(6)) if by == "sample" else set()
    )
    assert set(ids(parts["eval"])) == set(seen["eval"])
    for part in parts.values():
        part.close()


def test_a_split_over_ranks_is_stopped_resized_and_gone_on_with(node: Daemon, source: Path) -> None:
    alone = stream(node, source).split(HALVES)["train"]
    expected = [(0, position, sample) for position, sample in enumerate(ids(alone))]
    alone.close()
    seen: list[tuple[int, int, int]] = []
    state: dict[str, Any] = {}
    for world_size, batch_size, steps in ((2, 8, 5), (3, 5, 7), (1, 32, None)):
        state = run(node, source, world_size, batch_size, steps, state, seen)
    assert in_order(seen) == expected
    assert (state["epoch"], state["position"]) == (1, 0)
    assert len(json.dumps(state)) < 1024


def run(
    node: Daemon,
    source: Path,
    world_size: int,
    batch_size: int,
    steps: int | None,
    state: dict[str, Any],
    seen: list[tuple[int, int, int]],
) -> dict[str, Any]:
    """Steps of all ranks of a job over a portion, from a state to the next."""
    extras = (forebay.SAMPLE_ID, forebay.POSITION)
    ranks = [stream(node, source, rank=rank, world_size=world_size, extras=extras) for rank in range(world_size)]
    loaders = [forebay.DataLoader(dataset.split(HALVES)["train"], batch_size) for dataset in ranks]
    for loader in loaders:
        if state:
            loader.load_state_dict(state)
    for batches in islice(zip(*map(iter, loaders), strict=True), steps):
        for batch in batches:
            places = zip(batch[forebay.POSITION].tolist(), batch[forebay.SAMPLE_ID].tolist(), strict=True)
            seen += [(0, position, sample) for position, sample in places]
    after: dict[str, Any] = json.loads(json.dumps(loaders[0].state_dict()))
    for loader in loaders:
        loader.close()
    return after


def test_each_dataset_of_a_split_has_a_position_and_an_end_of_its_own(node: Daemon, source: Path) -> None:
    dataset = stream(node, source, batch_size=4)
    next(iter(dataset))
    parts = dataset.split(HALVES)
    assert (dataset.position, parts["train"].position, parts["eval"].position) == (4, 0, 0)
    iterators = [iter(each) for each in (dataset, *parts.values())]
    for _ in range(3):
        for iterator in iterators:
            next(iterator)
    parts["eval"].close()
    next(iterators[0])
    next(iterators[1])
    assert (dataset.epoch, parts["train"].position, parts["eval"].position) == (1, 16, 12)
    assert parts["train"].batch_size == 4
    dataset.close()
    parts["train"].close()


def test_a_state_of_another_selection_is_refused_and_the_selection_named(node: Daemon, source: Path) -> None:
    whole = stream(node, source)
    parts = whole.split({"a": 0.5, "b": 0.5})
    state = json.loads(json.dumps(parts["a"].state_dict()))
    for other in (parts["b"], whole, whole.split({"a": 0.5, "b": 0.5}, seed=1)["a"], stream(node, source, limit=210)):
        with pytest.raises(forebay.StateMismatch, match=r"order\.selection\S* is .* here, .* in the state"):
            other.load_state_dict(state)
    again = stream(node, source).split({"b": 0.5, "a": 0.5})["a"]
    again.load_state_dict(state)
    assert "selection" not in whole.state_dict()["order"]


def test_a_limit_takes_the_first_samples_of_a_dataset_and_of_a_split(node: Daemon, source: Path) -> None:
    limited = stream(node, source, limit=25)
    assert (sorted(ids(limited)), limited.samples, len(limited)) == (list(range(25)), 25, 25)
    parts = limited.split(HALVES)
    assert sorted(ids(parts["train"]) + ids(parts["eval"])) == list(range(25))
    assert stream(node, source, limit=10**9).samples == SAMPLES
    with pytest.raises(forebay.ConfigurationError, match=r"limit=0\.5: give"):
        stream(node, source, limit=0.5)
    for dataset in (limited, *parts.values()):
        dataset.close()


def test_shards_that_are_added_leave_the_split_of_the_others_as_it_was(node: Daemon, source: Path) -> None:
    grown = source.parent / "grown"
    write_parquet(grown, shards=6, rows=70, row_group_rows=10)
    write_parquet(grown / "more", shards=1, rows=70, row_group_rows=10, first_id=900)
    before = stream(node, source, extras=()).split(HALVES)["eval"]
    after = stream(node, grown, extras=()).split(HALVES)["eval"]
    members = {int(sample["id"]) for sample in before}
    assert {int(sample["id"]) for sample in after if sample["id"] < 900} == members
    before.close()
    after.close()


def test_describe_names_the_shard_and_row_of_the_next_samples_of_a_selection(node: Daemon, source: Path) -> None:
    part = stream(node, source, order=forebay.OrderOptions(lanes=1, window=1)).split(HALVES)["eval"]
    lane = part.describe()["lanes"][0]
    sample = next(iter(part))
    assert (lane["shard"].rpartition("-")[2], lane["row"]) == (f"{sample['id'] // 70:05d}.parquet", sample["id"] % 70)
    part.close()


def test_a_sample_is_had_by_its_number(node: Daemon, source: Path) -> None:
    dataset = stream(node, source)
    for number in (0, 1, 75, 419, -1, -420, np.int64(7)):
        sample = dataset[number]
        expected = row(int(number) % SAMPLES)
        assert (sample["id"], sample["text"]) == (expected["id"], expected["text"])
        assert sample["embedding"].tolist() == expected["embedding"]
        assert set(sample) == {"id", "text", "embedding"}
    for number in (420, -421):
        with pytest.raises(IndexError, match=f"sample {number} of .*: there are 420"):
            dataset[number]
    wrong: Any = slice(3)
    with pytest.raises(TypeError):
        dataset[wrong]
    assert (dataset.epoch, dataset.position) == (0, 0)
    dataset.close()
    assert dataset[5]["id"] == 5
    assert pickle.loads(pickle.dumps(dataset))[6]["id"] == 6
    dataset.close()


def test_looking_samples_up_moves_no_position_and_python_iterates_as_before(node: Daemon, source: Path) -> None:
    dataset = stream(node, source)
    order = ids(dataset)
    iterator = iter(dataset)
    following = [int(next(iterator)["id"]) for _ in range(3)]
    assert [int(dataset[number]["id"]) for number in range(SAMPLES)] == list(range(SAMPLES))
    assert following + [int(sample["id"]) for sample in iterator] == ids_of_epoch_one(node, source)
    assert sorted(order) == list(range(SAMPLES))
    unordered: Any = dataset
    with pytest.raises(TypeError):
        reversed(unordered)
    dataset.close()


def ids_of_epoch_one(node: Daemon, source: Path) -> list[int]:
    dataset = stream(node, source)
    dataset.set_epoch(1)
    found = ids(dataset)
    dataset.close()
    return found


def test_of_a_split_the_samples_are_numbered_in_the_order_of_their_ids(node: Daemon, source: Path) -> None:
    part = stream(node, source).split(HALVES)["eval"]
    members = sorted(ids(part))
    assert [int(part[number]["id"]) for number in range(part.samples)] == members
    assert part[-1]["id"] == members[-1]
    with pytest.raises(IndexError):
        part[part.samples]
    part.close()


def augmented(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"id": sample["id"], "noise": float(rng.random())}


def test_a_sample_had_by_number_passes_the_transform_with_the_random_numbers_of_epoch_0(
    node: Daemon, source: Path
) -> None:
    whole = stream(node, source, transform=augmented, extras=(), seed=5)
    noise = {sample["id"]: sample["noise"] for sample in whole}
    assert len(set(noise.values())) == SAMPLES
    part = whole.split(HALVES, seed=9)["eval"]
    assert {sample["id"]: sample["noise"] for sample in part}.items() < noise.items()
    for dataset in (whole, part):
        sample = dataset[33]
        assert sample["noise"] == noise[sample["id"]]
        dataset.close()


def test_token_files_are_split_and_looked_up_too(node: Daemon) -> None:
    directory = node.socket.parent.parent / "tokens"
    directory.mkdir()
    write_tokens(directory / "a.bin", samples=3000, sequence_length=16)
    options: dict[str, Any] = {"format": forebay.Tokens(16, dtype="int32"), "columns": None, "order": None}
    dataset = stream(node, directory, **options)
    expected = tokens(samples=3000, sequence_length=16)
    part = dataset.split({"train": 0.99, "eval": 0.01})["eval"]
    seen = {int(sample[forebay.SAMPLE_ID]): sample["tokens"] for sample in part}
    assert len(seen) == pytest.approx(30, abs=2)
    assert all(np.array_equal(value, expected[number]) for number, value in seen.items())
    assert np.array_equal(dataset[1234]["tokens"], expected[1234])
    assert np.array_equal(part[3]["tokens"], expected[sorted(seen)[3]])
    dataset.close()
    part.close()


def test_a_portion_without_a_sample_is_an_error_that_says_so(node: Daemon, source: Path) -> None:
    tiny = stream(node, source).split({"train": 0.9999, "eval": 0.0001}, seed=1)["eval"]
    with pytest.raises(forebay.EmptyDataset, match=r"420 samples the selection .*\"eval\".* leaves none"):
        tiny.open()
