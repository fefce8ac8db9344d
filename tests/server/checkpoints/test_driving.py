"""The commit protocol over real destinations: what procedures ask is done, what fails is thrown into them."""

import asyncio
from pathlib import Path
from typing import cast

import pytest

from forebay_core.checkpoints.documents import RankManifest, State
from forebay_core.checkpoints.names import METADATA, Attempt, rank_manifest
from forebay_core.checkpoints.protocol import claim, commit, list_checkpoints, retire, sweep
from forebay_core.checkpoints.requests import Delete, Get, GetMany, List, Listed, Procedure, Put, PutIfAbsent
from forebay_core.errors import CheckpointError, SourceUnreachable
from forebay_server.checkpoints.destinations.base import Destination
from forebay_server.checkpoints.destinations.driving import drive
from forebay_server.sources.retries import RetryPolicy
from tests.server.checkpoints.destinations import destinations, environment_of
from tests.support.faults import Rule, Script
from tests.support.proxy import CountingProxy, Fault
from tests.support.seaweedfs import Bucket

ONCE = RetryPolicy(attempts=1, give_up_seconds=0.01)


async def local(directory: Path) -> Destination:
    opened, _ = destinations()
    return await opened.open(str(directory))


def test_every_request_is_answered_as_procedures_expect_it(tmp_path: Path) -> None:
    def procedure() -> Procedure[list[object]]:
        answers: list[object] = []
        for request in (
            Put("a/x", b"1"),
            PutIfAbsent("a/x", b"2"),
            PutIfAbsent("a/y", b"22"),
            Get("a/x"),
            GetMany(("a/y", "a/z")),
            List("a/"),
            Delete(("a/x", "a/z")),
            Get("a/x"),
        ):
            answers.append((yield request))
        return answers

    async def run() -> list[object]:
        return await drive(procedure(), await local(tmp_path))

    answers = asyncio.run(run())
    listed = cast("tuple[Listed, ...]", answers.pop(5))
    assert [(found.key, found.size_bytes) for found in listed] == [("a/x", 1), ("a/y", 2)]
    assert answers == [None, False, True, b"1", (b"22", None), None, None]


def test_a_failure_is_thrown_into_the_procedure_which_goes_on_or_ends_with_it(
    bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    def goes_on() -> Procedure[bytes]:
        try:
            yield Put("a.json", b"ours")
        except SourceUnreachable:
            found: bytes = yield Get("a.json")
            return found
        return b"it did not fail"

    def ends() -> Procedure[None]:
        yield Put("a.json", b"ours")

    async def run() -> None:
        opened, _ = destinations(environment_of(bucket, counting_proxy), retries=ONCE)
        kept = await opened.open(bucket.uri("runs/a"))
        await kept.put("ready", b"")
        counting_proxy.fault = Script(Rule(Fault(applied=True, drop=True), method="PUT", times=2))
        assert await drive(goes_on(), kept) == b"ours"
        with pytest.raises(SourceUnreachable):
            await drive(ends(), kept)

    asyncio.run(run())


def test_a_procedure_that_nobody_waits_for_any_more_is_closed(tmp_path: Path) -> None:
    ended = asyncio.Event()

    def procedure() -> Procedure[None]:
        try:
            yield Get("a.json")
        finally:
            ended.set()

    begun = procedure()

    async def run() -> None:
        kept = await local(tmp_path)
        driving = asyncio.create_task(drive(begun, kept))
        await asyncio.sleep(0)
        driving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await driving

    asyncio.run(run())
    assert ended.is_set()


def test_an_error_of_the_procedure_itself_is_raised(tmp_path: Path) -> None:
    def procedure() -> Procedure[None]:
        yield Get("a.json")
        raise CheckpointError("what was asked cannot be")

    async def run() -> None:
        with pytest.raises(CheckpointError, match="cannot be"):
            await drive(procedure(), await local(tmp_path))

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["s3", "file"])
def test_two_daemons_commit_retire_and_sweep_one_attempt_alike(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """CASES 38, 43, with the first answer to each decision lost."""
    environment, root = {}, str(tmp_path / "runs")
    script = Script(Rule(Fault(applied=True, drop=True), method="PUT", key="commits/", times=1))
    if kind == "s3":
        bucket: Bucket = request.getfixturevalue("bucket")
        proxy: CountingProxy = request.getfixturevalue("counting_proxy")
        proxy.fault = script
        environment, root = environment_of(bucket, proxy), bucket.uri("runs/a")

    async def run() -> None:
        daemons = [await destinations(environment)[0].open(root) for _ in range(2)]
        numbers = await asyncio.gather(*(drive(claim(f"token{n}", None, {}), kept) for n, kept in enumerate(daemons)))
        assert sorted(generation.number for generation in numbers) in ([0, 1], [1, 2])
        attempt = Attempt.draw(1, 7)
        await daemons[0].put(attempt.key("__0_0.distcp"), b"")
        for rank, kept in enumerate(daemons):
            assert await drive(commit(attempt, 2), kept) is None, "not whole yet"
            await kept.put(attempt.key(METADATA), b"meta")
            manifest = RankManifest(attempt, rank, 2, ())
            await kept.put(attempt.key(rank_manifest(rank)), manifest.encode())
        first, second = await asyncio.gather(*(drive(commit(attempt, 2), kept) for kept in daemons))
        assert first == second
        assert first is not None
        assert first.state is State.COMMITTED
        assert (kind == "s3") == bool(script.struck)
        (found,) = await drive(list_checkpoints(), daemons[1])
        assert found.attempt == attempt
        assert (await drive(retire(attempt), daemons[1])).state is State.RETIRED
        await drive(sweep(attempt), daemons[0])
        left = [each.key for each in await daemons[1].list("")]
        assert left == [attempt.decision, *sorted(key for key in left if key.startswith("generations/"))]

    asyncio.run(run())
