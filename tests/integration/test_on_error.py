"""Rows and transforms that fail, over a real daemon: named by shard and row, or skipped without losing step."""

from contextlib import closing
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay
from forebay import IS_PAD, POSITION, SAMPLE_ID
from tests.integration.trainers import in_order, job
from tests.server.daemons import Daemon

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

SHARDS, ROWS = 3, 40
SAMPLES = SHARDS * ROWS
NO_NUMBER, NO_TEXT = 47, 95
"""Sample 47 has a null where a whole number is wanted, sample 95 text that is not UTF-8."""
DATASET: dict[str, Any] = {"format": forebay.Parquet(piece_bytes=1), "order": forebay.OrderOptions(lanes=4, window=30)}
WAYS: dict[str, dict[str, Any]] = {
    "in process": {},
    "2 threads": {"num_workers": 2, "worker_type": "thread"},
    "2 processes": {"num_workers": 2, "multiprocessing_context": "fork"},
}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def text(values: list[bytes]) -> pa.Array:
    """Text that nobody has checked."""
    array = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(array), array.buffers())


@pytest.fixture(scope="module")
def source(node: Daemon) -> str:
    directory = node.socket.parent.parent / "data"
    directory.mkdir()
    for shard in range(SHARDS):
        ids = range(shard * ROWS, (shard + 1) * ROWS)
        table = pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "value": pa.array([i / 4 for i in ids], pa.float32()),
                "number": pa.array([None if i == NO_NUMBER else i for i in ids], pa.int64()),
                "text": text([b"\xff\xfe" if i == NO_TEXT else str(i).encode() for i in ids]),
            }
        )
        pq.write_table(table, directory / f"{shard}.parquet", row_group_size=10, use_dictionary=False)
    return str(directory)


def stream(source: str, address: str, **options: Any) -> forebay.StreamingDataset:
    return forebay.StreamingDataset(
        source, address=address, seed=5, extras=(SAMPLE_ID, POSITION, IS_PAD), **{**DATASET, **options}
    )


def place(source: str, sample: int, at: dict[int, int]) -> str:
    shard = f"file://{source}/{sample // ROWS}.parquet"
    return f"sample {sample} ({shard} row {sample % ROWS}, epoch 0, position {at[sample]})"


@pytest.fixture(scope="module")
def at(node: Daemon, source: str) -> dict[int, int]:
    """The position of each sample."""
    with closing(forebay.DataLoader(stream(source, str(node.socket), columns=["id"]), 30, report_to=None)) as loader:
        return {int(i): int(q) for batch in loader for i, q in zip(batch["id"], batch[POSITION], strict=True)}


def fails(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["id"] in (3, 4, 58, 119):
        raise ValueError("cannot be decoded")
    return {**sample, "twice": 2 * sample["id"]}


@ways
@pytest.mark.parametrize(
    ("options", "sample", "error"),
    [
        ({"columns": ["id"], "transform": fails}, None, ValueError),
        ({"columns": ["id", "number"]}, NO_NUMBER, forebay.BadObject),
        ({"columns": ["id", "text"]}, NO_TEXT, forebay.BadObject),
        ({"columns": ["id", "text"], "transform": fails, "shuffle": False, "order": None}, 3, ValueError),
    ],
    ids=["transform", "column", "text", "in order"],
)
def test_an_error_names_the_sample_with_its_shard_and_row(
    way: dict[str, Any],
    options: dict[str, Any],
    sample: int | None,
    error: type[Exception],
    source: str,
    address: str,
    at: dict[int, int],
) -> None:
    if options.get("shuffle") is False:
        at = {number: number for number in range(SAMPLES)}
    first = sample if sample is not None else min((3, 4, 58, 119), key=at.__getitem__)
    with closing(forebay.DataLoader(stream(source, address, **options), 4, report_to=None, **way)) as loader:
        with pytest.raises((error, RuntimeError)) as caught:
            list(loader)
        assert loader.position <= at[first]
    said = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert f"while reading {place(source, first, at)}" in said


@ways
@pytest.mark.parametrize(
    ("options", "bad"),
    [
        ({"columns": ["id"], "transform": fails}, {3, 4, 58, 119}),
        ({"columns": ["id", "number"]}, {NO_NUMBER}),
        ({"columns": ["text", "id"]}, {NO_TEXT}),
        ({"columns": ["id", "text"], "transform": fails}, {3, 4, 58, NO_TEXT, 119}),
    ],
    ids=["transform", "column", "text", "text and transform"],
)
def test_bad_samples_are_replaced_listed_and_marked_and_all_others_seen_once(
    way: dict[str, Any], options: dict[str, Any], bad: set[int], source: str, address: str, at: dict[int, int]
) -> None:
    data = stream(source, address, **options)
    with closing(forebay.DataLoader(data, 12, on_error="skip", report_to=None, **way)) as loader:
        batches = list(loader)
        records = loader.skipped
        assert (loader.epoch, loader.position) == (1, 0)
    assert [len(batch["id"]) for batch in batches] == [12] * 10
    for batch in batches:
        assert batch["id"].tolist() == batch[SAMPLE_ID].tolist()
        assert batch[POSITION].tolist() == [at[sample] for sample in batch[SAMPLE_ID].tolist()]
        if "transform" in options:
            assert batch["twice"].tolist() == [2 * sample for sample in batch[SAMPLE_ID].tolist()]
        if "number" in batch:
            assert batch["number"].tolist() == batch["id"].tolist()
    good = [int(i) for batch in batches for i in batch["id"][~batch[IS_PAD]]]
    assert sorted(good) == sorted(set(range(SAMPLES)) - bad)
    assert sum(int(batch[IS_PAD].sum()) for batch in batches) == len(bad)
    assert {(r.sample_id, r.shard, r.row, r.position) for r in records} == {
        (sample, f"file://{source}/{sample // ROWS}.parquet", sample % ROWS, at[sample]) for sample in bad
    }


def test_ranks_that_meet_bad_samples_make_equal_steps_and_resume_exactly(source: str, address: str) -> None:
    dataset = {**DATASET, "transform": fails, "columns": ["id", "value"], "seed": 5}
    skipping = {"on_error": "skip", "report_to": None}
    with job(source, address, world_size=2, batch_size=8, dataset=dataset, loader=skipping) as whole:
        whole.run()
    with job(source, address, world_size=2, batch_size=8, dataset=dataset, loader=skipping) as first:
        first.run(3)
    with job(source, address, world_size=2, batch_size=8, dataset=dataset, loader=skipping, state=first.state) as then:
        then.run()
    assert in_order(first.seen + then.seen) == in_order(whole.seen)
    assert {sample for _, _, sample in whole.seen} == set(range(SAMPLES)) - {3, 4, 58, 119}
    assert whole.pads == 4
