"""What the service manager is told, over a socket as systemd has it."""

import asyncio
import os
import resource
import signal
import socket as sockets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forebay_server.process.supervision import Supervisor
from tests.server.daemons import command, daemon
from tests.support.processes import Process, eventually


@contextmanager
def manager(name: str) -> Iterator[sockets.socket]:
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name[1:]}" if name.startswith("@") else name)
        listening.settimeout(20)
        yield listening


def heard(listening: sockets.socket) -> list[str]:
    return listening.recv(4096).decode().splitlines()


@pytest.mark.parametrize("is_abstract", [False, True])
def test_it_is_told_of_the_start_and_the_end(home: Path, is_abstract: bool) -> None:
    name = f"@{home}" if is_abstract else str(home / "notify")
    with manager(name) as listening:
        supervisor = Supervisor({"NOTIFY_SOCKET": name})
        supervisor.ready("serving")
        assert heard(listening) == ["READY=1", "STATUS=serving"]
        supervisor.stopping()
        assert heard(listening)[0] == "STOPPING=1"


def test_where_there_is_none_or_it_is_gone_nothing_happens(home: Path) -> None:
    for environment in ({}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": str(home / "gone")}, {"NOTIFY_SOCKET": "x" * 200}):
        Supervisor(environment).ready("serving")


def test_a_manager_that_does_not_listen_blocks_nobody(home: Path) -> None:
    with manager(str(home / "notify")) as listening:
        supervisor = Supervisor({"NOTIFY_SOCKET": str(home / "notify")})
        for _ in range(2000):
            supervisor.ready("x" * 4000)
        assert heard(listening)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "3000000"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_it_hears_of_us_as_often_as_it_asks(given: dict[str, str], seconds: float | None) -> None:
    assert Supervisor({"NOTIFY_SOCKET": "/x", **given}).watchdog_seconds == seconds
    assert Supervisor(given).watchdog_seconds is None


def test_the_event_loop_itself_says_that_it_lives(home: Path) -> None:
    async def watch(seconds: float) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(supervisor.watch(), seconds)

    with manager(str(home / "notify")) as listening:
        supervisor = Supervisor({"NOTIFY_SOCKET": str(home / "notify"), "WATCHDOG_USEC": "20000"})
        asyncio.run(watch(0.5))
        assert [heard(listening) for _ in range(3)] == [["WATCHDOG=1"]] * 3
        asyncio.run(Supervisor({}).watch())


def test_a_daemon_tells_its_manager_when_it_serves_lives_and_ends(home: Path) -> None:
    name = str(home / "notify")
    environment = {**os.environ, "NOTIFY_SOCKET": name, "WATCHDOG_USEC": "200000"}
    with manager(name) as listening, daemon(home, env=environment) as running:
        lines: list[str] = []
        while not lines.count("WATCHDOG=1") > 2 or "READY=1" not in lines:
            lines += heard(listening)
        assert f"STATUS=serving on {running.socket}" in lines
        assert "STOPPING=1" not in lines
        running.process.signal(signal.SIGTERM)
        while "STOPPING=1" not in lines:
            lines += heard(listening)
        assert running.process.wait(20) == 0


def test_a_daemon_that_a_trainer_started_tells_the_trainers_manager_nothing(home: Path) -> None:
    name = str(home / "notify")
    environment = {**os.environ, "NOTIFY_SOCKET": name}
    with manager(name) as listening, daemon(home, "--embedded", env=environment) as running:
        running.process.signal(signal.SIGTERM)
        assert running.process.wait(20) == 0
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            listening.recv(4096)


def test_a_daemon_takes_as_many_descriptors_as_it_may(home: Path) -> None:
    flags = ["--socket", str(home / "d/s"), "--cache-dir", str(home / "c"), "--capacity", "1GiB"]
    started = ["bash", "-c", 'ulimit -Sn 256; ulimit -Hn 4000; exec "$@"', "bash", *command(*flags)]
    with Process(started, log=home / "log", limit_seconds=60) as process:
        eventually(lambda: '{"socket"' in process.output(), 20, "the daemon to serve")
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (4000, 4000)
