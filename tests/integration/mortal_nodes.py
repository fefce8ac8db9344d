"""Nodes of a test that may lose them: a daemon each, with a staging directory of its own, beside ranks that may die."""

import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from forebay.daemon.checkpoint_root import CheckpointRoot
from forebay.daemon.client import DaemonClient
from forebay_core.checkpoints.names import Attempt
from tests.server import dying_daemon, holding_daemon
from tests.server.daemons import Daemon, daemon
from tests.support.processes import eventually

SECONDS = 60.0


class Node:
    """`held`: while it is there, the daemon gives no data file its name at a destination that is a directory."""

    def __init__(self, home: Path, name: str) -> None:
        self._home, self._name, self._stack = home, name, ExitStack()
        self.staging, self.held = home / f"staging-{name}", home / f"held-{name}"
        self.address = str(home / name / "s")

    def start(self, dies_at: str | None = None) -> Daemon:
        """A daemon in the place of the one before, which goes on with what that has left."""
        self._stack.close()
        program = [holding_daemon.__file__, str(self.held)] if dies_at is None else [dying_daemon.__file__, dies_at]
        flags = ("--staging-dir", str(self.staging))
        made = daemon(self._home, *flags, name=self._name, program=program, limit_seconds=300)
        self._daemon = self._stack.enter_context(made)
        return self._daemon

    def kill(self) -> None:
        self._daemon.process.signal(signal.SIGKILL)
        self._daemon.process.wait(SECONDS)

    def lose(self) -> None:
        """The machine is gone with its disks."""
        self.kill()
        shutil.rmtree(self.staging)
        shutil.rmtree(self._daemon.cache)

    def staged(self) -> list[str]:
        """The names of the attempts of which there are files."""
        return sorted(path.name for path in self.staging.glob("attempts/*/*"))

    def close(self) -> None:
        self._stack.close()


@contextmanager
def nodes(home: Path, *names: str) -> Iterator[Sequence[Node]]:
    """Running ones."""
    made = [Node(home, name) for name in names]
    try:
        for each in made:
            each.start()
        yield made
    finally:
        for each in made:
            each.close()


def until_clean(there: Sequence[Node], newest: str) -> None:
    """Until nothing is staged but the newest checkpoint."""
    for each in there:
        eventually(lambda each=each: each.staged() == [newest], SECONDS, f"{each.staging} to hold {newest} alone")  # type: ignore[misc]


def states(address: str, root: str) -> dict[Attempt, str]:
    """Of all attempts that a daemon knows of, newest first; empty: undecided."""
    return {each.attempt: each.state for each in CheckpointRoot(DaemonClient(address), root).listing().checkpoints}
