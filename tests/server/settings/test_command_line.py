"""The configuration as it is read: flags over environment over a file over defaults, and nothing that cannot work."""

import dataclasses
import re
from pathlib import Path

import pytest

from forebay_core.capacity import CacheDirectory, Capacity
from forebay_core.errors import ConfigurationError
from forebay_server.config import ServerConfig
from forebay_server.settings.command_line import parse
from forebay_server.settings.table import OPTIONS

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "deploy/forebay.toml"
NO_FILE = Path("/nowhere/forebay.toml")
#: Fields of a configuration that no operator need set, and why.
INTERNAL = {
    "room_wait_seconds": "a property of the cache's promise, not of a machine",
}


def written(home: Path, text: str) -> Path:
    path = home / "forebay.toml"
    path.write_text(text)
    return path


def test_flags_win_over_the_environment_and_this_over_the_defaults() -> None:
    environment = {"FOREBAY_SOCKET": "/e/s", "FOREBAY_PREFETCH_FILLS": "7", "FOREBAY_EMBEDDED": "true", "OTHER": "x"}
    line = parse(["--socket", "/f/s", "--json"], environment, default_file=NO_FILE)
    assert line.json
    assert line.config.socket == Path("/f/s")
    assert (line.config.prefetch_fills, line.config.embedded) == (7, True)
    assert line.config.idle_seconds == ServerConfig().idle_seconds


def test_the_environment_wins_over_the_file_and_this_over_the_defaults(home: Path) -> None:
    path = written(home, 'socket = "/t/s"\nidle_seconds = 7\nprefetch_fills = 3\n')
    line = parse(["--config", str(path), "--socket", "/f/s"], {"FOREBAY_IDLE_SECONDS": "8"}, default_file=NO_FILE)
    assert (line.config.socket, line.config.idle_seconds, line.config.prefetch_fills) == (Path("/f/s"), 8, 3)
    assert line.file == path
    assert line.config.log_level == ServerConfig().log_level


def test_the_file_is_the_one_named_else_the_machines_own(home: Path) -> None:
    own = written(home, "idle_seconds = 5\n")
    other = home / "other.toml"
    other.write_text("idle_seconds = 6\n")
    named = {"FOREBAY_CONFIG": str(other)}
    assert parse([], {}, default_file=own).config.idle_seconds == 5
    assert parse([], named, default_file=own).config.idle_seconds == 6
    assert parse(["--config", str(own)], named, default_file=NO_FILE).config.idle_seconds == 5
    assert parse([], {}, default_file=NO_FILE).file is None
    assert parse(["--config", "/dev/null"], named, default_file=own).config == ServerConfig()


def test_a_daemon_that_a_trainer_starts_reads_the_file_that_it_was_told_of_and_not_the_machines_own(home: Path) -> None:
    own = written(home, 'group = "of-the-machine"\n')
    assert parse(["--embedded"], {}, default_file=own).config.group is None
    assert parse(["--embedded", "--config", str(own)], {}, default_file=NO_FILE).config.group == "of-the-machine"


def test_a_rate_may_be_none_at_all() -> None:
    config = parse(["--scrub-bytes-per-second", "0", "--verify-bytes-per-second", "1MiB"], {}).config
    assert (config.scrub_bytes_per_second, config.verify_bytes_per_second) == (0, 1 << 20)
    with pytest.raises(ConfigurationError, match="--scrub-bytes-per-second"):
        parse(["--scrub-bytes-per-second", "-1"], {})


def test_an_empty_variable_is_as_good_as_none() -> None:
    assert parse([], {"FOREBAY_SOCKET": "", "FOREBAY_CONFIG": ""}, default_file=NO_FILE).config == ServerConfig()


def test_every_field_can_be_set_by_flag_by_variable_and_in_the_file_or_is_known_to_be_internal() -> None:
    fields = {field.name for field in dataclasses.fields(ServerConfig)}
    settable = [option.field for option in OPTIONS]
    assert len(set(settable)) == len(settable)
    assert set(settable) | INTERNAL.keys() == fields
    assert not set(settable) & INTERNAL.keys()
    assert len({option.key for option in OPTIONS}) == len(OPTIONS)


def test_the_example_states_every_setting_with_its_default() -> None:
    assert parse(["--config", str(EXAMPLE)], {}).config == ServerConfig()
    stated = set(re.findall(r"^(?:# )?(\w+) = ", EXAMPLE.read_text(), re.MULTILINE))
    assert stated == {option.key for option in OPTIONS}


def test_what_the_example_only_suggests_is_right_too(home: Path) -> None:
    suggested = re.sub(r"^# (\w+ = )", r"\1", EXAMPLE.read_text(), flags=re.MULTILINE)
    config = parse(["--config", str(written(home, suggested))], {}).config
    assert all(getattr(config, field.name) is not None for field in dataclasses.fields(ServerConfig))


def test_the_readme_has_a_row_for_every_setting() -> None:
    rows = (ROOT / "README.md").read_text()
    missing = [
        option.flag
        for option in OPTIONS
        if not re.search(rf"^\| `{option.flag}[ `][^|]*\| `{option.variable}` \|", rows.replace("\\|", "/"), re.M)
    ]
    assert missing == []


