"""Manifests: built once, kept, found again, and never of another listing than the present one."""

import asyncio
import json
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay_core.errors import (
    BadObject,
    ConfigurationError,
    EmptyDataset,
    SourceNotFound,
    SourceUnreachable,
    UnknownScheme,
)
from forebay_core.formats import Parquet, Tokens
from forebay_core.formats.base import ObjectCut
from forebay_server.sources.fetching import Fetcher
from forebay_server.sources.manifests import Manifests, OpenedDataset, SharedSchemas
from forebay_server.sources.registry import Stores
from forebay_server.sources.remote import RemoteCounters
from forebay_server.sources.retries import RetryPolicy
from tests.server.scripted import ManualClock
from tests.support.data import write_parquet, write_tokens
from tests.support.proxy import CountingProxy, Fault, Request
from tests.support.seaweedfs import Bucket

QUICK = RetryPolicy(attempts=2, give_up_seconds=5, first_wait_seconds=0.01)


class Opener:
    """A daemon's manifests in one directory, with its counters."""

    def __init__(self, directory: Path, environment: dict[str, str] | None = None) -> None:
        self.counters = RemoteCounters()
        stores = Stores(environment or {}, self.counters)
        self.manifests = Manifests(lambda: [directory], stores, Fetcher(stores, retries=QUICK))

    def open(self, urls: Sequence[str | Path], spec: dict[str, object] | None = None) -> OpenedDataset:
        return asyncio.run(self.manifests.open([str(url) for url in urls], json.dumps(spec) if spec else ""))


@pytest.fixture
def opener(tmp_path: Path) -> Opener:
    return Opener(tmp_path / "cache")


def test_a_dataset_has_the_pieces_and_rows_of_its_files(opener: Opener, tmp_path: Path) -> None:
    write_parquet(tmp_path / "data", shards=5, rows=100)
    opened = opener.open([tmp_path / "data"])
    assert opened.manifest.samples == 500
    assert opened.manifest.root == f"file://{tmp_path}/data"
    assert [opened.manifest.objects.key(i) for i in range(5)] == [f"shard-{i:05d}.parquet" for i in range(5)]
    assert opened.path == tmp_path / "cache" / f"{opened.dataset_id}.arrow"
    assert opened.path.stat().st_mode & 0o777 == 0o640


def test_a_bucket_and_a_copy_on_disk_have_the_same_fingerprint(opener: Opener, tmp_path: Path, bucket: Bucket) -> None:
    write_parquet(tmp_path / "data", shards=3)
    bucket.upload(tmp_path / "data", "train/")
    remote = Opener(tmp_path / "cache", bucket.server.environment()).open([bucket.uri("train")])
    local = opener.open([tmp_path / "data"])
    assert remote.manifest.fingerprint == local.manifest.fingerprint
    assert remote.dataset_id != local.dataset_id


