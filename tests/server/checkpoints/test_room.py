"""Who gets room in the staging area, and who makes it."""

import asyncio
import fcntl
import os
import time
from pathlib import Path

import pytest

from forebay_core.errors import StagingFull
from forebay_server.checkpoints.area import StagingArea
from forebay_server.checkpoints.desk import Desk
from forebay_server.checkpoints.room import Room, Wanted, WhenFull
from forebay_server.checkpoints.rules import Phase
from forebay_server.checkpoints.staged import Book
from tests.server.checkpoints.desks import BOOT, attempt, eventually, open_destinations, rig, size_of

SIZE = size_of(attempt(1), (0,))


def directories(home: Path) -> set[str]:
    return {path.name for path in (home / "staging-a" / "attempts").glob("*/*")}


def test_what_is_full_of_uploads_skips_fails_or_waits_as_is_wanted(home: Path) -> None:
    async def run() -> None:
        async with rig(home, quota_bytes=2 * SIZE) as node:
            node.root.hold()
            for step in (1, 2):
                await node.save(attempt(step))
            assert await node.begin(attempt(3), when_full=WhenFull.SKIP) is None
            with pytest.raises(StagingFull, match="taken by 2 checkpoints, 2 of which wait for their upload") as caught:
                await node.begin(attempt(4), when_full=WhenFull.FAIL)
            assert "--staging-dir PATH:SIZE" in str(caught.value)
            with pytest.raises(StagingFull):
                await node.begin(attempt(5), when_full=WhenFull.BLOCK, wait_seconds=0.05)
            waiting = asyncio.create_task(node.begin(attempt(6), when_full=WhenFull.BLOCK))
            assert (await asyncio.wait([waiting], timeout=0.1))[1], "there is no room yet"
            node.root.release()
            async with asyncio.timeout(30):
                assert (await waiting) is not None

    asyncio.run(run())


def test_what_can_never_fit_is_refused_at_once_whatever_is_wanted(home: Path) -> None:
    async def run() -> None:
        async with rig(home, quota_bytes=SIZE) as node:
            for when_full in WhenFull:
                with pytest.raises(StagingFull, match="more than it may ever hold") as caught:
                    await node.begin(attempt(1), size_bytes=SIZE + 1, when_full=when_full)
                assert str(caught.value).endswith("give it more (--staging-dir PATH:SIZE)"), "not: save less often"

    asyncio.run(run())


def test_a_full_disk_is_seen_before_anything_is_written(home: Path) -> None:
    async def run() -> None:
        async with rig(home, quota_bytes=1 << 62) as node:
            with pytest.raises(StagingFull, match="bytes free; make room on that disk, or give it another"):
                await node.begin(attempt(1), size_bytes=1 << 61, wait_seconds=0.01)
            assert directories(home) == set()

    asyncio.run(run())


def test_promised_room_is_not_given_twice(home: Path) -> None:
    async def run() -> None:
        async with rig(home, quota_bytes=2 * SIZE) as node:
            other = await node.desk.open(str(home / "other"))
            assert await node.begin(attempt(1)) is not None
            node.root.url = other.url
            assert await node.begin(attempt(1)) is not None
            node.root.url = f"file://{home}/third"
            with pytest.raises(StagingFull):
                await node.begin(attempt(1))

    asyncio.run(run())


def test_only_the_newest_durable_copy_is_kept_and_it_goes_where_room_is_needed(home: Path) -> None:
    async def run() -> None:
        async with rig(home, quota_bytes=2 * SIZE) as node:
            first = await node.save(attempt(1))
            await node.durable(first)
            assert directories(home) == {first.name}
            second = await node.save(attempt(2))
            await node.durable(second)
            await eventually(lambda: directories(home) == {second.name})
            third = attempt(3)
            assert await node.begin(third, size_bytes=2 * SIZE) is not None
            assert directories(home) == {third.name}

    asyncio.run(run())


def test_a_copy_that_is_being_read_stays_until_the_reading_ends(home: Path) -> None:
    async def run() -> None:
        async with rig(home, quota_bytes=2 * SIZE) as node:
            first = await node.save(attempt(1))
            await node.durable(first)
            found = await node.desk.fetch(node.root, first, "__0_0.distcp", 0.0)
            assert found.is_staged
            second = await node.save(attempt(2))
            await node.durable(second)
            assert found.path.exists()
            node.desk.end_reading(node.root, first)
            await eventually(lambda: directories(home) == {second.name})

    asyncio.run(run())


