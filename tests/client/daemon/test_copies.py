"""What a session may hold of copies."""

from pathlib import Path

import pytest

from forebay.daemon.copies import MOST_BYTES, MOST_FILES, Copies, copied, write
from forebay.daemon.disks import is_visible_in_place
from forebay_core.anonymous import AnonymousFile
from forebay_core.errors import CapacityError, DaemonError
from forebay_protos.v1 import daemon_pb2 as pb


def sized(size: int) -> Copies:
    copies = Copies({})
    copies.get(0, lambda file: file.write(bytes(size)))
    return copies


def test_a_session_without_copies_may_hold_what_the_daemon_grants() -> None:
    for holds_others in (True, False):
        assert Copies({}).budget_bytes(1 << 50, holds_others=holds_others) == 1 << 50


def test_copies_are_bounded_in_bytes_and_in_descriptors() -> None:
    assert sized(1000).budget_bytes(1 << 50, holds_others=False) == 1000 * MOST_FILES
    assert sized(8 << 20).budget_bytes(1 << 50, holds_others=False) <= MOST_BYTES


def test_copies_take_nothing_of_what_the_daemon_grants_of_its_cache() -> None:
    assert sized(1000).budget_bytes(3, holds_others=False) == 1000 * MOST_FILES
    assert sized(1000).budget_bytes(3, holds_others=True) == 1000 * MOST_FILES
    assert sized(1000).budget_bytes(1 << 50, holds_others=True) == 1 << 50


def test_where_copies_and_leases_of_the_cache_are_held_too_many_copies_make_the_budget_small() -> None:
    copies = Copies({"FOREBAY_COPIES_CAPACITY": "1500"})
    for piece in range(2):
        copies.get(piece, lambda file: file.write(bytes(1000)))
    assert copies.budget_bytes(1 << 50, holds_others=True) == 1500


def test_a_copy_is_read_once_and_anew_after_it_was_dropped() -> None:
    copies, reads = Copies({}), list[AnonymousFile]()
    files = [copies.get(7, reads.append) for _ in range(2)]
    assert files[0] is files[1]
    copies.drop([7, 8])
    assert not files[0].is_open
    assert copies.get(7, reads.append) is not files[0]
    assert len(reads) == 2


def test_a_copy_for_which_there_is_no_room_says_what_to_do(home: Path) -> None:
    def full(_file: AnonymousFile) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(CapacityError, match=r"FOREBAY_CACHE_DIR .* TMPDIR"):
        copied(full, home)


def test_a_stream_that_was_cut_is_not_taken_for_whole() -> None:
    file = AnonymousFile()
    write(
        iter([pb.ReadResponse(), pb.ReadResponse(data=b"ab", size_bytes=3), pb.ReadResponse(data=b"c", size_bytes=3)]),
        file,
    )
    assert Path(file.path).read_bytes() == b"abc"
    with pytest.raises(DaemonError, match="2 bytes of 3"):
        write(iter([pb.ReadResponse(data=b"ab", size_bytes=3)]), file)


def test_a_file_that_is_read_in_place_must_be_the_same_file_here(home: Path) -> None:
    (home / "x").write_bytes(b"abc")
    inode = (home / "x").stat().st_ino
    assert is_visible_in_place(home / "x", inode=inode, size=3)
    assert not is_visible_in_place(home / "x", inode=inode + 1, size=3)
    assert not is_visible_in_place(home / "x", inode=inode, size=4)
    assert not is_visible_in_place(home / "y", inode=inode, size=3)