def test_what_was_built_once_is_only_listed_again_also_by_the_next_daemon(
    tmp_path: Path, bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    write_parquet(tmp_path / "data", shards=4)
    bucket.upload(tmp_path / "data", "train/")
    environment = bucket.server.environment(endpoint=counting_proxy.endpoint)
    first = Opener(tmp_path / "cache", environment)
    opened = first.open([bucket.uri("train")])
    assert len(counting_proxy.gets()) == 4
    for again in (first, Opener(tmp_path / "cache", environment)):
        counting_proxy.clear()
        assert again.open([bucket.uri("train")]).dataset_id == opened.dataset_id
        assert counting_proxy.gets() == []


def test_a_changed_object_gives_another_dataset_and_the_old_one_stays_known(opener: Opener, tmp_path: Path) -> None:
    paths = write_parquet(tmp_path / "data", shards=2)
    before = opener.open([tmp_path / "data"])
    os.utime(paths[0], ns=(1, 1))
    after = opener.open([tmp_path / "data"])
    assert after.dataset_id != before.dataset_id
    assert after.manifest.fingerprint == before.manifest.fingerprint
    assert after.manifest.version_digest != before.manifest.version_digest
    known = opener.manifests.get(before.dataset_id)
    assert known is not None
    assert known.manifest.version_digest == before.manifest.version_digest


def test_another_format_option_gives_another_dataset(opener: Opener, tmp_path: Path) -> None:
    write_parquet(tmp_path / "data")
    default = opener.open([tmp_path / "data"])
    assert opener.open([tmp_path / "data"], Parquet().spec()).dataset_id == default.dataset_id
    assert opener.open([tmp_path / "data"], Parquet(piece_bytes=1).spec()).dataset_id != default.dataset_id


def test_token_files_are_cut_by_the_options_given(opener: Opener, tmp_path: Path) -> None:
    write_tokens(tmp_path / "a.bin", samples=10, sequence_length=8)
    opened = opener.open([tmp_path / "a.bin"], Tokens(sequence_length=8, dtype="int32").spec())
    assert opened.manifest.samples == 10
    with pytest.raises(ConfigurationError, match="sequence_length"):
        opener.open([tmp_path / "a.bin"])


def test_the_next_daemon_finds_a_dataset_by_its_id_without_the_source(tmp_path: Path) -> None:
    write_parquet(tmp_path / "data")
    opened = Opener(tmp_path / "cache").open([tmp_path / "data"])
    restarted = Opener(tmp_path / "cache")
    found = restarted.manifests.get(opened.dataset_id)
    assert found is not None
    assert found.manifest.samples == opened.manifest.samples
    assert restarted.manifests.get(opened.dataset_id) is found
    assert restarted.counters.requests == 0


@pytest.mark.parametrize("dataset_id", ["", "0" * 64, "../../etc/passwd", "a/b", "\0"])
def test_an_unknown_id_is_nothing_and_never_a_path(opener: Opener, dataset_id: str) -> None:
    assert opener.manifests.get(dataset_id) is None


def test_a_damaged_or_deleted_file_is_built_again(tmp_path: Path) -> None:
    write_parquet(tmp_path / "data")
    opener = Opener(tmp_path / "cache")
    opened = opener.open([tmp_path / "data"])
    opened.path.unlink()
    assert opener.open([tmp_path / "data"]).path.exists()
    opened.path.write_bytes(b"ARROW1 and then nothing")
    restarted = Opener(tmp_path / "cache")
    assert restarted.manifests.get(opened.dataset_id) is None
    assert restarted.open([tmp_path / "data"]).manifest.samples == opened.manifest.samples


def test_many_who_open_one_source_at_the_same_time_cause_one_reading(
    tmp_path: Path, bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    write_parquet(tmp_path / "data", shards=6)
    bucket.upload(tmp_path / "data", "train/")
    opener = Opener(tmp_path / "cache", bucket.server.environment(endpoint=counting_proxy.endpoint))

    async def open_all() -> list[OpenedDataset]:
        return await asyncio.gather(*(opener.manifests.open([bucket.uri("train")], "") for _ in range(20)))

    opened = asyncio.run(open_all())
    assert len({id(one.manifest) for one in opened}) == 1
    assert len(counting_proxy.gets()) == 6
    assert len(counting_proxy.exchanges) == 7


def test_a_listing_that_took_long_is_not_made_again_by_each_rank_that_opens_a_little_later(
    tmp_path: Path, bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    """CASES 37: listing a million objects takes long, once and not on every rank."""
    write_parquet(tmp_path / "data", shards=2)
    bucket.upload(tmp_path / "data", "train/")
    clock = ManualClock()

    def slow_listing(request: Request) -> None:
        clock.now += 0 if request.key else 30

    counting_proxy.fault = slow_listing
    stores = Stores(bucket.server.environment(endpoint=counting_proxy.endpoint), RemoteCounters())
    manifests = Manifests(lambda: [tmp_path / "cache"], stores, Fetcher(stores, retries=QUICK), clock=clock)

    async def opened_with_listings() -> tuple[OpenedDataset, int]:
        opened = await manifests.open([bucket.uri("train")], "")
        return opened, sum(not exchange.request.key for exchange in counting_proxy.exchanges)

    async def run() -> None:
        first, listings = await opened_with_listings()
        clock.now += 29
        assert await opened_with_listings() == (first, listings)
        clock.now += 2
        _, later = await opened_with_listings()
        assert later == 2 * listings

    asyncio.run(run())


def test_a_failure_reaches_all_who_wait_and_the_next_attempt_works(
    tmp_path: Path, bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    write_parquet(tmp_path / "data", shards=3)
    bucket.upload(tmp_path / "data", "train/")
    opener = Opener(tmp_path / "cache", bucket.server.environment(endpoint=counting_proxy.endpoint))
    counting_proxy.fault = lambda request: Fault(status=500) if request.key == "train/shard-00001.parquet" else None

    async def open_all() -> list[OpenedDataset | BaseException]:
        calls = (opener.manifests.open([bucket.uri("train")], "") for _ in range(5))
        return await asyncio.gather(*calls, return_exceptions=True)

    failures = asyncio.run(open_all())
    assert all(isinstance(failure, SourceUnreachable) for failure in failures)
    assert "shard-00001.parquet" in str(failures[0])
    assert not (tmp_path / "cache").exists() or not list((tmp_path / "cache").iterdir())
    counting_proxy.fault = lambda request: None
    assert opener.open([bucket.uri("train")]).manifest.samples == 300


def test_one_who_gives_up_does_not_end_the_work_of_the_others(tmp_path: Path) -> None:
    write_parquet(tmp_path / "data")
    opener = Opener(tmp_path / "cache")

    async def open_two_and_cancel_one() -> OpenedDataset:
        one, other = (asyncio.create_task(opener.manifests.open([str(tmp_path / "data")], "")) for _ in range(2))
        await asyncio.sleep(0)
        one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one
        return await other

    assert asyncio.run(open_two_and_cancel_one()).manifest.samples == 400


def test_closing_ends_what_is_being_opened(tmp_path: Path, bucket: Bucket, counting_proxy: CountingProxy) -> None:
    listing = threading.Event()

    def hang(_: Request) -> Fault:
        listing.set()
        return Fault(hang=True)

    counting_proxy.fault = hang
    opener = Opener(tmp_path / "cache", bucket.server.environment(endpoint=counting_proxy.endpoint))

    async def open_and_close() -> None:
        waiting = asyncio.create_task(opener.manifests.open([bucket.uri("train")], ""))
        assert await asyncio.to_thread(listing.wait, 20)
        await opener.manifests.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(open_and_close())


def test_a_dataset_without_samples_says_so(opener: Opener, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "data" / "a.parquet")
    with pytest.raises(EmptyDataset, match="no samples"):
        opener.open([tmp_path / "data"])
    assert not (tmp_path / "cache").exists()


def test_a_file_that_is_not_what_its_extension_says_is_named(opener: Opener, tmp_path: Path) -> None:
    write_parquet(tmp_path / "data", shards=3)
    (tmp_path / "data" / "bad.parquet").write_bytes(b"this is no Parquet file at all, but long enough to be one")
    with pytest.raises(BadObject) as caught:
        opener.open([tmp_path / "data"])
    assert str(caught.value).startswith(f"file://{tmp_path}/data/bad.parquet does not end like a Parquet file")
    assert str(caught.value).count("bad.parquet") == 1


def test_what_fills_no_sample_is_said_once_by_name(
    opener: Opener, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "data").mkdir()
    for number in range(8):
        (tmp_path / "data" / f"{number}.bin").write_bytes(b"\0" * (4 * 8 + 12 * (number != 3)))
    spec = Tokens(sequence_length=8, dtype="int32").spec()
    with caplog.at_level(logging.WARNING):
        opener.open([tmp_path / "data"], spec)
        opener.open([tmp_path / "data"], spec)
    root = f"file://{tmp_path}/data"
    said = [f"{root}/{number}.bin: its last 3 items fill no sample and are left out" for number in (0, 1, 2, 4, 5)]
    assert caplog.messages == [*said, f"{root}: the same in 2 more objects"]


def test_equal_schemas_of_many_objects_are_one_in_memory() -> None:
    def cut(*names: str) -> ObjectCut:
        return ObjectCut([], pa.schema([pa.field(name, pa.int64()) for name in names]))

    schemas = SharedSchemas()
    one, same, other = (schemas.shared(made).schema for made in (cut("a", "b"), cut("a", "b"), cut("b", "a")))
    assert one is same
    assert (one.names, other.names) == (["a", "b"], ["b", "a"])


def test_what_cannot_work_is_refused(opener: Opener, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed" / "a.parquet").touch()
    (tmp_path / "mixed" / "b.csv").touch()
    with pytest.raises(UnknownScheme):
        opener.open(["ftp://host/data"])
    with pytest.raises(ConfigurationError):
        opener.open([])
    with pytest.raises(SourceNotFound):
        opener.open([tmp_path / "empty"])
    with pytest.raises(ConfigurationError, match="format="):
        opener.open([tmp_path / "mixed"])
    for text in ("{", "[]", '{"name": "unheard-of"}', '{"name": "parquet", "colour": 1}'):
        with pytest.raises(ConfigurationError):
            asyncio.run(opener.manifests.open([str(tmp_path)], text))
