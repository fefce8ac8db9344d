"""Fills: once however many ask, all or nothing, and within the capacity at every moment."""

import asyncio
import errno
import json
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_core.errors import BadObject, CapacityError, InternalError, ObjectChanged, SourceUnreachable
from forebay_core.formats.base import Localiser, Piece, Prepared, Sink
from forebay_core.mapping import MappedFile
from forebay_core.node_layout import read_error
from tests.server.scripted import FORMAT, KIB, Rig, Swelling, content, key_of, pieces_of_room, rig, until


def error_of(setup: Rig, key: str) -> dict[str, str] | None:
    path = Path(f"{setup.disk.path(key)}.error")
    return json.loads(path.read_text()) if path.exists() else None


def temp_files(setup: Rig) -> list[str]:
    return [path.name for path in (setup.disk.root / "tmp").iterdir()]


def test_a_filled_piece_has_the_bytes_of_its_object_and_a_sidecar_that_says_so(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path) as setup:
            key = await setup.fill(1)
            path = setup.disk.path(key)
            sidecar = json.loads(path.with_name(f"{key}.json").read_text())
            assert path.read_bytes() == content(1, 64 * KIB)
            assert (sidecar["key"], sidecar["size"], sidecar["synced"]) == (key, 64 * KIB, False)
            assert sidecar["origin"]["url"] == "s3://bucket/1.bin"
            assert path.stat().st_mode & 0o777 == 0o640
            assert temp_files(setup) == []
            entry = setup.cache.find(key)
            assert entry is not None
            assert (entry.inode, entry.size) == (path.stat().st_ino, 64 * KIB)

    asyncio.run(run())


def test_fifty_who_ask_at_once_share_one_download(tmp_path: Path) -> None:
    """CASES 28."""

    async def run() -> None:
        async with rig(tmp_path) as setup:
            fills = [setup.fills.start(setup.job(1)) for _ in range(50)]
            entries = await asyncio.gather(*(fill.task for fill in fills))
            assert setup.reader.streams == ["1.bin"]
            assert len({entry.inode for entry in entries if entry is not None}) == 1

    asyncio.run(run())


def test_a_failure_reaches_all_who_wait_and_a_retry_works(tmp_path: Path) -> None:
    """CASES 28."""

    async def run() -> None:
        async with rig(tmp_path) as setup:
            setup.reader.failures["1.bin"] = [SourceUnreachable("s3://bucket/1.bin: no answer")]
            fills = [setup.fills.start(setup.job(1)) for _ in range(50)]
            results = await asyncio.gather(*(fill.task for fill in fills), return_exceptions=True)
            assert {type(result) for result in results} == {SourceUnreachable}
            assert error_of(setup, key_of(1)) == {
                "error": "SourceUnreachable",
                "message": "s3://bucket/1.bin: no answer",
            }
            assert temp_files(setup) == []
            assert setup.cache.ledger.reserved_bytes == 0
            assert setup.cache.find(key_of(1)) is None

            setup.fills.start(setup.job(1))
            assert error_of(setup, key_of(1)) is None, "an answer `pending` must not leave the old error in sight"
            key = await setup.fill(1)
            assert setup.disk.path(key).read_bytes() == content(1, 64 * KIB)

    asyncio.run(run())


def test_what_a_format_says_of_a_key_is_said_of_the_objects_url(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path) as setup:
            setup.reader.failures["1.bin"] = [BadObject("'1.bin' cannot be decoded: write it anew")]
            with pytest.raises(BadObject, match=r"^s3://bucket/1\.bin cannot be decoded: write it anew$"):
                await setup.fill(1)
            error = read_error(setup.disk.path(key_of(1)))
            assert str(error) == "s3://bucket/1.bin cannot be decoded: write it anew"

    asyncio.run(run())


def test_a_fault_in_a_format_is_an_internal_error_that_leaves_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path) as setup:
            setup.reader.failures["1.bin"] = [ZeroDivisionError("oops")]
            with pytest.raises(InternalError, match="ZeroDivisionError"):
                await setup.fill(1)
            assert temp_files(setup) == []

    asyncio.run(run())


def test_an_object_that_changed_is_said_to_have_changed(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path) as setup:
            setup.reader.failures["1.bin"] = [ObjectChanged("s3://bucket/1.bin was v1, is v2")]
            with pytest.raises(ObjectChanged):
                await setup.fill(1)
            assert (error_of(setup, key_of(1)) or {})["error"] == "ObjectChanged"

    asyncio.run(run())


