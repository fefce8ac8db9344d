"""Sequence packing and row filters through a trainer's loader and a real daemon, against packing done in the test."""

import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import forebay
from tests.integration.trainers import job
from tests.server.daemons import Daemon, daemon
from tests.support.packing import packed, write_tokenizer
from tests.support.processes import HOME_VARIABLE, end_processes_of

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

SHARDS, ROWS, GROUP, LENGTH, SEPARATOR = 4, 120, 30, 32, 1
WORDS = [f"w{i}" for i in range(200)]
OPTIONS: dict[str, Any] = {"format": forebay.Parquet(piece_bytes=1), "order": forebay.OrderOptions(lanes=4, window=20)}
ENGLISH = [("lang", "==", "en"), ("score", ">", 0.2)]


def rows(shard: int) -> list[dict[str, Any]]:
    """Documents that are null, empty, short, and longer than a sequence."""
    rng = np.random.default_rng(shard)
    made = []
    for number, size in enumerate(rng.choice([0, 2, 9, 40, 100], ROWS)):
        ids = None if number % 17 == 3 else rng.integers(2, 202, size).tolist()
        text = None if ids is None else " ".join(WORDS[i - 2] for i in ids)
        made.append({"ids": ids, "text": text, "lang": ("en", "de")[number % 2], "score": float(rng.random())})
    return made


def by_brute_force(*, keep: Any = lambda row: True, pad: int | None = None) -> list[list[int]]:
    """All sequences, in the order of the sample ids."""
    found = []
    for shard in range(SHARDS):
        whole = rows(shard)
        for start in range(0, ROWS, GROUP):
            documents = [row["ids"] for row in whole[start : start + GROUP] if keep(row)]
            found += packed(documents, LENGTH, separator=SEPARATOR, pad=pad)
    return found


@pytest.fixture(scope="module")
def node() -> Iterator[Daemon]:
    """One daemon for the module, with a home of its own, files and a tokenizer in it."""
    with tempfile.TemporaryDirectory(prefix="fb-") as directory:
        home = Path(directory)
        (home / "data").mkdir()
        schema = pa.schema(
            [("ids", pa.list_(pa.int32())), ("text", pa.string()), ("lang", pa.string()), ("score", pa.float64())]
        )
        for shard in range(SHARDS):
            table = pa.Table.from_pylist(rows(shard), schema=schema)
            pq.write_table(table, home / "data" / f"{shard}.parquet", row_group_size=GROUP)
        write_tokenizer(home / "tokenizer.json", WORDS)
        kept = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        with daemon(home, env={"PATH": "/usr/bin:/bin", HOME_VARIABLE: str(home), **kept}) as started:
            yield started
        end_processes_of(home)


@pytest.fixture
def home(node: Daemon) -> Path:
    return node.socket.parent.parent


def dataset(node: Daemon, **options: Any) -> forebay.StreamingDataset:
    source = str(node.socket.parent.parent / "data")
    order = {"order": None} if options.get("shuffle") is False else {}
    return forebay.StreamingDataset(source, address=str(node.socket), **{**OPTIONS, **order, **options})


def epoch(made: forebay.StreamingDataset, **loader: Any) -> list[list[int]]:
    """The sequences of the next epoch, as they come."""
    with closing(forebay.DataLoader(made, batch_size=7, **loader)) as batches:
        return [sequence for batch in batches for sequence in batch["tokens"].tolist()]


def packing(**options: Any) -> forebay.Packing:
    return forebay.Packing(LENGTH, **{"column": "ids", "separator": SEPARATOR, **options})


@pytest.mark.parametrize("loader", [{}, {"num_workers": 2}], ids=["in process", "2 workers"])
def test_an_epoch_is_every_sequence_that_brute_force_packs_once(loader: dict[str, Any], node: Daemon) -> None:
    expected = by_brute_force()
    with closing(dataset(node, packing=packing(), shuffle=False)) as in_order:
        assert epoch(in_order, **loader) == expected
    with closing(dataset(node, packing=packing(), seed=3)) as shuffled:
        found = epoch(shuffled, **loader)
        assert found != expected
        assert Counter(map(tuple, found)) == Counter(map(tuple, expected))
        assert shuffled.counts["dropped_tokens"] == shuffled.counts["tokens"] - LENGTH * len(expected)


def test_a_batch_is_one_tensor_of_tokens(node: Daemon) -> None:
    with closing(dataset(node, packing=packing(), batch_size=5)) as made:
        batch = next(iter(made))
    assert list(batch) == ["tokens"]
    assert batch["tokens"].dtype == torch.int32
    assert batch["tokens"].shape == (5, LENGTH)


