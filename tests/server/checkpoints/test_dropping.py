"""What is given up while it waits for its upload: whatever the destination says, it takes no room any more."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay_core.checkpoints.documents import Decision, State, digest_of
from forebay_core.checkpoints.names import METADATA, Attempt, rank_manifest
from forebay_core.errors import AccessDenied, CheckpointError, SourceUnreachable
from forebay_server.checkpoints import staged as staged_attempts
from forebay_server.checkpoints import uploads
from forebay_server.checkpoints.destinations import tree
from forebay_server.checkpoints.rules import Phase
from tests.server.checkpoints.desks import Rig, attempt, eventually, rig

DATA = "__0_0.distcp"


def staged(home: Path) -> set[str]:
    return {path.name for what in ("attempts", "state") for path in (home / f"staging-a/{what}").glob("*/*")}


async def hopeless(node: Rig, step: int = 1) -> Attempt:
    """A sealed attempt whose upload fails each time, as everything does at its destination."""
    node.root.fails[""] = [AccessDenied("nobody may")] * 10_000
    this = await node.save(attempt(step))
    await node.until(this, lambda status: status.error is not None)
    return this


def test_one_whose_destination_is_gone_is_removed_at_once_and_no_successor_knows_it(home: Path) -> None:
    async def run() -> None:
        async with rig(home) as node:
            this = await hopeless(node)
            other = await node.stage(attempt(2))
            assert node.desk.used_bytes > 0
            used = node.desk.used_bytes
            async with asyncio.timeout(10):
                assert await node.desk.drop(node.root.url, this)
            assert this.name not in staged(home)
            assert other.exists()
            assert node.desk.used_bytes < used
            [status] = node.desk.statuses()
            assert (status.phase, f"{this.name} was given up" in str(status.error)) == (Phase.FAILED, True)
            assert not await node.desk.drop(node.root.url, this)
        async with rig(home) as successor:
            assert successor.desk.statuses() == []
            assert this.name not in staged(home)

    asyncio.run(run())


def test_the_destination_is_told_as_soon_as_it_answers(home: Path) -> None:
    async def run() -> None:
        async with rig(home) as node:
            this = await hopeless(node)
            await node.desk.drop(node.root.url, this)
            await asyncio.sleep(0.1)
            assert not (home / "root" / this.decision).exists()
            node.root.fails.clear()
            await eventually((home / "root" / this.decision).exists)
            found = Decision.decode((home / "root" / this.decision).read_bytes())
            assert (found.state, f"{this.name} was given up" in found.reason) == (State.ABANDONED, True)

    asyncio.run(run())


def test_in_the_middle_of_its_upload_nothing_more_arrives_and_nothing_is_committed(home: Path) -> None:
    async def run() -> None:
        async with rig(home) as node:
            node.root.hold()
            this = await node.save(attempt(1))
            await node.root.held.wait()
            assert await node.desk.drop(node.root.url, this)
            node.root.release()
            await eventually((home / "root" / this.decision).exists)
            assert Decision.decode((home / "root" / this.decision).read_bytes()).state is State.ABANDONED
            assert not (home / "root" / this.key(rank_manifest(0))).exists()
            later = await node.save(attempt(2))
            await node.durable(later)

    asyncio.run(run())


def test_one_that_another_has_committed_is_durable_without_its_files_here(home: Path) -> None:
    async def run() -> None:
        async with rig(home) as node:
            node.root.fails[METADATA] = [SourceUnreachable("away")] * 10_000
            this = await node.save(attempt(1))
            await node.until(this, lambda status: status.error is not None)
            committed = Decision(this, State.COMMITTED, 1, digest_of([b"of another daemon"]))
            path = home / "root" / this.decision
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(committed.encode())
            await node.desk.drop(node.root.url, this)
            await eventually(lambda: node.desk.statuses()[0].phase is Phase.DURABLE)
            assert staged(home) == set()
            assert Decision.decode(path.read_bytes()) == committed
            assert node.desk.staged(node.root) == {}

    asyncio.run(run())


def test_a_file_system_that_hangs_holds_up_nobody(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy to it cannot be cancelled: the thread that makes it is somewhere in the kernel."""
    monkeypatch.setattr(uploads, "_STOP_SECONDS", 0.2)
    answers = threading.Event()
    copy = tree.Tree.write

    def hanging(*arguments: Any, **options: Any) -> Any:
        answers.wait(60)
        return copy(*arguments, **options)

    async def run() -> None:
        async with rig(home) as node:
            monkeypatch.setattr(tree.Tree, "write", hanging)
            this = await node.save(attempt(1))
            await node.until(this, lambda status: status.phase is Phase.UPLOADING)
            async with asyncio.timeout(10):
                assert await node.desk.drop(node.root.url, this)
            assert staged(home) == set()
            answers.set()
            await eventually((home / "root" / this.decision).exists)
            assert Decision.decode((home / "root" / this.decision).read_bytes()).state is State.ABANDONED

    try:
        asyncio.run(run())
    finally:
        answers.set()


def test_what_has_ended_and_has_no_files_is_told_for_a_while_and_then_forgotten(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_attempts, "_TOLD", 3)

    async def run() -> None:
        async with rig(home) as node:
            dropped = [await hopeless(node, step) for step in range(1, 7)]
            for each in dropped:
                await node.desk.drop(node.root.url, each)
            assert [status.attempt for status in node.desk.statuses()] == dropped[-3:]

    asyncio.run(run())


@pytest.mark.parametrize("which", ["unknown", "begun", "durable"])
def test_what_has_no_upload_to_lose_goes_without_a_word(home: Path, which: str) -> None:
    made: dict[str, Callable[[Rig, Attempt], object]] = {"begun": Rig.stage, "durable": Rig.save}

    async def run() -> None:
        async with rig(home) as node:
            this = attempt(1)
            if which in made:
                await made[which](node, this)  # type: ignore[misc]
            if which == "durable":
                await node.durable(this)
            await node.desk.drop(node.root.url, this)
            assert staged(home) == set()
            assert node.desk.statuses() == []
            assert (home / "root" / this.decision).exists() == (which == "durable")
            with pytest.raises(CheckpointError):
                await node.seal(this)

    asyncio.run(run())
