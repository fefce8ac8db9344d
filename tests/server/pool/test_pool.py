"""Several disks: what is where, what goes where, and what becomes of it when one fails."""

import asyncio
import errno
import os
from pathlib import Path

import pytest

from forebay_core.capacity import Capacity
from forebay_core.errors import CapacityError, ConfigurationError
from forebay_core.mapping import MappedFile
from forebay_core.node_layout import read_error
from forebay_server.cache.cache import Cache
from forebay_server.disk.cache_disk import CacheDisk
from forebay_server.pool.health import GOOD_PROBES, State, Trouble
from forebay_server.pool.member import Members
from forebay_server.pool.probing import Prober
from tests.server.scripted import KIB, FailingDisk, Rig, content, pieces_of_room, rig, until

PIECE = 64 * KIB


def disk_of(cache: Cache) -> FailingDisk:
    assert isinstance(cache.disk, FailingDisk)
    return cache.disk


def prober(setup: Rig) -> Prober:
    def claim(_directory: object) -> FailingDisk:
        raise ConfigurationError("not in this test")

    return Prober(setup.pool, _no_members(), claim, clock=setup.clock)


def _no_members() -> Members:
    def make(disk: CacheDisk, capacity_bytes: int) -> Cache:
        raise ConfigurationError("not in this test")

    return Members(Capacity(share=0.5), make)


def state(setup: Rig, number: int = 0) -> State:
    return setup.pool.members[number].health.state


def where(setup: Rig) -> list[list[str]]:
    return [sorted(cache.keys()) for cache in setup.pool.caches]


async def probe(setup: Rig, made: Prober, *, after_seconds: float = 3600.0) -> None:
    setup.clock.now += after_seconds
    await made.probe_due()


def test_pieces_spread_by_free_bytes_and_are_found_wherever_they_are(tmp_path: Path) -> None:
    """CASES 29: no piece is anywhere else than where it was said to be."""

    async def run() -> None:
        a, b = tmp_path / "a", tmp_path / "b"
        async with rig(a, more=[b], capacity=pieces_of_room(4)) as setup:
            keys = [await setup.fill(number) for number in range(6)]
            assert [len(keys) for keys in where(setup)] == [3, 3]
            for number, key in enumerate(keys):
                stored = setup.pool.find(key)
                assert stored is not None
                assert stored.cache.disk.path(key).read_bytes() == content(number, PIECE)
            assert len(setup.pool) == 6
            assert sorted(setup.pool.keys()) == sorted(keys)
            assert setup.pool.capacity_bytes == 2 * pieces_of_room(4)
        async with rig(b, more=[a], capacity=pieces_of_room(4)) as setup:
            assert all(setup.pool.find(key) is not None for key in keys), "the order of the disks may change"

    asyncio.run(run())


def test_a_pin_holds_a_piece_on_whichever_disk_it_is(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path / "a", more=[tmp_path / "b"], capacity=pieces_of_room(1)) as setup:
            kept = await setup.fill(0)
            setup.pool.pins.pin(kept)
            for number in range(1, 5):
                await setup.fill(number)
                assert setup.pool.holds(kept)
            setup.pool.pins.unpin(kept)

    asyncio.run(run())


def test_of_two_copies_the_one_that_was_there_first_is_kept(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path / "b") as setup:
            key = await setup.fill(1)
        async with rig(tmp_path / "a") as setup:
            await setup.fill(1)
        heard: list[tuple[str, bool]] = []
        async with rig(tmp_path / "a", more=[tmp_path / "b"]) as setup:
            first, second = setup.pool.caches
            setup.pool.listen(lambda key, is_there: heard.append((key, is_there)))
            await until(lambda: not second.disk.path(key).exists(), "the second copy to go")
            await until(lambda: not second.holds(key), "the books to say so")
            assert first.disk.path(key).read_bytes() == content(1, PIECE)
            assert setup.pool.holds(key)
            assert all(is_there for _, is_there in heard), "it was never away"

    asyncio.run(run())


