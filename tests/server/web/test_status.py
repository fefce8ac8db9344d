"""The document behind the page: bounded, free of secrets, and fit for JSON and Prometheus whatever the names are."""

import asyncio
import json
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from forebay_core.capacity import CacheDirectory
from forebay_core.errors import ConfigurationError
from forebay_server.cache.room import REASONS
from forebay_server.pool.health import Health, State
from forebay_server.pool.member import Member
from forebay_server.sessions import Taken
from forebay_server.web.history import History
from forebay_server.web.metrics import families, render
from forebay_server.web.status import MOST_FILLS, MOST_SESSIONS, document, totals
from forebay_server.web.text import plain, shown_url
from tests.server.daemons import write_shards
from tests.server.scripted import pieces_of_room
from tests.server.test_sessions import filled, needs, node, session_over


def test_lists_are_bounded_and_say_how_many_there_are(home: Path) -> None:
    write_shards(home / "data", shards=80, samples=64)

    async def run() -> None:
        async with node(home) as (made, _clock):
            sessions = [await session_over(made, home / "data") for _ in range(MOST_SESSIONS + 20)]
            made.sessions.report(sessions[-1], 0, 0.0, Taken(0, 9.0, 8.0))
            await made.sessions.acquire(sessions[0], range(70))
            made.sessions.publish(sessions[5], needs(sessions[5], dict.fromkeys(range(80), 0)))
            found = document(made, History(0.0, totals(made)))
            assert (found["sessions"]["count"], len(found["sessions"]["rows"])) == (MOST_SESSIONS + 20, MOST_SESSIONS)
            assert found["sessions"]["rows"][0]["id"] == sessions[-1].id, "who waits longest is named first"
            assert (found["fills"]["count"], len(found["fills"]["rows"])) == (70, MOST_FILLS)
            assert found["fills"]["demands"] == 70
            assert found["fills"]["rows"][0]["sessions"] == {"count": 2, "ids": [sessions[0].id, sessions[5].id]}
            await asyncio.gather(*(fill.task for fill in list(made.fills.running.values())))

    asyncio.run(run())


def test_pieces_are_counted_by_what_became_of_them(home: Path) -> None:
    write_shards(home / "data", shards=2)

    async def run() -> None:
        async with node(home) as (made, _clock):
            one, two = [await session_over(made, home / "data") for _ in range(2)]
            await made.sessions.acquire(one, [0])
            await made.sessions.acquire(two, [0])
            await made.sessions.acquire(two, [0])
            await filled(made, one, 0)
            await filled(made, two, 1)
            await made.sessions.acquire(one, [1])
            counters = made.sessions.counters
            assert (counters.hits, counters.misses, counters.pending, counters.in_place) == (1, 2, 1, 0)
            size = 256 * 16 * 4 // 4
            assert (counters.fetched_bytes, counters.hit_bytes) == (3 * size, size)
            assert sum(holding.pieces for cache in made.pool.caches for holding in cache.holdings.values()) == 2

    asyncio.run(run())


def test_what_trainers_took_is_added_up_and_never_goes_back(home: Path) -> None:
    write_shards(home / "data", shards=1)

    async def run() -> None:
        async with node(home) as (made, _clock):
            one, two = [await session_over(made, home / "data") for _ in range(2)]
            for session, taken in ((one, Taken(10, 2.0, 1.0)), (two, Taken(5, 1.0, 0.0)), (one, Taken(30, 2.5, 0.0))):
                made.sessions.report(session, 0, 0.0, taken)
            assert (made.sessions.counters.samples, made.sessions.counters.wait_seconds) == (35, 3.5)
            assert (one.taken.waiting_seconds, two.taken.waiting_seconds) == (0.0, 0.0)

    asyncio.run(run())


def test_a_disk_that_is_down_is_shown_with_the_reason_and_without_bytes(home: Path) -> None:
    async def run() -> None:
        async with node(home) as (made, _clock):
            gone = Member(CacheDirectory(home / "gone"), None, Health(State.DOWN, "it gives I/O errors", 0.0, 0.0))
            made.pool.members.append(gone)
            disk = document(made, History(0.0, totals(made)))["disks"][1]
            assert (disk["path"], disk["state"], disk["reason"]) == (f"{home}/gone", "down", "it gives I/O errors")
            assert (disk["capacity_bytes"], disk["pieces"]) == (0, 0)
            [state] = [metric for metric in families(made) if metric.name == "forebay_disk_state"]
            down = {s.labels["state"]: s.value for s in state.samples if s.labels["disk"] == f"{home}/gone"}
            assert down == {"normal": 0, "unstable": 0, "read-only": 0, "down": 1}
            made.pool.members.remove(gone)

    asyncio.run(run())


def test_evictions_are_counted_by_what_they_were_for(home: Path) -> None:
    write_shards(home / "data", shards=4, samples=64)

    async def run() -> None:
        async with node(home, capacity=pieces_of_room(2, 4096)) as (made, _clock):
            session = await session_over(made, home / "data")
            for piece in range(3):
                await filled(made, session, piece)
                made.sessions.release(session, [piece])
            [evictions] = [metric for metric in families(made) if metric.name == "forebay_evictions"]
            assert {s.labels["reason"]: s.value for s in evictions.samples} == {
                **dict.fromkeys(REASONS, 0),
                "demand": 1,
            }

    asyncio.run(run())


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_wait_that_cannot_be_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigurationError):
        Taken(0, seconds, 0.0)
    with pytest.raises(ConfigurationError):
        Taken(0, 0.0, seconds)


def test_names_of_any_bytes_are_shown_without_harm(home: Path) -> None:
    odd = b"caf\xe9 \n\x07<b>".decode("utf-8", "surrogateescape")
    write_shards(home / "data", shards=1)

    async def run() -> None:
        async with node(home) as (made, _clock):
            session = await session_over(made, home / "data")
            session.label = odd
            json.dumps(document(made, History(0.0, totals(made))), ensure_ascii=False).encode()

    asyncio.run(run())
    assert plain(odd).encode()
    assert len(plain("x" * 10_000)) == 1000
    assert shown_url("s3://key:secret@bucket/a?X-Amz-Signature=abc") == "s3://bucket/a?X-Amz-Signature=…"


def test_the_exposition_of_a_node_that_works_is_well_formed(home: Path) -> None:
    write_shards(home / "data", shards=2)

    async def run() -> str:
        async with node(home) as (made, _clock):
            session = await session_over(made, home / "data")
            await filled(made, session, 0, 1)
            made.remote.answers['we"ird\\\n'] += 1
            return render(families(made), "")[0].decode()

    found = {metric.name: metric for metric in text_string_to_metric_families(asyncio.run(run()))}
    by_result = {sample.labels["result"]: sample.value for sample in found["forebay_requests"].samples}
    assert by_result == {"hit": 0, "in_place": 0, "miss": 2, "pending": 0}
    buckets = [s for s in found["forebay_fill_seconds"].samples if s.name.endswith("_bucket")]
    demand = [sample.value for sample in buckets if sample.labels["kind"] == "demand"]
    assert demand == sorted(demand)
    assert demand[-1] == 2
