"""The loader over a real daemon: exactly once, one order, exact positions, whatever the topology and the workers."""

import gc
import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import forebay
from tests.integration.trainers import in_order, job, reference, same_batches
from tests.server.daemons import Daemon
from tests.support.data import tokens, write_parquet, write_tokens
from tests.support.processes import eventually

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

SAMPLES = 420
PIECES = forebay.Parquet(piece_bytes=1)
DATASET: dict[str, Any] = {"format": PIECES, "order": forebay.OrderOptions(lanes=4, window=50)}


@pytest.fixture(scope="module")
def source(node: Daemon) -> str:
    """42 pieces of 10 samples."""
    directory = node.socket.parent.parent / "data"
    write_parquet(directory, shards=6, rows=70, row_group_rows=10)
    return str(directory)


@pytest.fixture(scope="module")
def order(node: Daemon, source: str) -> list[tuple[int, int, int]]:
    """What one process sees in three epochs."""
    return in_order(reference(source, str(node.socket), 3, **DATASET))


def test_one_process_sees_every_sample_once_an_epoch_and_each_epoch_in_another_order(
    order: list[tuple[int, int, int]],
) -> None:
    for epoch in range(3):
        assert sorted(sample for number, _, sample in order if number == epoch) == list(range(SAMPLES))
        assert [position for number, position, _ in order if number == epoch] == list(range(SAMPLES))
    first, second, _ = ([sample for number, _, sample in order if number == epoch] for epoch in range(3))
    assert first != second
    assert first != list(range(SAMPLES))


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 7])
def test_the_order_does_not_depend_on_the_world_size(
    world_size: int, source: str, address: str, order: list[tuple[int, int, int]]
) -> None:
    with job(source, address, world_size=world_size, batch_size=9, dataset=DATASET) as ranks:
        assert ranks.run() == len(ranks.loaders[0])
        assert in_order(ranks.seen) == order[:SAMPLES]
        assert ranks.pads == 0


@pytest.mark.parametrize(
    "loader",
    [
        {"num_workers": 1},
        {"num_workers": 3, "multiprocessing_context": "fork"},
        {"num_workers": 2, "multiprocessing_context": "forkserver"},
        {"num_workers": 2, "multiprocessing_context": "spawn", "prefetch_factor": 4},
        {"num_workers": 3, "worker_type": "thread"},
    ],
    ids=["1", "3 fork", "2 forkserver", "2 spawn", "3 threads"],
)
def test_workers_change_neither_batches_nor_state(loader: dict[str, Any], source: str, address: str) -> None:
    with (
        job(source, address, world_size=2, batch_size=16, dataset=DATASET) as alone,
        job(source, address, world_size=2, batch_size=16, dataset=DATASET, loader=loader) as helped,
    ):
        for steps in (None, 5, None):
            assert alone.run(steps) == helped.run(steps)
            assert alone.state == helped.state
        assert same_batches(alone, helped)


@pytest.mark.parametrize("loader", [{}, {"num_workers": 2}], ids=["in process", "2 workers"])
def test_a_run_that_is_stopped_and_resized_again_and_again_sees_every_sample_once_in_the_same_order(
    loader: dict[str, Any], source: str, address: str, order: list[tuple[int, int, int]]
) -> None:
    seen: list[tuple[int, int, int]] = []
    state = None
    for world_size, batch_size, steps in ((2, 8, 5), (3, 5, 7), (1, 32, 2), (4, 4, None), (2, 30, 3), (3, 11, None)):
        with job(
            source, address, world_size=world_size, batch_size=batch_size, state=state, dataset=DATASET, loader=loader
        ) as ranks:
            ranks.run(steps)
            seen += ranks.seen
            state = json.loads(json.dumps(ranks.state))
    assert in_order(seen) == order[: 2 * SAMPLES]
    assert state is not None
    assert (state["epoch"], state["position"]) == (2, 0)


