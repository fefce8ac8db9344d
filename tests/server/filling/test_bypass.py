"""Pieces for which the cache has no room, made in memory for those who read them."""

import asyncio
import hashlib
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from forebay_core.errors import CapacityError, ObjectChanged, PieceGone, SourceUnreachable
from forebay_core.node_layout import read_error
from forebay_server.filling.bypass import Bypass, Served
from forebay_server.filling.fill import Fill
from tests.server.scripted import KIB, Rig, content, key_of, pieces_of_room, rig

MIB = 1 << 20


def bypass(setup: Rig, capacity: int = MIB) -> Bypass:
    return Bypass(
        setup.reader,
        capacity_bytes=capacity,
        clock=setup.clock,
        changes=setup.fills.changes,
        earlier=setup.pool.digest,
    )


async def bytes_of(served: Served) -> bytes:
    file = await served.task
    return os.pread(file.descriptor, file.size, 0)


def test_a_piece_is_made_once_for_all_who_read_it_at_the_same_time_and_then_forgotten(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with rig(tmp_path / "c") as setup:
            passing = bypass(setup)
            readers = [passing.open(setup.job(1)) for _ in range(3)]
            assert [await bytes_of(served) for served in readers] == [content(1, 64 * KIB)] * 3
            file = await readers[0].task
            for served in readers[:2]:
                await passing.close(served)
            assert file.is_open
            await passing.close(readers[2])
            assert not file.is_open
            again = passing.open(setup.job(1))
            assert await bytes_of(again) == content(1, 64 * KIB)
            await passing.close(again)
            assert passing.bypasses == 2
            assert setup.reader.streams == ["1.bin", "1.bin"]
            await passing.end()

    asyncio.run(scenario())


def test_memory_is_waited_for_while_others_hold_it_and_refused_to_what_does_not_fit_alone(tmp_path: Path) -> None:
    """CASES 30: one object is too large."""

    async def scenario() -> None:
        async with rig(tmp_path / "c") as setup:
            passing = bypass(setup, capacity=100 * KIB)
            first, second = passing.open(setup.job(1)), passing.open(setup.job(2))
            assert len(await bytes_of(first)) == 64 * KIB
            setup.reader.started.clear()
            await asyncio.wait_for(setup.reader.started.wait(), 20)
            assert not second.task.done()
            await passing.close(first)
            assert await bytes_of(second) == content(2, 64 * KIB)
            await passing.close(second)
            large = passing.open(setup.job(3, 200 * KIB))
            with pytest.raises(CapacityError, match=r"piece 3 of .*3\.bin.* 102400 bytes of memory"):
                await large.task
            await passing.close(large)
            small = passing.open(setup.job(4, 99 * KIB))
            assert len(await bytes_of(small)) == 99 * KIB
            await passing.close(small)
            await passing.end()

    asyncio.run(scenario())


def test_the_errors_of_the_source_reach_the_readers_and_leave_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with rig(tmp_path / "c") as setup:
            passing = bypass(setup)
            setup.reader.failures["1.bin"] = [SourceUnreachable("the endpoint is down")]
            served = passing.open(setup.job(1))
            with pytest.raises(SourceUnreachable, match="the endpoint is down"):
                await served.task
            await passing.close(served)
            again = passing.open(setup.job(1))
            assert await bytes_of(again) == content(1, 64 * KIB)
            await passing.close(again)
            assert passing.bypasses == 1
            await passing.end()

    asyncio.run(scenario())


def test_a_piece_that_nobody_reads_any_more_is_given_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with rig(tmp_path / "c") as setup:
            passing = bypass(setup)
            setup.reader.gate.clear()
            served = passing.open(setup.job(1))
            await setup.reader.started.wait()
            await passing.close(served)
            assert served.task.cancelled()
            setup.reader.gate.set()
            other = passing.open(setup.job(2))
            assert await bytes_of(other) == content(2, 64 * KIB)
            await passing.close(other)
            await passing.end()
        assert not [each for each in threading.enumerate() if each.name.startswith("forebay-bypass")]

    asyncio.run(scenario())


def test_the_cache_is_tried_again_after_a_while_that_doubles_and_once_it_has_the_piece_all_is_forgotten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with rig(tmp_path / "c") as setup:
            passing, key, job = bypass(setup), key_of(1), setup.job(1)
            for seconds in (30, 60, 120):
                assert not passing.has(key)
                passing.refused(job, CapacityError("the cache is small: give it more"))
                setup.clock.now += seconds - 1
                assert passing.has(key)
                setup.clock.now += 1
            passing.refused(job, CapacityError("the cache is small: give it more"))
            passing.admitted(key)
            assert not passing.has(key)
            await passing.end()

    asyncio.run(scenario())
    (said,) = [record.getMessage() for record in caplog.records if "pass the cache by" in record.getMessage()]
    assert said.startswith("pieces of s3://bucket pass the cache by")
    assert said.endswith("the cache is small: give it more")


def test_who_waits_for_a_piece_that_has_no_room_is_told_to_ask_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with rig(tmp_path / "c", capacity=32 * KIB) as setup:
            refused: list[str] = []
            setup.fills.refuse = lambda job, _error: refused.append(job.key)
            with pytest.raises(CapacityError):
                await setup.fills.start(setup.job(1)).task
            assert refused == [key_of(1)]
            assert isinstance(read_error(setup.disk.path(key_of(1))), PieceGone)

    asyncio.run(scenario())


def test_where_the_pieces_in_use_fill_the_cache_only_the_first_wait_is_long_for_what_passes_by(tmp_path: Path) -> None:
    """CASES 30: nothing can be evicted, and each piece would wait as long as the first."""

    async def scenario() -> None:
        async with rig(tmp_path / "c", capacity=pieces_of_room(2), memory_bytes=100 * KIB) as setup:
            setup.fills.refuse = bypass(setup).refused
            for number in (8, 9):
                setup.pool.pins.pin(await setup.fill(number))

            async def is_refused_after(seconds: float, fill: Fill) -> None:
                setup.clock.now += seconds
                with pytest.raises(CapacityError, match="pieces in use hold the cache"):
                    await asyncio.wait_for(fill.task, 20)

            await is_refused_after(30, setup.fills.start(setup.job(1)))
            large = setup.fills.start(setup.job(2, 120 * KIB))
            await asyncio.wait_for(setup.cache.room.queue.has_waiting.wait(), 20)
            for number in (3, 4, 5):
                await is_refused_after(1, setup.fills.start(setup.job(number)))
            assert not large.task.done(), "it does not fit into the memory for what passes by"
            await is_refused_after(27, large)

    asyncio.run(scenario())


def test_bytes_that_are_not_those_of_the_etag_are_fetched_again_also_without_the_cache(tmp_path: Path) -> None:
    """CASES 26."""

    async def scenario() -> None:
        async with rig(tmp_path / "c") as setup:
            passing, right = bypass(setup), content(1, 64 * KIB)
            job = replace(setup.job(1), md5=hashlib.md5(right).hexdigest())
            setup.reader.objects["1.bin"] = b"?" + right[1:]
            setup.reader.gate.clear()
            served = passing.open(job)
            await asyncio.wait_for(setup.reader.started.wait(), 20)
            setup.reader.objects["1.bin"] = right
            setup.reader.gate.set()
            assert await bytes_of(served) == right
            await passing.close(served)
            assert setup.reader.streams == ["1.bin", "1.bin"]
            await passing.end()

    asyncio.run(scenario())


def test_an_object_that_changed_is_read_without_the_cache_where_that_is_allowed(tmp_path: Path) -> None:
    """CASES 27."""

    async def scenario(*, allowed: bool) -> bytes:
        async with rig(tmp_path / str(allowed), allow_changed=allowed) as setup:
            passing, job = bypass(setup), setup.job(1)
            setup.reader.objects["1.bin"], setup.reader.versions["1.bin"] = content(2, 64 * KIB), "v2"
            served = passing.open(job)
            try:
                return await bytes_of(served)
            finally:
                await passing.close(served)
                await passing.end()

    assert asyncio.run(scenario(allowed=True)) == content(2, 64 * KIB)
    with pytest.raises(ObjectChanged, match="v2"):
        asyncio.run(scenario(allowed=False))
