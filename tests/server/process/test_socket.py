"""The socket: one owner, who leaves nothing behind."""

import asyncio
import fcntl
import multiprocessing
import os
import socket as sockets
import subprocess
import sys
import threading
from pathlib import Path

import grpc.aio
import pytest

from forebay_core.errors import AlreadyRunning, ConfigurationError
from forebay_server.process.locks import hold
from forebay_server.process.socket import SocketPlace

NOBODY = 65534


def test_a_place_has_one_owner_and_vanishes_with_it(home: Path) -> None:
    place = SocketPlace.claim(home / "run" / "s")
    assert (home / "run").stat().st_mode & 0o777 == 0o750
    with pytest.raises(AlreadyRunning, match=f"pid {os.getpid()}"):
        SocketPlace.claim(home / "run" / "s")
    place.release()
    assert list((home / "run").iterdir()) == []


def test_a_stale_socket_is_removed(home: Path) -> None:
    with sockets.socket(sockets.AF_UNIX) as left:
        left.bind(str(home / "s"))
    SocketPlace.claim(home / "s").release()


def test_what_is_not_a_socket_is_left_alone(home: Path) -> None:
    (home / "s").write_text("mine")
    with pytest.raises(ConfigurationError, match="not a socket"):
        SocketPlace.claim(home / "s")
    assert (home / "s").read_text() == "mine"
    assert not (home / "s.lock").exists()


def test_a_socket_that_another_program_serves_on_is_left_alone(home: Path) -> None:
    with sockets.socket(sockets.AF_UNIX) as served:
        served.bind(str(home / "s"))
        served.listen()
        with pytest.raises(ConfigurationError, match="another program"):
            SocketPlace.claim(home / "s")
        assert (home / "s").exists()


def test_a_directory_that_cannot_be_made_is_said(home: Path) -> None:
    (home / "file").write_text("")
    with pytest.raises(ConfigurationError, match="directory"):
        SocketPlace.claim(home / "file" / "s")


def _hold_and_die(path: Path) -> None:
    hold(path, "the test")
    os._exit(0)


def test_a_lock_of_a_dead_process_is_free_though_its_file_is_left(home: Path) -> None:
    child = multiprocessing.get_context("spawn").Process(target=_hold_and_die, args=(home / "lock",))
    child.start()
    child.join(30)
    assert (home / "lock").exists()
    hold(home / "lock", "the test").release()
    assert not (home / "lock").exists()


def test_a_lock_file_that_is_replaced_while_it_is_taken_does_not_give_two_owners(home: Path) -> None:
    first = hold(home / "lock", "the test")
    (home / "lock").unlink()
    second = hold(home / "lock", "the test")
    assert os.fstat(second.descriptor).st_ino == (home / "lock").stat().st_ino
    os.close(first.descriptor)
    second.release()


def test_a_probe_that_holds_the_lock_for_an_instant_is_not_taken_for_a_daemon(home: Path) -> None:
    path = home / "lock"
    with path.open("a") as probe:
        fcntl.flock(probe, fcntl.LOCK_SH)
        ends = threading.Timer(0.03, fcntl.flock, (probe, fcntl.LOCK_UN))
        ends.start()
        hold(path, "the test").release()
        ends.join()


def modes(*paths: Path) -> list[str]:
    return [oct(path.stat().st_mode & 0o7777) for path in paths]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_socket_is_for_its_owner_and_group_whatever_the_umask(home: Path, umask: int) -> None:
    async def serve() -> None:
        server = grpc.aio.server()
        place.bind(server)
        assert modes(home / "run/s") == ["0o660"]
        await server.stop(None)

    before = os.umask(umask)
    try:
        place = SocketPlace.claim(home / "run/s", os.getgid())
        asyncio.run(serve())
        assert modes(home / "run") == [oct(0o750 & ~umask)]
        assert os.umask(umask) == umask
        place.release()
    finally:
        os.umask(before)


def test_a_directory_in_which_others_can_replace_the_socket_is_refused(home: Path) -> None:
    """CASES 32."""
    (home / "run").mkdir()
    (home / "run").chmod(0o777)
    with pytest.raises(ConfigurationError, match=r"others can write .*--socket"):
        SocketPlace.claim(home / "run/s")
    assert list((home / "run").iterdir()) == []
    (home / "run").chmod(0o1777)
    SocketPlace.claim(home / "run/s").release()


def test_a_group_that_cannot_reach_the_socket_is_told_of(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    (home / "run").mkdir(mode=0o700)
    SocketPlace.claim(home / "run/s", 12345).release()
    assert "the group 12345 cannot reach the socket" in caplog.text
    caplog.clear()
    (home / "run").chmod(0o711)
    home.chmod(0o711)
    SocketPlace.claim(home / "run/s", 12345).release()
    assert caplog.text == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user and become it")
def test_a_stale_socket_and_a_lock_of_another_user_are_said_and_left(home: Path) -> None:
    """CASES 32."""
    home.chmod(0o1777)
    with sockets.socket(sockets.AF_UNIX) as left:
        left.bind(str(home / "s"))
    (home / "t.lock").touch(mode=0o600)
    found = as_nobody(f"claim('{home}/s')", f"claim('{home}/t')", f"claim('{home}/free')")
    assert found[0].startswith(f"ConfigurationError the socket {home}/s of a daemon that is gone cannot be removed")
    assert "(uid 0)" in found[0]
    assert found[1].startswith("ConfigurationError the lock file")
    assert found[2] == "None"
    assert (home / "s").is_socket()
    assert (home / "t.lock").exists()


def as_nobody(*calls: str) -> list[str]:
    """What each call gives or raises in a process of a user without rights."""
    program = f"""
import os, pathlib
from forebay_server.process.socket import SocketPlace
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
claim = lambda path: SocketPlace.claim(pathlib.Path(path)).release()
for call in {calls!r}:
    try:
        print(eval(call))
    except Exception as error:
        print(type(error).__name__, error)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return ended.stdout.splitlines()


RACE = """
import os, sys
from pathlib import Path
from forebay_core.errors import AlreadyRunning
from forebay_server.disk.cache_disk import CacheDisk
from forebay_server.process.socket import SocketPlace
home, racers = Path(sys.argv[1]), 20
gate, go = os.pipe()
done, ended = os.pipe()
outcomes = {}
for racer in range(racers):
    pid = os.fork()
    if pid == 0:
        os.close(go), os.close(ended)
        os.read(gate, 1)
        try:
            SocketPlace.claim(home / "run/s"), CacheDisk.claim(home / "cache")
        except AlreadyRunning as error:
            (home / f"said-{os.getpid()}").write_text(str(error))
            os._exit(1)
        os.read(done, 1)
        os._exit(0)
    outcomes[pid] = None
os.close(gate), os.close(go)
losers = [os.wait() for _ in range(racers - 1)]
os.close(done), os.close(ended)
winner, status = os.wait()
print(winner, status, sorted(status for _, status in losers))
"""


def test_of_twenty_daemons_that_start_at_once_one_wins_and_the_others_say_who(home: Path) -> None:
    """CASES 32."""
    ended = subprocess.run(
        [sys.executable, "-c", RACE, str(home)], capture_output=True, text=True, timeout=60, check=True
    )
    winner, _, losers = ended.stdout.strip().split(" ", 2)
    assert losers == str([256] * 19), "nineteen must have lost"
    said = [path.read_text() for path in home.glob("said-*")]
    assert len(said) == 19
    assert all(f"another daemon (pid {winner}) holds the socket {home}/run/s" in each for each in said)