def test_a_fill_whose_disk_fails_moves_to_another_and_its_readers_are_told_to_ask_again(tmp_path: Path) -> None:
    """CASES 31: a disk that fails under a fill costs its readers a second question."""

    async def run() -> None:
        async with rig(tmp_path / "a", more=[tmp_path / "b"]) as setup:
            fill = setup.fills.start(setup.job(1))
            before = fill.cache
            disk_of(before).once = {"write": errno.EIO}
            entry = await fill.task
            assert entry is not None
            assert fill.cache is not before
            assert fill.cache.disk.path(fill.key).read_bytes() == content(1, PIECE)
            word = read_error(before.disk.path(fill.key))
            assert type(word).__name__ == "PieceGone"
            assert setup.fills.counters.failures == 0
            assert [member.health.state for member in setup.pool.members if member.cache is before] == [State.UNSTABLE]
            assert list((before.disk.root / "tmp").iterdir()) == []
            assert (before.ledger.reserved_bytes, before.ledger.used_bytes, before.fills) == (0, 0, 0)

    asyncio.run(run())


@pytest.mark.parametrize("work", ["create", "write", "commit"])
@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.ENOTDIR])
def test_whatever_a_disk_fails_with_and_when_the_piece_comes_from_another(
    tmp_path: Path, work: str, number: int
) -> None:
    async def run() -> None:
        async with rig(tmp_path / "a", more=[tmp_path / "b"]) as setup:
            fill = setup.fills.start(setup.job(1))
            disk_of(fill.cache).script = {work: number, "error": number}
            assert await fill.task is not None
            stored = setup.pool.find(fill.key)
            assert stored is not None
            assert stored.cache is fill.cache

    asyncio.run(run())


def test_where_every_disk_fails_the_error_is_the_disks_and_the_cache_is_as_before(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path / "a", more=[tmp_path / "b"]) as setup:
            for cache in setup.pool.caches:
                disk_of(cache).script = {"write": errno.EIO}
            with pytest.raises(
                CapacityError, match=r"piece 1 of s3://bucket/1\.bin .*cannot be written to .*EIO.*; no other disk"
            ):
                await setup.fill(1)
            assert all(cache.ledger.reserved_bytes == 0 for cache in setup.pool.caches)
            for cache in setup.pool.caches:
                disk_of(cache).script = {}
            assert await setup.fill(1)

    asyncio.run(run())


def test_a_disk_that_takes_less_than_it_says_holds_what_it_held_and_others_take_the_rest(tmp_path: Path) -> None:
    """CASES 31: a quota that no statvfs shows."""

    async def run() -> None:
        async with rig(tmp_path / "a", capacity=pieces_of_room(10)) as setup:
            keys = [await setup.fill(number) for number in range(3)]
            disk_of(setup.cache).once = {"write": errno.EDQUOT}
            assert await setup.fill(3), "one made room for it"
            assert setup.cache.ledger.capacity_bytes == pieces_of_room(3)
            assert [setup.cache.holds(key) for key in keys] == [False, True, True]
            assert state(setup) is State.NORMAL
            setup.clock.now += 10_000
            setup.pool.look()
            assert setup.cache.ledger.capacity_bytes == pieces_of_room(10)

    asyncio.run(run())


def test_a_disk_that_stays_full_is_a_capacity_error_that_names_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path / "a") as setup:
            disk_of(setup.cache).script = {"write": errno.ENOSPC}
            with pytest.raises(CapacityError, match=f"{tmp_path / 'a'} is full"):
                await setup.fill(1)

    asyncio.run(run())


def test_what_is_on_a_disk_that_is_down_counts_as_gone_until_it_is_back(tmp_path: Path) -> None:
    """CASES 31: what a lost disk held comes from the source again."""

    async def run() -> None:
        async with rig(tmp_path / "a", more=[tmp_path / "b"], capacity=pieces_of_room(8)) as setup:
            keys = [await setup.fill(number) for number in range(4)]
            first, second = setup.pool.caches
            lost, made = list(first.keys()), prober(setup)
            heard: list[tuple[str, bool]] = []
            setup.pool.listen(lambda key, is_there: heard.append((key, is_there)))
            disk_of(first).script = dict.fromkeys(("create", "probe"), errno.EIO)
            setup.pool.failed(first, OSError(errno.EIO, "Input/output error"))
            await probe(setup, made)
            assert state(setup) is State.DOWN
            assert sorted(heard) == sorted((key, False) for key in lost)
            assert [setup.pool.find(key) is None for key in lost] == [True] * len(lost)
            assert first.ledger.used_bytes == 0
            again = await setup.fill(keys.index(lost[0]))
            assert second.holds(again)
            for _ in range(GOOD_PROBES + 1):
                disk_of(first).script = {}
                assert state(setup) is State.DOWN
                await probe(setup, made)
                if state(setup) is State.NORMAL:
                    break
            await until(lambda: all(setup.pool.holds(key) for key in keys), "what was there to count again")
            left = pieces_of_room(len(lost) - 1)
            await until(lambda: first.ledger.used_bytes == left, "one of the two copies to go, and its room with it")
            assert not first.holds(again)
            await made.close()

    asyncio.run(run())