def test_a_demand_turns_a_prefetch_in_flight_into_a_demand(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path) as setup:
            setup.reader.gate.clear()
            prefetch = setup.fills.start(setup.job(1), before=5.0)
            demand = setup.fills.start(setup.job(1))
            assert demand is prefetch
            assert prefetch.is_demand
            setup.reader.gate.set()
            assert await demand.task is not None
            assert setup.fills.counters.prefetches == 0

    asyncio.run(run())


def test_a_prefetch_without_room_that_is_demanded_at_the_last_moment_is_filled(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path, capacity=pieces_of_room(4)) as setup:
            sooner = await setup.fill(1)
            setup.needs.by_key = {sooner: 1.0}
            setup.format = Swelling(16, "int32", factor=4)
            fill = setup.fills.start(setup.job(2), before=10.0)
            while not (temp_files(setup) and not setup.cache.ledger.reservations):
                assert not fill.task.done()
                await asyncio.sleep(0)
            assert setup.fills.start(setup.job(2)) is fill
            assert await fill.task is not None
            assert setup.cache.find(sooner) is None


def test_a_layout_larger_than_its_source_grows_its_reservation(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path, capacity=pieces_of_room(6)) as setup:
            earlier = [await setup.fill(number) for number in (1, 2, 3)]
            setup.format = Swelling(16, "int32", factor=4)
            key = await setup.fill(4)
            assert setup.disk.path(key).read_bytes() == content(4, 64 * KIB) * 4
            assert [setup.cache.holds(key) for key in earlier] == [False, True, True]
            assert setup.cache.ledger.used_bytes <= pieces_of_room(6)

    asyncio.run(run())


def test_a_layout_that_turns_out_too_large_fails_and_gives_all_back(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path, capacity=pieces_of_room(3)) as setup:
            setup.format = Swelling(16, "int32", factor=4)
            with pytest.raises(CapacityError, match="at least"):
                await setup.fill(1)
            assert temp_files(setup) == []
            assert setup.cache.ledger.reserved_bytes == 0

    asyncio.run(run())


def test_a_fill_that_waits_for_room_can_be_ended(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path, capacity=pieces_of_room(4)) as setup:
            setup.pool.pins.pin(await setup.fill(1))
            setup.format = Swelling(16, "int32", factor=4)
            fill = setup.fills.start(setup.job(2))
            await until(lambda: temp_files(setup), "the layout to be written")
            await setup.fills.drain(0.05)
            assert fill.task.cancelled()
            assert temp_files(setup) == []

    asyncio.run(run())


def test_a_piece_larger_than_the_cache_is_one_clear_error(tmp_path: Path) -> None:
    """CASES 30."""

    async def run() -> None:
        async with rig(tmp_path, capacity=100 * KIB) as setup:
            small = await setup.fill(1)
            with pytest.raises(CapacityError, match=r"piece 2 of s3://bucket/2\.bin.*capacity.*--capacity") as caught:
                await setup.fill(2, 200 * KIB)
            assert str(100 * KIB) in str(caught.value)
            assert setup.cache.find(small) is not None, "nothing is evicted for what can never fit"
            assert (error_of(setup, key_of(2)) or {})["error"] == "CapacityError"

    asyncio.run(run())


def test_a_demand_waits_for_a_lease_to_end_and_then_fits(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path, capacity=pieces_of_room(1)) as setup:
            key = await setup.fill(1)
            setup.pool.pins.pin(key)
            fill = setup.fills.start(setup.job(2))
            await setup.cache.room.queue.has_waiting.wait()
            assert not fill.task.done()
            setup.pool.pins.unpin(key)
            assert await fill.task is not None
            assert setup.cache.find(key) is None

    asyncio.run(run())


def test_a_demand_that_leases_leave_no_room_fails_in_the_end(tmp_path: Path) -> None:
    """CASES 30."""

    async def run() -> None:
        async with rig(tmp_path, capacity=pieces_of_room(1)) as setup:
            setup.pool.pins.pin(await setup.fill(1))
            fill = setup.fills.start(setup.job(2))
            await setup.cache.room.queue.has_waiting.wait()
            setup.clock.now += 31
            with pytest.raises(CapacityError, match="pieces in use"):
                await fill.task

    asyncio.run(run())


