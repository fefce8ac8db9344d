"""Sizes and cache directories as people write them."""

from pathlib import Path

import pytest

from forebay_core.capacity import CacheDirectory, Capacity, split_capacity
from forebay_core.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "bytes_on_a_tib"),
    [
        ("1073741824", 1 << 30),
        ("10GiB", 10 << 30),
        ("10 GiB", 10 << 30),
        ("10G", 10 << 30),
        ("10GB", 10_000_000_000),
        ("1.5KiB", 1536),
        ("80%", int(0.8 * (1 << 40))),
        ("100 %", 1 << 40),
    ],
)
def test_a_capacity_is_a_size_or_a_share(text: str, bytes_on_a_tib: int) -> None:
    assert Capacity.parse(text).of(1 << 40) == bytes_on_a_tib


@pytest.mark.parametrize("text", ["", "lots", "-1", "0", "0%", "101%", "5XiB", "10 GiB extra", "nan", "1e9", "%"])
def test_what_is_no_capacity_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigurationError, match="capacity"):
        Capacity.parse(text)


@pytest.mark.parametrize(
    ("text", "path", "capacity"),
    [
        ("/a/b", "/a/b", None),
        ("/a/b:5GiB", "/a/b", Capacity(bytes=5 << 30)),
        ("/a/b:50%", "/a/b", Capacity(share=0.5)),
        ("/a:b/c", "/a:b/c", None),
        ("/a:b", "/a:b", None),
        ("5GiB", "5GiB", None),
    ],
)
def test_a_cache_directory_may_have_its_own_capacity(text: str, path: str, capacity: Capacity | None) -> None:
    assert CacheDirectory.parse(text) == CacheDirectory(Path(path), capacity)


def test_the_parts_of_a_directory_with_a_capacity_are_given_as_they_are_written() -> None:
    assert split_capacity("/a/b:1.5 GiB") == ("/a/b", "1.5 GiB")
    assert split_capacity("/a/b") == ("/a/b", None)


def test_a_capacity_of_a_directory_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="5XiB"):
        CacheDirectory.parse("/a/b:5XiB")


@pytest.mark.parametrize("text", ["", "  ", ":5GiB", ":80%"])
def test_a_directory_without_a_name_is_refused(text: str) -> None:
    """As where a script's variable was not set."""
    with pytest.raises(ConfigurationError, match="names no directory: give PATH"):
        CacheDirectory.parse(text)
