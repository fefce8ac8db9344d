"""The configuration: flags over environment over defaults, and nothing that cannot work."""

from pathlib import Path

import pytest

from forebay_core.errors import ConfigurationError
from forebay_server.config import CacheDirectory, Capacity, ServerConfig, parse


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
    ],
)
def test_a_cache_directory_may_have_its_own_capacity(text: str, path: str, capacity: Capacity | None) -> None:
    assert CacheDirectory.parse(text) == CacheDirectory(Path(path), capacity)


def test_flags_win_over_the_environment_and_this_over_the_defaults() -> None:
    environment = {"FOREBAY_SOCKET": "/e/s", "FOREBAY_PREFETCH_FILLS": "7", "FOREBAY_EMBEDDED": "true", "OTHER": "x"}
    line = parse(["--socket", "/f/s", "--json"], environment)
    assert line.json
    assert line.config.socket == Path("/f/s")
    assert (line.config.prefetch_fills, line.config.embedded) == (7, True)
    assert line.config.idle_seconds == ServerConfig().idle_seconds


def test_an_empty_variable_is_as_good_as_none() -> None:
    assert parse([], {"FOREBAY_SOCKET": ""}).config == ServerConfig()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--socket", "/" + "s" * 107], "107 bytes"),
        (["--read-in-place", "sometimes"], "auto or never"),
        (["--log-level", "loud"], "log level"),
        (["--prefetch-fills", "-1"], "prefetch_fills"),
        (["--prefetch-fills", "many"], "prefetch_fills"),
        (["--idle-seconds", "soon"], "idle_seconds"),
        (["--idle-seconds", "-1"], "idle_seconds"),
        (["--idle-seconds", "inf"], "idle_seconds"),
        (["--capacity", "much"], "capacity"),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(arguments: list[str], part: str) -> None:
    with pytest.raises(ConfigurationError, match=part):
        parse(arguments, {})


def test_a_bad_value_in_the_environment_is_refused_too() -> None:
    with pytest.raises(ConfigurationError, match="embedded"):
        parse([], {"FOREBAY_EMBEDDED": "perhaps"})


def test_an_unknown_flag_ends_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--colour"], {})
    assert ended.value.code == 2
    assert "--colour" in capsys.readouterr().err


def test_this_version_takes_one_directory() -> None:
    with pytest.raises(ConfigurationError, match="takes one"):
        ServerConfig(disks=(CacheDirectory(Path("/a")), CacheDirectory(Path("/b"))))