def test_those_who_wait_for_room_on_a_disk_that_goes_down_get_it_on_another(tmp_path: Path) -> None:
    """CASES 28, 30: nobody waits for ever."""

    async def run() -> None:
        async with rig(tmp_path / "a", more=[tmp_path / "b"], capacity=pieces_of_room(1)) as setup:
            first, second = setup.pool.caches
            held = [await setup.fill(number) for number in range(2)]
            for key in held:
                setup.pool.pins.pin(key)
            fill = setup.fills.start(setup.job(7))
            waits_on = fill.cache
            await waits_on.room.queue.has_waiting.wait()
            other = second if waits_on is first else first
            setup.pool.pins.unpin(next(iter(other.keys())))
            member = next(member for member in setup.pool.members if member.cache is waits_on)
            setup.pool.change(member, member.health.probed(Trouble.FAULT, "it died", setup.clock()))
            assert await asyncio.wait_for(fill.task, 20) is not None
            assert other.holds(fill.key)

    asyncio.run(run())


def test_a_disk_that_refuses_writes_is_served_from_and_not_filled(tmp_path: Path) -> None:
    """CASES 31: a read-only disk."""

    async def run() -> None:
        async with rig(tmp_path / "a", more=[tmp_path / "b"], capacity=pieces_of_room(8)) as setup:
            keys = [await setup.fill(number) for number in range(4)]
            first, second = setup.pool.caches
            made = prober(setup)
            disk_of(first).script = dict.fromkeys(("create", "probe", "remove", "error"), errno.EROFS)
            setup.pool.failed(first, OSError(errno.EROFS, "Read-only file system"))
            await probe(setup, made)
            assert state(setup) is State.READ_ONLY
            assert all(setup.pool.find(key) is not None for key in keys)
            more = [await setup.fill(number) for number in range(4, 8)]
            assert all(second.holds(key) for key in more)
            disk_of(first).script = {}
            await probe(setup, made)
            assert state(setup) is State.NORMAL
            await made.close()

    asyncio.run(run())


def test_a_disk_that_does_not_answer_a_probe_is_down_and_holds_nobody_up(tmp_path: Path) -> None:
    """CASES 31: a disk that hangs."""

    async def run() -> None:
        async with rig(tmp_path / "a", more=[tmp_path / "b"]) as setup:
            first, _ = setup.pool.caches
            reader, writer = os.pipe()
            disk_of(first).hang = lambda: os.read(reader, 1)
            made = Prober(setup.pool, _no_members(), lambda _: disk_of(first), clock=setup.clock, answer_seconds=0.05)
            setup.pool.failed(first, OSError(errno.EIO, "Input/output error"))
            await probe(setup, made)
            assert state(setup) is State.DOWN
            assert "does not answer" in setup.pool.members[0].health.reason
            assert await setup.fill(1)
            os.write(writer, b"x")
            await made.close()
            os.close(writer)
            os.close(reader)

    asyncio.run(run())