def test_what_waits_for_other_nodes_makes_room_and_is_still_seen_to(home: Path) -> None:
    async def run() -> None:
        async with (
            rig(home, name="b", ranks=(1,), world_size=2, quota_bytes=SIZE) as second,
            rig(home, name="a", ranks=(0,), world_size=2) as first,
        ):
            this, newer = attempt(1), attempt(2)
            await second.save(this)
            await second.until(this, lambda status: status.phase is Phase.UPLOADED)
            assert await second.begin(newer, size_bytes=SIZE) is not None
            await first.save(this)
            await second.durable(this)

    asyncio.run(run())


def test_an_attempt_whose_writer_went_on_without_it_is_removed(home: Path) -> None:
    async def run() -> None:
        async with rig(home) as node:
            unsealed, next_one = attempt(1), attempt(2)
            await node.stage(unsealed)
            await node.stage(next_one)
            assert directories(home) == {next_one.name}
            restarted = attempt(1, generation=2)
            await node.stage(restarted)
            assert directories(home) == {restarted.name}, "a newer start of the job has taken over"

    asyncio.run(run())


def test_other_ranks_and_other_roots_lose_nothing(home: Path) -> None:
    async def run() -> None:
        async with rig(home, ranks=(0,), world_size=2) as node:
            one, two, three = attempt(1), attempt(2), attempt(3)
            await node.stage(one)
            node.ranks = (1,)
            await node.stage(two)
            node.root.url = f"file://{home}/other"
            await node.stage(three)
            assert directories(home) == {one.name, two.name, three.name}

    asyncio.run(run())


def test_an_attempt_whose_process_let_go_of_it_is_removed(home: Path) -> None:
    async def run() -> None:
        async with rig(home) as node:
            this = attempt(1)
            directory = await node.stage(this)
            held = os.open(directory, os.O_RDONLY)
            fcntl.flock(held, fcntl.LOCK_SH)
            await eventually(lambda: node.desk.is_busy)
            os.close(held)
            await eventually(lambda: directories(home) == set())
            assert not node.desk.is_busy

    asyncio.run(run())


class SmallDisk(StagingArea):
    """A staging directory whose disk has 1,000 bytes, less what was written to it."""

    size_bytes = 1000

    def free_bytes(self) -> int:
        return 1000 - sum(path.stat().st_size for path in self.root.glob("attempts/*/*/*") if path.is_file())


def test_of_the_disk_only_is_given_what_nobody_was_promised_or_has_written(home: Path) -> None:
    async def run() -> None:
        area = SmallDisk.claim(home / "staging")
        book = Book(time.monotonic)
        room = Room(book, area, quota_bytes=1 << 20, clock=time.monotonic, wall_clock=time.time)

        async def takes(size_bytes: int) -> bool:
            wanted = Wanted("file:///r", attempt(size_bytes), (0,), 1, size_bytes, when_full=WhenFull.SKIP)
            taken = await room.take(wanted)
            if taken is not None:
                await room.remove(taken)
            return taken is not None

        assert (await takes(990), await takes(991)) == (True, False), "a hundredth stays free"
        promised = await room.take(Wanted("file:///r", attempt(1), (0,), 1, 600))
        assert promised is not None
        assert (await takes(390), await takes(391)) == (True, False)
        directory = area.directory(promised.root, promised.attempt)
        (directory / "ranks").mkdir(parents=True)
        (directory / "__0_0.distcp").write_bytes(bytes(500))
        assert (await takes(390), await takes(391)) == (True, False), "what is written is not counted twice"
        area.close()

    asyncio.run(run())


def test_nothing_is_begun_before_it_is_known_what_there_is(home: Path) -> None:
    async def run() -> None:
        area = StagingArea.claim(home / "staging")
        desk = Desk(area, open_destinations(area.root).open, quota_bytes=1 << 20, boot=BOOT)
        wanted = Wanted(str(home / "root"), attempt(1), (0,), 1, 0)
        beginning = asyncio.create_task(desk.begin(wanted))
        assert (await asyncio.wait([beginning], timeout=0.1))[1], "it waits"
        await desk.start()
        assert (await beginning) is not None
        await desk.close()
        area.close()

    asyncio.run(run())
