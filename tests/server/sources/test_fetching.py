"""The byte stream of a piece: in order, bounded, resumable, of one version of the object."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_core.errors import BadObject, ConfigurationError, ObjectChanged, SourceNotFound, SourceUnreachable
from forebay_core.formats import Parquet, Tokens
from forebay_core.formats.base import Buffer, ByteRange, ObjectInfo, Prepared, Steps
from forebay_server.sources.fetching import Fetcher, PreparedObjects, split
from forebay_server.sources.registry import Stores
from forebay_server.sources.remote import NOW, ConnectionOptions, RemoteCounters
from forebay_server.sources.retries import RetryPolicy
from tests.support.proxy import CountingProxy, Fault, Request
from tests.support.seaweedfs import Bucket

QUICK = RetryPolicy(attempts=5, give_up_seconds=20, first_wait_seconds=0.01, longest_wait_seconds=0.05)
DATA = random.Random(7).randbytes(300_001)


def fetcher_of(stores: Stores, **options: int) -> Fetcher:
    return Fetcher(stores, part_bytes=options.pop("part_bytes", 10_000), retries=QUICK, **options)


def write(directory: Path, name: str, data: bytes) -> ObjectInfo:
    (directory / name).write_bytes(data)
    stores = Stores({}, RemoteCounters())
    target = stores.target(f"file://{directory}", name)
    info = asyncio.run(target.store.head(target.key))
    return ObjectInfo(name, info.size, info.version)


async def collect(fetcher: Fetcher, root: str, obj: ObjectInfo, ranges: list[ByteRange]) -> list[bytes]:
    chunks: list[bytes] = []

    async def on_part(part: Sequence[Buffer]) -> None:
        chunks.append(b"".join(part))

    await fetcher.stream(root, obj, ranges, on_part, NOW)
    return chunks


async def head(stores: Stores, bucket: Bucket, key: str) -> ObjectInfo:
    target = stores.target(bucket.uri(), key)
    return await target.store.head(target.key)


@pytest.fixture
def remote(bucket: Bucket, counting_proxy: CountingProxy) -> Stores:
    bucket.put("shard.bin", DATA)
    return Stores(bucket.server.environment(endpoint=counting_proxy.endpoint), RemoteCounters())


def test_the_bytes_of_all_ranges_come_in_order_in_parts_of_bounded_size(tmp_path: Path) -> None:
    obj = write(tmp_path, "shard.bin", DATA)
    fetcher = fetcher_of(Stores({}, RemoteCounters()))
    ranges = [ByteRange(200_000, 260_500), ByteRange(5, 5), ByteRange(0, 10), ByteRange(100, 30_100)]
    chunks = asyncio.run(collect(fetcher, f"file://{tmp_path}", obj, ranges))
    assert b"".join(chunks) == b"".join(DATA[r.start : r.stop] for r in ranges)
    assert max(map(len, chunks)) == 10_000
    assert asyncio.run(collect(fetcher, f"file://{tmp_path}", obj, [])) == []


def test_a_stream_from_s3_equals_the_object_and_is_counted(remote: Stores, bucket: Bucket) -> None:
    async def read() -> list[bytes]:
        obj = await head(remote, bucket, "shard.bin")
        return await collect(fetcher_of(remote), bucket.uri(), obj, [ByteRange(0, len(DATA))])

    assert b"".join(asyncio.run(read())) == DATA
    assert remote.counters == RemoteCounters(requests=1 + 31, retries=0, bytes=len(DATA), answers=Counter(ok=31))


@given(
    ranges=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda p: ByteRange(min(p), max(p)))),
    part=st.integers(1, 20),
)
def test_parts_cover_the_ranges_exactly(ranges: list[ByteRange], part: int) -> None:
    parts = list(split(ranges, part))
    assert [b for p in parts for b in range(p.start, p.stop)] == [b for r in ranges for b in range(r.start, r.stop)]
    assert all(0 < p.length <= part for p in parts)


def test_a_part_whose_body_is_cut_is_fetched_again_alone(
    remote: Stores, bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    cut: set[str] = set()

    def cut_two_parts_once(request: Request) -> Fault | None:
        if request.range in ("bytes=0-9999", "bytes=50000-59999") and request.range not in cut:
            cut.add(request.range)
            return Fault(cut_after_bytes=3_000)
        return None

    counting_proxy.fault = cut_two_parts_once

    async def read() -> list[bytes]:
        obj = await head(remote, bucket, "shard.bin")
        return await collect(fetcher_of(remote), bucket.uri(), obj, [ByteRange(0, len(DATA))])

    assert b"".join(asyncio.run(read())) == DATA
    assert len(cut) == 2
    assert remote.counters.retries == 2
    assert len(counting_proxy.gets("shard.bin")) == 31 + 2


def test_throttling_is_ridden_out(remote: Stores, bucket: Bucket, counting_proxy: CountingProxy) -> None:
    seen: dict[str | None, int] = {}

    def refuse_the_first_two_of_each(request: Request) -> Fault | None:
        seen[request.range] = seen.get(request.range, 0) + 1
        return Fault(status=503) if request.range and seen[request.range] < 3 else None

    counting_proxy.fault = refuse_the_first_two_of_each

    async def read() -> list[bytes]:
        obj = await head(remote, bucket, "shard.bin")
        return await collect(fetcher_of(remote), bucket.uri(), obj, [ByteRange(0, 40_000)])

    assert b"".join(asyncio.run(read())) == DATA[:40_000]
    assert remote.counters.retries == 8


def test_an_overwritten_object_is_changed_and_never_a_mixture(remote: Stores, bucket: Bucket) -> None:
    """CASES 27."""

    async def read() -> None:
        obj = await head(remote, bucket, "shard.bin")
        chunks: list[bytes] = []

        async def overwrite_after_the_first(part: Sequence[Buffer]) -> None:
            chunks.append(b"".join(part))
            assert b"".join(chunks) == DATA[: len(b"".join(chunks))]
            if len(chunks) == 1:
                await asyncio.to_thread(bucket.put, "shard.bin", DATA[::-1])

        fetcher = fetcher_of(remote, flight_bytes=20_000)
        await fetcher.stream(bucket.uri(), obj, [ByteRange(0, len(DATA))], overwrite_after_the_first, NOW)

    with pytest.raises(ObjectChanged, match=r"shard\.bin"):
        asyncio.run(read())


def test_a_replaced_or_rewritten_local_file_is_changed(tmp_path: Path) -> None:
    obj = write(tmp_path, "shard.bin", DATA)
    fetcher = fetcher_of(Stores({}, RemoteCounters()))
    (tmp_path / "new").write_bytes(DATA)
    (tmp_path / "new").rename(tmp_path / "shard.bin")
    with pytest.raises(ObjectChanged, match="changed since it was listed"):
        asyncio.run(collect(fetcher, f"file://{tmp_path}", obj, [ByteRange(0, 10)]))


def test_a_local_file_that_is_gone_is_not_found(tmp_path: Path) -> None:
    obj = write(tmp_path, "shard.bin", DATA)
    (tmp_path / "shard.bin").unlink()
    with pytest.raises(SourceNotFound, match=r"shard\.bin: no such file"):
        asyncio.run(collect(fetcher_of(Stores({}, RemoteCounters())), f"file://{tmp_path}", obj, [ByteRange(0, 10)]))


def test_a_range_beyond_a_local_file_is_a_bad_object(tmp_path: Path) -> None:
    obj = write(tmp_path, "shard.bin", DATA)
    with pytest.raises(BadObject, match="1 of 10 bytes"):
        asyncio.run(
            collect(fetcher_of(Stores({}, RemoteCounters())), f"file://{tmp_path}", obj, [ByteRange(300_000, 300_010)])
        )


def test_no_more_bytes_are_in_memory_than_allowed_over_all_streams(
    remote: Stores, bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    async def read() -> int:
        fetcher = fetcher_of(remote, flight_bytes=30_000)
        obj = await head(remote, bucket, "shard.bin")
        counting_proxy.clear()
        delivered, most = 0, 0

        def asked() -> int:
            ranges = (str(get.request.range).removeprefix("bytes=").split("-") for get in counting_proxy.gets())
            return sum(int(last) - int(first) + 1 for first, last in ranges)

        async def on_part(part: Sequence[Buffer]) -> None:
            nonlocal delivered, most
            await asyncio.sleep(0)
            most = max(most, asked() - delivered)
            delivered += sum(memoryview(chunk).nbytes for chunk in part)

        one = fetcher.stream(bucket.uri(), obj, [ByteRange(0, len(DATA))], on_part, NOW)
        two = fetcher.stream(bucket.uri(), obj, [ByteRange(0, len(DATA))], on_part, NOW)
        await asyncio.gather(one, two)
        assert delivered == 2 * len(DATA)
        assert fetcher.flight.used_bytes == 0
        return most

    assert asyncio.run(read()) == 30_000


def test_a_cancelled_stream_ends_its_requests_and_gives_its_places_back(
    remote: Stores, bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    async def read() -> None:
        fetcher = fetcher_of(remote, flight_bytes=40_000)
        obj = await head(remote, bucket, "shard.bin")
        counting_proxy.fault = lambda request: Fault(hang=True) if request.range == "bytes=20000-29999" else None
        second = asyncio.Event()

        async def on_part(part: Sequence[Buffer]) -> None:
            if b"".join(part) == DATA[10_000:20_000]:
                second.set()

        stuck = asyncio.create_task(fetcher.stream(bucket.uri(), obj, [ByteRange(0, len(DATA))], on_part, NOW))
        await second.wait()
        stuck.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stuck
        assert len(asyncio.all_tasks()) == 1
        tail = [ByteRange(100_000, len(DATA))]
        assert b"".join(await collect(fetcher, bucket.uri(), obj, tail)) == DATA[100_000:]

    asyncio.run(read())


def test_a_failing_consumer_ends_the_stream_and_its_own_error_is_raised(tmp_path: Path) -> None:
    obj = write(tmp_path, "shard.bin", DATA)

    async def read() -> None:
        fetcher = fetcher_of(Stores({}, RemoteCounters()), flight_bytes=20_000)

        async def full(part: Sequence[Buffer]) -> None:
            raise OSError(28, "No space left on device")

        for _ in range(5):
            with pytest.raises(OSError, match="No space left"):
                await fetcher.stream(f"file://{tmp_path}", obj, [ByteRange(0, len(DATA))], full, NOW)
        assert b"".join(await collect(fetcher, f"file://{tmp_path}", obj, [ByteRange(0, 50_000)])) == DATA[:50_000]

    asyncio.run(read())


def test_a_stalled_part_is_given_up_and_fetched_again(bucket: Bucket, counting_proxy: CountingProxy) -> None:
    bucket.put("shard.bin", DATA)
    environment = bucket.server.environment(endpoint=counting_proxy.endpoint)
    stores = Stores(environment, RemoteCounters(), ConnectionOptions(stall_timeout_seconds=0.5))
    hung: list[Request] = []

    def hang_once(request: Request) -> Fault | None:
        if request.range and not hung:
            hung.append(request)
            return Fault(hang=True)
        return None

    counting_proxy.fault = hang_once

    async def read() -> list[bytes]:
        obj = await head(stores, bucket, "shard.bin")
        return await collect(fetcher_of(stores), bucket.uri(), obj, [ByteRange(0, 30_000)])

    assert b"".join(asyncio.run(read())) == DATA[:30_000]
    assert stores.counters.retries == 1


@dataclass(frozen=True)
class Asking(Tokens):
    """A format that asks for these ranges of an object, round by round, and then knows their bytes."""

    sequence_length: int = 1
    rounds: tuple[tuple[ByteRange, ...], ...] = ()

    def prepare(self, obj: ObjectInfo) -> Steps[Prepared]:
        everything = b""
        for ranges in self.rounds:
            everything += b"".join(bytes(answer) for answer in (yield list(ranges)))
        return Prepared(everything, len(everything))


ONE_RANGE = Asking(rounds=((ByteRange(0, 4),),))


def test_a_format_is_given_its_ranges_in_the_order_asked_for_and_asked_once(remote: Stores, bucket: Bucket) -> None:
    rounds = ((ByteRange(7, 9), ByteRange(0, 4), ByteRange(3, 3)), (), (ByteRange(100, 105),))

    async def read() -> list[bytes]:
        fetcher = fetcher_of(remote)
        obj = await head(remote, bucket, "shard.bin")
        at_once = [fetcher.prepare(bucket.uri(), obj, Asking(rounds=rounds)) for _ in range(9)]
        later = fetcher.prepare(bucket.uri(), obj, Asking(rounds=rounds))
        return [prepared.facts for prepared in (*await asyncio.gather(*at_once), await later)]

    expected = DATA[7:9] + DATA[0:4] + DATA[100:105]
    assert asyncio.run(read()) == [expected] * 10
    assert remote.counters.requests == 1 + 3


def test_what_a_format_came_to_know_when_it_cut_an_object_is_not_read_again_for_its_pieces(tmp_path: Path) -> None:
    table = pa.table({"id": range(1000)})
    pq.write_table(table, tmp_path / "shard.parquet", row_group_size=100)
    obj = write(tmp_path, "shard.parquet", (tmp_path / "shard.parquet").read_bytes())
    stores = Stores({}, RemoteCounters())
    fetcher = fetcher_of(stores)

    async def read() -> int:
        cut = await fetcher.cut(f"file://{tmp_path}", obj, Parquet(piece_bytes=1))
        once = stores.counters.requests
        prepared = [await fetcher.prepare(f"file://{tmp_path}", obj, Parquet(piece_bytes=1)) for _ in cut.pieces]
        assert len({id(one.facts) for one in prepared}) == 1
        assert stores.counters.requests == once
        return len(prepared)

    assert asyncio.run(read()) == 10


def test_what_a_format_knows_is_kept_by_version(tmp_path: Path) -> None:
    obj = write(tmp_path, "shard.bin", DATA)
    fetcher = fetcher_of(Stores({}, RemoteCounters()))

    async def read(info: ObjectInfo) -> bytes:
        return bytes((await fetcher.prepare(f"file://{tmp_path}", info, ONE_RANGE)).facts)

    assert asyncio.run(read(obj)) == DATA[:4]
    changed = write(tmp_path, "shard.bin", DATA[::-1])
    assert changed.version != obj.version
    assert asyncio.run(read(changed)) == DATA[::-1][:4]


def test_a_format_that_refuses_an_object_raises_its_own_error(tmp_path: Path) -> None:
    obj = write(tmp_path, "shard.bin", DATA)

    class Refusing(Asking):
        def prepare(self, obj: ObjectInfo) -> Steps[Prepared]:
            yield [ByteRange(0, 4)]
            raise BadObject("shard.bin: not what its name says")

    with pytest.raises(BadObject, match="not what its name says"):
        asyncio.run(fetcher_of(Stores({}, RemoteCounters())).prepare(f"file://{tmp_path}", obj, Refusing()))


def test_a_generator_is_closed_when_its_bytes_cannot_be_read(tmp_path: Path) -> None:
    obj = write(tmp_path, "shard.bin", DATA)
    (tmp_path / "shard.bin").unlink()
    closed: list[bool] = []

    class Waiting(Asking):
        def prepare(self, obj: ObjectInfo) -> Steps[Prepared]:
            try:
                yield [ByteRange(0, 4)]
                return Prepared(None, 0)
            finally:
                closed.append(True)

    with pytest.raises(SourceNotFound):
        asyncio.run(fetcher_of(Stores({}, RemoteCounters())).prepare(f"file://{tmp_path}", obj, Waiting()))
    assert closed == [True]


def test_what_is_known_of_objects_is_dropped_when_it_was_not_used_lately_but_one_of_any_size_is_kept() -> None:
    each = PreparedObjects.ENTRY_BYTES + 1000
    kept = PreparedObjects(4 * each)
    names = [("url", f"version {n}", ONE_RANGE) for n in range(6)]

    def there() -> list[bool]:
        return [kept.get(name) is not None for name in names]

    for name in names[:4]:
        kept.put(name, Prepared(None, 1000))
    assert kept.get(names[0]) is not None
    kept.put(names[4], Prepared(None, 1000))
    assert there() == [True, False, True, True, True, False]
    kept.put(names[5], Prepared(None, 10**9))
    assert there() == [True, False, True, True, True, True]
    kept.put(names[1], Prepared(None, 10**9))
    assert there() == [True, True, True, True, True, False]


@pytest.mark.parametrize("option", ["part_bytes", "flight_bytes", "prepared_bytes"])
def test_options_that_cannot_work_are_refused(option: str) -> None:
    with pytest.raises(ConfigurationError):
        fetcher_of(Stores({}, RemoteCounters()), **{option: -1})


def test_a_store_that_never_recovers_ends_the_stream(
    remote: Stores, bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    async def read() -> None:
        obj = await head(remote, bucket, "shard.bin")
        counting_proxy.fault = lambda request: Fault(status=500)
        await collect(fetcher_of(remote), bucket.uri(), obj, [ByteRange(0, len(DATA))])

    with pytest.raises(SourceUnreachable, match="keeps answering 500"):
        asyncio.run(read())