def test_a_global_shuffle_is_one_order_for_every_topology_too(source: str, address: str) -> None:
    dataset = {"format": PIECES, "shuffle": "global"}
    alone = in_order(reference(source, address, 2, **dataset))
    seen: list[tuple[int, int, int]] = []
    state = None
    for world_size, batch_size, steps in ((2, 8, 5), (3, 5, 7), (1, 32, None), (2, 50, None)):
        with job(source, address, world_size=world_size, batch_size=batch_size, state=state, dataset=dataset) as ranks:
            ranks.run(steps)
            seen += ranks.seen
            state = ranks.state
    assert in_order(seen) == alone
    assert sorted(sample for epoch, _, sample in seen if epoch == 1) == list(range(SAMPLES))


def test_a_position_is_described_by_the_shard_and_row_of_each_lanes_next_sample(
    source: str, address: str, order: list[tuple[int, int, int]]
) -> None:
    with job(source, address, world_size=2, batch_size=8, dataset=DATASET) as ranks:
        ranks.run(3)
        said = ranks.loaders[0].describe()
    assert (said["epoch"], said["position"], said["samples"]) == (0, 48, SAMPLES)
    assert [lane["lane"] for lane in said["lanes"]] == [0, 1, 2, 3]
    samples = {int(Path(lane["shard"]).name[6:11]) * 70 + lane["row"] for lane in said["lanes"]}
    assert samples == {sample for _, _, sample in order[48:52]}
    assert all(lane["shard"].startswith("file:///") for lane in said["lanes"])


def test_the_state_counts_what_was_handed_out_and_not_what_was_prefetched(source: str, address: str) -> None:
    with job(source, address, world_size=1, batch_size=16, dataset=DATASET, loader={"num_workers": 2}) as ranks:
        (loader,) = ranks.loaders
        assert (loader.epoch, loader.position, loader.remaining, len(loader)) == (0, 0, 27, 27)
        for step, _ in enumerate(loader, start=1):
            end = (0, 16 * step) if step < 27 else (1, 0)
            assert (loader.epoch, loader.position) == end
            if step == 10:
                assert loader.remaining == 17
        assert loader.state_dict()["last_global_batch"] == 16


def test_every_resume_point_of_an_epoch_goes_on_with_the_very_next_sample(
    source: str, address: str, order: list[tuple[int, int, int]]
) -> None:
    with job(source, address, world_size=1, batch_size=60, dataset=DATASET) as whole:
        states = [whole.state]
        for _ in whole.loaders[0]:
            states.append(whole.state)
    assert len(states) == 8
    for state in states:
        with job(source, address, world_size=1, batch_size=33, state=state, dataset=DATASET) as resumed:
            resumed.run(1)
            at = state["epoch"] * SAMPLES + state["position"]
            assert in_order(resumed.seen) == order[at : at + 33]


@pytest.mark.parametrize("tail", ["even", "drop", "pad"])
@pytest.mark.parametrize("world_size", [1, 4])
def test_ranks_make_equally_many_steps_and_len_says_how_many(
    tail: str, world_size: int, source: str, address: str
) -> None:
    dataset = {**DATASET, "tail": tail}
    with job(source, address, world_size=world_size, batch_size=16, dataset=dataset) as ranks:
        steps = ranks.run()
        assert {len(loader) for loader in ranks.loaders} == {steps}
        full = SAMPLES // (16 * world_size)
        expected = {"even": SAMPLES, "drop": full * 16 * world_size, "pad": SAMPLES}[tail]
        assert len(set(ranks.seen)) == len(ranks.seen) == expected
        assert ranks.pads == (-SAMPLES % (16 * world_size) if tail == "pad" else 0)
        assert (ranks.state["epoch"], ranks.state["position"]) == (1, 0)


@pytest.mark.parametrize("samples", [1, 2, 3, 4, 13])
def test_datasets_of_few_samples_are_read_whole_or_refused(samples: int, tmp_path: Path, address: str) -> None:
    write_parquet(tmp_path / "few", shards=1, rows=samples)
    for world_size in (1, 2, 3):
        with job(str(tmp_path / "few"), address, world_size=world_size, batch_size=4) as ranks:
            if samples < world_size:
                with pytest.raises(forebay.ConfigurationError, match="fewer than"):
                    len(ranks.loaders[0])
                continue
            ranks.run()
            assert sorted(sample for _, _, sample in ranks.seen) == list(range(samples))


