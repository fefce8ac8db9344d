"""What a node fetches ahead, over a bucket whose answers the test holds back."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np

from forebay_core.capacity import CacheDirectory, Capacity
from forebay_core.needs import Needs
from forebay_server.config import ServerConfig
from forebay_server.node import Node
from forebay_server.sessions import Session
from tests.server.daemons import token_spec, write_shards
from tests.server.scripted import ManualClock, claimed, pieces_of_room, until
from tests.support.faults import Rule, Script
from tests.support.proxy import CountingProxy, Fault, Request
from tests.support.seaweedfs import Bucket

PIECE = 4096
PIECES = 16


class Held:
    """A proxy whose answers to reads of pieces wait until they are let go."""

    def __init__(self, proxy: CountingProxy) -> None:
        self.proxy = proxy
        self.go = threading.Event()
        proxy.fault = self._hold

    def _hold(self, request: Request) -> Fault | None:
        if request.range:
            self.go.wait(20)
        return None

    def asked_for(self) -> list[int]:
        """The pieces that were asked for, in this order."""
        starts = [str(get.request.range).removeprefix("bytes=").split("-")[0] for get in self.proxy.gets()]
        return [int(start) // PIECE for start in starts if start]


@asynccontextmanager
async def node(
    home: Path, bucket: Bucket, proxy: CountingProxy, *, capacity_bytes: int = 1 << 30, **options: float
) -> AsyncIterator[tuple[Node, Session]]:
    write_shards(home / "data", shards=1, samples=PIECES * PIECE // 64)
    bucket.upload(home / "data", "train/")
    config = ServerConfig(
        socket=home / "s",
        disks=(CacheDirectory(home / "cache"),),
        capacity=Capacity(bytes=capacity_bytes),
        drain_seconds=5,
        **options,  # type: ignore[arg-type]
    )
    with claimed(home / "cache") as disk:
        made = Node(config, [disk], bucket.server.environment(endpoint=proxy.endpoint), clock=ManualClock())
        made.start()
        try:
            opened = await made.open_dataset([bucket.uri("train")], json.dumps(token_spec(piece_bytes=PIECE)))
            yield made, made.open_session(opened.dataset_id, (), label="test", process_id=1)
        finally:
            await made.drain()
            await made.close()


def publish(made: Node, session: Session, positions: dict[int, int]) -> None:
    """Pieces and the positions at which they are needed."""
    pieces, first = (np.array(list(values), np.int64) for values in (positions.keys(), positions.values()))
    made.sessions.publish(session, Needs.build(pieces, first, first + 1, piece_count=PIECES))


def test_the_bytes_in_flight_bound_what_is_fetched_ahead_and_a_demand_goes_beyond_them(
    home: Path, bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    async def run() -> None:
        async with node(home, bucket, counting_proxy, flight_bytes=4 * PIECE, prefetch_fills=16) as (made, session):
            held = Held(counting_proxy)
            made.sessions.report(session, 0, 1.0)
            publish(made, session, {piece: piece for piece in range(PIECES)})
            await until(lambda: len(held.asked_for()) == 3, "as many as three quarters of the bytes hold")
            assert len(made.fills.running) == 4
            await made.sessions.acquire(session, [15])
            await until(lambda: 15 in held.asked_for(), "the demand to be sent")
            assert made.fetcher.flight.used_bytes == 4 * PIECE
            held.go.set()
            await until(lambda: len(made.pool) == PIECES, "all pieces to arrive")
            assert made.fetcher.flight.used_bytes == 0

    asyncio.run(run())


def test_what_is_needed_soon_begins_while_a_demand_waits_for_its_turn_and_speculation_does_not(
    home: Path, bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    async def run() -> None:
        async with node(home, bucket, counting_proxy, remote_requests=1, prefetch_fills=8) as (made, session):
            held = Held(counting_proxy)
            await made.sessions.acquire(session, [0, 1])
            await until(lambda: any(store.gate.has_waiting_demand for store in made.stores), "a demand to wait")
            made.sessions.report(session, 0, 1.0)
            publish(made, session, {5: 2, 6: 3, 7: 100_000, 8: 200_000})
            await until(lambda: len(made.fills.running) == 4, "the two that are due to begin")
            assert {fill.job.piece.index for fill in made.fills.running.values()} == {0, 1, 5, 6}
            assert {fill.job.piece.index for fill in made.fills.running.values() if fill.is_due} == {5, 6}
            held.go.set()
            await until(lambda: len(made.pool) == 6, "all to arrive")
            asked = held.asked_for()
            # Which of two that begin together asks first is for their preparation to say.
            assert [set(asked[:2]), set(asked[2:4]), set(asked[4:])] == [{0, 1}, {5, 6}, {7, 8}]

    asyncio.run(run())


def test_speculation_leaves_some_fills_to_what_comes_to_be_due(
    home: Path, bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    async def run() -> None:
        async with node(home, bucket, counting_proxy, prefetch_fills=4) as (made, session):
            held = Held(counting_proxy)
            made.sessions.report(session, 0, 1.0)
            far = {piece: 100_000 + piece for piece in range(4, PIECES)}
            publish(made, session, far)
            await until(lambda: len(held.asked_for()) == 3, "three of four fills to be taken")
            publish(made, session, {**far, 0: 2})
            await until(lambda: 0 in held.asked_for(), "the one that is due to take the fourth")
            assert len(made.fills.running) == 4
            held.go.set()

    asyncio.run(run())


def test_where_fetches_take_long_more_is_due(home: Path, bucket: Bucket, counting_proxy: CountingProxy) -> None:
    async def run() -> None:
        async with node(home, bucket, counting_proxy, prefetch_fills=4) as (made, session):
            held = Held(counting_proxy)
            made.sessions.report(session, 0, 1.0)
            publish(made, session, {0: 1000})
            await until(lambda: 0 in held.asked_for(), "the first to be sent")
            assert isinstance(made.clock, ManualClock)
            made.clock.now += 50
            held.go.set()
            await until(lambda: len(made.pool) == 1, "the first to arrive, after fifty seconds")
            held.go.clear()
            publish(made, session, dict.fromkeys(range(1, 6), 90))
            await until(lambda: len(made.fills.running) == 4, "all four fills to be taken by what is due")
            held.go.set()

    asyncio.run(run())


def test_how_urgent_a_prefetch_in_flight_is_follows_the_position_and_a_demand_overtakes_it(
    home: Path, bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    async def run() -> None:
        async with node(home, bucket, counting_proxy, prefetch_fills=4) as (made, session):
            held = Held(counting_proxy)
            made.sessions.report(session, 0, 1.0)
            publish(made, session, {3: 1000})
            await until(lambda: len(made.fills.running) == 1, "the prefetch to begin")
            (fill,) = made.fills.running.values()
            assert fill.before == 1000.0
            made.sessions.report(session, 900, 1.0)
            await until(lambda: fill.before == 100.0, "its urgency to be looked at anew")
            assert not fill.is_due
            made.sessions.report(session, 999, 1.0)
            await until(lambda: fill.is_due, "it to be due")
            await made.sessions.acquire(session, [3])
            assert fill.before is None
            held.go.set()
            await fill.task
            leads = made.fills.leads.counters
            assert (leads.in_time, leads.late, leads.never_begun) == (0, 1, 0)
            assert leads.lead_seconds.total <= 0

    asyncio.run(run())


def test_a_piece_that_was_there_when_it_was_asked_for_was_in_time(
    home: Path, bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    async def run() -> None:
        async with node(home, bucket, counting_proxy, prefetch_fills=4) as (made, session):
            made.sessions.report(session, 0, 1.0)
            publish(made, session, {3: 1000})
            await until(lambda: len(made.pool) == 1, "the prefetch to arrive")
            await made.sessions.acquire(session, [3])
            await made.sessions.acquire(session, [3, 4])
            await until(lambda: len(made.pool) == 2, "the demand to be filled")
            leads = made.fills.leads.counters
            assert (leads.in_time, leads.late, leads.never_begun) == (1, 0, 1)

    asyncio.run(run())


def test_the_rate_that_counts_is_measured_where_the_client_states_too_little(
    home: Path, bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    async def run() -> None:
        async with node(home, bucket, counting_proxy, prefetch_fills=0) as (made, session):
            clock = made.clock
            assert isinstance(clock, ManualClock)
            for position in range(100, 600, 100):
                clock.now += 5
                made.sessions.report(session, position, 0.5)
            assert session.progress.positions_per_second == 20.0

    asyncio.run(run())


def test_a_stall_is_as_long_as_it_is_configured_and_then_another_request_is_made(
    home: Path, bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    async def run() -> None:
        async with node(home, bucket, counting_proxy, stall_seconds=0.5) as (made, session):
            counting_proxy.fault = Script(Rule(Fault(hang=True), method="GET", key=r"\.bin$", times=1))
            await made.sessions.acquire(session, [0])
            await until(lambda: len(made.pool) == 1, "the piece to arrive long before the usual thirty seconds")
            assert (made.remote.stalls, made.remote.retries) == (1, 1)

    asyncio.run(run())


def test_what_is_due_displaces_what_is_needed_later_and_goes_on_when_it_is_read(
    home: Path, bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    room = pieces_of_room(8, PIECE)

    async def run() -> None:
        async with node(home, bucket, counting_proxy, capacity_bytes=room) as (made, session):
            made.sessions.report(session, 0, 1.0)
            later = {piece: 100_000 + piece for piece in range(8)}
            publish(made, session, later)
            await until(lambda: len(made.pool) == 8, "the cache to be full of what is needed later")
            publish(made, session, {**later, 10: 2, 11: 3})
            await until(lambda: made.pool.holds(session.view.key(10)), "what is due to displace one of these")
            await until(lambda: not made.fills.running, "the next to find the window full")
            assert not made.pool.holds(session.view.key(11))
            await made.sessions.acquire(session, [10])
            await until(lambda: made.pool.holds(session.view.key(11)), "the next to come once the first is read")

    asyncio.run(run())
