"""The cache over its life: what it believes after a start, and what it does before it knows."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from forebay_core.eviction import Resident
from forebay_server.cache.departures import FRESH_SECONDS, Departures, plan
from tests.server.scripted import KIB, ManualClock, key_of, pieces_of_room, rig


async def until(condition: Callable[[], object], what: str) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError(what)


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
            assert setup.cache.evictions == 3

    asyncio.run(run())


def test_a_fill_that_fell_between_rename_and_index_is_kept(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path) as setup:
            temp = setup.disk.create()
            temp.write(b"x" * KIB)
            setup.disk.commit(temp, key_of(1), setup.job(1).origin)
        async with rig(tmp_path) as setup:
            assert setup.cache.find(key_of(1)) is not None

    asyncio.run(run())


def residents(*uses: float | None) -> list[Resident]:
    return [Resident(str(number), 10, use, float(number), False) for number, use in enumerate(uses)]


def test_a_plan_is_used_up_in_order_skips_what_is_in_use_and_ends_with_its_time() -> None:
    clock = ManualClock()
    departures = Departures(clock)
    chosen = plan(residents(5.0, None, 90.0, 50.0, None), 20, before=None, capacity=10_000)
    assert chosen is not None
    assert [departure.key for departure in chosen] == ["1", "4"]
    chosen = plan(residents(*[None, *range(60)]), 10, before=None, capacity=10_000)
    assert chosen is not None
    assert len(chosen) == 32
    departures.keep(chosen, version=1, made_at=clock())

    def take(missing: int, *, before: float | None = None, version: int = 1, in_use: str = "") -> list[str] | None:
        return departures.take(missing, before=before, version=version, is_free=lambda key: key != in_use)

    assert take(20, in_use="60") == ["0", "59"]
    assert take(10, before=57.0) is None, "a prefetch must not take what is needed at the same moment or sooner"
    assert take(10, before=56.0) == ["58"]
    assert take(10, version=2) is None, "other needs, another plan"
    assert take(10) == ["57"]
    clock.now += FRESH_SECONDS
    assert take(10) is None


def test_there_is_no_plan_where_there_is_not_enough() -> None:
    assert plan(residents(1.0, 2.0), 30, before=None, capacity=1000) is None
    assert plan(residents(1.0, 2.0), 10, before=2.0, capacity=1000) is None
