"""What a daemon's configuration refuses at construction, whoever made it."""

import grp
import os
from pathlib import Path
from typing import Any

import pytest

from forebay_core.capacity import CacheDirectory
from forebay_core.errors import ConfigurationError
from forebay_server.config import ServerConfig


@pytest.mark.parametrize(
    "bad",
    [
        {"fill_memory_bytes": 0},
        {"flight_bytes": 0},
        {"remote_requests": 0},
        {"prefetch_fills": -1},
        {"stall_seconds": 0.0},
        {"stall_seconds": float("inf")},
        {"stall_seconds": float("nan")},
    ],
    ids=str,
)
def test_what_bounds_the_network_must_leave_some_of_it(bad: dict[str, Any]) -> None:
    (name,) = bad
    with pytest.raises(ConfigurationError, match=f"{name}.*--{name.replace('_', '-')}"):
        ServerConfig(**bad)


def test_a_directory_given_twice_or_in_another_is_refused_whatever_it_is_called(home: Path) -> None:
    (home / "a").mkdir()
    (home / "link").symlink_to(home / "a")
    for other, what in ((home / "a", "twice"), (home / "link", "twice"), (home / "a/../a", "twice"), (home, "lies in")):
        with pytest.raises(ConfigurationError, match=what):
            ServerConfig(disks=(CacheDirectory(home / "a"), CacheDirectory(other)))
    with pytest.raises(ConfigurationError, match="needs a cache directory"):
        ServerConfig(disks=())


def test_an_unknown_eviction_policy_is_refused_with_the_names_of_those_there_are() -> None:
    with pytest.raises(ConfigurationError, match=r"next-use, lru, never, not 'fifo'.*--eviction"):
        ServerConfig(eviction="fifo")


def test_a_group_is_a_name_or_a_number_and_must_be_one_that_there_is() -> None:
    here = grp.getgrgid(os.getgid())
    assert ServerConfig(group=here.gr_name).group_id == here.gr_gid
    assert ServerConfig(group="4711").group_id == 4711
    assert ServerConfig().group_id is None
    with pytest.raises(ConfigurationError, match=r"no group 'no-such-group' .--group, FOREBAY_GROUP"):
        ServerConfig(group="no-such-group").group_id  # noqa: B018 - it is asked for


@pytest.mark.parametrize(
    ("staging", "says"),
    [
        ("relative", "must be an absolute path"),
        ("/c", "holds the cache directory /c"),
        ("/", "holds the cache directory /c"),
        ("/c/pieces", "lies in the cache directory /c"),
        ("/c/staging/x", "lies in the cache directory /c"),
    ],
)
def test_a_staging_directory_lies_beside_the_cache_or_at_its_place_in_it(staging: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        ServerConfig(disks=(CacheDirectory(Path("/c")),), staging_dir=CacheDirectory(Path(staging)))
    assert "--staging-dir" in str(caught.value)


def test_checkpoints_are_staged_in_the_first_cache_directory_unless_it_is_said() -> None:
    disks = (CacheDirectory(Path("/a")), CacheDirectory(Path("/b")))
    assert ServerConfig(disks=disks).staging_path == Path("/a/staging")
    for given in ("/a/staging", "/c"):
        assert ServerConfig(disks=disks, staging_dir=CacheDirectory(Path(given))).staging_path == Path(given)
