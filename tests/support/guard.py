"""Ends a process tree when its starter is gone, and removes what the tree leaves behind.

Run as a program (by `processes.Process`) beside a started session leader PID, with a pipe from the
starter as standard input. It acts when the pipe closes, when the starter dies in any way (also by SIGKILL, also when a
forked child keeps the pipe open) or when the limit has passed: it kills PID's descendants and its whole session, then
deletes the paths. Standard library only, so that it starts in a few milliseconds.
"""

import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_POLL_SECONDS = 0.5
_KILL_SECONDS = 10.0


class _Entry(NamedTuple):
    pid: int
    state: str
    parent: int
    session: int
    started_ticks: int


def _read_entry(directory: Path) -> _Entry | None:
    try:
        fields = (directory / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return _Entry(int(directory.name), fields[0], int(fields[1]), int(fields[3]), int(fields[19]))


def _process_table() -> list[_Entry]:
    entries = (_read_entry(directory) for directory in Path("/proc").iterdir() if directory.name.isdigit())
    return [entry for entry in entries if entry is not None]


def started_ticks(pid: int) -> int | None:
    """When the process began, in clock ticks after boot; with the pid it names a process for ever. None: no such."""
    entry = _read_entry(Path("/proc") / str(pid))
    return None if entry is None else entry.started_ticks


def tree_of(root: int, *, root_started_ticks: int | None) -> list[int]:
    """The living processes below `root`, and those of the session that it leads, its orphans included.

    Empty where the pid has meanwhile been given to another process than the one that began at `root_started_ticks`.
    """
    table = _process_table()
    current = next((entry.started_ticks for entry in table if entry.pid == root), root_started_ticks)
    if current != root_started_ticks:
        return []
    members = {entry.pid for entry in table if entry.session == root} | {root}
    while True:
        found = {entry.pid for entry in table if entry.parent in members} - members
        if not found:
            return [entry.pid for entry in table if entry.pid in members and entry.state != "Z"]
        members |= found


def kill_tree(root: int, *, root_started_ticks: int | None) -> None:
    """Send SIGKILL to the tree of `root` until none of it lives; TimeoutError after 10 s."""
    deadline = time.monotonic() + _KILL_SECONDS
    while pids := tree_of(root, root_started_ticks=root_started_ticks):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {pids} below {root} survived SIGKILL for {_KILL_SECONDS:.0f} s")
        time.sleep(0.005)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _wait_for_the_end(starter: int, limit_seconds: float) -> None:
    deadline = time.monotonic() + limit_seconds
    while os.getppid() == starter and (left := deadline - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], min(left, _POLL_SECONDS))[0]:
            return


def main(arguments: Sequence[str]) -> None:
    """Wait, kill, clean up. The arguments: pid, its start in ticks, the starter's pid, limit in seconds, paths."""
    pid, ticks, starter = (int(argument) for argument in arguments[:3])
    _wait_for_the_end(starter, float(arguments[3]))
    kill_tree(pid, root_started_ticks=ticks)
    for path in arguments[4:]:
        _remove(Path(path))


if __name__ == "__main__":
    main(sys.argv[1:])
