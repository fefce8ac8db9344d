"""How trainers with workers end: told to stop, in the middle of an epoch, killed, with workers that are stuck."""

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import Process, eventually

SECONDS = 60.0


@contextmanager
def trainer(home: Path, name: str, options: dict[str, Any], env: Mapping[str, str] | None = None) -> Iterator[Process]:
    program = [sys.executable, "-W", "error", "-m", "tests.integration.worker_trainers", name, json.dumps(options)]
    number = len(list(home.glob("trainer-*")))
    (home / "tmp").mkdir(exist_ok=True)
    environment = {**os.environ, "TMPDIR": str(home / "tmp"), **(env or {})}
    with Process(program, log=home / f"trainer-{number}.log", limit_seconds=100, env=environment) as process:
        yield process


def said(process: Process) -> list[Any]:
    return [json.loads(line) for line in process.output().splitlines()]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_signals_to_the_whole_group_leave_the_workers_reading_until_the_trainer_closes(method: str, home: Path) -> None:
    with trainer(home, "preempted", {"method": method}) as process:
        eventually(lambda: said(process), SECONDS, "the trainer to read")
        for number in (signal.SIGINT, signal.SIGTERM):
            os.killpg(process.pid, number)
        assert process.wait(SECONDS) == 0, process.output()
        before, after, seen, closed = said(process)
    assert before == after
    assert len(before) == 2
    assert seen == list(range(len(seen)))
    assert len(seen) >= 60
    assert closed == []


LOADERS: dict[str, dict[str, Any]] = {
    "none": {},
    "threads": {"num_workers": 2, "worker_type": "thread"},
    "processes": {"num_workers": 2, "persistent_workers": True},
    "spawned": {"num_workers": 1, "multiprocessing_context": "spawn"},
}


@pytest.mark.parametrize("loader", LOADERS.values(), ids=list(LOADERS))
def test_an_exit_in_the_middle_of_an_epoch_is_quick_clean_and_quiet(loader: dict[str, Any], home: Path) -> None:
    with trainer(home, "leaves_early", {"loader": loader}) as process:
        assert process.wait(SECONDS) == 0, process.output()
        (pids,) = said(process)
        assert all(is_gone(pid) for pid in pids)
    assert not list((home / "tmp").iterdir())


def test_a_trainer_that_is_a_child_of_multiprocessing_exits_in_the_middle_of_an_epoch_too(home: Path) -> None:
    with trainer(home, "leaves_early_in_a_child", {"loader": LOADERS["processes"]}) as process:
        assert process.wait(SECONDS) == 0, process.output()
        (pids,) = said(process)
        assert len(pids) == 4
        assert all(is_gone(pid) for pid in pids)


@pytest.mark.parametrize("loader", LOADERS.values(), ids=list(LOADERS))
def test_a_child_forked_in_mid_epoch_is_told_so_reads_anew_and_leaves_its_parent_reading(
    loader: dict[str, Any], home: Path
) -> None:
    check_fork({"loader": loader}, home)


def test_a_child_forked_while_worker_processes_read_a_stateful_dataset_leaves_them_to_its_parent(home: Path) -> None:
    check_fork({"loader": {"num_workers": 2}, "is_stateful": True}, home)


def check_fork(options: dict[str, Any], home: Path) -> None:
    with trainer(home, "forks_in_mid_epoch", options) as process:
        assert process.wait(SECONDS) == 0, process.output()
        told, anew, left = said(process)
    assert "iterate the loader anew" in told
    assert (anew, left) == (200, 199)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_trainer_that_is_killed_leaves_no_worker_and_no_file(method: str, home: Path) -> None:
    shared = set(Path("/dev/shm").iterdir())
    loader = {"num_workers": 2, "multiprocessing_context": method}
    with trainer(home, "leaves_early", {"loader": loader, "wait": True}) as process:
        eventually(lambda: said(process), SECONDS, "the trainer to read")
        (pids,) = said(process)
        assert len(pids) == 4
        os.kill(process.pid, signal.SIGKILL)
        eventually(lambda: all(is_gone(pid) for pid in pids), 20, "the workers to end")
    # Python's own forkserver listens on a socket in a directory of its own.
    assert not [path for path in (home / "tmp").rglob("*") if not path.is_dir() and not path.is_socket()]
    assert method == "forkserver" or not list((home / "tmp").iterdir())
    assert not {path for path in set(Path("/dev/shm").iterdir()) - shared if f"_{process.pid}_" in path.name}


@pytest.mark.parametrize("holds_gil", [False, True], ids=["waits", "holds the GIL"])
def test_a_stuck_worker_is_named_after_the_timeout_and_does_not_outlive_it(holds_gil: bool, home: Path) -> None:
    with trainer(home, "stuck", {"holds_gil": holds_gil}) as process:
        assert process.wait(SECONDS) == 0, process.output()
        message, pids = said(process)
    assert "timeout=1 s" in message
    assert "worker 1 (pid " in message
    assert "epoch 0, step 3, sample 3 (index 3)" in message
    assert pids == []
