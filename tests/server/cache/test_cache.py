"""The cache over its life: what it believes after a start, and what it does before it knows."""

import asyncio
from pathlib import Path

from tests.server.scripted import KIB, key_of, pieces_of_room, rig, until


async def fill_and_leave(root: Path, count: int) -> list[str]:
    async with rig(root) as setup:
        return [await setup.fill(number) for number in range(count)]


def test_a_start_believes_the_index_and_then_the_files(tmp_path: Path) -> None:
    async def run() -> None:
        keys = await fill_and_leave(tmp_path, 3)
        gone = tmp_path / "pieces" / keys[0][:2] / keys[0]
        gone.unlink()
        async with rig(tmp_path, reconcile=False) as setup:
            assert setup.cache.ledger.used_bytes == pieces_of_room(3)
            assert setup.cache.find(keys[0]) is None, "each hit looks at its file"
            assert setup.cache.find(keys[1]) is not None
            await setup.cache.reconcile()
            assert setup.cache.ledger.used_bytes == pieces_of_room(2)
            assert not list(gone.parent.glob("*.json"))
        async with rig(tmp_path, reconcile=False) as setup:
            assert not setup.cache.holds(keys[0]), "the index learned it too"

    asyncio.run(run())


def test_what_the_index_does_not_know_is_found_on_the_disk(tmp_path: Path) -> None:
    async def run() -> None:
        keys = await fill_and_leave(tmp_path, 2)
        for path in (tmp_path / "index").iterdir():
            path.unlink()
        async with rig(tmp_path, reconcile=False) as setup:
            assert not setup.cache.holds(keys[0])
            assert setup.cache.find(keys[0]) is not None
            await setup.cache.reconcile()
            assert sorted(setup.cache.keys()) == sorted(keys)
            assert setup.cache.ledger.used_bytes == pieces_of_room(2)

    asyncio.run(run())


def test_without_an_index_nothing_is_fetched_before_it_is_known_what_is_there(tmp_path: Path) -> None:
    async def run() -> None:
        await fill_and_leave(tmp_path, 2)
        for path in (tmp_path / "index").iterdir():
            path.unlink()
        async with rig(tmp_path, capacity=pieces_of_room(2), reconcile=False) as setup:
            fill = setup.fills.start(setup.job(5))
            await until(lambda: setup.cache.ledger.reservations, "the fill to ask for room")
            assert setup.reader.streams == []
            await setup.cache.reconcile()
            assert await fill.task is not None
            assert setup.cache.ledger.used_bytes == pieces_of_room(2)

    asyncio.run(run())


def test_pieces_are_served_before_the_index_is_loaded_and_nothing_is_fetched_before_it_is_counted(
    tmp_path: Path,
) -> None:
    """CASES 33."""

    async def run() -> None:
        keys = await fill_and_leave(tmp_path, 3)
        (tmp_path / "pieces" / keys[0][:2] / keys[0]).unlink()
        async with rig(tmp_path, capacity=pieces_of_room(3), load=False) as setup:
            assert setup.cache.find(keys[1]) is not None
            again = setup.fills.start(setup.job(0))
            await until(lambda: setup.cache.ledger.reservations, "the fill to ask for room")
            assert setup.reader.streams == []
            await setup.cache.load()
            assert await again.task is not None
            assert sorted(setup.cache.keys()) == sorted(keys)
            assert setup.cache.ledger.used_bytes == pieces_of_room(3)
        async with rig(tmp_path, reconcile=False) as setup:
            assert sorted(setup.cache.keys()) == sorted(keys)

    asyncio.run(run())


def test_a_start_with_a_smaller_capacity_makes_the_cache_smaller(tmp_path: Path) -> None:
    async def run() -> None:
        await fill_and_leave(tmp_path, 4)
        async with rig(tmp_path, capacity=pieces_of_room(1)) as setup:
            assert len(setup.cache) == 1
            assert setup.cache.room.evictions == 3

    asyncio.run(run())


def test_a_fill_that_fell_between_rename_and_index_is_kept(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path) as setup:
            temp = setup.disk.create()
            temp.write(b"x" * KIB)
            setup.disk.commit(temp, key_of(1), setup.job(1).origin(setup.job(1).piece.object))
        async with rig(tmp_path) as setup:
            assert setup.cache.find(key_of(1)) is not None

    asyncio.run(run())
