"""Files of an attempt as local files, staged or fetched."""

import asyncio
from pathlib import Path

import pytest

from forebay_core.checkpoints.names import METADATA, Attempt, rank_manifest
from forebay_core.checkpoints.protocol import retire
from forebay_core.checkpoints.requests import Listed
from forebay_core.errors import CheckpointDamaged, CheckpointNotFound, SourceUnreachable
from forebay_server.checkpoints.destinations.driving import drive
from forebay_server.checkpoints.fetching import Fetching
from forebay_server.checkpoints.rules import Phase
from forebay_server.checkpoints.staged import Book
from tests.server.checkpoints.desks import QUICK, Rig, attempt, files_of, rig

DATA = "__0_0.distcp"


async def only_there(node: Rig, step: int = 1) -> Attempt:
    """A durable attempt of which nothing is staged."""
    this = await node.save(attempt(step))
    await node.durable(this)
    await node.desk.drop(node.root.url, this)
    return this


def downloads(node: Rig) -> list[str]:
    return [key for name, key in node.root.calls if name == "download"]


def test_every_rank_gets_one_fetched_file(home: Path) -> None:
    async def run() -> None:
        async with rig(home) as node:
            this = await only_there(node)
            found = await asyncio.gather(*(node.desk.fetch(node.root, this, DATA, 0) for _ in range(8)))
            assert {each.path for each in found} == {found[0].path}
            assert found[0].path.read_bytes() == files_of(this, 0)[DATA]
            assert not found[0].is_staged
            again = await node.desk.fetch(node.root, this, DATA, 0)
            assert again == found[0]
            assert downloads(node) == [this.key(DATA)]

    asyncio.run(run())


def test_what_was_fetched_and_is_dropped_is_fetched_again(home: Path) -> None:
    """It was damaged on this node's disk, say, which says nothing of what is at the destination."""

    async def run() -> None:
        async with rig(home) as node:
            this = await only_there(node)
            found = await node.desk.fetch(node.root, this, DATA, 0)
            found.path.write_bytes(bytes(found.size_bytes))
            node.desk.end_reading(node.root, this)
            assert not await node.desk.drop(node.root.url, this)
            again = await node.desk.fetch(node.root, this, DATA, 0)
            assert again.path.read_bytes() == files_of(this, 0)[DATA]

    asyncio.run(run())


