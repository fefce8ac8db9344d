"""Starting a job, and ending what it leaves behind.

A job is a program in a session of its own; torchrun's ranks have sessions of theirs, so whatever a start has brought
forth is known by a mark in its environment instead, which every descendant inherits. A daemon that the job has started
belongs to the node and has no mark: it finishes the uploads. Processes are named by pidfd, so that a number which is
given anew is never signalled. Called on the main thread.
"""

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from forebay_core.errors import ConfigurationError


class Job:
    """One running start. `file` becomes readable when it ends. A context manager that forgets, and ends nothing."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Raises `ConfigurationError` where there is no such program."""
        try:
            self._process = subprocess.Popen(command, env=dict(environment), start_new_session=True)  # noqa: S603 - the user's own command
        except OSError as error:
            raise ConfigurationError(f"{command[0]} cannot be run: {error.strerror}") from error
        self.file = os.pidfd_open(self._process.pid)

    def signal(self, number: int) -> None:
        """To its process group, which torchrun is alone in; nothing where it has ended."""
        with suppress(ProcessLookupError):
            if self._process.poll() is None:
                os.killpg(self._process.pid, number)

    def status(self) -> int:
        """Waits for its end; 128 + the signal that killed it."""
        status = self._process.wait()
        return 128 - status if status < 0 else status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self.file)


def end_marked(name: str, value: str, timeout_seconds: float, *, patience_seconds: float = 0.0) -> tuple[int, int]:
    """Kills all processes that have this in their environment: how many there were, and how many do not go.

    patience_seconds: for so long they may end by themselves.
    """
    mark = f"{name}={value}".encode()
    _each(mark, time.monotonic() + patience_seconds, lambda _: None)
    deadline = time.monotonic() + timeout_seconds
    killed = 0

    def kill(files: Sequence[int]) -> None:
        nonlocal killed
        killed += len(files)
        for file in files:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(file, signal.SIGKILL)

    left = _each(mark, deadline, kill)
    return killed, left


def _each(mark: bytes, deadline: float, act: Callable[[Sequence[int]], None]) -> int:
    """Acts on those that have the mark, and waits for their ends, until there are none: how many are left."""
    while True:
        files = _marked(mark)
        try:
            if not files or time.monotonic() >= deadline:
                return len(files)
            act(files)
            _await_ends(files, deadline)
        finally:
            for file in files:
                os.close(file)


def _await_ends(files: Sequence[int], deadline: float) -> None:
    poll = select.poll()
    waiting = set(files)
    for file in files:
        poll.register(file, select.POLLIN)
    while waiting and (left := deadline - time.monotonic()) > 0:
        for file, _ in poll.poll(1000 * left):
            poll.unregister(file)
            waiting.discard(file)


def _marked(mark: bytes) -> list[int]:
    """Descriptors of the processes that live and have the mark; those that one may not look into are another user's."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        if pid == os.getpid() or not _has(mark, entry):
            continue
        with suppress(ProcessLookupError):
            file = os.pidfd_open(pid)
            if _has(mark, entry):  # still the same process, now that it cannot be mistaken any more
                found.append(file)
            else:
                os.close(file)
    return found


def _has(mark: bytes, entry: Path) -> bool:
    try:
        return mark in (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
