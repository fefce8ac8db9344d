"""Starting real programs from tests, so that none outlives the test and a failure shows what they printed.

A `Process` leads a session of its own, writes its output to a log, and has a guard (`guard.py`) beside it that ends its
whole tree at a limit or when the test process is gone, however that died. Called from the thread that runs the test.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from tests.support import guard

T = TypeVar("T")
HOME_VARIABLE = "_FOREBAY_TEST_HOME"
"""Marks what belongs to one test, by its home directory; everything that a test starts inherits it."""
_LOG_TAIL_BYTES = 8000


def eventually(predicate: Callable[[], T], seconds: float, what: str, *, interval_seconds: float = 0.02) -> T:
    """Ask until the answer is true and return it; TimeoutError that says `what` was awaited after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (answer := predicate()):
        if time.monotonic() >= deadline:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(interval_seconds)
    return answer


def _processes_of(home: Path) -> list[int]:
    mark = f"{HOME_VARIABLE}={home}\0".encode()
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            marked = mark in environment.read_bytes()
        except OSError:
            continue
        if marked and (pid := int(environment.parent.name)) != os.getpid():
            found.append(pid)
    return found


def end_processes_of(home: Path) -> None:
    """Kill what a test left, such as an embedded daemon: all that inherited its home. TimeoutError after 10 s."""

    def none_left() -> bool:
        pids = _processes_of(home)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    eventually(none_left, 10, f"the end of the processes of {home}", interval_seconds=0.01)


class Process:
    """A running program, ended with its whole tree by `close()`, at `limit_seconds`, or when this process dies.

    `env` replaces the environment when given. Paths in `remove` are deleted once the tree has ended.
    """

    def __init__(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        log: Path,
        limit_seconds: float,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        remove: Sequence[Path] = (),
    ) -> None:
        self.log = log
        self._limit_seconds = limit_seconds
        self._deadline = time.monotonic() + limit_seconds
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, cwd=cwd, start_new_session=True
            )
        self._ticks = guard.started_ticks(self.pid)
        self._guard = self._start_guard(remove)

    def _start_guard(self, remove: Sequence[Path]) -> subprocess.Popen[bytes]:
        numbers = [self.pid, self._ticks or 0, os.getpid(), self._limit_seconds]
        return subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, *map(str, numbers), *map(str, remove)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name != HOME_VARIABLE},
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The program's process id, which is also its session's."""
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """Its exit status, minus the signal that ended it, or None while it runs."""
        return self._popen.poll()

    def output(self) -> str:
        """Everything that it has printed so far, both streams."""
        return self.log.read_text(errors="replace")

    def wait(self, seconds: float) -> int:
        """Its exit status; TimeoutError with the end of its log where it still runs after `seconds`."""
        try:
            return self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            raise TimeoutError(self._describe(f"still runs after {seconds:g} s")) from None

    def check(self, seconds: float) -> str:
        """Wait and return the output; RuntimeError with the end of its log where the exit status is not 0."""
        status = self.wait(seconds)
        if status == 0:
            return self.output()
        if time.monotonic() >= self._deadline:
            raise RuntimeError(self._describe(f"was killed at its limit of {self._limit_seconds:g} s"))
        raise RuntimeError(self._describe(f"ended with status {status}"))

    def _describe(self, event: str) -> str:
        tail = self.log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
        return f"{self._popen.args!r} (pid {self.pid}) {event}; its log ends with:\n{tail}"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program alone; nothing where it has ended."""
        self._popen.send_signal(number)

    def tree(self) -> list[int]:
        """The process ids of the program and of all that it started and that still live."""
        return guard.tree_of(self.pid, root_started_ticks=self._ticks)

    def kill_tree(self) -> None:
        """SIGKILL for the program and all that it started; returns when they are gone."""
        guard.kill_tree(self.pid, root_started_ticks=self._ticks)
        self._popen.wait(10)

    def close(self) -> None:
        """End the tree and the guard, and remove what was to be removed. May be called again."""
        if self._guard.stdin is not None:
            # A byte and not only the end: processes forked meanwhile hold the pipe open too.
            if not self._guard.stdin.closed:
                with suppress(BrokenPipeError):
                    os.write(self._guard.stdin.fileno(), b".")
            self._guard.stdin.close()
        self._guard.wait(20)
        self._popen.wait(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
