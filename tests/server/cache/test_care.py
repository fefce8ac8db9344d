"""What is done for pieces after they were filled: synced, proven after an unclean boot, scrubbed, quarantined."""

import asyncio
import json
import logging
import os
import sqlite3
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from forebay_core.mapping import MappedFile
from forebay_server.cache.care import Care
from forebay_server.cache.integrity import CarePolicy
from tests.server.scripted import KIB, ManualClock, Rig, content, key_of, pieces_of_room, rig

SIZE = 64 * KIB


def care_of(setup: Rig, wall: ManualClock | None = None, policy: CarePolicy | None = None) -> Care:
    return Care(setup.cache, policy or CarePolicy(), clock=setup.clock, wall_clock=wall or ManualClock())


def sidecar(root: Path, number: int) -> Path:
    return root / "pieces" / key_of(number)[:2] / f"{key_of(number)}.json"


def data(root: Path, number: int) -> Path:
    return sidecar(root, number).with_suffix("")


def forget_the_boot(root: Path) -> None:
    """What a machine leaves that went down: everything is of another boot."""
    for path in (root / "pieces").glob("*/*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"boot": "the one before"}))
    for path in (root / "index").iterdir():
        path.unlink()


def damage(path: Path, how: str) -> None:
    """As a disk does: the file's time of writing and its inode stay."""
    found = path.stat()
    if how == "zeros":
        path.write_bytes(bytes(found.st_size))
    elif how == "a bit":
        whole = bytearray(path.read_bytes())
        whole[len(whole) // 2] ^= 1
        path.write_bytes(whole)
    elif how == "a stale extent":
        whole = bytearray(path.read_bytes())
        whole[-4096:] = b"\xee" * 4096
        path.write_bytes(whole)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def test_what_was_filled_is_synced_and_marked_in_its_sidecar_and_in_the_index(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path) as setup:
            care = care_of(setup)
            keys = [await setup.fill(number) for number in (1, 2)]
            assert not json.loads(sidecar(tmp_path, 1).read_text())["synced"]
            await care.sync()
            assert care.counters.synced == 2
            assert json.loads(sidecar(tmp_path, 1).read_text())["synced"]
            await care.sync()
            assert care.counters.synced == 2, "once each"
            assert setup.cache.find(keys[0]) is not None
        async with rig(tmp_path, reconcile=False) as setup:
            entry = setup.cache.entry(keys[1])
            assert entry is not None
            assert entry.synced

    asyncio.run(run())


def test_synced_pieces_count_at_once_after_a_power_loss(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path) as setup:
            care = care_of(setup)
            await setup.fill(1)
            await care.sync()
        forget_the_boot(tmp_path)
        async with rig(tmp_path) as setup:
            assert setup.cache.find(key_of(1)) is not None

    asyncio.run(run())


def test_unsynced_pieces_are_read_in_full_after_a_power_loss_before_they_count(tmp_path: Path) -> None:
    """The right ones cost no download, the others are never served. CASES 26."""

    async def run() -> None:
        async with rig(tmp_path) as setup:
            for number in range(4):
                await setup.fill(number)
        forget_the_boot(tmp_path)
        damage(data(tmp_path, 1), "zeros")
        damage(data(tmp_path, 2), "a stale extent")
        async with rig(tmp_path) as setup:
            care = care_of(setup)
            arrived: list[str] = []
            setup.cache.listen(lambda key, is_there: arrived.append(key) if is_there else None)
            assert [setup.cache.find(key_of(number)) for number in range(4)] == [None] * 4
            assert not any(setup.cache.holds(key_of(number)) for number in range(4))
            assert setup.cache.ledger.used_bytes == pieces_of_room(4), "they take their room"
            await care.prove()
            assert [setup.cache.find(key_of(number)) is not None for number in range(4)] == [True, False, False, True]
            assert sorted(arrived) == sorted([key_of(0), key_of(3)])
            assert (care.counters.proven, care.counters.damaged) == (2, 2)
            assert not data(tmp_path, 1).exists()
            assert await setup.fill(1) == key_of(1)
            assert data(tmp_path, 1).read_bytes() == content(1, SIZE)
            assert setup.reader.streams == ["1.bin"]

    asyncio.run(run())


@pytest.mark.parametrize("how", ["whole", "zeros", "a bit"])
def test_an_unproven_piece_that_is_demanded_is_read_first_and_fetched_only_where_it_is_damaged(
    tmp_path: Path, how: str
) -> None:
    """CASES 26."""

    async def run() -> None:
        async with rig(tmp_path) as setup:
            await setup.fill(1)
        forget_the_boot(tmp_path)
        damage(data(tmp_path, 1), how)
        async with rig(tmp_path) as setup:
            assert setup.cache.find(key_of(1)) is None
            fill = setup.fills.start(setup.job(1))
            assert not data(tmp_path, 1).exists(), "a reader that waits must not find it before it is proven"
            assert await fill.task is not None
            assert data(tmp_path, 1).read_bytes() == content(1, SIZE)
            assert setup.reader.streams == ([] if how == "whole" else ["1.bin"])
            assert setup.cache.find(key_of(1)) is not None
            quarantined = pieces_of_room(0 if how == "whole" else 1)
            assert setup.cache.ledger.withheld_bytes == quarantined
            assert setup.cache.ledger.used_bytes == pieces_of_room(1)
            assert list((tmp_path / "tmp").iterdir()) == []

    asyncio.run(run())


def test_a_truncated_piece_does_not_count_at_all(tmp_path: Path) -> None:
    """CASES 26."""

    async def run() -> None:
        async with rig(tmp_path) as setup:
            await setup.fill(1)
        with data(tmp_path, 1).open("r+b") as file:
            file.truncate(100)
        async with rig(tmp_path) as setup:
            assert len(setup.cache) == 0
            await setup.fill(1)
            assert data(tmp_path, 1).read_bytes() == content(1, SIZE)

    asyncio.run(run())


def test_the_index_is_not_believed_of_another_boot_either(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path) as setup:
            await setup.fill(1)
        with sqlite3.connect(tmp_path / "index" / "cache.db") as connection:
            for rowid, value in connection.execute("SELECT rowid, value FROM Cache WHERE raw = 1").fetchall():
                entry = json.loads(zlib.decompress(value))
                if isinstance(entry, dict) and "boot" in entry:
                    entry["boot"] = "the one before"
                    changed = zlib.compress(json.dumps(entry).encode())
                    connection.execute("UPDATE Cache SET value = ? WHERE rowid = ?", (changed, rowid))
        connection.close()
        async with rig(tmp_path, reconcile=False) as setup:
            assert setup.cache.ledger.used_bytes == pieces_of_room(1)
            assert setup.cache.find(key_of(1)) is None

    asyncio.run(run())


def test_the_scrub_finds_what_the_disk_has_changed_and_puts_it_into_quarantine(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Wrong bytes are not served for ever. CASES 26."""
    caplog.set_level(logging.ERROR)

    async def run() -> None:
        async with rig(tmp_path) as setup:
            care = care_of(setup)
            for number in range(3):
                await setup.fill(number)
            damage(data(tmp_path, 1), "a bit")
            assert setup.cache.find(key_of(1)) is not None, "nothing to be seen from outside"
            await care.scrub()
            assert setup.cache.find(key_of(1)) is None
            assert (care.counters.checked, care.counters.damaged, care.counters.rounds) == (3, 1, 1)
            assert sorted(path.name for path in (tmp_path / "quarantine").iterdir()) == [key_of(1), f"{key_of(1)}.json"]
            assert setup.cache.ledger.used_bytes == pieces_of_room(2)
            assert setup.cache.ledger.withheld_bytes == pieces_of_room(1)
            await setup.fill(1)
            assert data(tmp_path, 1).read_bytes() == content(1, SIZE)
        async with rig(tmp_path) as setup:
            assert setup.cache.ledger.withheld_bytes == pieces_of_room(1), "after a restart too"

    asyncio.run(run())
    (said,) = [record.getMessage() for record in caplog.records]
    assert f"piece 1 of s3://bucket/1.bin on {tmp_path}" in said


def test_a_damaged_piece_that_readers_have_mapped_is_only_unlinked(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path) as setup:
            care = care_of(setup)
            await setup.fill(1)
            damage(data(tmp_path, 1), "a bit")
            with MappedFile.open(data(tmp_path, 1)) as mapped:
                await care.scrub()
                assert len(mapped.view) == SIZE
                assert not data(tmp_path, 1).exists()
                assert not (tmp_path / "quarantine" / key_of(1)).exists()

    asyncio.run(run())


def test_a_scrub_goes_on_after_a_restart_where_it_was_and_begins_anew_when_its_time_has_come(tmp_path: Path) -> None:
    async def run() -> None:
        wall = ManualClock()
        async with rig(tmp_path) as setup:
            for number in range(100):
                await setup.fill(number, 4 * KIB)
            care = care_of(setup, wall)
            stop = asyncio.create_task(care.scrub())
            await until(lambda: care.counters.checked >= 40)
            stop.cancel()
            await asyncio.wait([stop])
            before = care.counters.checked
        async with rig(tmp_path) as setup:
            care = care_of(setup, wall)
            await care.scrub()
            assert 100 <= before + care.counters.checked <= 101, "the piece in hand may be read twice"
            running = asyncio.create_task(care.run())
            await asyncio.sleep(0.05)
            assert care.counters.rounds == 1, "not again before its time"
            running.cancel()
            await asyncio.wait([running])
            wall.now += CarePolicy().scrub_round_seconds
            running = asyncio.create_task(care.run())
            await until(lambda: care.counters.rounds == 2)
            running.cancel()
            await asyncio.wait([running])

    asyncio.run(run())


async def until(condition: Callable[[], object]) -> None:
    for _ in range(30_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise TimeoutError


@asynccontextmanager
async def busy(care: Care) -> AsyncIterator[None]:
    """All three tasks run, as fast as they can."""
    running = asyncio.create_task(care.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.wait([running])


def test_care_and_fills_and_evictions_do_not_get_into_each_others_way(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All pieces are right, the books fit, and nothing is taken for damage. CASES 30."""

    async def run() -> None:
        async with rig(tmp_path, capacity=pieces_of_room(6, 4 * KIB)) as setup:
            care = care_of(setup, policy=CarePolicy(sync_seconds=1e-6, scrub_round_seconds=0.0))
            async with busy(care):
                for turn in range(120):
                    key = await setup.fill(turn * 7 % 11, 4 * KIB)
                    assert setup.disk.path(key).read_bytes() == content(turn * 7 % 11, 4 * KIB)
                await care.scrub()
                await care.sync()
            assert care.counters.damaged == 0
            assert care.counters.synced > 0
            assert setup.cache.ledger.used_bytes == pieces_of_room(len(setup.cache), 4 * KIB)
            assert setup.cache.ledger.withheld_bytes == 0

    asyncio.run(run())
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_piece_that_left_while_it_was_synced_is_not_marked(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path, capacity=pieces_of_room(1)) as setup:
            await setup.fill(1)
            entry = setup.cache.entry(key_of(1))
            assert entry is not None
            await setup.fill(2)
            assert not await setup.cache.revise(entry, setup.cache.custody.mark_synced)
            assert setup.cache.entry(key_of(1)) is None
            assert not sidecar(tmp_path, 1).exists()

    asyncio.run(run())


def test_a_piece_in_doubt_is_proven_on_the_disk_that_it_lies_on(tmp_path: Path) -> None:
    """Also where another disk has more room."""

    async def run() -> None:
        async with rig(tmp_path / "a") as setup:
            for number in range(8):
                await setup.fill(number)
        forget_the_boot(tmp_path / "a")
        async with rig(tmp_path / "a", more=[tmp_path / "b"]) as setup:
            for number in range(8):
                assert setup.pool.find(key_of(number)) is None
                await setup.fill(number)
            assert setup.reader.streams == []
            assert [len(cache) for cache in setup.pool.caches] == [8, 0]

    asyncio.run(run())


def test_a_disk_that_gives_nothing_is_not_emptied_by_its_scrub(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with rig(tmp_path) as setup:
            care = care_of(setup)
            for number in range(10):
                await setup.fill(number, 4 * KIB)
            for number in range(10):
                data(tmp_path, number).unlink()
            await care.scrub()
            assert care.counters.damaged == 2
            assert care.counters.rounds == 0

    asyncio.run(run())
    assert "cannot be read: its scrub pauses" in caplog.text
