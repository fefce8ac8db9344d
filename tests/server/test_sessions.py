"""Sessions, leases and prefetching over a whole node without its socket, with time in the test's hand."""

import asyncio
import json
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from forebay_core.capacity import CacheDirectory, Capacity
from forebay_core.errors import ColumnNotFound, ConfigurationError, DaemonUnavailable, SourceNotFound, UnknownSession
from forebay_core.eviction import FRESH_SECONDS
from forebay_core.needs import IDLE_AFTER_SECONDS, Needs
from forebay_server.config import ServerConfig
from forebay_server.node import Node
from forebay_server.sessions import Session
from tests.server.daemons import token_spec, write_shards
from tests.server.scripted import ManualClock, claimed, pieces_of_room, until
from tests.support.data import write_parquet
from tests.support.proxy import CountingProxy, Fault, Request
from tests.support.seaweedfs import Bucket

PIECE = 4096


@asynccontextmanager
async def node(
    home: Path,
    *,
    prefetch_fills: int = 0,
    capacity: int = 1 << 30,
    environment: dict[str, str] | None = None,
    read_in_place: Literal["auto", "never"] = "never",
) -> AsyncIterator[tuple[Node, ManualClock]]:
    config = ServerConfig(
        socket=home / "s",
        disks=(CacheDirectory(home / "cache"),),
        capacity=Capacity(bytes=capacity),
        read_in_place=read_in_place,
        prefetch_fills=prefetch_fills,
        drain_seconds=5,
    )
    clock = ManualClock()
    with claimed(home / "cache") as disk:
        made = Node(config, [disk], environment or {}, clock=clock)
        made.start()
        try:
            yield made, clock
        finally:
            await made.drain()
            await made.close()


async def session_over(made: Node, data: Path, columns: tuple[str, ...] = ()) -> Session:
    opened = await made.open_dataset([str(data)], json.dumps(token_spec(piece_bytes=PIECE)))
    return made.open_session(opened.dataset_id, columns, label="test", process_id=1)


async def filled(made: Node, session: Session, *pieces: int) -> list[str]:
    """Acquires pieces, waits for their fills and gives their keys."""
    await made.sessions.acquire(session, pieces)
    keys = [session.view.key(piece) for piece in pieces]
    await asyncio.gather(*(made.fills.running[key].task for key in keys if key in made.fills.running))
    return keys


def needs(session: Session, wanted: dict[int, int]) -> Needs:
    pieces, first = (np.array(list(values), np.int64) for values in (wanted.keys(), wanted.values()))
    return Needs.build(pieces, first, first + 10, piece_count=session.view.manifest.pieces)


def test_a_session_that_is_not_heard_of_lapses_and_frees_what_it_held(home: Path) -> None:
    write_shards(home / "data", shards=1)

    async def run() -> None:
        async with node(home, capacity=pieces_of_room(2, PIECE)) as (made, clock):
            silent, alive = await session_over(made, home / "data"), await session_over(made, home / "data")
            (kept,) = await filled(made, silent, 0)
            clock.now += 100
            made.sessions.report(alive, 5, 0.0)
            clock.now += 30
            assert made.sessions.lapse() == [silent]
            with pytest.raises(UnknownSession, match="lapsed"):
                made.sessions.get(silent.id)
            assert made.sessions.get(alive.id) is alive
            await filled(made, alive, 1, 2)
            assert not made.pool.holds(kept)

    asyncio.run(run())


def test_a_quiet_session_keeps_its_leases_but_stands_in_nobodys_way(home: Path) -> None:
    write_shards(home / "data", shards=1)

    async def run() -> None:
        async with node(home, capacity=pieces_of_room(1, PIECE)) as (made, clock):
            quiet, other = await session_over(made, home / "data"), await session_over(made, home / "data")
            await filled(made, quiet, 0)
            clock.now += 16
            assert made.sessions.lapse() == []
            made.sessions.get(quiet.id)
            await made.sessions.acquire(other, [1])
            await made.pool.caches[0].room.queue.has_waiting.wait()
            assert made.pool.holds(quiet.view.key(0)), "a sign of life makes the lease count again"
            clock.now += 16
            made.sessions.get(other.id)
            made.sessions.lapse()
            await until(lambda: made.pool.holds(other.view.key(1)), "the other to get its piece")
            assert (await made.sessions.acquire(made.sessions.get(quiet.id), [0]))[0].is_pending
            made.sessions.close(other.id)
            made.sessions.close(quiet.id)

    asyncio.run(run())


