"""A daemon of one's own for a while: its socket, cache and log lie below one directory, and it ends with the block.

Used by the demo and by the benchmarks, on their main thread. Should they be killed, the daemon ends by itself when it
has been idle for `IDLE_SECONDS`.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

from forebay.daemon.client import DaemonClient
from forebay.demo import processes
from forebay_core.errors import DaemonUnavailable
from forebay_core.node_layout import SOCKET_PATH_BYTES

__all__ = ["OwnDaemon", "own_daemon"]

IDLE_SECONDS = 300
_READY_SECONDS = 60.0
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class OwnDaemon:
    """A daemon that serves."""

    socket: Path
    process_id: int

    def client(self) -> DaemonClient:
        """A client that neither waits for the daemon nor starts another."""
        return DaemonClient(str(self.socket), reconnect_seconds=0.0, start=False)


@contextmanager
def own_daemon(directory: Path, *options: str) -> Iterator[OwnDaemon]:
    """A daemon with these options on a new cache in `directory`, without the `FOREBAY_*` settings of the user.

    Raises `DaemonUnavailable`, which names the log, where it does not serve.
    """
    with ExitStack() as stack:
        socket = directory / "run" / "forebay.sock"
        if len(os.fsencode(socket)) > SOCKET_PATH_BYTES:
            socket = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-"))) / "forebay.sock"
        cache, log = directory / "cache", directory / "daemon.log"
        cache.mkdir(mode=0o750)
        command = [
            *(sys.executable, "-P", "-m", "forebay_server", "--socket", str(socket), "--cache-dir", str(cache)),
            *("--embedded", "--idle-seconds", str(IDLE_SECONDS), *options),
        ]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
        process = processes.start(command, log, environment, directory)
        stack.callback(processes.stop, process)
        daemon = OwnDaemon(socket, process.pid)
        _wait_until_serving(daemon, process, log)
        yield daemon


def _wait_until_serving(daemon: OwnDaemon, process: Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        try:
            daemon.client().status()
            return
        except DaemonUnavailable:
            if process.poll() is not None:
                words = processes.last_words(log)
                raise DaemonUnavailable(f"the daemon ended at once: {words} (its log: {log})") from None
        time.sleep(_POLL_SECONDS)
    raise DaemonUnavailable(f"the daemon did not serve within {_READY_SECONDS:.0f} s (its log: {log})")
