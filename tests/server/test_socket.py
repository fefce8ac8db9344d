"""The socket: one owner, who leaves nothing behind."""

import fcntl
import multiprocessing
import os
import socket as sockets
import threading
from pathlib import Path

import pytest

from forebay_core.errors import AlreadyRunning, ConfigurationError
from forebay_server.locks import hold
from forebay_server.socket import SocketPlace


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
