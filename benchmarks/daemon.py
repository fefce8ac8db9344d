"""A daemon of the benchmark's own, on a cache that is thrown away."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from forebay.demo.daemon import OwnDaemon, own_daemon
from forebay.status import StatusSnapshot


@dataclass(frozen=True)
class Daemon:
    """A running daemon, and what it costs."""

    own: OwnDaemon

    @property
    def address(self) -> str:
        """What to give a loader."""
        return str(self.own.socket)

    def status(self) -> StatusSnapshot:
        return self.own.client().status()

    def cpu_seconds(self) -> float:
        """User and system time since its start."""
        fields = Path(f"/proc/{self.own.process_id}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def daemon(directory: Path, *options: str) -> Iterator[Daemon]:
    """A daemon with an empty cache below `directory`, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="d-", dir=directory) as home, own_daemon(Path(home), *options) as own:
        yield Daemon(own)