def test_prefetches_that_find_no_room_do_not_keep_a_demand_waiting(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path, capacity=pieces_of_room(1)) as setup:
            setup.pool.pins.pin(await setup.fill(1))
            fill = setup.fills.start(setup.job(2))
            await setup.cache.room.queue.has_waiting.wait()
            for _ in range(5):
                setup.clock.now += 10
                assert await setup.fills.start(setup.job(3), before=5.0).task is None
            with pytest.raises(CapacityError, match="pieces in use"):
                await asyncio.wait_for(fill.task, 5)

    asyncio.run(run())


def test_mapped_pieces_are_spared_and_their_neighbours_go(tmp_path: Path) -> None:
    """CASES 29."""

    async def run() -> None:
        async with rig(tmp_path, capacity=pieces_of_room(2)) as setup:
            mapped, other = await setup.fill(1), await setup.fill(2)
            with MappedFile.open(setup.disk.path(mapped)) as reader:
                await setup.fill(3)
                assert bytes(reader.view) == content(1, 64 * KIB)
                assert setup.cache.find(mapped) is not None
                assert setup.cache.find(other) is None

    asyncio.run(run())


def test_what_nobody_needs_goes_first_then_what_is_needed_last(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path, capacity=pieces_of_room(3)) as setup:
            soon, idle, late = [await setup.fill(number) for number in (1, 2, 3)]
            setup.needs.by_key = {soon: 1.0, late: 50.0}
            await setup.fill(4)
            assert [setup.cache.holds(key) for key in (soon, idle, late)] == [True, False, True]
            setup.needs.by_key[key_of(4)] = 2.0
            await setup.fill(5)
            assert [setup.cache.holds(key) for key in (soon, idle, late)] == [True, False, False]

    asyncio.run(run())


def test_a_prefetch_never_pushes_out_what_is_needed_sooner(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path, capacity=pieces_of_room(1)) as setup:
            key = await setup.fill(1)
            setup.needs.by_key = {key: 3.0}
            fill = setup.fills.start(setup.job(2), before=4.0)
            assert await fill.task is None
            assert fill.found_no_room
            assert error_of(setup, key_of(2)) is None
            assert await setup.fills.start(setup.job(2), before=2.0).task is not None

    asyncio.run(run())


def test_what_is_decoded_in_memory_at_once_is_bounded_and_the_first_demand_is_first(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path, memory_bytes=150 * KIB) as setup:
            setup.format = Swelling(16, "int32", factor=2)
            setup.reader.gate.clear()
            ended: list[int] = []
            setup.fills.listen(lambda fill: ended.append(fill.job.piece.index))
            fills = [setup.fills.start(setup.job(number), before=None if number else 5.0) for number in range(6)]
            setup.format = FORMAT
            raw = setup.fills.start(setup.job(9))
            streams = setup.reader.streams
            await until(lambda: "9.bin" in streams and len(streams) >= 3, "the piece that is not decoded to stream")
            assert len(streams) == 3, "two that are decoded, one that is not"
            setup.reader.gate.set()
            await asyncio.gather(raw.task, *(fill.task for fill in fills))
            assert sorted(ended) == [0, 1, 2, 3, 4, 5, 9]
            decoded = [int(key.removesuffix(".bin")) for key in setup.reader.streams if key != "9.bin"]
            turns = sorted(decoded[2:])
            assert all(abs(turns.index(number) - place) <= 1 for place, number in enumerate(decoded[2:])), "two at once"

    asyncio.run(run())


def test_a_demand_that_waits_for_room_does_not_keep_memory_from_an_earlier_one(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path, capacity=pieces_of_room(2), memory_bytes=100 * KIB) as setup:
            key = await setup.fill(9)
            setup.pool.pins.pin(key)
            setup.format = Swelling(16, "int32", factor=1)
            ended: list[int] = []
            setup.fills.listen(lambda fill: ended.append(fill.job.piece.index))
            known = setup.reader.prepare_gates["1.bin"] = asyncio.Event()
            early, late = setup.fills.start(setup.job(1)), setup.fills.start(setup.job(2, 100 * KIB))
            await setup.cache.room.queue.has_waiting.wait()
            known.set()
            await early.task
            assert not late.task.done()
            setup.pool.pins.unpin(key)
            await late.task
            assert ended == [1, 2]

    asyncio.run(run())