def test_a_commit_between_two_looks_is_not_taken_for_damage(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with rig(home) as node:
            this = await only_there(node)
            head, looks = node.root.head, []

            async def before_it_came(key: str) -> Listed | None:
                looks.append(key)
                return None if len(looks) == 1 else await head(key)

            monkeypatch.setattr(node.root, "head", before_it_came)
            found = await node.desk.fetch(node.root, this, DATA, 0)
            assert found.path.read_bytes() == files_of(this, 0)[DATA]

    asyncio.run(run())


def test_a_failed_fetch_reaches_all_and_the_next_one_tries_again(home: Path) -> None:
    async def run() -> None:
        async with rig(home) as node:
            this = await only_there(node)
            node.root.fails[this.key(DATA)] = [SourceUnreachable("away")] * 3
            asked = [node.desk.fetch(node.root, this, DATA, 0) for _ in range(3)]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert [type(each) for each in answers] == [SourceUnreachable] * 3
            node.root.fails.clear()
            assert (await node.desk.fetch(node.root, this, DATA, 0)).path.exists()
            directory = node.desk.area.fetched(node.root.url, this)
            assert [path.name for path in directory.iterdir() if path.is_file()] == [DATA]

    asyncio.run(run())


def test_a_file_that_is_not_there_yet_is_waited_for(home: Path) -> None:
    async def run() -> None:
        async with (
            rig(home, name="a", ranks=(0,), world_size=2) as owner,
            rig(home, name="b", ranks=(1,), world_size=2) as reader,
        ):
            this = attempt(1)
            with pytest.raises(CheckpointNotFound, match="neither staged here nor at"):
                await reader.desk.fetch(reader.root, this, DATA, 0)
            owner.root.hold()
            waiting = asyncio.create_task(reader.desk.fetch(reader.root, this, DATA, 20))
            await owner.save(this)
            await owner.root.held.wait()
            assert not waiting.done()
            owner.root.release()
            assert (await waiting).path.read_bytes() == files_of(this, 0)[DATA]

    asyncio.run(run())


def test_a_staged_file_is_read_where_it_lies_whatever_its_phase(home: Path) -> None:
    async def run() -> None:
        async with rig(home, ranks=(1,), world_size=2) as node:
            this = attempt(1)
            directory = await node.stage(this)
            with pytest.raises(CheckpointNotFound):
                await node.desk.fetch(node.root, this, "__1_0.distcp", 0)
            await node.seal(this)
            await node.until(this, lambda status: status.phase is Phase.UPLOADED)
            for name in ("__1_0.distcp", rank_manifest(1), METADATA):
                found = await node.desk.fetch(node.root, this, name, 0)
                assert (found.path, found.is_staged) == (directory / name, True)
                assert found.inode == (directory / name).stat().st_ino

    asyncio.run(run())


def test_what_was_retired_meanwhile_is_not_taken_for_damage_and_what_is_committed_is(home: Path) -> None:
    async def run() -> None:
        async with rig(home) as node:
            retired, damaged = await only_there(node, 1), await only_there(node, 2)
            for this in (retired, damaged):
                (home / "root" / this.key(DATA)).unlink()
            await drive(retire(retired), node.root)
            with pytest.raises(CheckpointNotFound, match="is retired: list the checkpoints again"):
                await node.desk.fetch(node.root, retired, DATA, 20)
            with pytest.raises(CheckpointDamaged, match=f"its {DATA} is not there"):
                await node.desk.fetch(node.root, damaged, DATA, 20)

    asyncio.run(run())


def test_fetched_files_go_when_the_reading_ends_or_its_reader_is_silent(home: Path) -> None:
    async def run() -> None:
        async with rig(home) as node:
            this, other = await only_there(node, 1), await only_there(node, 2)
            now = 0.0
            fetching = Fetching(
                Book(lambda: now),
                node.desk.area,
                QUICK,
                room=lambda: 1 << 30,
                clock=lambda: now,
                quiet_seconds=100,
                opening_seconds=10,
            )
            found = await fetching.fetch(node.root, this, DATA, 0)
            forgotten = await fetching.fetch(node.root, other, DATA, 0)
            fetching.end(node.root, this)
            await fetching.look()
            assert found.path.exists(), "its reader may be about to open it"
            now = 11.0
            await fetching.look()
            assert not found.path.exists()
            assert forgotten.path.exists()
            now = 101.0
            await fetching.look()
            assert not forgotten.path.exists()
            await fetching.close()

    asyncio.run(run())


def test_a_fetch_needs_room_on_the_disk_and_not_in_the_quota(home: Path) -> None:
    async def run() -> None:
        async with rig(home, quota_bytes=4000) as node:
            this = await only_there(node)
            held = attempt(2)
            assert await node.begin(held, size_bytes=4000) is not None
            assert (await node.desk.fetch(node.root, this, DATA, 0)).size_bytes == 3000

    asyncio.run(run())


@pytest.mark.parametrize("name", [DATA, METADATA, rank_manifest(0)])
def test_a_staged_file_that_was_cut_or_is_gone_and_is_nowhere_else_is_damage_at_once(home: Path, name: str) -> None:
    """CASES 38 and 46: nobody else can bring it, so that a restore would wait for nothing."""

    async def run() -> None:
        async with rig(home, ranks=(0,), world_size=2) as node:
            node.root.hold()
            this = await node.save(attempt(1))
            await node.root.held.wait()
            path = node.desk.area.directory(node.root.url, this) / name
            path.parent.chmod(0o700)
            path.unlink()
            if name != rank_manifest(0):
                path.write_bytes(b"cut")
            with pytest.raises(CheckpointDamaged, match="not as it was written"):
                await node.desk.fetch(node.root, this, name, 900)
            with pytest.raises(CheckpointNotFound):
                await node.desk.fetch(node.root, this, "__1_0.distcp", 0.01)
            node.root.release()

    asyncio.run(run())
