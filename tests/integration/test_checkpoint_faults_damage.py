"""A flipped bit and a cut end in every kind of object of a root, at the destination and where it is staged alone."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from forebay_core.checkpoints.documents import Decision, State
from forebay_core.checkpoints.names import Attempt, parse_attempt
from forebay_core.errors import CheckpointDamaged
from tests.integration.mortal_nodes import states
from tests.integration.training import Job, Ran, alone, assert_same
from tests.server.daemons import Daemon, daemon
from tests.support.processes import eventually
from tests.support.proxy import CountingProxy, Fault, Request
from tests.support.seaweedfs import Bucket

SECONDS = 60.0
FILES = ("__0_0.distcp", ".metadata", "ranks/00000.json", "data/00000.json", "objects.pt")


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0x40]) + content[middle + 1 :]


def flip_first(content: bytes) -> bytes:
    return flip(content[:1]) + content[1:]


def cut(content: bytes) -> bytes:
    return content[:-7]


DAMAGES = (flip, cut)
Damage = Callable[[bytes], bytes]


def spoil(path: Path, damage: Damage) -> None:
    """As a disk does, past the rights of the file."""
    modes = {each: each.stat().st_mode for each in (path, path.parent)}
    for each in modes:
        each.chmod(0o700)
    path.write_bytes(damage(path.read_bytes()))
    for each, mode in modes.items():
        each.chmod(mode)


def staged(node: Daemon, step: int) -> Path:
    """The directory of the newest attempt at a step."""
    found = {attempt: path for path in node.cache.glob("staging/attempts/*/*") if (attempt := parse_attempt(path.name))}
    return found[max(each for each in found if each.step == step)]


@pytest.fixture
def job(data: Path, home: Path, address: str) -> Job:
    return Job(f"file://{home}/root", str(data), [address], steps=2, wrap="plain")


def step_of(ran: Ran) -> int | None:
    return None if ran.restored is None else ran.restored.step


def test_damage_to_what_is_staged_alone_costs_that_checkpoint_and_no_wrong_byte(
    home: Path, data: Path, bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    """CASES 38 and 46: the store takes no uploads after the first: the newest is on the node and nowhere else."""

    def refuses(request: Request) -> Fault | None:
        is_upload = request.method in ("PUT", "POST") and "/attempts/" in request.key
        return Fault(status=503, body=b"<Error><Code>SlowDown</Code></Error>") if is_upload else None

    environment = {**os.environ, **bucket.server.environment(endpoint=counting_proxy.endpoint)}
    with daemon(home, env=environment, limit_seconds=200) as node:
        job = Job(bucket.uri("a"), str(data), [str(node.socket)], steps=2, wrap="plain", wait="durable")
        reference = alone(replace(job, root=f"{home}/reference", steps=6))
        alone(replace(job, saves=[1]))
        counting_proxy.fault = refuses
        local = replace(job, saves=[3], wait="local")
        assert step_of(alone(local)) == 1
        bad = set[Attempt]()
        for file in FILES:
            for damage in DAMAGES:
                directory = staged(node, 3)
                bad |= {found} if (found := parse_attempt(directory.name)) else set()
                spoil(directory / file, damage)
                again = alone(local)
                assert step_of(again) == 1, file
                assert_same(again, reference)
        counting_proxy.fault = lambda _: None
        last = alone(replace(job, steps=1))
        assert step_of(last) == 3
        assert_same(last, reference)
        newest = parse_attempt(staged(node, 3).name)
        assert newest is not None
        eventually(lambda: state(bucket, newest) is State.COMMITTED, SECONDS, "the last to be committed")
        # The job finds it when it restores, or the daemon when it tries to upload it.
        assert {state(bucket, each) for each in bad} <= {State.QUARANTINED, State.ABANDONED}


def state(bucket: Bucket, attempt: Attempt) -> State | None:
    key = f"a/{attempt.decision}"
    return Decision.decode(bucket.get(key)).state if key in bucket.keys("a/commits/") else None


def test_damage_to_what_is_staged_costs_nothing_where_the_destination_has_it(home: Path, data: Path) -> None:
    """CASES 46: it is read from there, and the checkpoint stays committed."""
    with daemon(home, limit_seconds=200) as node:
        job = Job(f"file://{home}/root", str(data), [str(node.socket)], steps=1, wrap="plain")
        reference = alone(replace(job, root=f"{home}/reference", steps=12))
        alone(replace(job, saves=[0]))
        for step, (file, damage) in enumerate(((file, damage) for file in FILES for damage in DAMAGES), 1):
            spoil(staged(node, step - 1) / file, damage)
            again = alone(replace(job, saves=[step]))
            assert again.restored is not None
            assert (again.restored.step, again.restored.source) == (step - 1, "durable"), file
            assert_same(again, reference)
        assert set(states(str(node.socket), job.root).values()) == {State.COMMITTED}


def test_damaged_documents_cost_a_checkpoint_at_the_most_and_never_the_job(job: Job, home: Path) -> None:
    """CASES 43 and 46: decisions, generations and ledgers, which say what there is and not what is in it."""
    reference = alone(replace(job, steps=6, saves=[1, 3], restore=None))
    for damage in (cut, flip_first):
        root = copied(home, f"{damage.__name__}-decision")
        older, newest = sorted((root / "commits").iterdir())
        spoil(newest, damage)
        again = alone(replace(job, root=str(root)))
        assert again.restored is not None
        assert (again.restored.step, len(again.restored.notes)) == (1, 1)
        assert f"step 3 of generation 1 was passed over: commits/{newest.name}" in again.restored.notes[0]
        assert_same(again, reference)
        spoil(older, damage)
        with pytest.raises(CheckpointDamaged, match="all checkpoints here are damaged"):
            alone(replace(job, root=str(root)))
    for damage in DAMAGES:
        root = copied(home, f"{damage.__name__}-others")
        for directory in ("generations", "ledger"):
            for path in [each for each in (root / directory).rglob("*") if each.is_file()]:
                spoil(path, damage)
        again = alone(replace(job, root=str(root)))
        assert (step_of(again), again.generation) == (3, 2)
        assert_same(again, reference)
        assert (root / "ledger" / "g000002").is_dir()


def copied(home: Path, name: str) -> Path:
    """Of the job's root, which no daemon has anything staged of."""
    shutil.copytree(home / "root", home / name)
    return home / name


def test_decisions_of_a_newer_forebay_are_no_reason_to_begin_anew(job: Job, home: Path) -> None:
    """CASES 38: who goes back to an older forebay is told so, and loses nothing."""
    alone(replace(job, saves=[1]))
    root = copied(home, "newer")
    (decision,) = (root / "commits").iterdir()
    decision.write_bytes(decision.read_bytes().replace(b'"version":1', b'"version":2'))
    with pytest.raises(CheckpointDamaged, match=r"version 2.*use the forebay that wrote it"):
        alone(replace(job, root=str(root)))