def test_a_draining_disk_takes_nothing_more_and_serves_what_it_has_also_after_a_restart(tmp_path: Path) -> None:
    async def run() -> None:
        a, b = tmp_path / "a", tmp_path / "b"
        async with rig(a, more=[b], capacity=pieces_of_room(8)) as setup:
            keys = [await setup.fill(number) for number in range(4)]
            first, second = setup.pool.caches
            assert setup.pool.drain(str(a), wanted=True).is_draining
            more = [await setup.fill(number) for number in range(4, 7)]
            assert all(second.holds(key) for key in more)
            assert all(setup.pool.find(key) is not None for key in keys)
        async with rig(a, more=[b], capacity=pieces_of_room(8)) as setup:
            first, second = setup.pool.caches
            assert setup.pool.members[0].is_draining
            assert second.holds(await setup.fill(8))
            assert not setup.pool.drain(setup.cache.disk.id, wanted=False).is_draining
            assert first.holds(await setup.fill(9))
            with pytest.raises(ConfigurationError, match=f"/nowhere is no cache directory .* it has {a}, {b}"):
                setup.pool.drain("/nowhere", wanted=True)

    asyncio.run(run())


def test_where_no_disk_takes_pieces_the_error_says_of_each_why(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path / "a", more=[tmp_path / "b"]) as setup:
            setup.pool.drain(str(tmp_path / "a"), wanted=True)
            setup.pool.failed(setup.pool.caches[1], OSError(errno.EROFS, "Read-only file system"))
            with pytest.raises(CapacityError, match=r"/a is draining; .*/b is read-only: Read-only .*EROFS"):
                setup.fills.start(setup.job(1))
            assert setup.fills.running == {}

    asyncio.run(run())


def test_what_a_reader_cannot_read_is_fetched_again_and_only_a_disk_that_fails_pays_for_it(tmp_path: Path) -> None:
    """CASES 26: bytes that cannot be read are not served again."""

    async def run() -> None:
        async with rig(tmp_path / "a", more=[tmp_path / "b"]) as setup:
            key = await setup.fill(1)
            stored = setup.pool.find(key)
            assert stored is not None
            with MappedFile.open(stored.cache.disk.path(key)) as reader:
                setup.pool.unreadable(key, "another disk")
                assert setup.pool.holds(key)
                setup.pool.unreadable(key, stored.cache.disk.id)
                assert setup.pool.find(key) is None
                assert not stored.cache.disk.path(key).exists()
                assert bytes(reader.view) == content(1, PIECE), "who reads it goes on"
            setup.pool.unreadable(key, stored.cache.disk.id)
            assert await setup.fill(1) == key
            assert all(member.health.state is State.NORMAL for member in setup.pool.members)

    asyncio.run(run())


def test_a_piece_that_can_be_neither_read_nor_removed_is_not_served_again(tmp_path: Path) -> None:
    """CASES 26."""

    async def run() -> None:
        async with rig(tmp_path / "a", more=[tmp_path / "b"]) as setup:
            key = await setup.fill(1)
            stored = setup.pool.find(key)
            assert stored is not None
            disk_of(stored.cache).script = {"remove": errno.EROFS}
            setup.pool.unreadable(key, stored.cache.disk.id)
            assert stored.cache.disk.path(key).exists()
            assert setup.pool.find(key) is None
            await stored.cache.reconcile()
            assert setup.pool.find(key) is None
            await setup.fill(1)
            again = setup.pool.find(key)
            assert again is not None
            assert again.cache is not stored.cache

    asyncio.run(run())


def test_a_prefetch_without_room_on_one_disk_takes_what_another_has(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path / "a", more=[tmp_path / "b"], capacity=pieces_of_room(1)) as setup:
            keys = [await setup.fill(number) for number in range(2)]
            for number, needed_soon in enumerate(keys, start=10):
                setup.needs.by_key = {needed_soon: 1.0}
                setup.needs.version += 1
                assert await setup.fills.start(setup.job(number), before=5.0).task is not None
                assert setup.pool.holds(needed_soon)
                await setup.fill(keys.index(needed_soon) ^ 1)

    asyncio.run(run())


def test_a_piece_too_large_for_one_disk_goes_to_one_that_can_hold_it(tmp_path: Path) -> None:
    """CASES 30."""

    async def run() -> None:
        async with rig(tmp_path / "a", more=[tmp_path / "b"], capacity=pieces_of_room(8)) as setup:
            first, second = setup.pool.caches
            first.ledger.capacity_bytes = pieces_of_room(1)
            key = await setup.fill(1, size=4 * PIECE)
            assert second.holds(key)
            with pytest.raises(CapacityError, match="needs at least"):
                await setup.fill(2, size=16 * PIECE)
            assert first.fills == 0

    asyncio.run(run())
