"""Where an embedded daemon's cache goes, and how large it may be."""

import fcntl
import shutil
from pathlib import Path

import pytest

from forebay.embedded import is_locked
from forebay.place import (
    MAXIMUM_CAPACITY_BYTES,
    choose_place,
    default_capacity,
    is_network_filesystem,
    split_capacity,
)

MOUNTS = r"""22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw
30 22 0:30 / /home rw shared:2 - nfs4 server:/home rw
31 30 8:2 / /home/local rw - xfs /dev/sdb1 rw
32 22 0:31 / /mnt/my\040share rw - cifs //server/share rw
33 22 0:32 / /mnt/cloud rw - fuse.s3fs s3fs rw
34 22 0:33 / /layered rw - ext4 /dev/sdc1 rw
35 22 0:34 / /layered rw - lustre lustre rw
"""


@pytest.mark.parametrize(
    ("path", "network"),
    [
        ("/var/x", False),
        ("/home", True),
        ("/home/user/.cache", True),
        ("/homes", False),
        ("/home/local/x", False),
        ("/mnt/my share/x", True),
        ("/mnt/cloud", True),
        ("/layered/x", True),
    ],
)
def test_the_nearest_and_latest_mount_says_whether_a_path_is_on_the_network(path: str, network: bool) -> None:
    assert is_network_filesystem(Path(path), MOUNTS) is network


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("/a", ("/a", None)),
        ("/a:10GiB", ("/a", "10GiB")),
        ("/a:80%", ("/a", "80%")),
        ("/a:b", ("/a:b", None)),
        ("/a:1/b", ("/a:1/b", None)),
        ("", ("", None)),
    ],
)
def test_a_capacity_behind_a_colon_is_told_from_a_path(text: str, parts: tuple[str, str | None]) -> None:
    assert split_capacity(text) == parts


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