def test_leaving_an_epoch_in_the_middle_begins_the_next_one(
    source: str, address: str, order: list[tuple[int, int, int]]
) -> None:
    with job(source, address, world_size=1, batch_size=20, dataset=DATASET, loader={"num_workers": 2}) as ranks:
        ranks.run(3)
        ranks.run(2)
        ranks.run()
    whole = [place for place in order if place[0] == 2]
    assert in_order(ranks.seen) == order[:60] + order[SAMPLES : SAMPLES + 40] + whole


def test_set_epoch_goes_to_any_epoch(source: str, address: str, order: list[tuple[int, int, int]]) -> None:
    with job(source, address, world_size=1, batch_size=20, dataset=DATASET) as ranks:
        for epoch in (2, 0, 1):
            ranks.loaders[0].set_epoch(epoch)
            ranks.run()
    assert in_order(ranks.seen) == order


def test_a_second_iterator_ends_the_first_and_a_validation_loop_disturbs_nothing(source: str, address: str) -> None:
    with (
        job(source, address, world_size=1, batch_size=20, dataset=DATASET) as training,
        job(source, address, world_size=1, batch_size=64, dataset={"shuffle": False}) as validation,
    ):
        (loader,) = training.loaders
        seen: list[int] = []
        for step, batch in enumerate(loader):
            seen += batch["id"].tolist()
            if step % 7 == 0:
                validation.run()
        assert sorted(seen) == list(range(SAMPLES))
        assert [sample for *_, sample in validation.seen[:SAMPLES]] == list(range(SAMPLES))
        first = iter(loader)
        next(first)
        second = iter(loader)
        next(second)
        with pytest.raises(forebay.StateError, match="this iterator has ended"):
            next(first)


def test_a_dataset_iterated_by_itself_yields_batches_or_samples_and_keeps_its_own_position(
    source: str, address: str, order: list[tuple[int, int, int]]
) -> None:
    data = forebay.StreamingDataset(source, columns=["id"], seed=11, address=address, batch_size=50, **DATASET)
    ids: list[int] = []
    for batch in data:
        ids += batch["id"].tolist()
        if len(ids) == 150:
            break
    state = data.state_dict()
    data.close()
    single = forebay.StreamingDataset(source, columns=["id"], seed=11, address=address, **DATASET)
    single.load_state_dict(state)
    assert single.remaining == SAMPLES - 150
    ids += [int(sample["id"]) for sample in single]
    single.close()
    assert sorted(ids) == list(range(SAMPLES))
    assert sorted(ids[:150]) == sorted(sample for *_, sample in order[:150])
    assert ids[150:] == [sample for *_, sample in order[150:SAMPLES]]


def test_a_dataset_in_torchs_own_loader_keeps_its_order_and_refuses_workers(source: str, address: str) -> None:
    data = forebay.StreamingDataset(source, columns=["id"], address=address, batch_size=50, **DATASET)
    plain = torch.utils.data.DataLoader(data, batch_size=None)
    assert sorted(int(i) for batch in plain for i in batch["id"]) == list(range(SAMPLES))
    data.close()
    with pytest.raises(forebay.ConfigurationError, match=r"forebay\.DataLoader"):
        next(iter(torch.utils.data.DataLoader(data, batch_size=None, num_workers=1)))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"seed": 12}, "order.seed is 12 here, 11 in the state"),
        ({"tail": "drop"}, "order.tail is 'drop' here, 'even' in the state"),
        ({"order": forebay.OrderOptions(lanes=5, window=50)}, "order.lanes is 5 here, 4 in the state"),
        ({"format": forebay.Parquet(piece_bytes=2)}, "dataset.fingerprint"),
        ({"shuffle": False}, "order.algorithm"),
    ],
)
def test_a_state_of_another_sequence_is_refused_by_the_fields_that_differ(
    change: dict[str, Any], field: str, source: str, address: str
) -> None:
    with job(source, address, world_size=1, batch_size=20, dataset=DATASET) as ranks:
        ranks.run(2)
    with (
        pytest.raises(forebay.StateMismatch) as caught,
        job(source, address, world_size=1, batch_size=20, dataset={**DATASET, **change}, state=ranks.state),
    ):
        pass
    assert field in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_state_of_another_dataset_is_refused_unless_that_is_asked_for(
    tmp_path: Path, source: str, address: str
) -> None:
    write_parquet(tmp_path / "other", shards=6, rows=71, row_group_rows=10)
    with job(source, address, world_size=1, batch_size=20, dataset=DATASET) as ranks:
        ranks.run(2)
        state = ranks.state
    with job(str(tmp_path / "other"), address, world_size=1, batch_size=20, dataset=DATASET) as other:
        (loader,) = other.loaders
        with pytest.raises(forebay.StateMismatch, match=r"dataset\.fingerprint.*dataset\.samples is 426 here, 420"):
            loader.load_state_dict(state)
        loader.load_state_dict(state, strict=False)
        assert (loader.epoch, loader.position) == (0, 40)


