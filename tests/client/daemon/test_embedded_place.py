"""Where an embedded daemon's cache goes, and how large it may be."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.daemon.embedded import is_locked
from forebay.daemon.embedded_place import (
    MAXIMUM_CAPACITY_BYTES,
    cache_base,
    cache_bases,
    choose_place,
    default_capacity,
)
from forebay_core.errors import ConfigurationError


def test_the_first_place_that_no_daemon_holds_is_taken(home: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(home / "c")}
    first = choose_place(environment, lambda _: False)
    second = choose_place(environment, lambda lock: lock == home / "c/forebay/0/lock")
    (taken, _), (other, _) = (*first.directories, *second.directories)
    assert (taken, other) == (home / "c/forebay/0", home / "c/forebay/1")
    assert taken.stat().st_mode & 0o777 == 0o700


def test_a_lock_is_seen_only_while_somebody_holds_it(home: Path) -> None:
    path = home / "lock"
    assert not is_locked(path)
    with path.open("w") as held:
        assert not is_locked(path)
        fcntl.flock(held, fcntl.LOCK_EX)
        assert is_locked(path)
    assert not is_locked(path)


def test_two_who_ask_for_a_lock_at_once_do_not_see_each_other(home: Path) -> None:
    path = home / "lock"
    with path.open("w") as other_asker:
        fcntl.flock(other_asker, fcntl.LOCK_SH)
        assert not is_locked(path)


def test_what_the_environment_says_is_not_decided_here(home: Path) -> None:
    given = choose_place({"FOREBAY_CACHE_DIR": f"{home}/mine", "FOREBAY_CAPACITY": "1GiB"}, lambda _: True)
    assert given.options() == ["--cache-dir", f"{home}/mine"]
    own = choose_place({"FOREBAY_CACHE_DIR": f"{home}/mine:2GiB"}, lambda _: True)
    assert own.options() == ["--cache-dir", f"{home}/mine:2GiB"]


def test_several_directories_of_the_environment_share_half_of_what_is_free(home: Path) -> None:
    given = choose_place({"FOREBAY_CACHE_DIR": f"{home}/a, {home}/b:2GiB"}, lambda _: True)
    (first, capacity), second = given.directories
    assert (first, second) == (home / "a", (home / "b", "2GiB"))
    assert int(capacity or 0) == pytest.approx(default_capacity(home) // 2, rel=0.05)
    assert given.options() == ["--cache-dir", f"{home}/a:{capacity}", "--cache-dir", f"{home}/b:2GiB"]


def test_the_default_capacity_is_half_of_what_is_free_and_what_the_cache_holds(home: Path) -> None:
    free = shutil.disk_usage(home).free
    empty = default_capacity(home / "not/yet")
    assert empty <= MAXIMUM_CAPACITY_BYTES
    assert empty == pytest.approx(min(free // 2, MAXIMUM_CAPACITY_BYTES), rel=0.05)
    piece = home / "cache/pieces/ab/abc"
    piece.parent.mkdir(parents=True)
    piece.write_bytes(bytes(1 << 20))
    assert default_capacity(home / "cache") == pytest.approx(empty, rel=0.05)


def kinds(**found: str) -> Callable[[Path], str]:
    """The type of the file system of each directory, by its name; a local disk where it is not said."""
    return lambda path: found.get(path.name, "ext4")


def test_a_cache_lies_on_a_local_disk_that_can_be_written_and_else_in_memory(home: Path) -> None:
    (home / "file").touch()
    bases = [home / name for name in ("nfs", "file", "ram", "disk")]
    found, problems = cache_base(bases, kinds(nfs="nfs4", ram="tmpfs"))
    assert found == home / "disk"
    assert problems == (f"{home}/nfs is on a network file system (nfs4)", f"{home}/file cannot be written")
    assert cache_base(bases[:3], kinds(nfs="nfs4", ram="tmpfs"))[0] == home / "ram"
    with pytest.raises(ConfigurationError, match=f"{home}/nfs is on a network .*; set FOREBAY_CACHE_DIR"):
        cache_base(bases[:2], kinds(nfs="nfs4"))


def test_somebody_elses_directory_under_our_name_holds_no_cache_of_ours(home: Path) -> None:
    """CASES 32: another user's files in the way."""
    (home / "theirs").symlink_to(home)
    found, problems = cache_base([home / "theirs", home / "ours"])
    assert found == home / "ours"
    assert problems == (f"{home}/theirs is another user's",)


def test_without_a_home_directory_the_cache_lies_where_temporary_files_do() -> None:
    assert cache_bases({"XDG_CACHE_HOME": "/c", "HOME": "/h"})[0] == Path("/c/forebay")
    assert cache_bases({"HOME": "/h", "TMPDIR": "/t"})[:2] == [
        Path("/h/.cache/forebay"),
        Path(f"/t/forebay-cache-{os.getuid()}"),
    ]
    assert cache_bases({})[-1] == Path(f"/tmp/forebay-cache-{os.getuid()}")