def test_the_remainder_of_each_piece_may_be_padded(node: Daemon) -> None:
    with closing(dataset(node, packing=packing(remainder="pad", pad=0), shuffle=False)) as made:
        found = epoch(made)
        assert found == by_brute_force(pad=0)
        assert made.counts["padded_tokens"] == sum(token == 0 for sequence in found for token in sequence)


@pytest.mark.parametrize("remainder", ["drop", "pad"])
def test_text_by_a_tokenizers_file_and_a_filter_give_the_sequences_of_the_rows_that_match(
    remainder: str, node: Daemon, home: Path
) -> None:
    made = dataset(
        node,
        packing=packing(column="text", tokenizer=home / "tokenizer.json", remainder=remainder, pad=0),
        where=ENGLISH,
        shuffle=False,
    )
    expected = by_brute_force(
        keep=lambda row: row["lang"] == "en" and row["score"] > 0.2, pad=0 if remainder == "pad" else None
    )
    with closing(made):
        assert epoch(made) == expected
        matching = sum(row["lang"] == "en" and row["score"] > 0.2 for shard in range(SHARDS) for row in rows(shard))
        assert (made.counts["rows"], made.counts["matching_rows"]) == (SHARDS * ROWS, matching)


def test_a_filter_alone_leaves_the_other_rows_out_of_every_epoch(node: Daemon) -> None:
    expected = [
        row["score"] for shard in range(SHARDS) for row in rows(shard) if row["lang"] == "en" and row["score"] > 0.2
    ]
    with closing(dataset(node, where=ENGLISH, columns=["score"], shuffle=False)) as made:
        with closing(forebay.DataLoader(made, batch_size=9)) as batches:
            assert [score for batch in batches for score in batch["score"].tolist()] == expected
        assert len(made) == len(expected)


def test_a_packed_epoch_that_is_stopped_and_resized_sees_every_sequence_once_in_one_order(
    node: Daemon, home: Path
) -> None:
    options = {**OPTIONS, "packing": packing(), "columns": None}
    source, address = str(home / "data"), str(node.socket)
    sequences = by_brute_force()
    with job(source, address, world_size=1, batch_size=16, dataset=options) as whole:
        whole.run()
        order = sorted(whole.seen, key=lambda one: one[1])
        for batch in (batch for step in whole.batches for batch in step):
            ids = batch[forebay.SAMPLE_ID].tolist()
            assert batch["tokens"].tolist() == [sequences[sample] for sample in ids]
    seen: list[tuple[int, int, int]] = []
    state = None
    for world_size, batch_size, steps in ((2, 5, 4), (3, 4, 3), (1, 11, None)):
        with job(source, address, world_size=world_size, batch_size=batch_size, state=state, dataset=options) as ranks:
            ranks.run(steps)
            seen += ranks.seen
            state = json.loads(json.dumps(ranks.state))
    assert sorted(seen, key=lambda one: one[1]) == order
    assert sorted(sample for _, _, sample in seen) == list(range(len(sequences)))


def test_a_state_of_another_packing_or_filter_is_refused(node: Daemon) -> None:
    with closing(dataset(node, packing=packing(), where=ENGLISH)) as made:
        state = made.state_dict()
    for options in ({"packing": packing(separator=None), "where": ENGLISH}, {"packing": packing()}, {"where": ENGLISH}):
        with closing(dataset(node, **options)) as other, pytest.raises(forebay.StateMismatch):
            other.load_state_dict(state)


def test_a_tokenizer_that_moved_is_the_same_dataset(node: Daemon, home: Path) -> None:
    (home / "elsewhere.json").write_bytes((home / "tokenizer.json").read_bytes())
    one, other = (
        dataset(node, packing=packing(column="text", tokenizer=home / name))
        for name in ("tokenizer.json", "elsewhere.json")
    )
    with closing(one), closing(other):
        other.load_state_dict(one.state_dict())


def test_what_cannot_work_is_said_when_it_is_given_or_when_the_dataset_is_opened(node: Daemon) -> None:
    with pytest.raises(forebay.ConfigurationError, match=r"forebay\.Packing"):
        dataset(node, packing={"sequence_length": 8})
    with pytest.raises(forebay.ConfigurationError, match="no row filter"):
        dataset(node, where="lang == 'en'")
    with pytest.raises(forebay.EmptyDataset, match="none of their 480 rows matches where="):
        dataset(node, where=[("lang", "==", "xx")]).open()
    with pytest.raises(forebay.ColumnNotFound, match="'nowhere'"):
        dataset(node, where=[("nowhere", "==", "xx")]).open()
    with pytest.raises(forebay.ColumnNotFound, match="it has 'tokens'"):
        dataset(node, packing=packing(), columns=["ids"]).open()
