"""SIGKILL of the daemon at every step of a checkpoint: nothing looks complete that is not, and a successor goes on.

The trainer is dead too once it has sealed: nobody but the successor sees to the upload.
"""

import asyncio
from pathlib import Path

import grpc
import pytest

from forebay_core.checkpoints.documents import Decision, State
from forebay_core.checkpoints.names import METADATA, Attempt, rank_manifest
from forebay_core.checkpoints.protocol import Retention
from forebay_protos.v1 import checkpoints_pb2 as pb
from tests.server import dying_daemon
from tests.server.checkpoints.calls import Ranks, node_of
from tests.server.checkpoints.desks import attempt, eventually, files_of, rig, write
from tests.server.daemons import daemon

UNSEALED = {
    "before staging",
    "the directory of an attempt is about to be made",
    "before sealing",
    "the manifests are kept and the seal is not",
}
IN_RETENTION = {step for step in dying_daemon.CHECKPOINT_STEPS if "retired" in step}


@pytest.mark.parametrize("step", dying_daemon.CHECKPOINT_STEPS)
def test_a_daemon_that_is_killed_leaves_nothing_that_looks_complete_and_its_successor_goes_on(
    home: Path, step: str
) -> None:
    """CASES 38, 39 and 43."""
    saved = [attempt(number) for number in ((1, 2, 3) if step in IN_RETENTION else (1,))]
    program = [str(Path(dying_daemon.__file__)), step]
    flags = ("--staging-dir", str(home / "staging-a"))
    with daemon(home, *flags, program=program) as running, node_of(running.socket, home / "root", (0, 1), 2) as ranks:
        for this in saved:
            try:
                save(ranks, this)
            except grpc.RpcError:
                assert running.process.wait(30) == -9
        assert running.process.wait(30) == -9
    for this in saved:
        check(home / "root", this)
    asyncio.run(check_successor(home, saved, is_sealed=step not in UNSEALED))


def save(ranks: Ranks, this: Attempt) -> None:
    ranks.save(this, retention=pb.Retention(keep_last=2))
    assert ranks.watch(this)[-1].phase == pb.WatchAttemptResponse.PHASE_DURABLE


def check(root: Path, this: Attempt) -> None:
    """`committed` means that everything is there, and so does `.metadata`, but for the manifest that comes after it."""
    expected = {name: content for rank in (0, 1) for name, content in files_of(this, rank).items()}
    path = root / this.decision
    decision = Decision.decode(path.read_bytes()) if path.exists() else None
    is_committed = decision is not None and decision.state is State.COMMITTED
    if is_committed or (root / this.key(METADATA)).exists():
        assert {name: (root / this.key(name)).read_bytes() for name in expected} == expected
        assert (root / this.key(rank_manifest(1))).exists()
    if is_committed:
        assert (root / this.key(rank_manifest(0))).exists()


async def check_successor(home: Path, saved: list[Attempt], *, is_sealed: bool) -> None:
    async with rig(home, ranks=(0, 1), world_size=2) as node:
        this = saved[-1]
        if not is_sealed:  # so the trainer, which lives, repeats its calls
            directory = await node.begin(this)
            assert directory is not None
            await asyncio.to_thread(write, directory, this, node.ranks, node.world_size)
            await node.seal(this, retention=Retention(2))
        await node.durable(this)
        check(home / "root", this)
        newer = [await node.save(attempt(number), retention=Retention(2)) for number in (8, 9)]
        for each in newer:
            await node.durable(each)
        for old in saved:
            await eventually(lambda old=old: not (home / "root" / old.directory).exists())  # type: ignore[misc]
            assert Decision.decode((home / "root" / old.decision).read_bytes()).state is State.RETIRED
        staged = home / "staging-a" / "attempts"
        await eventually(lambda: [path.name for path in staged.glob("*/*")] == [newer[-1].name])
