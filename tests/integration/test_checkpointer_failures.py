"""Saving when something goes wrong: no room, a store that is away, ranks that are slow, stuck or gone, sudden ends."""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import forebay
from forebay.checkpoint.calling import Calls
from forebay.checkpoint.checkpointer import Checkpointer
from forebay.daemon.client import DaemonClient
from forebay_core.checkpoints.documents import State
from tests.integration.training import Job, Net, alone, loader_of
from tests.server.daemons import daemon
from tests.support.processes import Process, eventually
from tests.support.proxy import CountingProxy, Fault, Request
from tests.support.ranks import Ranks
from tests.support.seaweedfs import Bucket

SECONDS = 60.0


@pytest.fixture
def root(home: Path) -> str:
    return f"file://{home}/root"


def made(root: str, address: str, **options: Any) -> tuple[Checkpointer, nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(5)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return Checkpointer(root, model=model, optimizer=optimizer, address=address, **options), model, optimizer


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.arange(4.0)).sum().backward()
    optimizer.step()


def copied(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_saves_back_to_back_each_hold_their_own_step_while_training_goes_on(root: str, address: str) -> None:
    """T2, T11, CASES 40: the copy of one is not overwritten by the next, nor by a step that follows at once."""
    checkpointer, model, optimizer = made(root, address)
    kept = {}
    with checkpointer:
        for number in range(4):
            step(model, optimizer)
            kept[number] = copied(model)
            handle = checkpointer.save(number, force=True)
            assert handle is not None
            step(model, optimizer)
            assert not torch.equal(model.state_dict()["first.weight"], kept[number]["first.weight"])
        for each in checkpointer.pending:
            each.wait("durable", timeout=SECONDS)
    again, model, _ = made(root, address)
    with again:
        for number, expected in kept.items():
            restored = again.restore(step=number)
            assert restored is not None
            for name, tensor in model.state_dict().items():
                assert torch.equal(tensor, expected[name]), (number, name)


class Wide(nn.Module):
    """Takes a while to copy."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(12_000_000))
        self.weight.grad = torch.ones_like(self.weight)


def test_a_step_that_follows_a_save_at_once_waits_for_the_copy_and_the_wait_is_counted(root: str, address: str) -> None:
    """T11: the weights that are saved are those of one step."""
    model = Wide()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with Checkpointer(root, model=model, optimizer=optimizer, address=address) as checkpointer:
        for number in range(3):
            optimizer.step()
            handle = checkpointer.save(number, force=True)
            assert handle is not None
            in_save = handle.blocked_seconds
            optimizer.step()
            assert handle.blocked_seconds > in_save
        for number in range(3):
            checkpointer.restore(step=number)
            assert bool((model.weight == -1.0 - 2 * number).all())


def test_weights_that_are_changed_without_an_optimizers_step_wait_for_the_copy_with_wait_staged(
    root: str, address: str
) -> None:
    model = Wide()
    with Checkpointer(root, model=model, address=address) as checkpointer, torch.no_grad():
        for number in range(4):
            checkpointer.save(number, force=True)
            checkpointer.wait_staged()
            model.weight.add_(1)
        for number in range(4):
            checkpointer.restore(step=number)
            assert bool((model.weight == number).all())


def test_without_room_in_staging_a_checkpoint_fails_loudly_or_is_left_out_as_chosen(
    home: Path, data: Path, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    """CASES 39: the failure comes out of the loader's next step, not only at the next save."""
    with daemon(home, "--staging-dir", f"{home}/staging:64KiB", name="small") as node:
        job = Job(root, str(data), [str(node.socket)], steps=1, wrap="plain")
        with closing(loader_of(job, 0)) as loader:
            checkpointer, model, optimizer = made(root, str(node.socket), loader=loader, when_full="fail")
            batches = iter(loader)
            next(batches)
            step(model, optimizer)
            handle = checkpointer.save(0, force=True)
            assert handle is not None
            with pytest.raises(forebay.StagingFull):
                handle.wait("local", timeout=SECONDS)
            assert handle.staged_seconds is not None
            with pytest.raises(forebay.StagingFull, match="65536"):
                next(batches)
            next(batches)
            checkpointer.close()


def test_a_job_that_ends_before_its_uploads_says_which_are_left_and_what_they_meet(
    home: Path, root: str, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A daemon that outlives the job is not waited for: nobody would hear otherwise that nothing was ever uploaded."""
    checkpointer, model, optimizer = made(root, address)
    with checkpointer:
        checkpointer.restore()
        (home / "root/attempts").write_text("in the way of every upload")
        for number in range(2):
            step(model, optimizer)
            checkpointer.save(number, force=True)
        handles = checkpointer.pending
        for handle in handles:
            handle.wait("local", timeout=SECONDS)
        uploads = checkpointer._calls.uploads
        eventually(lambda: any(each.error_message for each in uploads().values()), SECONDS, "a try that failed")
    said = [each.getMessage() for each in caplog.records if "is not durable yet" in each.getMessage()]
    assert [line.partition(" is not")[0] for line in said] == ["step 0", "step 1"]
    assert all("is in the way" in line and "the daemon goes on trying" in line for line in said)
    assert len(said) == len(caplog.records)
    for handle in handles:
        with pytest.raises(forebay.CheckpointError, match=f"closed before.*forebay checkpoints ls {root}"):
            handle.wait("durable", timeout=SECONDS)
    (home / "root/attempts").unlink()


def test_who_waits_long_until_all_is_durable_is_told_why(
    home: Path, root: str, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As every job does whose daemon does not outlive it: what never becomes durable is waited for without an end."""
    checkpointer, model, optimizer = made(root, address)
    checkpointer.restore()
    (home / "root/attempts").write_text("in the way of every upload")
    step(model, optimizer)
    checkpointer.save(3, force=True)

    def unblock() -> None:
        eventually(lambda: "is in the way" in caplog.text, SECONDS, "a line while close() waits")
        (home / "root/attempts").unlink()

    repairing = threading.Thread(target=unblock)
    repairing.start()
    checkpointer.close(wait="durable", timeout=SECONDS)
    repairing.join()
    (said,) = [each.getMessage() for each in caplog.records]
    assert said.startswith("step 3 is not durable yet: AccessDenied: ")


def test_a_job_whose_checkpoints_are_durable_has_nothing_to_say_when_it_ends(
    root: str, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer, model, optimizer = made(root, address)
    with checkpointer:
        step(model, optimizer)
        handle = checkpointer.save(0, force=True)
        assert handle is not None
        handle.wait("durable", timeout=SECONDS)
    assert not caplog.records


def test_a_restart_on_the_same_node_needs_no_store_that_takes_uploads(
    home: Path, data: Path, bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    """A checkpoint that is local and nowhere else yet is gone on from, and becomes durable when the store is back."""

    def refuses(request: Request) -> Fault | None:
        is_upload = request.method in ("PUT", "POST") and "/attempts/" in request.key
        return Fault(status=503, body=b"<Error><Code>SlowDown</Code></Error>") if is_upload else None

    environment = {**os.environ, **bucket.server.environment(), "AWS_ENDPOINT_URL": counting_proxy.endpoint}
    with daemon(home, name="d3", env=environment) as node:
        job = Job(bucket.uri("a"), str(data), [str(node.socket)], steps=3, saves=[1], wrap="plain", wait="local")
        counting_proxy.fault = refuses
        first = alone(job)
        again = alone(replace(job, steps=2, saves=[]))
        assert again.restored is not None
        assert (again.restored.step, again.restored.source) == (1, "local")
        assert again.losses[2] == first.losses[2]
        counting_proxy.fault = lambda _: None
        calls = Calls(DaemonClient(str(node.socket)), job.root)
        eventually(
            lambda: calls.listing().checkpoints[0].state == State.COMMITTED, SECONDS, "the upload to be committed"
        )


def test_a_restart_of_the_daemon_while_the_store_is_away_fails_no_save(
    home: Path, bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    """The daemon is asked again, and nothing of the store: its upload goes on until that works."""
    denied = Fault(status=403, body=b"<Error><Code>AccessDenied</Code></Error>")
    environment = {**os.environ, **bucket.server.environment(), "AWS_ENDPOINT_URL": counting_proxy.endpoint}
    with daemon(home, name="d5", env=environment) as node:
        checkpointer, model, optimizer = made(bucket.uri("a"), str(node.socket))
        checkpointer.restore()
        counting_proxy.fault = lambda request: denied if "/attempts/" in request.key else None
        step(model, optimizer)
        handle = checkpointer.save(1, force=True)
        assert handle is not None
        handle.wait("local", timeout=SECONDS)
        counting_proxy.fault = lambda _: denied
    with daemon(home, name="d5", env=environment), checkpointer:
        uploads = checkpointer._calls.uploads
        eventually(lambda: any(each.error_message for each in uploads().values()), SECONDS, "a try that failed")
        with pytest.raises(TimeoutError):
            handle.wait("durable", timeout=3)
        checkpointer.poll()
        counting_proxy.fault = lambda _: None
        handle.wait("durable", timeout=SECONDS)


def test_a_backlog_of_uploads_skips_those_that_newer_ones_make_needless_and_that_is_no_failure(
    home: Path, bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    def refuses(request: Request) -> Fault | None:
        is_upload = request.method in ("PUT", "POST") and "/attempts/" in request.key
        return Fault(status=503, body=b"<Error><Code>SlowDown</Code></Error>") if is_upload else None

    environment = {**os.environ, **bucket.server.environment(), "AWS_ENDPOINT_URL": counting_proxy.endpoint}
    with daemon(home, name="d4", env=environment) as node:
        counting_proxy.fault = refuses
        checkpointer, model, optimizer = made(bucket.uri("a"), str(node.socket), save_every_steps=1)
        with checkpointer:
            handles = []
            for number in range(1, 5):
                step(model, optimizer)
                handle = checkpointer.save(number)
                assert handle is not None
                handle.wait("local", timeout=SECONDS)
                handles.append(handle)
            for handle in handles[1:3]:
                with pytest.raises(forebay.CheckpointError, match="superseded by"):
                    handle.wait("durable", timeout=SECONDS)
            checkpointer.poll()
            counting_proxy.fault = lambda _: None
            for handle in (handles[0], handles[3]):
                handle.wait("durable", timeout=SECONDS)


def save_another_step(rank: int, root: str, address: str) -> str:
    checkpointer, model, optimizer = made(root, address)
    checkpointer.restore()
    step(model, optimizer)
    try:
        handle = checkpointer.save(1 + rank, force=True)
        assert handle is not None
        handle.wait("local", timeout=SECONDS)
    except forebay.CheckpointError as error:
        return str(error)
    finally:
        with pytest.raises(forebay.CheckpointError):
            checkpointer.close()
    return ""


def test_ranks_that_save_different_steps_are_told_and_nothing_is_kept(root: str, address: str, ranks: Ranks) -> None:
    """CASES 40"""
    for said in ranks.run(2, save_another_step, root, address):
        assert "all ranks must call save() for the same steps" in said
    assert committed(root, address) == []


@contextmanager
def trainer(home: Path, name: str, options: dict[str, Any], env: Mapping[str, str] | None = None) -> Iterator[Process]:
    program = [sys.executable, "-W", "error", "-m", "tests.integration.checkpoint_trainers", name, json.dumps(options)]
    number = len(list(home.glob("trainer-*")))
    environment = {**os.environ, **(env or {})}
    with Process(program, log=home / f"trainer-{number}.log", limit_seconds=100, env=environment) as process:
        yield process


def committed(root: str, address: str) -> list[int]:
    calls = Calls(DaemonClient(address), root)
    return [each.attempt.step for each in calls.listing().checkpoints if each.is_committed]


def test_what_is_local_becomes_durable_though_its_trainer_is_killed_at_that_moment(
    home: Path, root: str, address: str
) -> None:
    """CASES 39, T13: who uploads is no child of the trainer."""
    with trainer(home, "killed_when_local", {"root": root, "address": address}) as process:
        assert process.wait(SECONDS) == -signal.SIGKILL, process.output()
    eventually(lambda: committed(root, address) == [5], SECONDS, "the daemon to finish")


def test_an_exit_right_after_a_save_loses_nothing_and_says_what_it_waited_for(
    home: Path, root: str, address: str
) -> None:
    """T7, CASES 39"""
    with trainer(home, "leaves_at_once", {"root": root, "address": address}) as process:
        assert process.wait(SECONDS) == 0, process.output()
    assert "ends without close()" in process.output()
    eventually(lambda: committed(root, address) == [7], SECONDS, "the daemon to finish")


def test_a_failure_that_nobody_was_told_of_is_said_at_the_exit(home: Path, root: str) -> None:
    """T7, CASES 39"""
    with daemon(home, "--staging-dir", f"{home}/staging:64KiB", name="small") as node:
        options = {"root": root, "address": str(node.socket), "on_failure": "warn"}
        with trainer(home, "leaves_at_once", options) as process:
            assert process.wait(SECONDS) == 0, process.output()
    assert "a checkpoint failed, and nobody was told by an exception: step 7" in process.output()


def test_a_rank_that_dies_fails_the_save_of_the_others_at_once(home: Path, root: str, address: str) -> None:
    options = {"root": root, "address": address, "store": f"file://{home}/store", "dies": True}
    with (
        trainer(home, "rank", options, {"RANK": "0"}) as first,
        trainer(home, "rank", options, {"RANK": "1"}) as second,
    ):
        assert second.wait(SECONDS) == 9
        first.wait(45)
    assert "a rank has ended, or did not answer" in first.output()


def test_sigterm_to_one_rank_makes_all_save_the_same_step_and_leave_as_told(
    home: Path, root: str, address: str
) -> None:
    options = {"root": root, "address": address, "store": f"file://{home}/store", "stops": True}
    with (
        trainer(home, "rank", options, {"RANK": "0"}) as first,
        trainer(home, "rank", options, {"RANK": "1"}) as second,
    ):
        eventually(lambda: '"trains"' in first.output(), SECONDS, "training to begin")
        second.signal(signal.SIGTERM)
        assert (first.wait(SECONDS), second.wait(SECONDS)) == (143, 143), first.output() + second.output()
    assert len(committed(root, address)) == 1
    (said,) = {line for each in (first, second) for line in each.output().splitlines() if "told to stop" in line}
    assert f"step {committed(root, address)[0]} is saved, durable" in said


class Gate:
    """Files by which one rank lets another go on."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)

    def open(self) -> None:
        (self._directory / "open").touch()

    def wait(self) -> None:
        eventually((self._directory / "open").exists, SECONDS, "the other rank")


def one_is_stuck(rank: int, root: str, address: str, directory: str) -> str:
    checkpointer, model, optimizer = made(root, address, timeout_seconds=2.0)
    checkpointer.restore()
    step(model, optimizer)
    if rank == 1:
        Gate(directory).wait()
        with pytest.raises(forebay.CheckpointError):
            checkpointer.save(1, force=True).wait("local", timeout=SECONDS)  # type: ignore[union-attr]
        with pytest.raises(forebay.CheckpointError):
            checkpointer.close()
        return ""
    handle = checkpointer.save(1, force=True)
    assert handle is not None
    try:
        handle.wait("local", timeout=SECONDS)
    except forebay.CheckpointError as error:
        with pytest.raises(forebay.CheckpointError):
            checkpointer.save(2, force=True)
        checkpointer.close()
        return str(error)
    finally:
        Gate(directory).open()
    return ""


def test_a_rank_that_is_stuck_fails_the_save_of_the_others_after_the_timeout(
    home: Path, root: str, address: str, ranks: Ranks
) -> None:
    """CASES 41"""
    said, _ = ranks.run(2, one_is_stuck, root, address, str(home))
    assert "did not answer for 2 s" in said


def one_is_slow(rank: int, root: str, address: str, directory: str) -> int:
    """Rank 1 comes to its save when rank 0 has trained on with collectives of its own: different groups."""
    checkpointer, model, optimizer = made(root, address)
    with checkpointer:
        checkpointer.restore()
        steps = 0
        if rank == 1:
            Gate(directory).wait()
        handle = checkpointer.save(1, force=True)
        assert handle is not None
        if rank == 0:
            assert not handle.local.done()
            Gate(directory).open()
        for _ in range(20):
            torch.distributed.all_reduce(torch.ones(3))
            step(model, optimizer)
            steps += 1
        handle.wait("durable", timeout=SECONDS)
    return steps


def test_a_slow_rank_holds_up_a_save_and_no_collective_of_training_meets_those_of_saves(
    home: Path, root: str, address: str, ranks: Ranks
) -> None:
    """CASES 41, T6"""
    assert ranks.run(2, one_is_slow, root, address, str(home)) == [20, 20]
