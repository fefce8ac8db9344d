"""What a daemon finds in its staging directory when it starts, and what it makes of it."""

import asyncio
import shutil
from pathlib import Path

import pytest

from forebay_core.checkpoints.documents import Decision, State
from forebay_core.checkpoints.names import METADATA, Attempt, rank_manifest
from forebay_core.errors import CheckpointDamaged, CheckpointNotFound, SourceUnreachable
from forebay_server.checkpoints.rules import Phase
from tests.server.checkpoints.desks import attempt, eventually, files_of, rig

DATA = "__0_0.distcp"


def staging(home: Path, what: str) -> set[str]:
    return {path.name for path in (home / "staging-a" / what).glob("*/*")}


async def interrupted(home: Path, *, steps: int = 1, after: int = 0) -> list[Attempt]:
    """Sealed attempts whose daemon ended in the upload, the first `after` objects of which had arrived."""
    async with rig(home, ranks=(0, 1), world_size=2) as node:
        node.root.fails[METADATA] = [SourceUnreachable("away")] * 1000
        if not after:
            node.root.hold()
        saved = [await node.save(attempt(step)) for step in range(1, steps + 1)]
        await eventually(lambda: len(node.root.calls) >= after)
    return saved


def test_an_upload_that_was_cut_short_goes_on_and_what_is_verified_there_is_not_sent_again(home: Path) -> None:
    """CASES 39."""

    async def run() -> None:
        [this] = await interrupted(home, after=5)  # both ranks' files, and rank 1's manifest
        assert not (home / "root" / this.decision).exists()
        async with rig(home, ranks=(0, 1), world_size=2) as successor:
            await successor.durable(this)
            assert this.key("__1_0.distcp") not in successor.root.written()
            assert this.key(DATA) in successor.root.written()
        for rank in (0, 1):
            for name, content in files_of(this, rank).items():
                assert (home / "root" / this.key(name)).read_bytes() == content

    asyncio.run(run())


def test_all_that_were_sealed_are_uploaded_in_their_order(home: Path) -> None:
    async def run() -> None:
        saved = await interrupted(home, steps=3)
        async with rig(home, ranks=(0, 1), world_size=2) as successor:
            for this in saved:
                await successor.durable(this)
            keys = [key for key in successor.root.written() if key.endswith(DATA)]
            assert keys == [this.key(DATA) for this in saved]

    asyncio.run(run())


def test_a_durable_copy_is_found_again_and_not_uploaded_again(home: Path) -> None:
    async def run() -> None:
        async with rig(home) as node:
            this = await node.save(attempt(1))
            await node.durable(this)
        async with rig(home) as successor:
            [status] = successor.desk.statuses()
            assert (status.attempt, status.phase) == (this, Phase.DURABLE)
            assert (await successor.desk.fetch(successor.root, this, DATA, 0)).is_staged
            assert successor.root.calls == []

    asyncio.run(run())


def test_after_a_power_loss_staged_files_are_verified_and_a_damaged_one_is_never_uploaded(home: Path) -> None:
    """CASES 38 and 46."""

    async def run() -> None:
        async with rig(home) as node:
            node.root.hold()
            first = await node.save(attempt(1))  # is synced, and waits in its upload
            await node.root.held.wait()
            node.root.fails[first.key(DATA)] = [SourceUnreachable("away")] * 1000
            whole, damaged = await node.save(attempt(2)), await node.save(attempt(3))
        [path] = (home / "staging-a" / "attempts").glob(f"*/{damaged.name}/{DATA}")
        path.write_bytes(bytes(path.stat().st_size))
        async with rig(home, boot="another-boot") as successor:
            for this in (first, whole):
                await successor.durable(this)
            status = await successor.ended(damaged)
            assert isinstance(status.error, CheckpointDamaged)
            assert DATA in str(status.error)
            assert not [key for key in successor.root.asked if key.startswith(damaged.directory)]
            decided = home / "root" / damaged.decision
            await eventually(
                lambda: decided.exists() and Decision.decode(decided.read_bytes()).state is State.ABANDONED
            )
            await eventually(lambda: damaged.name not in staging(home, "attempts"))

    asyncio.run(run())


