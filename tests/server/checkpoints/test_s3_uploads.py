"""Large files on their way to a bucket: what fails is sent again, what arrives damaged is found, what is begun is taken
back, and nobody who waits for data waits for them."""

import asyncio
import random
import threading
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from forebay_core.checkpoints.documents import FileRecord
from forebay_core.errors import CheckpointDamaged, SourceUnreachable
from forebay_core.formats.base import ByteRange
from forebay_server.checkpoints.destinations.permits import WritePermits
from forebay_server.checkpoints.destinations.registry import Destinations
from forebay_server.checkpoints.destinations.transfers import Transfers
from forebay_server.sources.pacing import PaceRules
from forebay_server.sources.registry import Stores
from forebay_server.sources.remote import NOW, Caller, Received, RemoteCounters, Waiter
from forebay_server.sources.retries import READING, RetryPolicy, attempt
from tests.server.checkpoints.destinations import PART, destinations, environment_of, sealed
from tests.support.faults import Rule, Script
from tests.support.proxy import CountingProxy, Fault, Request
from tests.support.seaweedfs import Bucket

KEY = "attempts/g000000-s000000001-0123456789ab/__0_0.distcp"
WHOLE = f"runs/a/{KEY}"
SIZE = 3 * PART + 17
SLOW_DOWN = Fault(status=503, body=b"<Error><Code>SlowDown</Code></Error>")
PAGE = Fault(status=200, body=b"<html>please sign in</html>")
INTERNAL = Fault(status=200, body=b"<?xml version='1.0'?><Error><Code>InternalError</Code></Error>")
LOST = Fault(applied=True, drop=True)
ONCE = RetryPolicy(attempts=1, give_up_seconds=0.01)


@pytest.fixture
def local(tmp_path: Path) -> tuple[Path, FileRecord]:
    """A file of four parts, and what was sealed of it."""
    path = tmp_path / "local"
    return path, sealed(path, random.Random(7).randbytes(SIZE), items=5)


@pytest.fixture
def two_parts(tmp_path: Path) -> tuple[Path, FileRecord]:
    """A file of two parts, and what was sealed of it."""
    path = tmp_path / "local"
    return path, sealed(path, random.Random(8).randbytes(PART + 17), items=5)


def is_part(request: Request) -> bool:
    return "partNumber=" in request.query


class Nth:
    """A fault for the request of this number, counted from 0, whose query begins so."""

    def __init__(self, number: int, fault: Fault, query: str, method: str = "") -> None:
        self._number, self._fault, self._query, self._method = number, fault, query, method
        self._seen = 0
        self._lock = threading.Lock()
        self.struck = 0

    def __call__(self, request: Request) -> Fault | None:
        if not request.query.startswith(self._query) or self._method not in ("", request.method):
            return None
        with self._lock:
            self._seen += 1
            if self._seen - 1 != self._number:
                return None
            self.struck += 1
            return self._fault


