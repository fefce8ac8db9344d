"""What a fill brings is weighed against what is known of its piece; a changed object is named, or read as a whole."""

import asyncio
import hashlib
import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from forebay_core.errors import BadObject, ObjectChanged
from forebay_server.filling.job import Job
from tests.server.scripted import KIB, Rig, content, key_of, pieces_of_room, rig

SIZE = 64 * KIB


async def fill_evict_and_spoil(setup: Rig, *spoilt: bytes) -> None:
    """Piece 1 was here and left; its object comes as `spoilt` says from then on, one a time, and the last for ever."""
    await setup.fill(1)
    await setup.fill(2)
    assert not setup.cache.holds(key_of(1))
    await setup.cache.in_thread(lambda: setup.cache.digests.get(key_of(1)))
    comes(setup, *spoilt)


def comes(setup: Rig, *bodies: bytes) -> None:
    stream, left = setup.reader.stream, list(bodies)

    async def next_body(*arguments: object) -> None:
        setup.reader.objects["1.bin"] = left.pop(0) if len(left) > 1 else left[0]
        await stream(*arguments)  # type: ignore[arg-type]

    setup.reader.stream = next_body  # type: ignore[method-assign, assignment]


def test_a_refill_with_other_bytes_than_before_is_made_once_more(tmp_path: Path) -> None:
    """A transfer that went wrong unnoticed does not stay. CASES 26."""

    async def run() -> None:
        async with rig(tmp_path, capacity=pieces_of_room(1)) as setup:
            await fill_evict_and_spoil(setup, b"\0" * SIZE, content(1, SIZE))
            key = await setup.fill(1)
            assert setup.disk.path(key).read_bytes() == content(1, SIZE)
            assert setup.fills.counters.disputed == 1
            assert list((tmp_path / "tmp").iterdir()) == []

    asyncio.run(run())


def test_a_refill_that_comes_with_the_same_other_bytes_twice_is_believed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with rig(tmp_path, capacity=pieces_of_room(1)) as setup:
            await fill_evict_and_spoil(setup, b"\1" * SIZE)
            key = await setup.fill(1)
            assert setup.disk.path(key).read_bytes() == b"\1" * SIZE

    asyncio.run(run())
    assert "s3://bucket/1.bin" in caplog.text
    assert "they are believed" in caplog.text


def test_a_refill_with_other_bytes_each_time_is_a_bad_object_and_leaves_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path, capacity=pieces_of_room(1)) as setup:
            await fill_evict_and_spoil(setup, b"\1" * SIZE, b"\2" * SIZE)
            with pytest.raises(BadObject, match=r"s3://bucket/1\.bin .*fetched twice .*other bytes each time"):
                await setup.fill(1)
            assert list((tmp_path / "tmp").iterdir()) == []
            assert setup.cache.ledger.reserved_bytes == 0

    asyncio.run(run())


def test_a_whole_object_is_checked_against_the_md5_that_its_version_says(tmp_path: Path) -> None:
    """The first fill too, where nothing else is known. CASES 26."""

    async def run() -> None:
        async with rig(tmp_path) as setup:
            job = replace(setup.job(1, SIZE), md5=hashlib.md5(content(1, SIZE)).hexdigest())
            comes(setup, b"\0" * SIZE, content(1, SIZE))
            await setup.fills.start(job).task
            assert setup.disk.path(job.key).read_bytes() == content(1, SIZE)
            assert setup.fills.counters.disputed == 1

    asyncio.run(run())


def test_a_part_of_an_object_is_not_held_against_the_md5_of_the_whole(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path) as setup:
            job = setup.job(1, SIZE)
            half = replace(job.piece, cut=replace(job.piece.cut, stop=SIZE // 2, rows=SIZE // 128, units=SIZE // 128))
            await setup.fills.start(replace(job, piece=half, md5="0" * 32)).task
            assert setup.fills.counters.disputed == 0

    asyncio.run(run())


def origin(setup: Rig) -> dict[str, object]:
    sidecar = setup.disk.path(key_of(1)).with_name(f"{key_of(1)}.json")
    found: dict[str, object] = json.loads(sidecar.read_text())["origin"]
    return found


def changed_job(setup: Rig, body: bytes) -> Job:
    job = setup.job(1, SIZE)
    setup.reader.objects["1.bin"], setup.reader.versions["1.bin"] = body, "v2"
    return job


def test_without_leave_a_changed_object_is_an_error_that_names_both_versions(tmp_path: Path) -> None:
    """CASES 27."""

    async def run() -> None:
        async with rig(tmp_path) as setup:
            with pytest.raises(ObjectChanged, match=r"1\.bin has changed.* version v1, it is v2 now"):
                await setup.fills.start(changed_job(setup, b"\1" * SIZE)).task

    asyncio.run(run())


def test_with_leave_a_changed_object_of_the_same_size_is_read_at_its_present_version_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And a daemon without leave does not use what was read so. CASES 27."""
    caplog.set_level(logging.WARNING)

    async def run() -> None:
        async with rig(tmp_path, allow_changed=True) as setup:
            job = changed_job(setup, b"\1" * SIZE)
            await setup.fills.start(job).task
            assert setup.disk.path(job.key).read_bytes() == b"\1" * SIZE
            assert (origin(setup)["version"], origin(setup)["instead_of"]) == ("v2", "v1")
            assert setup.fills.changes.objects == 1
        async with rig(tmp_path, allow_changed=True) as setup:
            assert setup.cache.find(key_of(1)) is not None
        async with rig(tmp_path, reconcile=False) as setup:
            assert setup.cache.find(key_of(1)) is None
            await setup.cache.reconcile()
            assert len(setup.cache) == 0
            assert not setup.disk.path(key_of(1)).exists()

    asyncio.run(run())
    assert len([record for record in caplog.records if "is read at version v2, not v1" in record.message]) == 1


def test_with_leave_a_changed_object_of_another_size_stays_an_error(tmp_path: Path) -> None:
    """CASES 27."""

    async def run() -> None:
        async with rig(tmp_path, allow_changed=True) as setup:
            says = rf"is {SIZE + 64} bytes long now, not {SIZE} \(version v1, v2 now\)"
            with pytest.raises(ObjectChanged, match=says):
                await setup.fills.start(changed_job(setup, b"\1" * (SIZE + 64))).task
            assert setup.fills.changes.objects == 0

    asyncio.run(run())


def test_an_object_that_changes_again_while_it_is_read_at_its_present_version_is_never_a_mixture(
    tmp_path: Path,
) -> None:
    """CASES 27."""

    async def run() -> None:
        async with rig(tmp_path, allow_changed=True) as setup:
            job = changed_job(setup, b"\1" * SIZE)
            setup.reader.gate.clear()
            fill = setup.fills.start(job)
            await setup.reader.started.wait()
            setup.reader.objects["1.bin"], setup.reader.versions["1.bin"] = b"\2" * SIZE, "v3"
            setup.reader.gate.set()
            await fill.task
            assert setup.disk.path(job.key).read_bytes() == b"\2" * SIZE
            assert origin(setup)["version"] == "v3"

    asyncio.run(run())