def test_an_idle_session_keeps_its_data_against_what_is_needed_later_and_gives_way_to_what_is_needed_sooner(
    home: Path,
) -> None:
    write_shards(home / "data", shards=1)

    async def run() -> None:
        async with node(home, capacity=pieces_of_room(2, PIECE)) as (made, clock):
            validation, training = await session_over(made, home / "data"), await session_over(made, home / "data")
            made.sessions.report(validation, 0, 1.0)
            made.sessions.publish(validation, needs(validation, {0: 0}))

            async def read(session: Session, piece: int) -> None:
                await filled(made, session, piece)
                made.sessions.release(session, [piece])
                clock.now += FRESH_SECONDS

            def there() -> list[int]:
                return [piece for piece in range(4) if made.pool.holds(training.view.key(piece))]

            await read(validation, 0)
            clock.now += IDLE_AFTER_SECONDS + 30
            made.sessions.report(validation, 0, 0.001)
            made.sessions.report(training, 0, 1.0)
            made.sessions.publish(training, needs(training, {1: 10, 2: 15, 3: 100}))
            await read(training, 3)
            await read(training, 1)
            assert there() == [0, 1]
            await read(training, 2)
            assert there() == [1, 2]

    asyncio.run(run())


def test_a_session_that_asks_for_pieces_or_moves_is_not_idle(home: Path) -> None:
    write_shards(home / "data", shards=1)

    async def run() -> None:
        async with node(home) as (made, clock):
            session = await session_over(made, home / "data")

            def idle() -> bool:
                return session.progress.idle_seconds(clock.now) > 0

            signs_of_life: list[Callable[[], None]] = [
                lambda: made.sessions.report(session, 8, 0.0),
                lambda: made.sessions.publish(session, needs(session, {0: 0})),
            ]
            for sign_of_life in signs_of_life:
                clock.now += IDLE_AFTER_SECONDS + 1
                made.sessions.report(session, session.progress.position, 0.0)
                assert idle(), "a heartbeat is none"
                sign_of_life()
                assert not idle()
            clock.now += IDLE_AFTER_SECONDS + 1
            await made.sessions.acquire(session, [0])
            assert not idle()

    asyncio.run(run())


def test_a_lease_is_counted_per_session_and_given_back_once(home: Path) -> None:
    write_shards(home / "data", shards=1)

    async def run() -> None:
        async with node(home, capacity=pieces_of_room(1, PIECE)) as (made, _):
            one, two = await session_over(made, home / "data"), await session_over(made, home / "data")
            (key,) = await filled(made, one, 0)
            await filled(made, one, 0)
            await filled(made, two, 0)
            made.sessions.release(one, [0, 0, 7, 10**6])
            made.sessions.release(one, [0])
            blocked = (await made.sessions.acquire(one, [1]))[0]
            assert blocked.is_pending
            await made.pool.caches[0].room.queue.has_waiting.wait()
            assert made.pool.holds(key), "the other session still holds it"
            made.sessions.close(two.id)
            await until(lambda: made.pool.holds(one.view.key(1)), "the second piece to get the room")
            assert (made.sessions.counters.hits, made.sessions.counters.misses) == (1, 2)

    asyncio.run(run())


def test_an_error_that_cannot_be_written_beside_its_piece_is_raised_to_who_asks_again(home: Path) -> None:
    write_shards(home / "data", shards=2)

    async def run() -> None:
        async with node(home) as (made, _clock):
            session = await session_over(made, home / "data")
            pieces, shard = home / "cache" / "pieces", home / "data" / "00000.bin"
            pieces.rename(home / "elsewhere")
            shutil.rmtree(home / "elsewhere")
            pieces.write_text("in the way")
            shard.rename(home / "shard")
            await made.sessions.acquire(session, [0])
            await until(lambda: not made.fills.running, "the fill to fail")
            leases = set(session.leases)
            with pytest.raises(SourceNotFound, match=shard.name):
                await made.sessions.acquire(session, [1, 0])
            assert session.leases == leases
            pieces.unlink()
            (home / "shard").rename(shard)
            (key,) = await filled(made, session, 0)
            assert made.pool.find(key) is not None

    asyncio.run(run())


