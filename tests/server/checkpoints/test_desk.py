"""Saving through the daemon's desk: from the directory that it gives out to the decision at the destination."""

import asyncio
from pathlib import Path

import pytest

from forebay_core.checkpoints.documents import Decision, RankManifest, State, digest_of
from forebay_core.checkpoints.names import METADATA, Attempt, rank_manifest
from forebay_core.checkpoints.protocol import Retention
from forebay_core.errors import AccessDenied, CheckpointDamaged, CheckpointError, ForebayError, SourceUnreachable
from forebay_server.checkpoints.rules import Phase
from tests.server.checkpoints.desks import Rig, attempt, eventually, files_of, rig


def state_of(root: Path, this: Attempt) -> State | None:
    path = root / this.decision
    return Decision.decode(path.read_bytes()).state if path.exists() else None


async def until_uploaded(node: Rig, this: Attempt) -> None:
    await node.until(this, lambda status: status.phase is Phase.UPLOADED)


def test_what_is_sealed_becomes_durable_and_is_whole_at_the_destination(home: Path) -> None:
    async def run() -> None:
        async with rig(home) as node:
            this = await node.save(attempt(100))
            await node.durable(this)
            root = home / "root"
            for name, content in files_of(this, 0).items():
                assert (root / this.key(name)).read_bytes() == content
            manifest = (root / this.key(rank_manifest(0))).read_bytes()
            assert RankManifest.decode(manifest).attempt == this
            found = Decision.decode((root / this.decision).read_bytes())
            assert found == Decision(this, State.COMMITTED, 1, digest_of([manifest]))
            [status] = node.desk.statuses()
            assert (status.phase, status.uploaded_bytes) == (Phase.DURABLE, status.total_bytes)

    asyncio.run(run())


def test_nothing_is_uploaded_before_the_seal_and_metadata_is_last_of_the_data(home: Path) -> None:
    """CASES 38."""

    async def run() -> None:
        async with rig(home, ranks=(0, 1), world_size=2) as node:
            this = attempt(100)
            await node.stage(this)
            assert not (home / "root" / "attempts").exists()
            await node.seal(this)
            await node.durable(this)
            keys = node.root.written()
            last = [this.key(METADATA), this.key(rank_manifest(0)), this.decision]
            assert keys[-3:] == last
            assert keys.index(this.key(rank_manifest(1))) > keys.index(this.key("__1_0.distcp"))

    asyncio.run(run())


@pytest.mark.parametrize("is_conditional", [True, False])
def test_two_nodes_commit_together_whichever_is_first(home: Path, is_conditional: bool) -> None:
    async def run() -> None:
        options = {"world_size": 2, "is_conditional": is_conditional}
        async with (
            rig(home, name="a", ranks=(0,), **options) as first,  # type: ignore[arg-type]
            rig(home, name="b", ranks=(1,), **options) as second,  # type: ignore[arg-type]
        ):
            one, two = attempt(1), attempt(2)
            await first.save(one)
            await until_uploaded(first, one)
            assert not (home / "root" / one.key(METADATA)).exists(), "plain readers would take it for whole"
            assert state_of(home / "root", one) is None
            await second.save(one)
            await second.save(two)
            await until_uploaded(second, two)
            await first.save(two)
            for node in (first, second):
                await node.durable(one)
                await node.durable(two)
            assert state_of(home / "root", one) is state_of(home / "root", two) is State.COMMITTED

    asyncio.run(run())


def test_a_node_that_is_lost_before_its_upload_loses_the_attempt_and_nothing_looks_complete(home: Path) -> None:
    """CASES 38."""

    async def run() -> None:
        async with rig(home, name="a", ranks=(0,), world_size=2) as first:
            lost, newer = attempt(1), attempt(2)
            await first.save(lost)
            await until_uploaded(first, lost)
            async with rig(home, name="b", ranks=(1,), world_size=2) as second:
                await second.save(newer)
                await first.save(newer)
                await first.durable(newer)
                await second.durable(newer)
            status = await first.ended(lost)
            assert status.phase is Phase.FAILED
            assert "1 of 2 ranks" not in str(status.error)
            assert "not whole" in str(status.error)
        assert not (home / "root" / lost.key(METADATA)).exists()
        assert not (home / "root" / lost.key(rank_manifest(0))).exists()

    asyncio.run(run())


