"""What else goes wrong with checkpoints under a real job: disks that fill, ranks that stop, stores that answer wrongly,
steps that are saved twice, starts that overlap, and what others have put into the root."""

import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from forebay.checkpoint.checkpointer import Checkpointer
from forebay_core.checkpoints.documents import Generation, RankManifest, State
from forebay_core.checkpoints.names import Attempt, generation_key, parse_attempt, rank_manifest
from tests.integration.mortal_nodes import SECONDS, nodes, states, until_clean
from tests.integration.mortal_trainers import Script, Watching, train
from tests.integration.training import Job, alone, assert_same
from tests.server.daemons import daemon
from tests.support.faults import Rule
from tests.support.faults import Script as Faults
from tests.support.filesystems import tmpfs
from tests.support.mortal import MortalRanks
from tests.support.processes import eventually
from tests.support.proxy import CountingProxy, Fault
from tests.support.seaweedfs import Bucket


@pytest.fixture(scope="module")
def mortal() -> Iterator[MortalRanks]:
    with MortalRanks(preload=("tests.integration.mortal_trainers",)) as made:
        yield made


@pytest.fixture
def job(data: Path, home: Path, address: str) -> Job:
    return Job(f"file://{home}/root", str(data), [address], steps=2, wrap="plain")


def pair(home: Path, data: Path, address: str) -> Job:
    """A job of two ranks on one node."""
    return Job(f"file://{home}/root", str(data), [address] * 2, steps=0, batch_size=2)


def test_a_staging_disk_that_fills_in_mid_write_fails_that_save_on_all_ranks_and_no_other(
    mortal: MortalRanks, home: Path, data: Path
) -> None:
    """CASES 31 and 39: there was room when the save began. Nothing is left of it, and the next one is durable."""
    with tmpfs(home / "staging", "12m") as disk, daemon(home, "--staging-dir", str(disk), limit_seconds=200) as node:
        job = replace(pair(home, data, str(node.socket)), options={"on_failure": "warn"})
        deeds = ("arm", "step", "save", "local", "hold on", "step", "save", "durable", "close")
        script = Script(job, str(home / "start"), deeds, pauses={1: r".*/__1_0\.distcp"})
        with mortal.start(2, train, script, directory=home / "start") as start:
            ranks = Watching(script, start)
            ranks.wait("pauses", rank=1)
            fill(disk / "ballast")
            ranks.let_go("paused")
            for rank in (0, 1):
                kind, message = ranks.wait("error", rank=rank)
                assert (kind, "rank 1" in message or "__1_0.distcp" in message) == ("StagingFull", True), message
            eventually(lambda: list(disk.glob("attempts/*/*")) == [], SECONDS, "what was written to go")
            (disk / "ballast").unlink()
            ranks.let_go("on")
            step, _ = ranks.wait("durable")
            assert start.wait(SECONDS) == [0, 0]
    assert (step, len(ranks.said(0, "error"))) == (1, 1)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue


def test_a_rank_that_is_stopped_in_mid_write_fails_the_others_after_the_timeout_and_costs_that_save_alone(
    mortal: MortalRanks, home: Path, data: Path
) -> None:
    """CASES 38 and 41: within torch's own collectives, as a process that is frozen is. The next start goes on."""
    with nodes(home, "a") as (node,):
        job = pair(home, data, node.address)
        deeds = ("step", "save", "durable", "arm", "step", "save", "local", "close", "hold end")
        pauses = {1: r".*/__1_0\.distcp"}
        script = Script(job, str(home / "start"), deeds, pauses=pauses, timeout_seconds=5)
        with mortal.start(2, train, script, directory=home / "start") as start:
            ranks = Watching(script, start)
            ranks.wait("pauses", rank=1)
            start.signal(signal.SIGSTOP, 1)
            kind, message = ranks.wait("error")
            assert (kind, "did not answer for 5 s" in message) == ("CheckpointError", True), message
            ranks.wait("holds")
            assert start.ended == [None, None]
        script = Script(job, str(home / "again"), ("step", "save", "durable", "close"))
        with mortal.start(2, train, script, directory=home / "again") as start:
            ranks = Watching(script, start)
            assert ranks.wait("restored")[0] == 0
            step, newest = ranks.wait("durable")
            assert start.wait(SECONDS) == [0, 0]
        assert step == 1
        until_clean([node], newest)