def test_the_window_of_a_loaded_state_wins(source: str, address: str) -> None:
    with job(source, address, world_size=1, batch_size=20, dataset=DATASET) as ranks:
        ranks.run(2)
        state = ranks.state
        ranks.run()
    default = {**DATASET, "order": forebay.OrderOptions(lanes=4)}
    with job(source, address, world_size=1, batch_size=20, dataset=default, state=state) as resumed:
        resumed.run()
        assert resumed.state["order"]["window"] == 50


def test_the_same_data_elsewhere_resumes_a_state(tmp_path: Path, source: str, address: str) -> None:
    write_parquet(tmp_path / "copy", shards=6, rows=70, row_group_rows=10)
    with job(source, address, world_size=1, batch_size=20, dataset=DATASET) as ranks:
        ranks.run(2)
        state = ranks.state
    with job(str(tmp_path / "copy"), address, world_size=1, batch_size=20, dataset=DATASET, state=state) as copy:
        copy.run(1)
        assert not set(copy.seen) & set(ranks.seen)


@pytest.mark.parametrize("extension", ["bin", "npy"])
def test_token_files_are_read_as_rows_of_one_tensor(extension: str, tmp_path: Path, address: str) -> None:
    write_tokens(tmp_path / f"a.{extension}", samples=100, sequence_length=32)
    dtype = "int32" if extension == "bin" else None
    options = {
        "format": forebay.Tokens(sequence_length=32, dtype=dtype, piece_bytes=1024),
        "columns": None,
    }
    expected = tokens(samples=100, sequence_length=32)
    with job(str(tmp_path), address, world_size=2, batch_size=7, dataset=options) as ranks:
        ranks.run()
        for step in ranks.batches:
            for batch in step:
                assert np.array_equal(batch["tokens"], expected[batch[forebay.SAMPLE_ID].numpy()])
    assert sorted(sample for *_, sample in ranks.seen) == list(range(100))


def test_a_transform_sees_samples_and_its_own_random_numbers_whatever_the_topology(source: str, address: str) -> None:
    noise: dict[int, set[float]] = {}
    for world_size, loader in ((1, {}), (3, {"num_workers": 1}), (2, {"num_workers": 2, "worker_type": "thread"})):
        dataset = {**DATASET, "transform": augment}
        with job(source, address, world_size=world_size, batch_size=8, dataset=dataset, loader=loader) as ranks:
            ranks.run()
            for step in ranks.batches:
                for batch in step:
                    for sample, value in zip(batch[forebay.SAMPLE_ID].tolist(), batch["noise"].tolist(), strict=True):
                        noise.setdefault(sample, set()).add(value)
    assert len(noise) == SAMPLES
    assert all(len(values) == 1 for values in noise.values())


def augment(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "noise": rng.random()}


