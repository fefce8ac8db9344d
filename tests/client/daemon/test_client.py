"""The client against a real daemon: opening, waiting for it, and saying what is wrong when it is not there."""

import os
import pickle
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from forebay.daemon.client import DaemonClient
from forebay.daemon.disks import Disks
from forebay.daemon.session import Session
from forebay_core.errors import (
    ConfigurationError,
    DaemonError,
    DaemonUnavailable,
    SourceNotFound,
    UnknownScheme,
)
from tests.server.daemons import daemon
from tests.support.data import write_parquet


def test_a_dataset_is_opened_and_its_manifest_is_a_file_here(home: Path) -> None:
    write_parquet(home / "data", shards=2)
    with daemon(home) as running:
        client = DaemonClient(str(running.socket))
        opened = client.open_dataset([str(home / "data")])
        found = opened.manifest_path.stat()
        assert (opened.inode, opened.size_bytes) == (found.st_ino, found.st_size)
        assert client.open_dataset([str(home / "data")]) == opened


def test_the_daemons_errors_arrive_with_their_class(home: Path) -> None:
    write_parquet(home / "data", shards=2)
    with daemon(home) as running:
        client = DaemonClient(str(running.socket))
        unknown = replace(client.open_dataset([str(home / "data")]), dataset_id="no such dataset")
        with pytest.raises(UnknownScheme):
            client.open_dataset(["gopher://x/y"])
        with pytest.raises(SourceNotFound):
            client.open_dataset([str(home / "nothing")])
        with pytest.raises(ConfigurationError):
            Session(client, unknown, [], "test")
        assert client.status().sessions == ()


def test_the_status_mirrors_the_daemon(home: Path) -> None:
    with daemon(home) as running:
        status = DaemonClient(f"unix:{running.socket}").status()
        assert status.process_id == running.process.pid
        assert status.boot_id == running.boot_id
        assert not status.embedded
        assert [(disk.path, disk.capacity_bytes) for disk in status.disks] == [(str(running.cache), 1 << 30)]
        assert status.counters.hits == 0


def test_a_wrong_address_is_an_error_that_names_it_and_says_how_to_start_a_daemon(home: Path) -> None:
    client = DaemonClient(str(home / "nobody"), reconnect_seconds=0.2)
    with pytest.raises(DaemonUnavailable, match=f"forebay serve --socket {home / 'nobody'}"):
        client.status()


@pytest.mark.skipif(os.getuid() == 0, reason="needs a user whom the file system can refuse: root is let in everywhere")
def test_a_socket_that_refuses_this_user_is_not_waited_for(home: Path) -> None:
    with daemon(home) as running:
        running.socket.chmod(0)
        with pytest.raises(DaemonUnavailable, match="group"):
            DaemonClient(str(running.socket)).status()


def test_a_call_waits_for_a_daemon_that_starts_meanwhile(home: Path) -> None:
    client = DaemonClient(str(home / "d" / "s"), reconnect_seconds=60)
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(client.status().boot_id))
    thread.start()
    with daemon(home) as running:
        thread.join(60)
        assert found == [running.boot_id]


def test_a_client_travels_through_pickle_and_finds_its_daemon(home: Path) -> None:
    with daemon(home) as running:
        client = DaemonClient(str(running.socket))
        client.status()
        copy = pickle.loads(pickle.dumps(client))
        assert copy.status().boot_id == running.boot_id


def test_a_disk_is_found_by_its_id_and_not_by_its_path(home: Path) -> None:
    (home / "stale").mkdir()
    (home / "stale" / "disk-id").write_text("another\n")
    (home / "here").mkdir()
    (home / "here" / "disk-id").write_text("mine\n")
    (home / "here" / "pieces").mkdir()
    disks = Disks({"FOREBAY_CACHE_DIR": f"{home}/here:10GiB"})
    disks.learn([("mine", str(home / "stale"))])
    assert disks.locate("mine", "pieces/x") == home / "here" / "pieces/x"


def test_each_disk_of_several_is_found_among_the_listed_places(home: Path) -> None:
    for name in ("a", "b"):
        (home / name / "pieces").mkdir(parents=True)
        (home / name / "disk-id").write_text(f"id-{name}\n")
    disks = Disks({"FOREBAY_CACHE_DIR": f"{home}/b:1GiB, {home}/a"})
    disks.learn([("id-a", "/elsewhere/1"), ("id-b", "/elsewhere/2")])
    assert disks.locate("id-a", "pieces/x") == home / "a" / "pieces/x"
    assert disks.locate("id-b", "pieces/x") == home / "b" / "pieces/x"


def test_a_staging_directory_is_found_below_a_listed_place_and_where_its_variable_says(home: Path) -> None:
    for place in (home / "cache" / "staging", home / "elsewhere"):
        (place / "attempts").mkdir(parents=True)
        (place / "disk-id").write_text(f"of-{place.name}")
    disks = Disks({"FOREBAY_CACHE_DIR": str(home / "cache"), "FOREBAY_STAGING_DIR": f"{home}/elsewhere:10GiB"})
    assert disks.locate("of-staging", "attempts/x") == home / "cache" / "staging" / "attempts" / "x"
    assert disks.locate("of-elsewhere", "attempts/x") == home / "elsewhere" / "attempts" / "x"


def test_of_a_disk_that_is_not_visible_here_it_is_said_where_it_was_looked_for(home: Path) -> None:
    disks = Disks({"FOREBAY_CACHE_DIR": f"{home}/b"})
    disks.learn([("mine", f"{home}/a")])
    assert disks.locate("mine", "x") is None
    what, remedy = disks.why_not("mine")
    assert f"{home}/a, {home}/b" in what
    assert "FOREBAY_CACHE_DIR" in remedy


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "pieces/../../x"])
def test_a_path_outside_of_the_disk_is_refused(home: Path, path: str) -> None:
    (home / "disk-id").write_text("mine")
    disks = Disks({"FOREBAY_CACHE_DIR": str(home)})
    with pytest.raises(DaemonError, match="not below its disk"):
        disks.locate("mine", path)
