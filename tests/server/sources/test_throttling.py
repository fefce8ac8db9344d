"""What a store that throttles, and a network that breaks, do to the streams of a fetcher."""

import asyncio
import random
import time
from collections.abc import Sequence

from forebay_core.formats.base import Buffer, ByteRange, ObjectInfo
from forebay_server.sources.fetching import Fetcher
from forebay_server.sources.pacing import PaceRules
from forebay_server.sources.registry import Stores
from forebay_server.sources.remote import NOW, Caller, ConnectionOptions, RemoteCounters, Waiter
from tests.support.faults import Rule, Script
from tests.support.proxy import CountingProxy, Fault, Request
from tests.support.seaweedfs import Bucket

PART = 4096
SLOW_DOWN = Fault(status=503, body=b"<Error><Code>SlowDown</Code></Error>", headers={"Retry-After": "7"})


class Remote:
    """One object, and a fetcher that reads it through the proxy."""

    def __init__(self, bucket: Bucket, proxy: CountingProxy, data: bytes, *, most: int = 64) -> None:
        bucket.put("shard.bin", data)
        self.proxy, self.data = proxy, data
        self.stores = Stores(
            bucket.server.environment(endpoint=proxy.endpoint),
            RemoteCounters(),
            ConnectionOptions(stall_timeout_seconds=1),
            pace=PaceRules.up_to(most),
        )
        self.fetcher = Fetcher(self.stores)
        self.root = bucket.uri()
        self.target = self.stores.target(self.root, "shard.bin")

    async def read(self, obj: ObjectInfo, wanted: ByteRange, caller: Caller = NOW) -> bytes:
        chunks: list[bytes] = []

        async def on_part(part: Sequence[Buffer]) -> None:
            chunks.extend(bytes(chunk) for chunk in part)

        await self.fetcher.stream(self.root, obj, [wanted], on_part, caller)
        return b"".join(chunks)

    async def head(self) -> ObjectInfo:
        found = await self.target.store.head("shard.bin")
        self.proxy.clear()
        return found

    def ranges(self) -> list[str | None]:
        return [exchange.request.range for exchange in self.proxy.gets()]