def test_the_error_of_a_fill_stays_for_the_readers_of_a_session_that_asks_again_at_once(home: Path) -> None:
    """CASES 28: a fill that takes as long to fail as readers wait before they ask again would fail for ever."""
    write_shards(home / "data", shards=1)

    async def run() -> None:
        async with node(home) as (made, clock):
            waiting, other = await session_over(made, home / "data"), await session_over(made, home / "data")
            shard = home / "data" / "00000.bin"
            shard.rename(home / "shard")
            (lease,) = await made.sessions.acquire(waiting, [0])
            await until(lambda: not made.fills.running, "the fill to fail")
            error = home / "cache" / f"{lease.path}.error"
            assert (await made.sessions.acquire(waiting, [0]))[0].is_pending
            assert not made.fills.running
            assert "SourceNotFound" in error.read_text(), "it is there for who has not looked yet"
            await made.sessions.acquire(other, [0])
            assert made.fills.running, "who asks for the first time has it tried again"
            await until(lambda: not made.fills.running, "the fill to fail")
            (home / "shard").rename(shard)
            clock.now += 6
            (key,) = await filled(made, waiting, 0)
            assert made.pool.find(key) is not None
            assert not error.exists()

    asyncio.run(run())


def test_a_batch_with_an_unknown_piece_leases_none_of_it(home: Path) -> None:
    write_shards(home / "data", shards=1)

    async def run() -> None:
        async with node(home) as (made, _):
            session = await session_over(made, home / "data")
            with pytest.raises(ConfigurationError, match="no piece 4"):
                await made.sessions.acquire(session, [0, 4])
            assert session.leases == set()
            assert made.fills.running == {}

    asyncio.run(run())


def test_sessions_with_the_same_columns_share_pieces_and_others_do_not(home: Path) -> None:
    write_parquet(home / "data", shards=1)

    async def run() -> None:
        async with node(home) as (made, _):
            opened = await made.open_dataset([str(home / "data")], "")

            def session(*columns: str) -> Session:
                return made.open_session(opened.dataset_id, columns, label="", process_id=1)

            one, same, other, turned = (
                session("id", "text"),
                session("id", "text"),
                session("id"),
                session("text", "id"),
            )
            assert one.view is same.view
            assert len({item.view.key(0) for item in (one, same, other, turned)}) == 3
            with pytest.raises(ColumnNotFound, match="colour"):
                session("colour")

    asyncio.run(run())


def test_prefetching_goes_by_the_soonest_need_of_any_session_in_time_not_positions(home: Path) -> None:
    write_shards(home / "data", shards=1)

    async def run() -> None:
        async with node(home, prefetch_fills=1) as (made, _):
            arrived: list[str] = []
            made.pool.listen(lambda key, is_there: arrived.append(key) if is_there else None)
            slow, fast = await session_over(made, home / "data"), await session_over(made, home / "data")
            made.sessions.report(slow, 0, 1.0)
            made.sessions.report(fast, 0, 100.0)
            made.sessions.publish(slow, needs(slow, {0: 10, 1: 30}))
            made.sessions.publish(fast, needs(fast, {2: 2000, 3: 500}))
            await until(lambda: len(arrived) == 4, "all pieces to arrive")
            assert arrived == [slow.view.key(piece) for piece in (3, 0, 2, 1)]

    asyncio.run(run())


def test_prefetching_stops_where_it_would_push_out_what_is_needed_sooner(home: Path) -> None:
    write_shards(home / "data", shards=1)

    async def run() -> None:
        async with node(home, prefetch_fills=2, capacity=pieces_of_room(2, PIECE)) as (made, clock):
            session = await session_over(made, home / "data")
            is_full = asyncio.Event()
            made.fills.listen(lambda fill: is_full.set() if fill.found_no_room else None)
            made.sessions.report(session, 0, 1.0)
            made.sessions.publish(session, needs(session, {0: 10, 1: 20, 2: 30, 3: 40}))

            def there() -> list[int]:
                return [piece for piece in range(4) if made.pool.holds(session.view.key(piece))]

            await is_full.wait()
            assert there() == [0, 1]
            assert made.pool.evictions == 0
            clock.now += FRESH_SECONDS
            made.sessions.report(session, 20, 1.0)
            await until(lambda: there() == [1, 2], "the third to take the place of the first, which is passed")

    asyncio.run(run())


