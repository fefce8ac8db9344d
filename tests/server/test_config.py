"""The configuration: flags over environment over defaults, and nothing that cannot work."""

from pathlib import Path

import pytest

from forebay_core.capacity import CacheDirectory
from forebay_core.errors import ConfigurationError
from forebay_server.config import ServerConfig, parse


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


def test_help_names_the_command_that_people_type(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"], {})
    assert capsys.readouterr().out.startswith("usage: forebay serve ")


def test_memory_for_fills_must_be_some() -> None:
    with pytest.raises(ConfigurationError, match="fill_memory_bytes"):
        ServerConfig(fill_memory_bytes=0)


def test_this_version_takes_one_directory() -> None:
    with pytest.raises(ConfigurationError, match="takes one"):
        ServerConfig(disks=(CacheDirectory(Path("/a")), CacheDirectory(Path("/b"))))