def test_a_collate_function_gets_the_samples_of_a_batch(source: str, address: str) -> None:
    data = forebay.StreamingDataset(source, columns=["id", "text"], address=address, **DATASET)
    loader = forebay.DataLoader(data, 50, collate_fn=texts)
    assert sorted(number for batch in loader for number in batch) == list(range(SAMPLES))
    loader.close()


def texts(samples: list[dict[str, Any]]) -> list[int]:
    assert all(sample["text"].startswith(f"sample {sample['id']} ") for sample in samples)
    return [int(sample["id"]) for sample in samples]


def test_global_batch_size_keeps_the_steps_when_the_world_changes(source: str, address: str) -> None:
    seen = []
    for world_size in (2, 3, 4):
        ranks_of = {"dataset": DATASET, "loader": {"global_batch_size": 64}}
        with global_job(source, address, world_size, **ranks_of) as loaders:
            steps = []
            for step in zip(*loaders, strict=True):
                sizes = [len(batch["id"]) for batch in step]
                assert max(sizes) - min(sizes) <= 1
                steps.append(sorted(sample for batch in step for sample in batch["id"].tolist()))
            seen.append(steps)
    assert seen[0] == seen[1]
    assert seen[0][:5] == seen[2][:5]


class global_job:
    def __init__(self, source: str, address: str, world_size: int, *, dataset: dict[str, Any], loader: dict[str, Any]):
        self.loaders = [
            forebay.DataLoader(
                forebay.StreamingDataset(
                    source, rank=rank, world_size=world_size, columns=["id"], seed=11, address=address, **dataset
                ),
                **loader,
            )
            for rank in range(world_size)
        ]

    def __enter__(self) -> list[forebay.DataLoader]:
        return self.loaders

    def __exit__(self, *_: object) -> None:
        for loader in self.loaders:
            loader.close()


def test_the_last_steps_number_goes_on_over_epochs_and_resumes(source: str, address: str) -> None:
    with job(source, address, world_size=1, batch_size=60, dataset=DATASET) as ranks:
        ranks.run()
        ranks.run(3)
        assert [timing.step for timing in ranks.loaders[0].timings] == list(range(10))
        state = ranks.state
    with job(source, address, world_size=1, batch_size=60, dataset=DATASET, state=state) as resumed:
        resumed.run()
        assert [timing.step for timing in resumed.loaders[0].timings] == list(range(10, 14))


def test_the_only_name_of_a_loader_may_be_in_the_for_statement(source: str, address: str) -> None:
    def stream() -> forebay.StreamingDataset:
        return forebay.StreamingDataset(source, columns=["id"], address=address, **DATASET)

    earlier = planners()
    assert sum(len(batch["id"]) for batch in forebay.DataLoader(stream(), 50)) == SAMPLES
    assert len(next(iter(forebay.DataLoader(stream(), 50, num_workers=1)))["id"]) == 50
    assert sum(1 for _ in stream()) == SAMPLES
    eventually(
        lambda: gc.collect() >= 0 and not set(planners()).difference(earlier),
        20,
        "what was dropped to end its planners",
    )


