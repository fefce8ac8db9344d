"""`forebay stop`."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from forebay.daemon.client import DaemonClient
from forebay.daemon.stopping import stop
from forebay_core.errors import DaemonError, DaemonUnavailable
from tests.server.daemons import daemon
from tests.support.processes import Process, eventually


def test_the_command_ends_the_daemon_that_a_loader_would_use_and_leaves_no_socket(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_CAPACITY", "1GiB")
    client = DaemonClient()
    pid = client.status().process_id
    program = [sys.executable, "-m", "forebay.cli", "stop", "--json"]
    with Process(program, log=home / "stop.log", limit_seconds=60) as stopping:
        said = json.loads(stopping.check(60))
    assert said == {"address": f"unix:{client.address.socket}", "process_id": pid}
    eventually(lambda: not psutil.pid_exists(pid), 10, "the process to be reaped")
    assert not client.address.socket.exists()


def test_a_daemon_is_ended_by_the_process_that_listens_and_not_by_what_it_says_of_itself(home: Path) -> None:
    with daemon(home) as running:
        assert stop(running.socket, wait_seconds=30) == running.process.pid
        assert running.process.wait(20) == 0


def test_where_nobody_listens_there_is_nothing_to_end(home: Path) -> None:
    with pytest.raises(DaemonUnavailable, match=f"no daemon answers at {home}/nobody"):
        stop(home / "nobody", wait_seconds=1)


def test_a_process_that_listens_and_is_no_daemon_is_left_alone(home: Path) -> None:
    path = home / "other.sock"
    program = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); print(flush=True); "
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(DaemonError, match=f"process {other.pid}, which listens on {path}, is no daemon of forebay"):
            stop(path, wait_seconds=30)
        other.communicate(timeout=30)
        assert other.returncode == 0