def test_a_prefetch_that_fails_is_not_repeated_until_its_piece_is_demanded(home: Path) -> None:
    write_shards(home / "data", shards=2)

    async def run() -> None:
        async with node(home, prefetch_fills=1) as (made, _):
            session = await session_over(made, home / "data")
            broken, whole = (home / "data/00000.bin"), session.view.manifest.pieces // 2
            content = broken.read_bytes()
            stat = broken.stat()
            broken.write_bytes(b"x")
            for other in range(whole, whole + 3):
                made.sessions.publish(session, needs(session, {0: 10, other: 20}))
                await until(partial(made.pool.holds, session.view.key(other)), "the piece needed after it")
            assert made.fills.counters.failures == 1
            broken.write_bytes(content)
            os.utime(broken, ns=(stat.st_atime_ns, stat.st_mtime_ns))
            await filled(made, session, 0)
            assert made.pool.holds(session.view.key(0))
            assert not session.view.failed.any()

    asyncio.run(run())


def test_a_piece_that_the_disk_does_not_take_does_not_end_prefetching(home: Path) -> None:
    write_shards(home / "data", shards=1)

    async def run() -> None:
        async with node(home, prefetch_fills=1) as (made, _):
            session = await session_over(made, home / "data")
            prefixes = [session.view.key(piece)[:2] for piece in (0, 1)]
            assert len(set(prefixes)) == 2
            (home / "cache/pieces" / prefixes[0]).write_text("a file in the way of a directory")
            made.sessions.publish(session, needs(session, {0: 10, 1: 20}))
            await until(lambda: made.pool.holds(session.view.key(1)), "the piece that can be written")

    asyncio.run(run())


def test_a_full_cache_makes_room_at_once_while_the_keys_of_a_large_dataset_are_not_known_yet(home: Path) -> None:
    write_shards(home / "small", shards=1)
    (home / "large").mkdir()
    with (home / "large/0.bin").open("wb") as file:
        file.truncate(100_000 * PIECE)

    async def run() -> None:
        async with node(home, capacity=pieces_of_room(2, PIECE)) as (made, _):
            small = await session_over(made, home / "small")
            keys = await filled(made, small, 0, 1)
            made.sessions.release(small, [0, 1])
            made.sessions.publish(small, needs(small, {0: 10}))
            large = await session_over(made, home / "large")
            await filled(made, large, 99_999)
            assert not large.view.is_indexed
            assert [made.pool.holds(key) for key in keys] == [True, False], "nobody needs the second"

    asyncio.run(run())


def test_a_draining_node_ends_what_is_being_opened(home: Path, bucket: Bucket, counting_proxy: CountingProxy) -> None:
    asked = threading.Event()

    def hang(request: Request) -> Fault:
        asked.set()
        return Fault(hang=True)

    counting_proxy.fault = hang

    async def run() -> None:
        environment = bucket.server.environment(endpoint=counting_proxy.endpoint)
        async with node(home, environment=environment) as (made, _):
            opening = asyncio.ensure_future(made.open_dataset([bucket.uri("train")], ""))
            await asyncio.to_thread(asked.wait, 20)
            await made.drain()
            assert opening.cancelled()

    asyncio.run(run())


def test_a_draining_node_takes_no_new_work(home: Path) -> None:
    write_shards(home / "data", shards=1)

    async def run() -> None:
        async with node(home) as (made, _):
            session = await session_over(made, home / "data")
            await filled(made, session, 0)
            await made.drain()
            assert not (await made.sessions.acquire(session, [0]))[0].is_pending
            with pytest.raises(DaemonUnavailable):
                await made.sessions.acquire(session, [1])
            with pytest.raises(DaemonUnavailable):
                await session_over(made, home / "data")

    asyncio.run(run())


def test_a_node_is_idle_only_without_sessions_calls_and_fills(home: Path) -> None:
    write_shards(home / "data", shards=1)

    async def run() -> None:
        async with node(home) as (made, clock):
            clock.now += 50
            assert made.idle_seconds() == 50
            session = await session_over(made, home / "data")
            assert made.idle_seconds() == 0
            clock.now += 50
            assert made.idle_seconds() == 0
            made.sessions.close(session.id)
            clock.now += 20
            with made.call():
                assert made.idle_seconds() == 0
            clock.now += 10
            assert made.idle_seconds() == 10

    asyncio.run(run())
