"""The user's own daemon: started once, by whoever comes first, and gone when nobody needs it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from forebay.daemon import embedded
from forebay.daemon.address import Address, resolve
from forebay.daemon.client import DaemonClient
from forebay_core.errors import ConfigurationError, DaemonUnavailable
from tests.support.processes import Process, eventually

ASK = "from forebay.daemon.client import DaemonClient; print('daemon', DaemonClient().status().process_id)"
ABSENT = Path("/nonexistent/forebay.sock")


def environment_of_the_test(**settings: str) -> dict[str, str]:
    return {**os.environ, "FOREBAY_CAPACITY": "1GiB", **settings}


def embedded_address(environment: dict[str, str]) -> Address:
    return resolve(None, environment, system_socket=ABSENT)


def daemons_of(home: Path) -> list[int]:
    found = psutil.process_iter(["pid", "cmdline"])
    lines = {process.pid: process.info["cmdline"] or [] for process in found}
    return [pid for pid, line in lines.items() if "forebay_server" in line and str(home) in " ".join(line)]


def test_sixteen_processes_at_once_start_one_daemon(home: Path) -> None:
    environment = environment_of_the_test()
    program = [sys.executable, "-c", ASK]
    asking = [Process(program, log=home / f"{n}.log", limit_seconds=100, env=environment) for n in range(16)]
    try:
        said = {process.check(90).splitlines()[-1] for process in asking}
    finally:
        for process in asking:
            process.close()
    assert said == {f"daemon {pid}" for pid in daemons_of(home)}
    assert len(said) == 1


def test_the_daemon_is_no_child_of_who_started_it_and_ends_when_idle() -> None:
    environment = environment_of_the_test(FOREBAY_IDLE_SECONDS="1")
    client = DaemonClient(environment=environment)
    status = client.status()
    assert status.embedded
    assert status.disks[0].capacity_bytes == 1 << 30
    assert status.process_id not in {child.pid for child in psutil.Process().children(recursive=True)}
    eventually(lambda: not psutil.pid_exists(status.process_id), 30, "the idle daemon to end")
    assert not client.address.socket.exists()


def test_a_daemon_that_died_or_ended_is_started_again() -> None:
    client = DaemonClient(environment=environment_of_the_test())
    first = client.status().process_id
    psutil.Process(first).kill()
    eventually(lambda: not embedded.answers(client.address.socket), 10, "the killed daemon's socket to be silent")
    assert client.status().process_id != first


def test_a_starter_that_is_killed_while_its_daemon_starts_leaves_one_daemon_for_all(home: Path) -> None:
    """CASES 32: two daemons on one socket."""
    environment = environment_of_the_test()
    socket = embedded_address(environment).socket
    with Process([sys.executable, "-c", ASK], log=home / "killed.log", limit_seconds=100, env=environment) as starter:
        eventually(socket.with_suffix(".log").exists, 60, "the start to be under way", interval_seconds=0.001)
        starter.signal(signal.SIGKILL)
        first = DaemonClient(environment=environment).status().process_id
    eventually(lambda: daemons_of(home) == [first], 30, "one daemon to be left")
    assert DaemonClient(environment=environment).status().process_id == first


STARTER = "from forebay.daemon.client import DaemonClient; DaemonClient().status(); print('up', flush=True); input()"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_daemon_outlives_its_starter_and_holds_nothing_of_it(home: Path, number: signal.Signals) -> None:
    environment = environment_of_the_test()
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER],
        env=environment,
        cwd=home,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=[writer],
        start_new_session=True,
    )
    os.close(writer)
    with starter, os.fdopen(reader, "rb") as inherited:
        assert starter.stdout is not None
        assert starter.stdout.readline() == b"up\n"
        daemon = psutil.Process(DaemonClient(environment=environment).status().process_id)
        os.killpg(starter.pid, number)
        starter.stdout.read()  # ends when nobody holds its other end any more
        assert inherited.read() == b""
    assert daemon.is_running()
    assert daemon.cwd() == "/"
    assert os.getsid(daemon.pid) != starter.pid
    assert {
        Path(file.path).parent for file in daemon.open_files() if not file.path.startswith(str(home / "cache"))
    } <= {home / "runtime/forebay"}


def test_a_daemon_whose_output_is_not_buffered_outlives_its_announcement() -> None:
    client = DaemonClient(environment=environment_of_the_test(PYTHONUNBUFFERED="1"))
    first = client.status().process_id
    assert [client.status().process_id for _ in range(3)] == [first] * 3
    assert psutil.Process(first).status() != psutil.STATUS_ZOMBIE


def test_a_daemon_that_cannot_start_says_why_in_one_line(home: Path) -> None:
    environment = environment_of_the_test(FOREBAY_CAPACITY="much")
    with pytest.raises(DaemonUnavailable, match="capacity 'much' is not a size") as caught:
        embedded.ensure_running(embedded_address(environment), environment)
    assert "\n" not in str(caught.value)


def test_the_log_states_place_and_capacity(home: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "FOREBAY_CAPACITY"}
    client = DaemonClient(environment=environment)
    disk = client.status().disks[0]
    log = client.address.socket.with_suffix(".log").read_text()
    assert f"cache {home / 'cache/forebay/0'}, capacity {disk.capacity_bytes} bytes" in log
    assert "FOREBAY_CACHE_DIR and FOREBAY_CAPACITY change it" in log


def test_other_credentials_get_another_daemon_and_another_cache() -> None:
    one = DaemonClient(environment=environment_of_the_test(AWS_ACCESS_KEY_ID="one")).status()
    two = DaemonClient(environment=environment_of_the_test(AWS_ACCESS_KEY_ID="two")).status()
    assert one.process_id != two.process_id
    assert one.disks[0].path != two.disks[0].path


def test_asking_without_starting_starts_nothing() -> None:
    client = DaemonClient(environment=environment_of_the_test(), reconnect_seconds=0.0, start=False)
    with pytest.raises(DaemonUnavailable, match="no socket is there"):
        client.status()
    assert not client.address.socket.parent.exists()


@pytest.mark.parametrize("kind", ["symlink", "file", "open to others"])
def test_a_runtime_directory_that_another_could_use_is_refused(home: Path, kind: str) -> None:
    directory = home / "runtime" / "forebay"
    if kind == "symlink":
        (home / "elsewhere").mkdir(mode=0o700)
        directory.symlink_to(home / "elsewhere")
    elif kind == "file":
        directory.touch()
    else:
        directory.mkdir()
        directory.chmod(0o777)
    with pytest.raises(ConfigurationError, match=f"{directory} is not a directory that only this user can write"):
        embedded.ensure_running(Address(directory / "x.sock", embedded=True), environment_of_the_test())
