"""Killing a tree whose members have sessions of their own, as torchrun's workers have."""

import os
import sys
import textwrap
from pathlib import Path

from forebay.demo import processes
from tests.support.processes import eventually

TREE = """
import pathlib, subprocess, sys, time
depth = int(sys.argv[1])
children = [
    subprocess.Popen([sys.executable, __file__, str(depth - 1)], start_new_session=True)
    for _ in range(2 if depth else 0)
]
pathlib.Path(sys.argv[0] + "." + str(time.monotonic_ns())).touch()
time.sleep(300)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_killed_tree_is_gone_with_children_in_sessions_of_their_own(tmp_path: Path) -> None:
    program = tmp_path / "tree.py"
    program.write_text(TREE)
    root = processes.start([sys.executable, str(program), "2"], tmp_path / "log", os.environ, tmp_path)
    try:
        eventually(lambda: len(list(tmp_path.glob("tree.py.*"))) == 7, 30, "all seven processes")
        tree = processes.descendants(root.pid)
        assert len(tree) == 6
    finally:
        processes.kill_tree(root)
    assert root.returncode == -9
    assert not any(alive(pid) for pid in tree)


def test_killing_a_program_that_has_ended_does_nothing(tmp_path: Path) -> None:
    root = processes.start([sys.executable, "-c", "pass"], tmp_path / "log", os.environ, tmp_path)
    assert root.wait(30) == 0
    processes.kill_tree(root)
    processes.stop(root)
    assert root.returncode == 0


def test_a_program_that_ignores_the_request_to_end_is_killed(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    program = f"import signal, pathlib, time; signal.signal(15, signal.SIG_IGN); pathlib.Path({str(ready)!r}).touch()"
    command = [sys.executable, "-c", f"{program}; time.sleep(300)"]
    root = processes.start(command, tmp_path / "log", os.environ, tmp_path)
    eventually(ready.exists, 30, "the program")
    processes.stop(root, grace_seconds=0.1)
    assert root.returncode == -9


def test_last_words_are_those_of_the_rank_that_failed_first(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        textwrap.dedent(
            """
            a warning of no interest
            [rank1]: Traceback (most recent call last):
            [rank1]:   File "train.py", line 1, in <module>
            [rank1]:     open_dataset()
            [rank1]: forebay_core.errors.SourceNotFound: nothing at s3://bucket/none
            [rank0]: Traceback (most recent call last):
            [rank0]: RuntimeError: connection closed by peer
            Traceback (most recent call last):
            torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
            exitcode : 1
            """
        )
    )
    assert processes.last_words(log) == "forebay_core.errors.SourceNotFound: nothing at s3://bucket/none"
    log.write_text("one\ntwo\n")
    assert processes.last_words(log) == "two"
    assert processes.last_words(tmp_path / "none") == "it said nothing"
