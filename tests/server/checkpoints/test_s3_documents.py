"""Small objects in a bucket whose answers get lost, are wrong, or say no."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from forebay_core.errors import AccessDenied, ForebayError, SourceNotFound, SourceUnreachable
from forebay_server.checkpoints.destinations.base import Destination
from forebay_server.sources.retries import RetryPolicy
from tests.server.checkpoints.destinations import destinations, environment_of
from tests.support.faults import Rule, Script
from tests.support.proxy import CountingProxy, Fault, Request
from tests.support.seaweedfs import Bucket

KEY = "commits/a.json"
SLOW_DOWN = Fault(status=503, body=b"<Error><Code>SlowDown</Code></Error>")
PAGE = Fault(status=200, headers={"Content-Type": "text/html"}, body=b"<html>please sign in</html>")
ONCE = RetryPolicy(attempts=1, give_up_seconds=0.01)
LOST = Fault(applied=True, drop=True)
REFUSED_BUT_DONE = Fault(applied=True, status=503, body=b"<Error><Code>SlowDown</Code></Error>")


async def ready(bucket: Bucket, proxy: CountingProxy, **options: object) -> Destination:
    """A destination that has found out what its store can do."""
    opened, _ = destinations(environment_of(bucket, proxy), **options)  # type: ignore[arg-type]
    kept = await opened.open(bucket.uri("runs/a"))
    await kept.put("ready", b"")
    proxy.clear()
    return kept


def of_key(fault: Fault, method: str = "PUT", *, times: int | None = 1) -> Script:
    return Script(Rule(fault, method=method, key="commits/a.json$", times=times))


@pytest.mark.parametrize("fault", [LOST, REFUSED_BUT_DONE], ids=["connection lost", "answered with 503"])
def test_who_wrote_and_was_told_that_it_failed_learns_that_it_has_won(
    bucket: Bucket, counting_proxy: CountingProxy, fault: Fault
) -> None:
    """CASES 38: a put that was applied but answered with an error is not taken for another's."""

    async def run() -> None:
        kept = await ready(bucket, counting_proxy)
        counting_proxy.fault = script = of_key(fault)
        assert await kept.put_if_absent(KEY, b"ours")
        assert script.struck == 1

    asyncio.run(run())
    assert bucket.get("runs/a/commits/a.json") == b"ours"


