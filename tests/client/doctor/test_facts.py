"""What this process sees of a daemon's socket and disks, without asking it."""

import errno
import shutil
import socket
from pathlib import Path

import pytest

from forebay.daemon.address import Address
from forebay.doctor.asking import KINDS
from forebay.doctor.facts import look_at_mount, look_at_place, look_at_socket
from forebay_core.diagnosis import DaemonFacts, DiskFacts
from forebay_core.machine import MachineFacts
from forebay_protos.v1 import admin_pb2 as pb


def disk_at(path: Path) -> DiskFacts:
    """A cache directory with an id."""
    (path / "pieces").mkdir(parents=True)
    (path / "disk-id").write_text("d1\n")
    return DiskFacts("d1", str(path), (path / "disk-id").stat().st_ino, "ext4", 1, 0, 2, 2, 0, 0)


def test_a_socket_that_listens_one_that_is_left_over_and_none_are_told_apart(home: Path) -> None:
    place = home / "s"
    absent = look_at_socket(Address(place, embedded=True))
    assert (absent.exists, absent.connect_error, absent.is_embedded) == (False, errno.ENOENT, True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        place.chmod(0o660)
        listener.listen()
        alive = look_at_socket(Address(place, embedded=False))
    assert (alive.exists, alive.is_socket, alive.mode, alive.connect_error) == (True, True, 0o660, 0)
    assert look_at_socket(Address(place, embedded=False)).connect_error == errno.ECONNREFUSED
    place.unlink()
    place.touch()
    assert not look_at_socket(Address(place, embedded=False)).is_socket


def test_a_disk_is_found_under_another_path_and_a_copy_of_it_is_not_the_same(tmp_path: Path) -> None:
    disk = disk_at(tmp_path / "cache")
    here = look_at_mount(disk, {})
    assert (here.path, here.id_inode) == (str(tmp_path / "cache"), disk.id_inode)
    assert here.is_readable
    assert here.can_lock
    shutil.copytree(tmp_path / "cache", tmp_path / "copy")
    (tmp_path / "cache").rename(tmp_path / "mounted")
    moved = look_at_mount(disk, {"FOREBAY_CACHE_DIR": str(tmp_path / "mounted")})
    assert (moved.path, moved.id_inode) == (str(tmp_path / "mounted"), disk.id_inode)
    copied = look_at_mount(disk, {"FOREBAY_CACHE_DIR": str(tmp_path / "copy")})
    assert copied.id_inode != disk.id_inode
    assert "not visible here" in look_at_mount(disk, {}).message


def test_the_place_of_a_future_cache_need_not_be_there(tmp_path: Path) -> None:
    place = look_at_place({"FOREBAY_CACHE_DIR": f"{tmp_path}/not/yet:10GiB"})
    assert place.path == f"{tmp_path}/not/yet"
    assert place.free_bytes > 0
    assert look_at_place({"XDG_CACHE_HOME": str(tmp_path)}).path == f"{tmp_path}/forebay"


@pytest.mark.parametrize("kind", [DaemonFacts, MachineFacts, *KINDS.values()])
def test_a_fact_has_the_fields_of_its_message(kind: type) -> None:
    message = pb.DESCRIPTOR.message_types_by_name[kind.__name__]
    assert [field.name for field in message.fields] == list(kind.__dataclass_fields__)  # type: ignore[attr-defined]


def test_each_kind_of_fact_has_a_place_in_the_answer() -> None:
    answer = pb.DESCRIPTOR.message_types_by_name["DiagnoseResponse"]
    assert {field.name: field.message_type.name for field in answer.fields if field.message_type} == {
        "daemon": "DaemonFacts",
        **{name: kind.__name__ for name, kind in KINDS.items()},
    }