async def until(condition: Callable[[], bool]) -> None:
    """Lets the others run until it holds, of which nobody tells."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def uploads_begun(bucket: Bucket) -> list[str]:
    """The keys of multipart uploads that are neither complete nor taken back."""
    answer = bucket.server.client().request("GET", f"/{bucket.name}", query={"uploads": ""})
    return [each.findtext("{*}Key") or "" for each in ElementTree.fromstring(answer).iterfind("{*}Upload")]


_STEPS = {"create": ("uploads", "POST"), "part": ("partNumber=", "PUT"), "complete": ("uploadId=", "POST")}
_FAULTS = {"503": SLOW_DOWN, "page": PAGE, "drop": Fault(drop=True), "lost": LOST, "internal": INTERNAL}


@pytest.mark.parametrize("fault", _FAULTS)
@pytest.mark.parametrize("step", _STEPS)
def test_an_upload_whose_request_fails_is_made_again_and_arrives_whole(
    bucket: Bucket, counting_proxy: CountingProxy, two_parts: tuple[Path, FileRecord], fault: str, step: str
) -> None:
    """CASES 35, 39."""
    path, record = two_parts
    query, method = _STEPS[step]

    async def run() -> None:
        opened, counters = destinations(environment_of(bucket, counting_proxy))
        kept = await opened.open(bucket.uri("runs/a"))
        counting_proxy.fault = script = Nth(0 if step != "part" else 1, _FAULTS[fault], query, method)
        await kept.upload(path, KEY, expected=record)
        assert script.struck == 1
        assert counters.retries == 1
        assert counters.throttles == (fault == "503")

    asyncio.run(run())
    assert bucket.get(WHOLE) == path.read_bytes()


def test_a_store_that_refuses_every_part_once_is_done_with_a_large_file_all_the_same(
    bucket: Bucket, counting_proxy: CountingProxy, two_parts: tuple[Path, FileRecord]
) -> None:
    path, record = two_parts
    seen: set[str] = set()
    lock = threading.Lock()

    def throttle(request: Request) -> Fault | None:
        with lock:
            if not is_part(request) or request.query in seen:
                return None
            seen.add(request.query)
            return SLOW_DOWN

    async def run() -> None:
        impatient = RetryPolicy(attempts=4, give_up_seconds=10)
        opened, _ = destinations(environment_of(bucket, counting_proxy), retries=impatient)
        kept = await opened.open(bucket.uri("runs/a"))
        counting_proxy.fault = throttle
        await kept.upload(path, KEY, expected=record)

    asyncio.run(run())
    assert bucket.get(WHOLE) == path.read_bytes()


def test_credentials_that_are_refused_in_the_middle_of_an_upload_are_taken_anew(
    bucket: Bucket, counting_proxy: CountingProxy, two_parts: tuple[Path, FileRecord], tmp_path: Path
) -> None:
    """CASES 36, 39."""
    path, record = two_parts
    good = bucket.server.identities["admin"]
    expired = b'<?xml version="1.0"?><Error><Code>ExpiredToken</Code></Error>'
    file = tmp_path / "credentials"

    def write(access_key: str) -> None:
        keys = f"aws_access_key_id = {access_key}\naws_secret_access_key = {good.secret_key}\n"
        file.write_text(f"[train]\n{keys}")

    def refuse_the_second_part(request: Request) -> Fault | None:
        if request.access_key == good.access_key and "partNumber=2" in request.query and not refused:
            refused.append(request)
            return Fault(status=400, body=expired)
        return None

    refused: list[Request] = []
    write(good.access_key)
    environment = {
        "AWS_ENDPOINT_URL": counting_proxy.endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_SHARED_CREDENTIALS_FILE": str(file),
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_PROFILE": "train",
    }

    async def run() -> None:
        opened, _ = destinations(environment, retries=ONCE)
        kept = await opened.open(bucket.uri("runs/a"))
        counting_proxy.fault = refuse_the_second_part
        await kept.upload(path, KEY, expected=record)

    asyncio.run(run())
    assert len(refused) == 1
    assert len([each for each in counting_proxy.exchanges if each.request.query == "uploads="]) == 2
    assert bucket.get(WHOLE) == path.read_bytes()
    assert uploads_begun(bucket) == []


def test_an_upload_that_hangs_is_given_up_and_made_again(
    bucket: Bucket, counting_proxy: CountingProxy, two_parts: tuple[Path, FileRecord]
) -> None:
    path, record = two_parts

    async def run() -> None:
        opened, counters = destinations(environment_of(bucket, counting_proxy), stall_seconds=3)
        kept = await opened.open(bucket.uri("runs/a"))
        counting_proxy.fault = script = Nth(1, Fault(hang=True), "partNumber=")
        await kept.upload(path, KEY, expected=record)
        assert script.struck == 1
        assert counters.stalls == 1

    asyncio.run(run())
    assert bucket.get(WHOLE) == path.read_bytes()


@pytest.mark.parametrize("parts", [1, 2])
def test_bytes_that_change_on_the_way_are_refused_by_the_store_and_sent_again(
    bucket: Bucket, counting_proxy: CountingProxy, tmp_path: Path, parts: int
) -> None:
    """CASES 46: SeaweedFS does not compare the SHA-256 that it is signed with, but the checksum that goes with it."""
    path = tmp_path / "local"
    record = sealed(path, random.Random(parts).randbytes((parts - 1) * PART + 1000))

    async def run() -> None:
        opened, counters = destinations(environment_of(bucket, counting_proxy))
        kept = await opened.open(bucket.uri("runs/a"))
        await kept.put("ready", b"")
        damage = Fault(corrupt_request_at=500)
        counting_proxy.fault = script = Script(Rule(damage, method="PUT", key="distcp", times=1))
        await kept.upload(path, KEY, expected=record)
        assert script.struck == 1
        assert counters.answers["400"] == 1

    asyncio.run(run())
    assert bucket.get(WHOLE) == path.read_bytes()


class Unchecking:
    """Makes the store one that does not look at checksums, and adds a fault for requests of the file."""

    def __init__(self, *rules: Rule) -> None:
        self.script = Script(*rules)

    def __call__(self, request: Request) -> Fault | None:
        if "probe" in request.key and request.method == "PUT":
            return Fault(status=200, headers={"ETag": '"0"'})
        return self.script(request)


@pytest.mark.parametrize("parts", [1, 2])
def test_where_the_store_compares_no_checksums_its_etag_is_compared_and_damage_sent_again(
    bucket: Bucket, counting_proxy: CountingProxy, tmp_path: Path, parts: int
) -> None:
    """CASES 46."""
    path = tmp_path / "local"
    record = sealed(path, random.Random(parts).randbytes((parts - 1) * PART + 1000))

    async def run() -> None:
        opened, _ = destinations(environment_of(bucket, counting_proxy))
        kept = await opened.open(bucket.uri("runs/a"))
        counting_proxy.fault = store = Unchecking(
            Rule(Fault(corrupt_request_at=500), method="PUT", key="distcp", times=2)
        )
        await kept.upload(path, KEY, expected=record)
        assert store.script.struck == 2
        sent = [each.request for each in counting_proxy.exchanges if each.request.method == "PUT"]
        assert not any("x-amz-checksum-crc64nvme" in each.headers for each in sent if each.key == WHOLE)
        counting_proxy.clear()
        await kept.upload(path, KEY, expected=record)
        assert not counting_proxy.gets(), "nothing is read back where the ETag says it"
        store.script = Script(Rule(Fault(corrupt_request_at=500), method="PUT", key="distcp"))
        with pytest.raises(CheckpointDamaged, match="is not what was sent, 3 times"):
            await kept.upload(path, KEY, expected=record)

    asyncio.run(run())


@pytest.mark.parametrize("is_same", [True, False])
def test_where_neither_says_anything_the_file_is_read_back(
    bucket: Bucket, counting_proxy: CountingProxy, tmp_path: Path, *, is_same: bool
) -> None:
    """As with keys of KMS, under which an ETag is no MD5."""
    content = random.Random(5).randbytes(1000)
    path = tmp_path / "local"
    record = sealed(path, content)
    tags = {"ETag": '"of-something-else"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
    back = content if is_same else b"x" + content[1:]

    def store(request: Request) -> Fault | None:
        if "distcp" not in request.key:
            return Unchecking()(request)
        if request.method == "GET":
            return Fault(status=206, headers={**tags, "Content-Range": "bytes 0-999/1000"}, body=back)
        if request.method == "HEAD":
            return Fault(status=200, headers={**tags, "Content-Length": "1000"})
        return Fault(status=200, headers=tags)

    async def run() -> None:
        opened, _ = destinations(environment_of(bucket, counting_proxy))
        kept = await opened.open(bucket.uri("runs/a"))
        counting_proxy.fault = store
        if is_same:
            await kept.upload(path, KEY, expected=record)
        else:
            with pytest.raises(CheckpointDamaged, match="is not what was sent, 3 times"):
                await kept.upload(path, KEY, expected=record)
        assert len(counting_proxy.gets(WHOLE)) == (1 if is_same else 3)

    asyncio.run(run())


def test_an_object_that_others_cut_short_after_it_was_sent_has_not_arrived(
    bucket: Bucket, counting_proxy: CountingProxy, two_parts: tuple[Path, FileRecord]
) -> None:
    path, record = two_parts

    async def run() -> None:
        opened, _ = destinations(environment_of(bucket, counting_proxy))
        kept = await opened.open(bucket.uri("runs/a"))
        overwrites = 0

        def overwrite(request: Request) -> Fault | None:
            nonlocal overwrites
            if request.method == "HEAD" and overwrites < 2:
                overwrites += 1
                bucket.put(WHOLE, b"short")
            return None

        counting_proxy.fault = overwrite
        await kept.upload(path, KEY, expected=record)
        assert overwrites == 2

    asyncio.run(run())
    assert bucket.get(WHOLE) == path.read_bytes()


def test_an_upload_that_nobody_waits_for_any_more_leaves_nothing_begun(
    bucket: Bucket, counting_proxy: CountingProxy, local: tuple[Path, FileRecord]
) -> None:
    path, record = local

    async def run() -> None:
        opened, _ = destinations(environment_of(bucket, counting_proxy), parts_at_once=1)
        kept = await opened.open(bucket.uri("runs/a"))
        loop, has_begun = asyncio.get_running_loop(), asyncio.Event()

        def hold(request: Request) -> Fault | None:
            if is_part(request):
                loop.call_soon_threadsafe(has_begun.set)
                return Fault(delay_seconds=0.3)
            return None

        counting_proxy.fault = hold
        uploading = asyncio.create_task(kept.upload(path, KEY, expected=record))
        await has_begun.wait()
        uploading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await uploading
        assert counting_proxy.exchanges[-1].request.method == "DELETE"

    asyncio.run(run())
    assert uploads_begun(bucket) == []
    assert bucket.keys() == []


def test_an_upload_that_fails_for_good_leaves_nothing_begun_and_says_why(
    bucket: Bucket, counting_proxy: CountingProxy, local: tuple[Path, FileRecord]
) -> None:
    """CASES 39."""
    path, record = local

    async def run() -> None:
        opened, _ = destinations(environment_of(bucket, counting_proxy), retries=ONCE)
        kept = await opened.open(bucket.uri("runs/a"))
        await kept.put("ready", b"")
        counting_proxy.fault = lambda request: Fault(status=500) if "partNumber=3" in request.query else None
        with pytest.raises(SourceUnreachable, match=f"{KEY}.*keeps answering 500"):
            await kept.upload(path, KEY, expected=record)

    asyncio.run(run())
    assert uploads_begun(bucket) == []


def test_what_failed_and_what_nobody_waits_for_holds_no_memory_and_no_turn(
    bucket: Bucket, counting_proxy: CountingProxy, local: tuple[Path, FileRecord]
) -> None:
    path, record = local

    async def run() -> None:
        stores = Stores(environment_of(bucket, counting_proxy), RemoteCounters())
        transfers = Transfers(asyncio.get_running_loop().time, parts_at_once=1, part_bytes=PART)
        kept = await Destinations(stores, transfers, WritePermits(), retries=ONCE).open(bucket.uri("runs/a"))
        await kept.put("ready", b"")
        counting_proxy.fault = lambda request: Fault(drop=True) if "partNumber=2" in request.query else None
        keys = [KEY.replace("__0_0", f"__0_{number}") for number in range(3)]
        uploads = [asyncio.create_task(kept.upload(path, key, expected=record)) for key in keys]
        await until(lambda: transfers.flight.used_bytes > 0)
        uploads[1].cancel()
        failures = await asyncio.gather(*uploads, return_exceptions=True)
        assert [type(failure) for failure in failures] == [
            SourceUnreachable,
            asyncio.CancelledError,
            SourceUnreachable,
        ]
        (store,) = stores
        await until(lambda: not (transfers.memory.used_bytes or transfers.flight.used_bytes))
        assert store.gate.pace.in_flight == 0
        counting_proxy.fault = lambda _: None
        await kept.upload(path, KEY, expected=record)
        await until(lambda: not (transfers.memory.used_bytes or transfers.flight.used_bytes))

    asyncio.run(run())


def test_never_more_is_on_its_way_than_the_option_says_over_all_files(
    bucket: Bucket, counting_proxy: CountingProxy, local: tuple[Path, FileRecord]
) -> None:
    path, record = local
    most = 0

    def count(request: Request) -> Fault | None:
        nonlocal most
        if not is_part(request):
            return None
        under_way = [each for each in counting_proxy.exchanges if is_part(each.request) and not each.status]
        most = max(most, sum(int(each.request.headers["content-length"]) for each in under_way))
        return Fault(delay_seconds=0.05)

    async def run() -> None:
        opened, counters = destinations(environment_of(bucket, counting_proxy), parts_at_once=2)
        kept = await opened.open(bucket.uri("runs/a"))
        await kept.put("ready", b"")
        counting_proxy.clear()
        before = counters.requests, counters.sent_bytes
        counting_proxy.fault = count
        seen: list[int] = []
        keys = [KEY.replace("__0_0", f"__0_{number}") for number in range(3)]
        await asyncio.gather(*(kept.upload(path, key, expected=record, progress=seen.append) for key in keys))
        assert counters.requests - before[0] == len(counting_proxy.exchanges) == 3 * (4 + 2 + 1)
        assert counters.sent_bytes - before[1] == 3 * SIZE
        assert seen.count(SIZE) >= 3
        assert 0 < min(size for size in seen if size) <= PART

    asyncio.run(run())
    assert PART < most <= 2 * PART


def test_between_two_parts_of_an_upload_a_demand_goes_first_and_what_is_fetched_ahead_too(
    bucket: Bucket, counting_proxy: CountingProxy, local: tuple[Path, FileRecord]
) -> None:
    path, record = local
    bucket.put("data", b"x" * 100)

    async def run() -> list[str]:
        stores = Stores(environment_of(bucket, counting_proxy), RemoteCounters(), pace=PaceRules.up_to(1))
        transfers = Transfers(asyncio.get_running_loop().time, part_bytes=PART)
        kept = await Destinations(stores, transfers, WritePermits()).open(bucket.uri("runs/a"))
        await kept.put("ready", b"")
        target = stores.target(bucket.uri(), "data")
        info = await target.store.head("data")
        loop, has_begun, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        async def read(caller: Caller) -> None:
            received: Received = []
            wanted = ByteRange(0, 100)
            await attempt(
                target.store,
                target.url,
                READING,
                lambda: target.store.read("data", wanted, info.version, received),
                caller,
            )

        def hold(request: Request) -> None:
            if is_part(request):
                loop.call_soon_threadsafe(has_begun.set)
                go_on.wait(20)

        counting_proxy.clear()
        counting_proxy.fault = hold
        uploading = asyncio.create_task(kept.upload(path, KEY, expected=record))
        await has_begun.wait()
        demand = asyncio.create_task(read(NOW))
        await until(lambda: target.store.gate.has_waiting_demand)
        ahead = asyncio.create_task(read(Waiter(1, 50.0, is_demand=False)))
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(demand, ahead, uploading)
        kinds = {"GET": "read", "PUT": "part"}
        return [kinds[each.request.method] for each in counting_proxy.exchanges if each.request.method in kinds]

    assert asyncio.run(run()) == ["part", "read", "read", "part", "part", "part"]
