"""Datasets whose rows the daemon finds in their content: counted once, within bounds, and what is said of failures."""

import asyncio
import json
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay_core.errors import BadObject, ColumnNotFound, ConfigurationError, EmptyDataset
from forebay_core.formats import Packed, Packing, Parquet, compose
from forebay_core.formats.base import Buffer, ObjectCut, Piece, Prepared
from forebay_core.formats.packed import PackedLocaliser
from forebay_core.locations import Source
from forebay_server.sources.fetching import Fetcher
from forebay_server.sources.listing import list_objects
from forebay_server.sources.manifests import Manifests, OpenedDataset
from forebay_server.sources.registry import Stores
from forebay_server.sources.remote import RemoteCounters
from tests.support.packing import packed, write_tokenizer
from tests.support.processes import eventually
from tests.support.proxy import CountingProxy, Fault
from tests.support.seaweedfs import Bucket

GROUP, SHARDS = 10, 4
PARQUET = Parquet(piece_bytes=1)


class Opener:
    """A daemon's manifests in one directory. `count_bytes` is the fetcher's."""

    def __init__(self, directory: Path, environment: dict[str, str] | None = None, **options: Any) -> None:
        self.fetcher = Fetcher(Stores(environment or {}, RemoteCounters()), **options)
        self.manifests = Manifests(lambda: [directory], Stores(environment or {}, RemoteCounters()), self.fetcher)

    def open(self, urls: Sequence[str | Path], **rows: Any) -> OpenedDataset:
        kind = compose(PARQUET, **rows)
        assert kind is not None
        return asyncio.run(self.manifests.open([str(url) for url in urls], json.dumps(kind.spec())))


def documents(shard: int) -> list[list[int]]:
    return [[shard] * ((shard * 7 + i * 5) % 23) for i in range(35)]


def write(directory: Path) -> None:
    directory.mkdir()
    for shard in range(SHARDS):
        docs = documents(shard)
        table = pa.table(
            {
                "ids": pa.array(docs, pa.list_(pa.int32())),
                "text": [" ".join(f"w{i}" for i in doc) for doc in docs],
                "n": range(35),
                "blob": pa.array([bytes([i]) * 9000 for i in range(35)]),
            }
        )
        pq.write_table(table, directory / f"{shard}.parquet", row_group_size=GROUP, compression="none")


def sequences_of(shard: int, length: int) -> list[int]:
    docs = documents(shard)
    groups = [packed(docs[start : start + GROUP], length, separator=9) for start in range(0, 35, GROUP)]
    return [len(group) for group in groups if group]


@pytest.mark.parametrize("count_bytes", [1, 1 << 30], ids=["one piece at a time", "many"])
def test_a_manifest_has_the_rows_that_are_found_in_the_content(count_bytes: int, tmp_path: Path) -> None:
    write(tmp_path / "data")
    manifest = (
        Opener(tmp_path / "cache", count_bytes=count_bytes)
        .open([tmp_path / "data"], packing=Packing(16, "ids", separator=9))
        .manifest
    )
    assert manifest.piece_rows.tolist() == [rows for shard in range(SHARDS) for rows in sequences_of(shard, 16)]
    assert manifest.total_bytes == manifest.samples * 16 * 4
    tokens = sum(len(doc) + 1 for shard in range(SHARDS) for doc in documents(shard) if doc)
    dropped = tokens - manifest.samples * 16
    assert manifest.counts["tokens"] == tokens
    assert manifest.counts["dropped_tokens"] == dropped > 0


def test_rows_are_counted_once_and_the_counts_are_kept_with_the_manifest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "data")
    write_tokenizer(tmp_path / "t.json", ["w0", "w1", "w2", "w3"])
    packing = Packing(16, "text", tmp_path / "t.json", separator=9)
    with caplog.at_level(logging.INFO):
        first = Opener(tmp_path / "cache").open([tmp_path / "data"], packing=packing)
        assert first.manifest.counts["tokens"] > 0
        again = Opener(tmp_path / "cache").open([tmp_path / "data"], packing=packing)
    assert again.manifest.counts == first.manifest.counts
    assert sum("dropped_tokens" in message for message in caplog.messages) == 1