def test_cache_directories_of_the_file_are_texts_or_tables(home: Path) -> None:
    ten = Capacity.parse("10GiB")
    for value in (
        '"/c:10GiB"',
        '["/c:10GiB"]',
        '{ path = "/c", capacity = "10GiB" }',
        f'[{{ path = "/c", capacity = {10 << 30} }}]',
    ):
        path = written(home, f"cache_dir = {value}\n")
        assert parse(["--config", str(path)], {}).config.disks == (CacheDirectory(Path("/c"), ten),)
    path = written(home, '[[cache_dir]]\npath = "/c:10GiB"\ncapacity = "80%"\n')
    assert parse(["--config", str(path)], {}).config.disks == (CacheDirectory(Path("/c:10GiB"), Capacity(share=0.8)),)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--socket", "/" + "s" * 107], "107 bytes"),
        (["--read-in-place", "sometimes"], "auto or never"),
        (["--log-level", "loud"], "log level"),
        (["--prefetch-fills", "-1"], "--prefetch-fills must be a whole number"),
        (["--prefetch-fills", "many"], "--prefetch-fills must be a whole number"),
        (["--idle-seconds", "soon"], "--idle-seconds must be a number"),
        (["--idle-seconds", "-1"], "idle_seconds"),
        (["--idle-seconds", "inf"], "idle_seconds"),
        (["--capacity", "much"], "--capacity: capacity 'much' is not a size"),
        (["--config", "/nowhere.toml"], "/nowhere.toml cannot be read: No such file or directory"),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(arguments: list[str], part: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(part)):
        parse(arguments, {}, default_file=NO_FILE)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("idle_second = 1", "there is no setting 'idle_second'; did you mean idle_seconds?"),
        ("[disk]\na = 1", "there is no setting 'disk'"),
        ('idle_seconds = "soon"', "idle_seconds must be a number, not 'soon'"),
        ("idle_seconds = true", "idle_seconds must be a number, not True"),
        ("idle_seconds = -1", "idle_seconds must be a number of seconds, 0 or more, not -1"),
        ("idle_seconds = nan", "idle_seconds must be a number of seconds"),
        ("prefetch_fills = 1.5", "prefetch_fills must be a whole number, 0 or more, not 1.5"),
        ("embedded = 1", "embedded must be true or false, not 1"),
        ('log_level = "loud"', "the log level is one of debug, info, warning, error"),
        ("log_level = 3", "log_level must be a text, not 3"),
        ("capacity = 0", "capacity: capacity '0' is not a size"),
        ("capacity = [1]", "capacity must be a size such as 10GiB or 80%"),
        ('socket = "run/s"', "socket must be an absolute path, not 'run/s'"),
        ('cache_dir = ["c"]', "cache_dir must be an absolute path"),
        ('cache_dir = [{ path = "/c", size = 1 }]', "cache_dir must be an absolute path"),
        ('cache_dir = [{ path = "/c", capacity = "big" }]', "cache_dir: capacity 'big' is not a size"),
        ("cache_dir = [{ capacity = 1 }]", "cache_dir must be an absolute path"),
        ("cache_dir = [{ path = 1 }]", "cache_dir must be an absolute path"),
        ('flight_bytes = "fast"', "flight_bytes must be a size such as 256MiB, not 'fast'"),
        ("scrub_bytes_per_second = -1", "scrub_bytes_per_second must be a size such as 16MiB, or 0 for none, not -1"),
        ("socket = ", "is not TOML"),
        ("socket = '/a'\nsocket = '/b'", "is not TOML"),
        ("\x00", "is not TOML"),
        ("a = " + "[" * 10_000, "is not TOML"),
    ],
)
def test_a_file_that_cannot_work_is_refused_by_file_and_key_in_one_line(home: Path, text: str, part: str) -> None:
    path = written(home, text)
    with pytest.raises(ConfigurationError, match=re.escape(part)) as refused:
        parse(["--config", str(path)], {})
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_no_text_is_refused(home: Path) -> None:
    path = home / "forebay.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="is not TOML"):
        parse(["--config", str(path)], {})


def test_a_wrong_flag_is_not_blamed_on_the_file(home: Path) -> None:
    path = written(home, "idle_seconds = 5\n")
    with pytest.raises(ConfigurationError) as refused:
        parse(["--config", str(path), "--log-level", "loud"], {})
    assert str(path) not in str(refused.value)


def test_a_bad_value_in_the_environment_is_refused_too() -> None:
    with pytest.raises(ConfigurationError, match="FOREBAY_EMBEDDED must be true or false"):
        parse([], {"FOREBAY_EMBEDDED": "perhaps"}, default_file=NO_FILE)


@pytest.mark.parametrize("arguments", [["--colour"], ["--capacity"], ["a"]])
def test_a_wrong_call_is_one_line_that_says_where_help_is(arguments: list[str]) -> None:
    with pytest.raises(ConfigurationError, match=rf"^[^\n]*{arguments[0]}[^\n]*; see forebay serve --help$"):
        parse(arguments, {})


def test_help_names_the_command_that_people_type_and_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"], {})
    said = capsys.readouterr().out
    assert said.startswith("usage: forebay serve ")
    assert [option.flag for option in OPTIONS if option.flag not in said] == []
