"""A daemon of the benchmark's own, on a cache that is thrown away."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from forebay.daemon_client import DaemonClient
from forebay_core.errors import DaemonUnavailable

READY_SECONDS = 30.0


@dataclass(frozen=True)
class Daemon:
    """A running daemon: the address to give a loader, and its process."""

    address: str
    process_id: int

    def client(self) -> DaemonClient:
        return DaemonClient(self.address, start=False)

    def cpu_seconds(self) -> float:
        """User and system time since its start."""
        fields = Path(f"/proc/{self.process_id}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def daemon(directory: Path, *options: str) -> Iterator[Daemon]:
    """A daemon with an empty cache below `directory`, which is removed at the end."""
    home = Path(tempfile.mkdtemp(prefix="d-", dir=directory))
    (home / "cache").mkdir(mode=0o750)
    address = str(home / "run" / "forebay.sock")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    command = [
        sys.executable,
        "-m",
        "forebay_server",
        "--socket",
        address,
        "--cache-dir",
        str(home / "cache"),
        *options,
    ]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
    try:
        _await_answer(address, process, home / "log")
        yield Daemon(address, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(home, ignore_errors=True)


def _await_answer(address: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            DaemonClient(address, reconnect_seconds=0.0, start=False).status()
            return
        except DaemonUnavailable:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the daemon does not serve; its log says: {log.read_text()}") from None
        time.sleep(0.02)