def test_after_a_power_loss_nothing_is_read_here_before_it_is_verified(home: Path) -> None:
    """CASES 46."""

    async def run() -> None:
        async with rig(home) as node:
            node.root.hold()
            first = await node.save(attempt(1))
            await node.root.held.wait()
            this = await node.save(attempt(2))
        async with rig(home, boot="another-boot") as successor:
            successor.root.hold()
            await successor.root.held.wait()
            assert set(successor.desk.staged(successor.root)) == {first}, "it was synced"
            with pytest.raises(CheckpointNotFound):
                await successor.desk.fetch(successor.root, this, DATA, 0)
            successor.desk.expedite(successor.root, this)
            await successor.until(this, lambda status: status.phase is Phase.UPLOADING)
            assert (await successor.desk.fetch(successor.root, this, DATA, 0)).is_staged
            successor.root.release()
            await successor.durable(this)

    asyncio.run(run())


def test_an_attempt_that_is_being_written_outlives_the_daemon(home: Path) -> None:
    async def run() -> None:
        async with rig(home) as node:
            this = attempt(1)
            directory = await node.stage(this)
        async with rig(home) as successor:
            assert (directory / DATA).exists()
            assert await successor.begin(this) == directory
            await successor.seal(this)
            await successor.durable(this)

    asyncio.run(run())


def test_what_belongs_to_no_attempt_is_removed_at_the_start(home: Path) -> None:
    async def run() -> None:
        async with rig(home) as node:
            this = await node.save(attempt(1))
            await node.durable(this)
            await node.desk.drop(node.root.url, this)
            await node.desk.fetch(node.root, this, DATA, 0)
            assert staging(home, "fetched") == {this.name}
            begun = attempt(2)
            directory = await node.stage(begun)
        for path in (home / "staging-a" / "state").glob(f"*/{begun.name}/*"):
            path.unlink()
        async with rig(home):
            assert not directory.exists()
            for what in ("attempts", "state", "fetched"):
                assert staging(home, what) == set()

    asyncio.run(run())


def test_an_upload_is_discarded_by_removing_its_state_while_no_daemon_runs(home: Path) -> None:
    async def run() -> None:
        hopeless, other = await interrupted(home, steps=2)
        [notes] = (home / "staging-a" / "state").glob(f"*/{hopeless.name}")
        shutil.rmtree(notes)
        async with rig(home, ranks=(0, 1), world_size=2) as successor:
            await successor.durable(other)
            assert staging(home, "attempts") == staging(home, "state") == {other.name}
            assert not (home / "root" / hopeless.decision).exists()

    asyncio.run(run())


def test_what_cannot_be_removed_at_the_start_holds_up_no_upload(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    """CASES 39."""

    async def run() -> None:
        [this] = await interrupted(home)
        (home / "staging-a" / "fetched" / "strange").write_bytes(b"a file")
        (home / "staging-a" / "attempts" / ("0" * 32)).mkdir()
        (home / "staging-a" / "attempts" / ("0" * 32) / attempt(7).name).write_bytes(b"a file")
        async with rig(home, ranks=(0, 1), world_size=2) as successor:
            await successor.durable(this)
        assert "strange is of no checkpoint and cannot be removed" in caplog.text

    asyncio.run(run())


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"attempt": "../x"}', b'{"version": 99}'])
def test_a_record_that_cannot_be_read_harms_no_other_and_its_files_stay(
    home: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    async def run() -> None:
        spoilt, this = await interrupted(home, steps=2)
        for path in (home / "staging-a" / "state").glob(f"*/{spoilt.name}/seal.json"):
            path.write_bytes(content)
        async with rig(home, ranks=(0, 1), world_size=2) as successor:
            await successor.durable(this)
            area, url = successor.desk.area, successor.root.url
            assert area.directory(url, this).exists()
            assert (area.directory(url, spoilt) / DATA).exists()
            assert f"{spoilt.name}/seal.json cannot be read" in caplog.text

    asyncio.run(run())


def test_a_manifest_that_was_lost_with_its_disk_loses_the_attempt_and_says_so(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        [this] = await interrupted(home)
        for path in (home / "staging-a" / "state").glob(f"*/{this.name}/00001.json"):
            path.write_bytes(b"{}")
        async with rig(home, ranks=(0, 1), world_size=2) as successor:
            assert successor.desk.statuses() == []
        assert this.name in caplog.text
        assert not (home / "root" / this.key(rank_manifest(0))).exists()

    asyncio.run(run())