def test_draining_ends_prefetches_and_lets_demands_finish(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path) as setup:
            setup.reader.gate.clear()
            prefetch, demand = setup.fills.start(setup.job(1), before=5.0), setup.fills.start(setup.job(2))
            await until(lambda: len(setup.reader.streams) == 2, "both fills to stream")
            draining = asyncio.ensure_future(setup.fills.drain(10))
            await until(prefetch.task.done, "the prefetch to end")
            assert prefetch.task.cancelled()
            assert not demand.task.done()
            setup.reader.gate.set()
            await draining
            assert demand.task.result() is not None
            assert temp_files(setup) == []
            assert setup.cache.ledger.reserved_bytes == 0

    asyncio.run(run())


class Endless(Swelling):
    """Writes nothing, again and again, until it is refused or given up."""

    writing = threading.Event()
    given_up = threading.Event()

    def localise(self, piece: Piece, columns: Sequence[str], sink: Sink, prepared: Prepared) -> Localiser:
        localiser = super().localise(piece, columns, sink, prepared)

        def finish() -> None:
            while not self.given_up.is_set():
                sink(b"")
                self.writing.set()

        localiser.finish = finish  # type: ignore[method-assign]
        return localiser


def test_a_layout_that_is_long_in_the_making_ends_at_its_next_write_when_its_fill_is_cancelled(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path) as setup:
            setup.format = Endless(16, "int32")
            fill = setup.fills.start(setup.job(1))
            try:
                await until(Endless.writing.is_set, "the layout to be written")
                await asyncio.wait_for(setup.fills.drain(0.0), 30)
            finally:
                Endless.given_up.set()
            assert fill.task.cancelled()
            assert temp_files(setup) == []

    asyncio.run(run())


def test_a_drain_does_not_wait_for_ever(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path) as setup:
            setup.reader.gate.clear()
            demand = setup.fills.start(setup.job(1))
            await setup.reader.started.wait()
            await setup.fills.drain(0.05)
            assert demand.task.cancelled()
            assert temp_files(setup) == []
            assert error_of(setup, key_of(1)) is None

    asyncio.run(run())


def test_a_full_disk_is_a_capacity_error_that_names_the_directory(tmp_path: Path) -> None:
    """CASES 31."""

    async def run() -> None:
        async with rig(tmp_path) as setup:
            setup.reader.failures["1.bin"] = [OSError(errno.ENOSPC, "No space left on device")]
            with pytest.raises(CapacityError, match="full"):
                await setup.fill(1)

    asyncio.run(run())


def test_a_disk_that_others_fill_limits_the_cache_below_its_capacity(tmp_path: Path) -> None:
    """CASES 31."""

    def free_bytes() -> int:
        return 150 * KIB - sum(path.stat().st_size for path in tmp_path.glob("pieces/*/*") if not path.suffix)

    async def run() -> None:
        async with rig(tmp_path, free_bytes=free_bytes) as setup:
            keys = [await setup.fill(number) for number in (1, 2, 3)]
            assert [setup.cache.holds(key) for key in keys] == [False, True, True]

    asyncio.run(run())


@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    asks=st.lists(st.tuples(st.integers(0, 11), st.booleans()), min_size=1, max_size=40),
    capacity_blocks=st.integers(20, 60),
)
def test_used_and_reserved_never_exceed_the_capacity_whatever_is_asked_at_once(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], asks: list[tuple[int, bool]], capacity_blocks: int
) -> None:
    """CASES 30."""
    capacity = capacity_blocks * 4096
    highest = 0

    async def run() -> None:
        nonlocal highest
        async with rig(tmp_path_factory.mktemp("cache"), capacity=capacity, room_wait_seconds=0.0) as setup:
            ledger = setup.cache.ledger

            async def watch() -> None:
                nonlocal highest
                while True:
                    highest = max(highest, ledger.used_bytes + ledger.reserved_bytes)
                    await asyncio.sleep(0)

            watcher = asyncio.ensure_future(watch())
            for number, is_demand in asks:
                size = sizes[number % len(sizes)] * 4096 - 64
                setup.format = Swelling(16, "int32", factor=1 + number % 3)
                if setup.cache.find(key_of(number)) is None:
                    setup.fills.start(setup.job(number, size), before=None if is_demand else 1.0)
                if number % 3 == 0:
                    await asyncio.sleep(0)
            await asyncio.gather(*(f.task for f in list(setup.fills.running.values())), return_exceptions=True)
            watcher.cancel()
            assert ledger.reserved_bytes == 0
            held = [setup.cache.find(key) for key in list(setup.cache.keys())]
            assert sum(entry.blocks for entry in held if entry is not None) == ledger.used_bytes
            assert None not in held

    asyncio.run(run())
    assert highest <= capacity
