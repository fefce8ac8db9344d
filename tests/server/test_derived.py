"""Filtered and packed datasets as a daemon serves them: a manifest of counted rows, and pieces that have just those."""

import os
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay_core.formats import Packing, Parquet, compose
from forebay_core.manifest import Manifest
from forebay_protos.v1 import daemon_pb2 as pb
from tests.server.daemons import Client, client, daemon, read
from tests.support.packing import packed, write_tokenizer

GROUP, SHARDS, ROWS = 25, 3, 100
LANGUAGES = ("en", "de", None)


def documents(shard: int) -> list[list[int]]:
    rng = np.random.default_rng(shard)
    return [rng.integers(2, 30, size).tolist() for size in rng.integers(0, 40, ROWS)]


def write(directory: Path) -> None:
    directory.mkdir()
    for shard in range(SHARDS):
        docs = documents(shard)
        columns = {
            "ids": pa.array(docs, pa.list_(pa.int64())),
            "text": [" ".join(f"w{i - 2}" for i in doc) for doc in docs],
            "lang": [LANGUAGES[i % 3] for i in range(ROWS)],
            "row": range(ROWS),
        }
        pq.write_table(pa.table(columns), directory / f"{shard}.parquet", row_group_size=GROUP)


def spec(**rows: Any) -> dict[str, Any]:
    kind = compose(Parquet(piece_bytes=1), **rows)
    assert kind is not None
    return kind.spec()


def by_piece(length: int, separator: int, *, language: str | None = None) -> list[list[list[int]]]:
    """Brute force, pieces without a sequence left out."""
    pieces = []
    for shard in range(SHARDS):
        docs = documents(shard)
        for start in range(0, ROWS, GROUP):
            kept = [docs[i] for i in range(start, start + GROUP) if language in (None, LANGUAGES[i % 3])]
            pieces.append(packed(kept, length, separator=separator))
    return [piece for piece in pieces if piece]


def manifest_of(opened: pb.OpenDatasetResponse) -> Manifest:
    return Manifest.open(Path(opened.disks[0].path) / opened.manifest.path)


def leased(caller: Client, cache: Path, opened: pb.OpenDatasetResponse, columns: tuple[str, ...] = ()) -> list[bytes]:
    leases = caller.acquire(caller.session(opened.dataset_id, columns), range(manifest_of(opened).pieces))
    return [read(cache, lease) for lease in leases]


def test_packed_pieces_are_the_sequences_of_their_filtered_documents_also_after_a_restart(home: Path) -> None:
    write(home / "docs")
    write_tokenizer(home / "t.json", [f"w{i}" for i in range(40)])
    by_ids = spec(packing=Packing(16, "ids", separator=1))
    by_text = spec(packing=Packing(16, "text", home / "t.json", separator=1), where=[("lang", "==", "en")])
    with daemon(home) as running, client(running.socket) as caller:
        for sent, expected in ((by_ids, by_piece(16, 1)), (by_text, by_piece(16, 1, language="en"))):
            opened = caller.open([str(home / "docs")], sent)
            assert manifest_of(opened).piece_rows.tolist() == [len(piece) for piece in expected]
            found = leased(caller, running.cache, opened)
            assert [np.frombuffer(one, np.int32).reshape(-1, 16).tolist() for one in found] == expected
        fills = caller.status().counters.fills
    os.unlink(home / "t.json")  # noqa: PTH108 - what was counted and filled needs it no more
    with daemon(home) as running, client(running.socket) as caller:
        opened = caller.open([str(home / "docs")], by_text)
        found = leased(caller, running.cache, opened)
        assert len(found) == len(by_piece(16, 1, language="en")) < fills
        assert caller.status().counters.fills == 0


def test_filtered_pieces_hold_the_wanted_columns_of_the_matching_rows(home: Path) -> None:
    write(home / "docs")
    with daemon(home) as running, client(running.socket) as caller:
        opened = caller.open([str(home / "docs")], spec(where=[("lang", "in", ["de"]), ("row", "<", 60)]))
        tables = [pa.ipc.open_file(found).read_all() for found in leased(caller, running.cache, opened, ("row",))]
    rows = [i for i in range(60) if LANGUAGES[i % 3] == "de"]
    assert [table.column_names for table in tables] == [["row"]] * (3 * SHARDS)
    assert [row for table in tables for row in table["row"].to_pylist()] == rows * SHARDS


def test_a_format_that_is_not_given_is_found_under_a_filter(home: Path) -> None:
    write(home / "docs")
    kind = compose(None, where=[("row", "<", 7)])
    assert kind is not None
    with daemon(home) as running, client(running.socket) as caller:
        manifest = manifest_of(caller.open([str(home / "docs")], kind.spec()))
    assert manifest.samples == 7 * SHARDS
    assert manifest.format == compose(Parquet(), where=[("row", "<", 7)])


@pytest.mark.parametrize(
    ("sent", "name", "message"),
    [
        ({"where": [("row", ">", 1000)]}, "EmptyDataset", r"none of their 300 rows matches where="),
        ({"where": [("row", "==", "1")]}, "ConfigurationError", "'row', '==', '1'.* cannot be evaluated on int64"),
        ({"packing": Packing(16, "lang")}, "ConfigurationError", "text needs Packing"),
        ({"packing": Packing(16, "nowhere")}, "ColumnNotFound", "no column 'nowhere'"),
    ],
    ids=["no match", "types", "no documents", "no column"],
)
def test_what_cannot_be_counted_is_refused_by_its_name_at_the_opening(
    sent: dict[str, Any], name: str, message: str, home: Path
) -> None:
    write(home / "docs")
    with daemon(home) as running, client(running.socket) as caller:
        with pytest.raises(grpc.RpcError, match=message) as caught:
            caller.open([str(home / "docs")], spec(**sent))
        error: Any = caught.value
        assert dict(error.trailing_metadata())["forebay-error"] == name
