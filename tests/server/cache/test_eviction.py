"""Making room over real files: who goes, who is spared, and what is accounted for afterwards."""

import asyncio
from pathlib import Path

import pytest

from forebay_core.errors import CapacityError
from forebay_core.eviction import BEYOND
from forebay_core.mapping import MappedFile
from tests.server.scripted import KIB, Rig, key_of, pieces_of_room, rig, until

SIZE = 4 * KIB


async def filled(setup: Rig, count: int, *, needed_in: float | None = None) -> list[str]:
    """Pieces 0 to `count`, needed in so many seconds each, or by nobody."""
    for number in range(count):
        if needed_in is not None:
            setup.needs.by_key[key_of(number)] = needed_in + number
        await setup.fill(number, SIZE)
    return [key_of(number) for number in range(count)]


async def prefetched(setup: Rig, number: int, before: float) -> bool:
    """Whether a prefetch found room."""
    setup.clock.now += 1
    setup.needs.by_key[key_of(number)] = before
    return await setup.fills.start(setup.job(number, SIZE), before=before).task is not None


def numbers(setup: Rig, limit: int = 100) -> set[int]:
    return {number for number in range(limit) if setup.cache.holds(key_of(number))}


# -- prefetches ----------------------------------------------------------------------------------------------------


def test_prefetches_that_displace_pass_through_a_window_and_do_not_turn_the_cache_over(tmp_path: Path) -> None:
    """CASES 30: a full cache of pieces that are all needed lets prefetches through, a few at a time."""

    async def run() -> None:
        async with rig(tmp_path, capacity=pieces_of_room(64, SIZE)) as setup:
            await filled(setup, 64, needed_in=1000.0)
            assert [await prefetched(setup, 70 + more, 10.0 + more) for more in range(4)] == [True, True, False, False]
            assert numbers(setup) == {*range(62), 70, 71}, "what is needed furthest away went"
            assert await prefetched(setup, 80, 5.0), "the window is of those that are needed soonest"
            assert numbers(setup) == {*range(62), 70, 80}
            assert setup.cache.find(key_of(80)) is not None
            assert await prefetched(setup, 73, 13.0), "what is read makes place for the next"
            assert numbers(setup) == {*range(61), 70, 73, 80}

    asyncio.run(run())


def test_what_is_due_may_take_more_of_the_cache_and_not_all_of_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path, capacity=pieces_of_room(64, SIZE)) as setup:
            await filled(setup, 64, needed_in=1000.0)
            came = []
            for more in range(9):
                setup.needs.by_key[key_of(70 + more)] = 1.0 + more
                fill = setup.fills.start(setup.job(70 + more, SIZE), before=1.0 + more)
                fill.is_due = True
                came.append(await fill.task is not None)
            assert came == [True] * 8 + [False]
            assert not await prefetched(setup, 90, 12.0), "and nothing that is not due may come besides"

    asyncio.run(run())


def test_a_prefetch_that_was_waited_for_has_left_the_window(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path, capacity=pieces_of_room(32, SIZE)) as setup:
            await filled(setup, 32, needed_in=1000.0)
            setup.reader.gate.clear()
            setup.needs.by_key[key_of(70)] = 10.0
            fill = setup.fills.start(setup.job(70, SIZE), before=10.0)
            await until(lambda: setup.reader.streams[-1] == "70.bin", "the prefetch to begin")
            setup.pool.pins.pin(key_of(70))
            setup.fills.start(setup.job(70, SIZE))
            setup.reader.gate.set()
            assert await fill.task is not None
            assert await prefetched(setup, 71, 11.0)

    asyncio.run(run())


def test_a_prefetch_that_failed_has_left_the_window(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path, capacity=pieces_of_room(32, SIZE)) as setup:
            await filled(setup, 32, needed_in=1000.0)
            setup.reader.failures["70.bin"] = [CapacityError("scripted")]
            with pytest.raises(CapacityError, match="scripted"):
                await prefetched(setup, 70, 10.0)
            assert await prefetched(setup, 71, 11.0)
            assert await prefetched(setup, 72, 12.0), "the failed one gave back room for one more"
            assert not await prefetched(setup, 73, 13.0)

    asyncio.run(run())


def test_what_nobody_needs_makes_room_for_any_number_of_prefetches(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path, capacity=pieces_of_room(64, SIZE)) as setup:
            await filled(setup, 60)
            setup.needs.by_key |= {key_of(number): BEYOND for number in range(10)}
            assert all([await prefetched(setup, 70 + more, 10.0 + more) for more in range(8)])
            assert numbers(setup) == {*range(10), *range(14, 60), *range(70, 78)}

    asyncio.run(run())


