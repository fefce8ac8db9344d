"""A daemon of the benchmark's own, on a cache that is thrown away."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from forebay.daemon.status import StatusSnapshot
from forebay.demo.daemon import OwnDaemon, own_daemon


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
    with tempfile.TemporaryDirectory(prefix="d-", dir=directory) as home, served(Path(home), *options) as node:
        yield node


@contextmanager
def served(home: Path, *options: str) -> Iterator[Daemon]:
    """A daemon whose files are all in `home`, and stay there."""
    with own_daemon(home, *options) as own:
        yield Daemon(own)


@contextmanager
def emptied(directory: Path) -> Iterator[Path]:
    """A new directory below this one. Its files are there at the end, without their content."""
    home = Path(tempfile.mkdtemp(prefix="e-", dir=directory))
    try:
        yield home
    finally:
        for path in home.rglob("*"):
            if path.is_file():
                os.truncate(path, 0)
