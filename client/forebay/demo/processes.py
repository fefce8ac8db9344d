"""Starting programs in sessions of their own, and ending them with everything that they started.

torchrun puts every worker into a session of its own, so a process group is not enough: the tree is read from /proc.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["descendants", "kill_tree", "last_words", "start", "stop"]

#: What torchrun puts before a rank's traceback.
_RANK = re.compile(r"^\[rank\d+\]: ?")
_TRACEBACK_LINES = 200


def start(
    command: Sequence[str], log: Path, environment: Mapping[str, str], directory: Path
) -> subprocess.Popen[bytes]:
    """Starts a program in `directory` with its output in `log`."""
    with log.open("ab") as output:
        return subprocess.Popen(  # noqa: S603 - the demo's own commands
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=directory,
            start_new_session=True,
        )


def descendants(root: int) -> list[int]:
    """The live processes below `root`, parents first."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents().items():
        children.setdefault(parent, []).append(pid)
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found[1:]


def kill_tree(process: subprocess.Popen[bytes], deadline_seconds: float = 30.0) -> None:
    """SIGKILLs a program and all that it started, and returns when they are gone.

    The root is stopped first, so that it can neither start another child nor tidy up after the ones that die.
    """
    if process.poll() is not None:
        return
    _signal(process.pid, signal.SIGSTOP)
    victims = [process.pid, *descendants(process.pid)]
    for pid in victims:
        _signal(pid, signal.SIGKILL)
    process.wait(deadline_seconds)
    deadline = time.monotonic() + deadline_seconds
    while not _parents().keys().isdisjoint(victims) and time.monotonic() < deadline:
        time.sleep(0.01)


def stop(process: subprocess.Popen[bytes], grace_seconds: float = 10.0) -> None:
    """Asks a program to end, and kills its tree where it does not."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            kill_tree(process)


def last_words(log: Path) -> str:
    """The line of a log that says best why its program failed: the end of its first traceback, else its last line.

    The first, because the ranks that a failed one leaves alone fail too, by losing their connection.
    """
    text = log.read_text(errors="replace") if log.exists() else ""
    lines = [_RANK.sub("", line) for line in text.splitlines() if line.strip()]
    tracebacks = (lines[at + 1 :] for at, line in enumerate(lines) if line.startswith("Traceback (most recent call"))
    ends = [line for rest in tracebacks for line in rest[:_TRACEBACK_LINES] if not line.startswith(" ")]
    return (ends[:1] or lines[-1:] or ["it said nothing"])[0].strip()


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _parents() -> dict[int, int]:
    """Each live process's parent; zombies are not alive."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            parents[int(entry.name)] = int(parent)
    return parents