def test_who_failed_and_finds_another_there_learns_that_it_has_lost(
    bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    async def run() -> None:
        kept = await ready(bucket, counting_proxy)
        rules = of_key(Fault(drop=True))

        def rival_comes_first(request: Request) -> Fault | None:
            if fault := rules(request):
                bucket.put("runs/a/commits/a.json", b"theirs")
                return fault
            return None

        counting_proxy.fault = rival_comes_first
        assert not await kept.put_if_absent(KEY, b"ours")
        assert await kept.get(KEY) == b"theirs"

    asyncio.run(run())


def test_a_put_of_which_nothing_is_known_says_so_and_is_read_back(
    bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    async def run() -> None:
        kept = await ready(bucket, counting_proxy, retries=ONCE)
        counting_proxy.fault = of_key(LOST)
        with pytest.raises(SourceUnreachable, match="the connection broke"):
            await kept.put_if_absent(KEY, b"ours")
        assert await kept.get(KEY) == b"ours"

    asyncio.run(run())


def test_a_conflict_with_a_put_under_way_is_neither_won_nor_lost(bucket: Bucket, counting_proxy: CountingProxy) -> None:
    """S3 answers 409 while another put of the same key is not over, which may fail yet."""
    conflict = Fault(status=409, body=b"<Error><Code>ConditionalRequestConflict</Code></Error>")

    async def run() -> None:
        kept = await ready(bucket, counting_proxy)
        counting_proxy.fault = script = of_key(conflict, times=2)
        assert await kept.put_if_absent(KEY, b"ours")
        assert script.struck == 2

    asyncio.run(run())
    assert bucket.get("runs/a/commits/a.json") == b"ours"


@pytest.mark.parametrize(
    ("probe", "expected"),
    [
        (None, True),
        (Fault(status=501, body=b"<Error><Code>NotImplemented</Code></Error>"), False),
        (Fault(applied=True, status=200, headers={"ETag": '"0"'}), False),
    ],
    ids=["honoured", "refused", "ignored"],
)
def test_whether_put_if_absent_works_is_found_out_once_and_leaves_nothing(
    bucket: Bucket, counting_proxy: CountingProxy, probe: Fault | None, *, expected: bool
) -> None:
    """CASES 38: without it two daemons could decide differently on one checkpoint."""

    async def run() -> None:
        opened, _ = destinations(environment_of(bucket, counting_proxy))
        kept = await opened.open(bucket.uri("runs/a"))
        await kept.put("ready", b"")
        if probe:
            counting_proxy.fault = lambda request: probe if "if-none-match" in request.headers else None
        assert await asyncio.gather(*(kept.probe_put_if_absent() for _ in range(3))) == [expected] * 3
        asked = len(counting_proxy.exchanges)
        assert await kept.probe_put_if_absent() == expected
        assert len(counting_proxy.exchanges) == asked

    asyncio.run(run())
    assert bucket.keys() == ["runs/a/ready"]


def test_a_store_that_takes_no_writes_at_all_is_not_taken_for_one_without_put_if_absent(
    bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    refusal = Fault(status=501, body=b"<Error><Code>NotImplemented</Code></Error>")

    async def run() -> None:
        opened, _ = destinations(environment_of(bucket, counting_proxy))
        kept = await opened.open(bucket.uri("runs/a"))
        counting_proxy.fault = lambda request: refusal if request.method == "PUT" else None
        with pytest.raises(ForebayError, match="runs/a"):
            await kept.probe_put_if_absent()
        counting_proxy.fault = lambda request: None
        assert await kept.probe_put_if_absent()

    asyncio.run(run())


def test_a_store_that_cannot_be_reached_is_probed_again_when_it_can(
    bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    async def run() -> None:
        kept = await ready(bucket, counting_proxy, retries=ONCE)
        counting_proxy.fault = Script(Rule(Fault(drop=True), key="probe", times=1))
        with pytest.raises(SourceUnreachable):
            await kept.probe_put_if_absent()
        assert await kept.probe_put_if_absent()

    asyncio.run(run())


def _get(kept: Destination) -> Awaitable[object]:
    return kept.get(KEY)


def _head(kept: Destination) -> Awaitable[object]:
    return kept.head(KEY)


def _list(kept: Destination) -> Awaitable[object]:
    return kept.list("commits/")


def _put(kept: Destination) -> Awaitable[object]:
    return kept.put(KEY, b"ours")


def _create(kept: Destination) -> Awaitable[object]:
    return kept.put_if_absent("commits/b.json", b"ours")


def _delete(kept: Destination) -> Awaitable[object]:
    return kept.delete([KEY])


_ACTIONS = (_get, _head, _list, _put, _create, _delete)
_FAULTS = {
    "503": SLOW_DOWN,
    "page": PAGE,
    "drop": Fault(drop=True),
    "hang": Fault(hang=True),
    "500": Fault(status=500, body=b"<html>"),
}


@pytest.mark.parametrize(
    ("fault", "action"),
    [
        pytest.param(fault, action, id=f"{name}-{action.__name__}")
        for name, fault in _FAULTS.items()
        for action in _ACTIONS
        if (name, action) != ("page", _delete)  # to which any answer of 200 says that it is done
    ],
)
def test_a_request_that_fails_once_is_made_again(
    bucket: Bucket, counting_proxy: CountingProxy, fault: Fault, action: Callable[[Destination], Awaitable[object]]
) -> None:
    """CASES 35."""
    bucket.put("runs/a/commits/a.json", b"there")

    async def run() -> None:
        kept = await ready(bucket, counting_proxy, stall_seconds=0.5)
        counting_proxy.fault = script = Script(Rule(fault, times=1))
        result = await action(kept)
        assert script.struck == 1
        counting_proxy.fault = lambda _: None
        if action is _get:
            assert result == b"there"
        elif action is _list:
            assert isinstance(result, tuple)
            assert [each.key for each in result] == [KEY]
        elif action is _create:
            assert result is True
        else:
            assert await kept.get(KEY) == (None if action is _delete else b"ours" if action is _put else b"there")

    asyncio.run(run())


def test_a_document_that_breaks_off_is_read_again(bucket: Bucket, counting_proxy: CountingProxy) -> None:
    body = random.Random(1).randbytes(300_000)
    bucket.put("runs/a/commits/a.json", body)

    async def run() -> None:
        kept = await ready(bucket, counting_proxy, stall_seconds=0.5)
        script = Script(
            Rule(Fault(cut_after_bytes=100_000), method="GET", times=1),
            Rule(Fault(hang_after_bytes=100_000), method="GET", times=1),
        )
        counting_proxy.fault = script
        assert await kept.get(KEY) == body
        assert script.struck == 2

    asyncio.run(run())


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        (PAGE, SourceUnreachable, "does not answer as S3 does"),
        (Fault(status=404, body=b"<html>no such host"), SourceNotFound, "did not answer as S3 does"),
        (Fault(status=404, body=b"<Error><Code>NoSuchBucket</Code></Error>"), SourceNotFound, "has no bucket"),
        (SLOW_DOWN, SourceUnreachable, "keeps answering 503"),
    ],
    ids=["page", "404 of a proxy", "no bucket", "503"],
)
def test_what_something_in_between_answers_is_never_taken_for_absence(
    bucket: Bucket, counting_proxy: CountingProxy, fault: Fault, kind: type[ForebayError], message: str
) -> None:
    """CASES 38: a decision that cannot be read is not one that is not there."""

    async def run() -> None:
        kept = await ready(bucket, counting_proxy, retries=ONCE)
        bucket.put("runs/a/commits/a.json", b"there")
        counting_proxy.fault = lambda _: fault
        for action in (_get, _head, _list):
            with pytest.raises(kind, match=message):
                await action(kept)

    asyncio.run(run())


def test_without_the_right_to_write_the_error_names_it(bucket: Bucket) -> None:
    bucket.put("runs/a/commits/a.json", b"there")

    async def run() -> None:
        environment = bucket.server.environment(identity="reader")
        opened, _ = destinations(environment)
        kept = await opened.open(bucket.uri("runs/a"))
        assert await kept.get(KEY) == b"there"
        for action in (_put, _create, lambda kept: kept.probe_put_if_absent()):
            with pytest.raises(AccessDenied, match="s3:PutObject"):
                await action(kept)
        with pytest.raises(AccessDenied, match="s3:DeleteObject"):
            await kept.delete([KEY])

    asyncio.run(run())
    assert bucket.keys() == ["runs/a/commits/a.json"]


def test_a_root_that_cannot_be_used_is_named_and_not_the_probe_that_found_it_out(bucket: Bucket) -> None:
    reader = bucket.server.environment(identity="reader")
    nobody = {**reader, "AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing"}
    missing = f"s3://{bucket.name}-is-missing/runs/a"
    cases = [(bucket.uri("runs/a"), reader), (bucket.uri("runs/a"), nobody), (missing, environment_of(bucket))]

    async def run() -> None:
        for root, environment in cases:
            opened, _ = destinations(environment, retries=ONCE)
            kept = await opened.open(root)
            probed, listed = await asyncio.gather(
                kept.probe_put_if_absent(), kept.list("attempts/"), return_exceptions=True
            )
            assert isinstance(probed, AccessDenied | SourceNotFound)
            assert str(probed).startswith(f"{root}: ")
            assert listed == () if environment is reader else str(listed).startswith(f"{root}/attempts/: ")

    asyncio.run(run())


def test_many_keys_are_listed_over_pages_and_deleted_and_every_request_is_counted(
    bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    keys = [f"ledger/g000001/{number:06d}.json" for number in range(1005)]

    async def run() -> None:
        opened, counters = destinations(environment_of(bucket, counting_proxy))
        kept = await opened.open(bucket.uri("runs/a"))
        assert await kept.probe_put_if_absent()
        store = bucket.server.store(bucket.name)
        await asyncio.gather(*(store.put_async(f"runs/a/{key}", b"x") for key in keys))
        await kept.put("ledger/g000002/000000.json", b"y")
        counting_proxy.fault = script = Script(Rule(Fault(drop=True), method="GET", skip=1, times=1))
        assert [each.key for each in await kept.list("ledger/g000001/")] == keys
        assert script.struck == 1
        await kept.delete(keys)
        assert [each.key for each in await kept.list("")] == ["ledger/g000002/000000.json"]
        assert counters.requests == len(counting_proxy.exchanges)
        writes = [each for each in counting_proxy.exchanges if each.request.method in ("PUT", "DELETE", "POST")]
        assert counters.writes == len(writes)

    asyncio.run(run())
