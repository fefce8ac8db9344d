"""What the daemon tells the service manager that started it: that it serves, that it ends, and that it lives.

systemd's notification protocol: datagrams of `NAME=value` lines to the socket that `NOTIFY_SOCKET` names; where there
is none, nobody is told. The watchdog's word is sent by the event loop itself, so that a loop which hangs is noticed and
the daemon started anew. Telling never fails or blocks the daemon. Used by `daemon.serve` on the event loop.
"""

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import suppress


class Supervisor:
    """The service manager, as the environment names it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        #: How often the manager wants to hear of us; None: never.
        self.watchdog_seconds = _watchdog_seconds(environment) if self._address else None

    def ready(self, status: str) -> None:
        """The daemon serves."""
        self._tell(f"READY=1\nSTATUS={status}")

    def stopping(self) -> None:
        """The daemon ends, which may take its time."""
        self._tell("STOPPING=1\nSTATUS=ending: running demands may finish")

    async def watch(self) -> None:
        """Says that the event loop lives, twice in each period, until it is cancelled."""
        while self.watchdog_seconds is not None:
            self._tell("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_seconds / 2)

    def _tell(self, lines: str) -> None:
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto(lines.encode(), self._address)


def _address(name: str) -> str:
    """A path, or a name in the abstract namespace, which is written with an @."""
    return f"\0{name[1:]}" if name.startswith("@") else name


def _watchdog_seconds(environment: Mapping[str, str]) -> float | None:
    of_another = environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid())
    text = environment.get("WATCHDOG_USEC", "")
    if of_another or not text.isdigit() or not int(text):
        return None
    return int(text) / 1e6