def test_a_failure_that_may_heal_is_said_while_it_is_tried_again(home: Path) -> None:
    """CASES 39."""

    async def run() -> None:
        async with rig(home) as node:
            failures: list[ForebayError] = [
                AccessDenied("no right"),
                SourceUnreachable("away"),
                SourceUnreachable("away still"),
            ]
            node.root.fails["__0_0.distcp"] = failures
            this = await node.save(attempt(100))
            said = await node.until(this, lambda status: status.error is not None)
            assert isinstance(said.error, AccessDenied)
            assert not said.phase.is_final
            await node.durable(this)
            assert failures == []
            assert node.desk.statuses()[0].error is None

    asyncio.run(run())


def test_what_arrives_damaged_is_sent_again_and_what_is_damaged_here_is_lost(home: Path) -> None:
    """CASES 46."""

    async def run() -> None:
        async with rig(home) as node:
            node.root.fails["__0_0.distcp"] = [CheckpointDamaged("it did not arrive as it was sent")]
            this = await node.save(attempt(1))
            await node.durable(this)
            node.root.hold()
            this = attempt(2)
            directory = await node.stage(this)
            await node.seal(this)
            path = directory / "__0_0.distcp"
            content = bytearray(path.read_bytes())
            content[-1] ^= 1
            path.write_bytes(content)
            node.root.release()
            status = await node.ended(this)
            assert status.phase is Phase.FAILED
            assert isinstance(status.error, CheckpointDamaged)
            assert "__0_0.distcp" in str(status.error)
            await eventually(lambda: state_of(home / "root", this) is State.ABANDONED)  # other nodes stop waiting

    asyncio.run(run())


def test_an_attempt_that_somebody_decided_against_fails_with_the_reason(home: Path) -> None:
    async def run() -> None:
        async with rig(home) as node:
            this = attempt(1)
            decision = Decision(this, State.ABANDONED, reason="an operator wanted it")
            await node.root.put(this.decision, decision.encode())
            await node.save(this)
            status = await node.ended(this)
            assert status.phase is Phase.FAILED
            assert "an operator wanted it" in str(status.error)

    asyncio.run(run())


def test_a_newer_attempt_supersedes_those_whose_upload_has_not_begun_and_no_others(home: Path) -> None:
    async def run() -> None:
        async with rig(home) as node:
            node.root.hold()
            begun = await node.save(attempt(1))
            await node.root.held.wait()
            kept = await node.save(attempt(2))
            superseded = [await node.save(attempt(3))]
            node.desk.expedite(node.root, kept)
            newest = await node.save(attempt(4), supersedes=True)
            status = await node.ended(superseded[0])
            assert status.phase is Phase.FAILED
            assert newest.name in str(status.error)
            assert status.said_phase == "superseded"
            node.root.release()
            for this in (begun, kept, newest):
                await node.durable(this)
            assert state_of(home / "root", superseded[0]) is State.ABANDONED

    asyncio.run(run())


def test_uploads_go_one_after_another_and_the_one_that_is_waited_for_at_once(home: Path) -> None:
    async def run() -> None:
        async with rig(home) as node:
            node.root.hold()
            first = await node.save(attempt(1))
            await node.root.held.wait()
            second, third = await node.save(attempt(2)), await node.save(attempt(3))
            phases = {status.attempt: status.phase for status in node.desk.statuses()}
            assert phases == {first: Phase.UPLOADING, second: Phase.QUEUED, third: Phase.QUEUED}
            node.desk.expedite(node.root, third)
            await node.until(third, lambda status: status.phase is Phase.UPLOADING)
            node.root.release()
            for this in (first, second, third):
                await node.durable(this)

    asyncio.run(run())


def test_the_retention_that_came_with_the_seal_is_applied_after_the_commit(home: Path) -> None:
    """CASES 43."""

    async def run() -> None:
        async with rig(home) as node:
            saved = []
            for step in range(1, 6):
                saved.append(await node.save(attempt(step), retention=Retention(2, keep_every_steps=2)))
                await node.durable(saved[-1])
            root = home / "root"
            await eventually(lambda: not (root / saved[2].key(METADATA)).exists())
            states = [state_of(root, this) for this in saved]
            kept = State.COMMITTED
            assert states == [State.RETIRED, kept, State.RETIRED, kept, kept]
            assert [(root / this.key(METADATA)).exists() for this in saved] == [False, True, False, True, True]

    asyncio.run(run())