def test_a_store_that_throttles_gets_few_requests_and_when_it_has_recovered_as_many_as_before(
    bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    """CASES 35: of 64 readers 16 are refused, then 8, 4, 2 and 1, with pauses in between that double."""
    remote = Remote(bucket, counting_proxy, random.Random(3).randbytes(64 * PART))
    struck_at: list[float] = []

    def throttle(request: Request) -> Fault | None:
        if not request.range or len(struck_at) >= 31:
            return None
        struck_at.append(time.monotonic())
        return SLOW_DOWN

    async def run() -> list[bytes]:
        obj = await remote.head()
        counting_proxy.fault = throttle
        parts = [ByteRange(start, start + PART) for start in range(0, 64 * PART, PART)]
        return await asyncio.gather(*(remote.read(obj, part) for part in parts))

    assert b"".join(asyncio.run(run())) == remote.data
    assert struck_at[-1] - struck_at[0] >= 1.8, "half of 0.25 + 0.5 + 1 + 2 s at the least"
    assert remote.stores.counters.throttles == 31
    assert remote.stores.counters.retries == 31
    assert len(remote.ranges()) == 64 + 31
    assert remote.target.store.gate.pace.limit >= 8, "at half of what it was within a few round trips, and growing"


def test_a_pause_that_the_store_asks_for_in_its_answer_is_kept(bucket: Bucket, counting_proxy: CountingProxy) -> None:
    """obstore shows no headers, so a Retry-After header alone cannot be seen; in the body it can."""
    remote = Remote(bucket, counting_proxy, b"x" * PART)
    asks = Fault(status=503, body=b"<Error><Code>SlowDown</Code><RetryAfter>2</RetryAfter></Error>")

    async def run() -> float:
        obj = await remote.head()
        counting_proxy.fault = Script(Rule(asks, method="GET", times=1))
        began = time.monotonic()
        await remote.read(obj, ByteRange(0, PART))
        return time.monotonic() - began

    assert asyncio.run(run()) >= 2.0


def test_a_demand_goes_before_what_is_fetched_ahead_when_the_window_is_small(
    bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    remote = Remote(bucket, counting_proxy, b"x" * 10 * PART, most=1)

    async def run() -> None:
        obj = await remote.head()
        first_is_under_way = asyncio.Event()
        loop = asyncio.get_running_loop()

        def hold(_: Request) -> Fault:
            loop.call_soon_threadsafe(first_is_under_way.set)
            return Fault(delay_seconds=0.05)

        counting_proxy.fault = hold
        ahead = [
            asyncio.create_task(
                remote.read(obj, ByteRange(n * PART, (n + 1) * PART), Waiter(n, 10.0 - n, is_demand=False))
            )
            for n in range(5)
        ]
        await first_is_under_way.wait()
        await remote.read(obj, ByteRange(9 * PART, 10 * PART))
        await asyncio.gather(*ahead)

    asyncio.run(run())
    order = [int(str(wanted).removeprefix("bytes=").split("-")[0]) // PART for wanted in remote.ranges()]
    assert order == [0, 9, 4, 3, 2, 1], "the demand is second, and the others go by need and not by age"


def test_a_part_that_breaks_again_goes_on_behind_the_bytes_that_had_come(
    bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    """CASES 26."""
    mib = 1 << 20
    remote = Remote(bucket, counting_proxy, random.Random(5).randbytes(7 * mib))
    script = Script(
        Rule(Fault(cut_after_bytes=3 * mib), method="GET", times=1),
        Rule(Fault(cut_after_bytes=5 * mib), method="GET", times=1),
        Rule(Fault(hang_after_bytes=2 * mib + 5), method="GET", times=1),
    )

    async def run() -> bytes:
        obj = await remote.head()
        counting_proxy.fault = script
        return await remote.read(obj, ByteRange(0, 7 * mib))

    assert asyncio.run(run()) == remote.data
    assert script.struck == 3
    first, again, second, third = (int(str(wanted).removeprefix("bytes=").split("-")[0]) for wanted in remote.ranges())
    assert (first, again, 4 * mib <= second <= 5 * mib, 2 * mib <= third - second <= 3 * mib) == (0, 0, True, True)
    counters = remote.stores.counters
    assert (counters.retries, counters.stalls, counters.answers["ok"]) == (3, 1, 1)


def test_an_answer_of_another_length_than_it_says_is_made_good_and_never_taken_for_the_whole(
    bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    """CASES 26."""
    remote = Remote(bucket, counting_proxy, random.Random(6).randbytes(PART))

    async def run() -> bytes:
        obj = await remote.head()
        says = {"Content-Range": f"bytes 0-{PART - 1}/{PART}", "ETag": obj.version}
        says["Last-Modified"] = "Thu, 01 Jan 2026 00:00:00 GMT"
        longer, shorter = (
            Fault(status=206, headers=says, body=body) for body in (remote.data + b"x", remote.data[:99])
        )
        counting_proxy.fault = Script(*(Rule(fault, method="GET", times=1) for fault in (longer, shorter)))
        return await remote.read(obj, ByteRange(0, PART))

    assert asyncio.run(run()) == remote.data
    assert remote.stores.counters.answers == {"short": 2, "ok": 1}
    assert remote.ranges()[1:] == [f"bytes=0-{PART - 1}", f"bytes=99-{PART - 1}"]


def test_a_download_that_moves_is_not_ended_however_long_it_takes(
    bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    """CASES 35: three times as long as a stall."""
    remote = Remote(bucket, counting_proxy, b"x" * PART)

    async def run() -> bytes:
        obj = await remote.head()
        counting_proxy.fault = lambda _: Fault(bytes_per_second=PART / 3)
        return await remote.read(obj, ByteRange(0, PART))

    assert asyncio.run(run()) == remote.data
    assert len(remote.ranges()) == 1
    assert remote.stores.counters.stalls == 0