class FailsOnce:
    """A transform that fails for the first sample that it sees after some."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        self.left -= 1
        if self.left == 0:
            raise ZeroDivisionError(f"sample {sample['id']}")
        return sample


@pytest.mark.parametrize(
    "loader",
    [{}, {"num_workers": 1}, {"num_workers": 2, "worker_type": "thread"}],
    ids=["in process", "1", "2 threads"],
)
def test_an_error_that_is_caught_never_skips_a_batch(loader: dict[str, Any], source: str, address: str) -> None:
    options = {**DATASET, "transform": FailsOnce(45), "shuffle": False, "order": None}
    data = forebay.StreamingDataset(source, columns=["id"], address=address, **options)
    made = forebay.DataLoader(data, 10, **loader)
    iterator = iter(made)
    seen: list[int] = []
    failures = 0
    for _ in range(10):
        try:
            seen += next(iterator)["id"].tolist()
        except ZeroDivisionError:
            failures += 1
    assert failures >= 1
    assert seen == list(range(len(seen)))
    assert (made.epoch, made.position) == (0, len(seen))
    state = made.state_dict()
    made.load_state_dict(state)
    seen += [i for batch in made for i in batch["id"].tolist()]
    assert seen == list(range(SAMPLES))
    made.close()


def test_one_position_has_one_mover(source: str, address: str) -> None:
    data = forebay.StreamingDataset(source, columns=["id"], address=address, **DATASET)
    first, second = forebay.DataLoader(data, 20), forebay.DataLoader(data, 30)
    iterator = iter(first)
    next(iterator)
    state = first.state_dict()
    next(iter(second))
    with pytest.raises(forebay.StateError, match="has ended"):
        next(iterator)
    iterator = iter(first)
    next(iterator)
    first.load_state_dict(state)
    with pytest.raises(forebay.StateError, match="moved since"):
        next(iterator)
    assert (first.epoch, first.position) == (0, 20)
    iterator = iter(first)
    next(iterator)
    first.set_epoch(4)
    with pytest.raises(forebay.StateError):
        next(iterator)
    next(iter(first))
    assert (first.epoch, first.position) == (4, 20)
    first.close()
    second.close()


@pytest.mark.parametrize("loader", [{}, {"num_workers": 1}, {"num_workers": 2, "worker_type": "thread"}])
def test_loading_draws_nothing_from_the_trainers_generators(loader: dict[str, Any], source: str, address: str) -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    with job(source, address, world_size=1, batch_size=20, dataset=DATASET, loader=loader) as ranks:
        ranks.run(2)
    assert torch.equal(torch.rand(1), expected)


def test_a_state_that_is_refused_changes_nothing(source: str, address: str) -> None:
    with job(source, address, world_size=1, batch_size=20, dataset=DATASET) as ranks:
        ranks.run(2)
        state = ranks.state
        foreign = {**state, "order": {**state["order"], "window": 3, "seed": 99}}
        sequential = {**state, "order": {**state["order"], "window": 1, "algorithm": "sequential-1"}}
        (loader,) = ranks.loaders
        for refused in (foreign, sequential):
            with pytest.raises(forebay.StateMismatch):
                loader.load_state_dict(refused)
            assert loader.state_dict() == state
        loader.load_state_dict(sequential, strict=False)
        assert loader.state_dict() == state


def test_a_changed_global_batch_and_pads_are_announced(
    source: str, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    with job(source, address, world_size=2, batch_size=20, dataset=DATASET) as ranks:
        ranks.run(2)
        state = ranks.state
    with job(source, address, world_size=3, batch_size=20, dataset=DATASET, state=state) as ranks:
        ranks.run(1)
    assert "the global batch is 60 samples now and was 40 before position 80: right where you changed" in caplog.text
    assert "where the world size changed, global_batch_size=40 keeps it" in caplog.text
    caplog.clear()
    last = {**state, "position": SAMPLES - 2}
    with job(source, address, world_size=5, batch_size=8, dataset=DATASET, state=last) as ranks:
        assert ranks.run() == 1
        assert ranks.pads == 3
    assert "2 samples are left of this epoch for 5 ranks" in caplog.text


def test_closing_leaves_no_threads_processes_or_descriptors(source: str, address: str, no_leaks: None) -> None:
    earlier = planners()
    for loader in ({}, {"num_workers": 2}, {"num_workers": 2, "worker_type": "thread"}):
        with job(source, address, world_size=2, batch_size=16, dataset=DATASET, loader=loader) as ranks:
            ranks.run(3)
            ranks.run(3)
    eventually(
        lambda: not set(planners()).difference(earlier),
        30,
        "planners to say good-bye to the daemon, which may open its channel again",
    )
    close_channels()


def planners() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "forebay-lookahead"]


def close_channels() -> None:
    """A process keeps its channel to the daemon for later loaders; a fork closes it."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def test_extras_are_left_out_unless_asked_for(source: str, address: str) -> None:
    with job(source, address, world_size=1, batch_size=16, dataset={**DATASET, "extras": ()}) as ranks:
        batch = next(iter(ranks.loaders[0]))
        assert set(batch) == {"id", "value"}