def test_a_failing_retention_does_not_fail_the_checkpoint(home: Path) -> None:
    async def run() -> None:
        async with rig(home) as node:
            first = attempt(1)
            node.root.fails[first.decision] = []
            for this in (first, attempt(2), attempt(3), attempt(4)):
                await node.save(this, retention=Retention(1))
                await node.durable(this)
                node.root.fails[first.decision] = [SourceUnreachable("away")] * (this.step == 2)
            await eventually(lambda: state_of(home / "root", first) is State.RETIRED)

    asyncio.run(run())


def test_a_seal_may_be_repeated_and_so_may_a_begin(home: Path) -> None:
    async def run() -> None:
        async with rig(home) as node:
            this = attempt(1)
            directory = await node.stage(this)
            assert await node.begin(this) == directory
            assert (directory / "__0_0.distcp").exists(), "nothing was removed"
            await asyncio.gather(node.seal(this), node.seal(this))
            await node.durable(this)
            await node.seal(this)
            with pytest.raises(CheckpointError, match="sealed already"):
                await node.begin(this)

    asyncio.run(run())


def test_failures_are_told_of_for_a_while_after_their_files_are_gone(home: Path) -> None:
    """CASES 39."""

    async def run() -> None:
        async with rig(home) as node:
            lost = []
            for step in range(25):
                this = attempt(step)
                decision = Decision(this, State.ABANDONED, reason="so it was")
                await node.root.put(this.decision, decision.encode())
                await node.save(this)
                assert (await node.ended(this)).phase is Phase.FAILED
                lost.append(this)
            attempts = home / "staging-a" / "attempts"
            await eventually(lambda: not attempts.exists() or not list(attempts.glob("*/*")))
            told = [status.attempt for status in node.desk.statuses()]
            assert told == lost[-20:]
            assert node.desk.used_bytes == 0
            assert "so it was" in str((await node.ended(lost[0])).error), "from the destination"

    asyncio.run(run())


def test_a_seal_whose_caller_dies_meanwhile_is_seen_to(home: Path) -> None:
    """CASES 39."""

    async def run() -> None:
        async with rig(home) as node:
            this = attempt(1)
            await node.stage(this)
            sealing = asyncio.create_task(node.seal(this))
            await asyncio.sleep(0)  # it is under way
            sealing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sealing
            await eventually(lambda: state_of(home / "root", this) is State.COMMITTED)

    asyncio.run(run())


def test_what_was_found_damaged_is_not_kept_here_to_restore_from(home: Path) -> None:
    """CASES 46."""

    async def run() -> None:
        async with rig(home) as node:
            this = await node.save(attempt(1))
            await node.durable(this)
            assert node.desk.staged(node.root) == {this: ((0,), 1)}
            await node.desk.decided(node.root, this, State.COMMITTED)
            assert node.desk.staged(node.root) == {this: ((0,), 1)}
            await node.desk.decided(node.root, this, State.QUARANTINED)
            assert node.desk.staged(node.root) == {}
            assert not node.desk.area.directory(node.root.url, this).exists()

    asyncio.run(run())


def test_a_decision_against_an_attempt_ends_its_upload(home: Path) -> None:
    async def run() -> None:
        async with rig(home) as node:
            node.root.hold()
            this = await node.save(attempt(1))
            await node.root.held.wait()
            await node.desk.decided(node.root, this, State.QUARANTINED)
            status = await node.ended(this)
            assert "quarantined" in str(status.error)
            node.root.release()
            assert not node.desk.is_busy
            assert node.root.calls == []

    asyncio.run(run())


def test_a_checkpoint_that_is_retired_before_this_node_has_heard_of_its_commit_was_durable(home: Path) -> None:
    async def run() -> None:
        async with rig(home) as node:
            node.root.hold()
            this = await node.save(attempt(1))
            await node.root.held.wait()
            ended = asyncio.create_task(node.ended(this))
            await asyncio.sleep(0)
            await node.desk.decided(node.root, this, State.RETIRED)
            assert (await ended).phase is Phase.DURABLE
            assert this not in {status.attempt for status in node.desk.statuses()}

    asyncio.run(run())