def test_counting_a_filter_asks_the_store_for_no_byte_of_other_columns(
    tmp_path: Path, bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    write(tmp_path / "data")
    bucket.upload(tmp_path / "data", "train/")
    environment = bucket.server.environment(endpoint=counting_proxy.endpoint)
    footers = SHARDS * (64 << 10)
    opened = Opener(tmp_path / "cache", environment).open([bucket.uri("train")], where=[("n", "<", 12)])
    assert opened.manifest.samples == 12 * SHARDS
    assert opened.manifest.pieces == 2 * SHARDS
    assert sum(exchange.body_bytes for exchange in counting_proxy.gets()) < footers + 20_000


def test_nothing_that_matches_is_an_empty_dataset_that_names_the_filter(tmp_path: Path) -> None:
    write(tmp_path / "data")
    opener = Opener(tmp_path / "cache")
    with pytest.raises(EmptyDataset, match=r"none of their 140 rows matches where=\[\('n', '>', 99\)\]"):
        opener.open([tmp_path / "data"], where=[("n", ">", 99)])
    with pytest.raises(
        EmptyDataset, match=r"no piece has the 1000 tokens of a sequence, all have \d+: .*remainder='pad'"
    ):
        opener.open([tmp_path / "data"], packing=Packing(1000, "ids"))
    with pytest.raises(EmptyDataset, match=r"column 'ids' has no token: none of their 140 rows matches where="):
        opener.open([tmp_path / "data"], where=[("n", ">", 99)], packing=Packing(16, "ids"))


def test_what_is_wrong_with_a_shard_names_its_url(tmp_path: Path) -> None:
    write(tmp_path / "data")
    pq.write_table(pa.table({"ids": pa.array([[2**40]]), "text": ["w0"]}), tmp_path / "data" / "odd.parquet")
    opener = Opener(tmp_path / "cache")
    url = f"file://{tmp_path}/data/odd.parquet"
    with pytest.raises(BadObject, match=f"{url}.* has the token id 1099511627776"):
        opener.open([tmp_path / "data"], packing=Packing(16, "ids"))
    with pytest.raises(ColumnNotFound, match=f"{url} has no column 'n'"):
        opener.open([tmp_path / "data"], where=[("n", ">", 99)])
    assert not list(tmp_path.glob("cache/*"))


def test_a_tokenizer_that_the_daemon_finds_changed_is_refused_at_the_opening(tmp_path: Path) -> None:
    write(tmp_path / "data")
    write_tokenizer(tmp_path / "t.json", ["w0"])
    packing = Packing(16, "text", tmp_path / "t.json")
    write_tokenizer(tmp_path / "t.json", ["w1"])
    with pytest.raises(ConfigurationError, match="for the daemon, and had sha256:"):
        Opener(tmp_path / "cache").open([tmp_path / "data"], packing=packing)


class Watched(Packed):
    """Packs, and keeps how many pieces are in memory at once, from the first byte to the end of a count."""

    held: ClassVar[set[int]] = set()
    peak: ClassVar[int] = 0

    def count(self, piece: Piece, prepared: Prepared) -> PackedLocaliser:
        counter = super().count(piece, prepared)
        write, finish = counter.write, counter.finish

        def watched_write(chunk: Buffer) -> None:
            self.held.add(id(counter))
            Watched.peak = max(self.peak, len(self.held))
            write(chunk)

        def watched_finish() -> None:
            finish()
            self.held.discard(id(counter))

        counter.write, counter.finish = watched_write, watched_finish  # type: ignore[method-assign]
        return counter


def test_pieces_that_are_counted_share_a_bound_of_memory_over_all_objects(tmp_path: Path) -> None:
    write(tmp_path / "data")
    kind = Watched(PARQUET, Packing(16, "ids", separator=9))
    files = sorted((tmp_path / "data").iterdir())

    async def count_all() -> list[ObjectCut]:
        fetcher = Opener(tmp_path / "cache", count_bytes=1).fetcher
        stores = Stores({}, RemoteCounters())
        listing = await list_objects(stores, Source((str(tmp_path / "data"),)))
        return await asyncio.gather(*(fetcher.cut(listing.source.root, obj, kind) for obj in listing.objects))

    cuts = asyncio.run(count_all())
    assert len(cuts) == len(files)
    assert [cut.rows for cut in cuts[1].pieces] == sequences_of(1, 16)
    assert Watched.peak == 1


def test_closing_ends_a_count_that_waits_for_bytes(
    tmp_path: Path, bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    write(tmp_path / "data")
    bucket.upload(tmp_path / "data", "train/")
    opener = Opener(tmp_path / "cache", bucket.server.environment(endpoint=counting_proxy.endpoint))
    kind = compose(PARQUET, packing=Packing(16, "ids"))
    assert kind is not None
    spec = json.dumps(kind.spec())
    seen: list[str] = []

    def hang(request: Any) -> Fault | None:
        if request.method != "GET" or not request.key:
            return None
        seen.append(request.key)
        return Fault(hang=True) if len(seen) > SHARDS + 4 else None

    counting_proxy.fault = hang

    async def open_and_close() -> None:
        waiting = asyncio.create_task(opener.manifests.open([bucket.uri("train")], spec))
        await asyncio.to_thread(eventually, lambda: len(seen) > SHARDS + 4, 20, "a count to wait for bytes")
        await opener.manifests.close()
        await opener.fetcher.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(open_and_close())


class Slow(Watched):
    """Counts until it is stopped."""

    begun: ClassVar[threading.Event] = threading.Event()
    stopped: ClassVar[threading.Event] = threading.Event()

    def count(self, piece: Piece, prepared: Prepared) -> PackedLocaliser:
        counter = super().count(piece, prepared)

        def finish() -> None:
            self.begun.set()
            self.stopped.wait(60)

        counter.finish, counter.stop = finish, self.stopped.set  # type: ignore[method-assign]
        return counter


def test_a_count_that_nobody_wants_any_more_is_stopped_and_closing_leaves_no_thread(tmp_path: Path) -> None:
    write(tmp_path / "data")
    kind = Slow(PARQUET, Packing(16, "ids"))

    async def count_and_give_up() -> None:
        fetcher = Opener(tmp_path / "cache").fetcher
        listing = await list_objects(Stores({}, RemoteCounters()), Source((str(tmp_path / "data"),)))
        counting = asyncio.create_task(fetcher.cut(listing.source.root, listing.objects[0], kind))
        await asyncio.to_thread(Slow.begun.wait, 20)
        counting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(counting, 30)
        assert Slow.stopped.is_set()
        await fetcher.close()
        left = [thread.name for thread in threading.enumerate() if thread not in before]
        assert [name for name in left if name.startswith("forebay-count")] == []

    before = set(threading.enumerate())
    asyncio.run(count_and_give_up())


def test_a_format_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    nested = '{"name": "packed", "base": ' * 5000
    with pytest.raises(ConfigurationError, match="not JSON"):
        asyncio.run(Opener(tmp_path / "cache").manifests.open([str(tmp_path)], nested + "null" + "}" * 5000))
