"""Where an embedded daemon's cache goes, and how large it may be."""

import fcntl
import shutil
from pathlib import Path

import pytest

from forebay.embedded import is_locked
from forebay.embedded_place import MAXIMUM_CAPACITY_BYTES, choose_place, default_capacity


def test_the_first_place_that_no_daemon_holds_is_taken(home: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(home / "c")}
    first = choose_place(environment, lambda _: False)
    second = choose_place(environment, lambda lock: lock == first.cache_dir / "lock")
    assert (first.cache_dir, second.cache_dir) == (home / "c/forebay/0", home / "c/forebay/1")
    assert first.cache_dir.stat().st_mode & 0o777 == 0o700


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
    assert own.options() == ["--cache-dir", f"{home}/mine", "--capacity", "2GiB"]


def test_the_default_capacity_is_half_of_what_is_free_and_what_the_cache_holds(home: Path) -> None:
    free = shutil.disk_usage(home).free
    empty = default_capacity(home / "not/yet")
    assert empty <= MAXIMUM_CAPACITY_BYTES
    assert empty == pytest.approx(min(free // 2, MAXIMUM_CAPACITY_BYTES), rel=0.05)
    piece = home / "cache/pieces/ab/abc"
    piece.parent.mkdir(parents=True)
    piece.write_bytes(bytes(1 << 20))
    assert default_capacity(home / "cache") == pytest.approx(empty, rel=0.05)