# -- policies ------------------------------------------------------------------------------------------------------


def test_a_cache_that_never_evicts_keeps_what_came_first(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path, capacity=pieces_of_room(16, SIZE), eviction="never") as setup:
            await filled(setup, 24)
            assert numbers(setup) == {*range(15), 23}

    asyncio.run(run())


def test_the_least_recently_used_goes_where_that_is_the_policy(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path, capacity=pieces_of_room(3, SIZE), eviction="lru") as setup:
            await filled(setup, 3, needed_in=1.0)
            setup.cache.find(key_of(0))
            await setup.fill(3, SIZE)
            assert numbers(setup) == {0, 2, 3}

    asyncio.run(run())


# -- on an operator's word -----------------------------------------------------------------------------------------


def test_an_operator_evicts_what_is_not_in_use_and_by_force_the_rest(tmp_path: Path) -> None:
    """CASES 29: what a reader has mapped stays readable, and stays accounted for until he ends."""

    async def run() -> None:
        async with rig(tmp_path, capacity=pieces_of_room(4, SIZE)) as setup:
            keys = await filled(setup, 3)
            setup.pool.pins.pin(keys[0])
            reader = MappedFile.open(setup.disk.path(keys[1]))
            assert await setup.cache.room.evict([*keys, key_of(9)]) == [keys[2]]
            before = bytes(reader.view)
            setup.clock.now += 1
            assert sorted(await setup.cache.room.evict(keys, force=True)) == sorted(keys[:2])
            ledger = setup.cache.ledger
            assert (len(setup.cache), ledger.used_bytes) == (0, 0)
            assert ledger.lingering_bytes == SIZE
            assert bytes(reader.view) == before
            assert ledger.missing(ledger.capacity_bytes) == SIZE
            reader.close()
            await setup.fill(4, SIZE)
            assert ledger.lingering_bytes == 0

    asyncio.run(run())


def test_what_two_ask_to_evict_at_the_same_time_goes_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path, capacity=pieces_of_room(3, SIZE)) as setup:
            keys = await filled(setup, 3)
            fill = setup.fills.start(setup.job(9, SIZE))
            one, other = await asyncio.gather(setup.cache.room.evict(keys), setup.cache.room.evict(keys))
            assert sorted(one + other) == sorted(keys)
            assert await fill.task is not None
            assert setup.cache.ledger.used_bytes == pieces_of_room(1, SIZE)

    asyncio.run(run())


def test_a_fill_waits_for_the_room_of_what_was_removed_under_a_reader(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path, capacity=pieces_of_room(2, SIZE)) as setup:
            keys = await filled(setup, 1)
            reader = MappedFile.open(setup.disk.path(keys[0]))
            setup.cache.discard(keys[0])
            assert setup.cache.find(keys[0]) is None
            one, other = setup.fills.start(setup.job(1, SIZE)), setup.fills.start(setup.job(2, SIZE))
            setup.pool.pins.pin(key_of(1))
            assert await one.task is not None
            await until(lambda: not setup.cache.room.queue.is_empty(), "the other to wait for room")
            assert setup.reader.streams == ["0.bin", "1.bin"]
            reader.close()
            assert await other.task is not None

    asyncio.run(run())


def test_a_removal_that_fails_leaves_the_piece_in_the_books(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path) as setup:
            keys = await filled(setup, 2)
            path = setup.disk.path(keys[0])
            path.unlink()
            path.symlink_to(tmp_path)
            used = setup.cache.ledger.used_bytes
            with pytest.raises(OSError, match="symbolic links"):
                await setup.cache.room.evict(keys)
            assert numbers(setup) == {0, 1}
            assert setup.cache.ledger.used_bytes == used

    asyncio.run(run())


# -- inodes --------------------------------------------------------------------------------------------------------


def test_pieces_go_when_the_disk_runs_out_of_inodes(tmp_path: Path) -> None:
    async def run() -> None:
        used = 0

        def free_inodes() -> int:
            return 20 - used - 2 * len(setup.cache)

        async with rig(tmp_path, free_inodes=free_inodes, room_wait_seconds=0.0) as setup:
            await filled(setup, 12)
            assert 7 <= len(setup.cache) < 10
            assert max(numbers(setup)) == 11
            used = 20
            with pytest.raises(CapacityError, match=r"inodes"):
                await setup.fill(12, SIZE)

    asyncio.run(run())