def test_documents_that_are_written_and_answered_with_errors_are_not_written_twice(
    home: Path, data: Path, bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    """CASES 39 and 45: claims, ledgers and decisions are put if absent, and who is told that it failed has won."""
    applied = Fault(status=500, applied=True)
    script = Faults(
        Rule(applied, method="PUT", key=r"generations/", times=1),
        Rule(Fault(drop=True, applied=True), method="PUT", key=r"ledger/", times=1),
        Rule(applied, method="PUT", key=r"commits/", times=1),
        Rule(Fault(status=503, headers={"Retry-After": "0"}), method="PUT", key=r"/attempts/", times=3),
    )
    environment = {**os.environ, **bucket.server.environment(endpoint=counting_proxy.endpoint)}
    with daemon(home, env=environment) as node:
        job = Job(bucket.uri("a"), str(data), [str(node.socket)], steps=2, wrap="plain")
        reference = alone(replace(job, root=f"{home}/reference", steps=4))
        counting_proxy.fault = script
        first = alone(replace(job, saves=[1]))
        assert (first.generation, script.struck) == (1, 6)
        counting_proxy.fault = lambda _: None
        again = alone(job)
    assert again.restored is not None
    assert (again.restored.step, again.restored.notes, again.generation) == (1, (), 2)
    assert_same(again, reference)
    assert bucket.keys("a/generations/") == [f"a/{generation_key(number)}" for number in (1, 2)]
    assert len(bucket.keys("a/commits/")) == 1


def test_of_a_step_that_is_saved_again_what_was_saved_last_is_restored(job: Job) -> None:
    """CASES 45: whatever their names are drawn to be."""
    model = torch.nn.Linear(1, 1)

    def saver() -> Checkpointer:
        return Checkpointer(job.root, model=model, address=job.addresses[0])

    for last in range(4, 8):
        with saver() as checkpointer:
            checkpointer.restore()
            for value in range(last):
                with torch.no_grad():
                    model.weight.fill_(value)
                handle = checkpointer.save(3, force=True)
                assert handle is not None
                handle.wait("staged", timeout=SECONDS)
        with torch.no_grad():
            model.weight.fill_(-1)
        with saver() as checkpointer:
            assert checkpointer.restore() is not None
            assert model.weight.item() == last - 1


def test_a_restart_while_an_old_upload_runs_saves_its_step_again_and_the_newer_one_counts(
    home: Path, data: Path
) -> None:
    """CASES 45: the older one becomes durable after the newer start has begun, and is not gone back to."""
    with nodes(home, "a") as (node,):
        job = Job(f"file://{home}/root", str(data), [node.address], steps=2, wrap="plain")
        reference = alone(replace(job, root=f"{home}/reference", steps=5))
        alone(replace(job, saves=[0]))
        node.held.touch()
        local = replace(job, options={"on_failure": "warn"}, wait="local")
        alone(replace(local, steps=1, saves=[1]))
        again = alone(replace(local, restore={"step": 0}, steps=1, saves=[1]))
        node.held.unlink()
        root = home / "root"
        eventually(lambda: len(list((root / "commits").iterdir())) == 3, SECONDS, "all to be committed")
        assert set(states(node.address, job.root).values()) == {State.COMMITTED}
        last = alone(job)
        assert last.restored is not None
        assert (last.restored.step, last.restored.generation) == (1, 3)
        assert_same(again, reference)
        assert_same(last, reference)
        until_clean([node], last.restored.attempt)


def test_what_others_put_into_the_root_is_never_taken_for_a_checkpoint(job: Job, home: Path) -> None:
    """CASES 38: neither the newest directory, nor what `latest` names, nor what somebody copied, is gone on from."""
    reference = alone(replace(job, steps=6, saves=[1, 3], restore=None))
    root = home / "root"
    known = {*root.rglob("*")}
    plant(root, max((root / "attempts").iterdir()))
    planted = [path for path in root.rglob("*") if path.is_file() and path not in known]
    before = {path: path.read_bytes() for path in planted}
    again = alone(replace(job, saves=[5], options={"keep_last": 1}))
    assert again.restored is not None
    assert again.restored.step == 3
    assert ["step 902" in note for note in again.restored.notes] == [True], "it claims to be whole, and is not"
    assert_same(again, reference)
    first = min((root / "commits").iterdir()).stem
    eventually(lambda: not (root / "attempts" / first).exists(), SECONDS, "the retention to remove what is ours")
    assert {path: path.read_bytes() for path in planted} == before, "nor is it touched"


def plant(root: Path, ours: Path) -> None:
    """A foreign directory and a file `latest`; copies of a checkpoint under names that are newer, one of them as it
    is, one without its manifest, one half written; and a name that is none."""
    (root / "latest").write_text("g000009-s000000900-0123456789ab")
    (root / "step-1000").mkdir()
    for name in ("model.pt", ".metadata"):
        (root / "step-1000" / name).write_bytes(b"somebody's")
    places = [root / "attempts" / Attempt(9, step, "0123456789ab").name for step in (900, 901, 902)]
    for place in [*places, root / "attempts" / "newest", root / "g000010-s000000903-0123456789ab"]:
        shutil.copytree(ours, place)
    (places[1] / rank_manifest(0)).unlink()
    (places[2] / "__0_0.distcp").unlink()
    renamed = RankManifest.decode((places[2] / rank_manifest(0)).read_bytes())
    attempt = parse_attempt(places[2].name)
    assert attempt is not None
    (places[2] / rank_manifest(0)).write_bytes(replace(renamed, attempt=attempt).encode())
    (root / "generations" / "g000011.json.bak").write_bytes(Generation(11, "x").encode())
