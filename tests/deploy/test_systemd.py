"""The unit: as systemd reads it, and in agreement with the daemon that it starts."""

import configparser
import re
import shlex
import sys
from pathlib import Path

from forebay_server.config import ServerConfig
from forebay_server.settings.command_line import parse
from tests.deploy.tools import DEPLOY, output, tool

UNIT = DEPLOY / "systemd/forebay.service"


def service() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return parser["Service"]


def here(home: Path) -> Path:
    """The unit with a program that is there."""
    path = home / "forebay.service"
    path.write_text(UNIT.read_text().replace("/opt/forebay/bin/forebay", sys.executable))
    return path


def test_systemd_takes_the_unit_without_a_word(home: Path) -> None:
    assert output(tool("systemd-analyze", brought_by="systemd"), "verify", here(home)) == ""


def test_the_unit_is_as_closed_as_the_daemon_allows(home: Path) -> None:
    analyze = tool("systemd-analyze", brought_by="systemd")
    said = output(analyze, "security", "--offline=true", "--threshold=30", here(home))
    assert "Overall exposure level" in said
    assert "RestrictSUIDSGID=yes" not in UNIT.read_text(), "directories of a group need the setgid bit"


def test_the_user_that_the_unit_names_is_made_by_sysusers() -> None:
    line = (DEPLOY / "systemd/forebay.sysusers").read_text().splitlines()[-1].split()
    assert line[:2] == ["u", service()["User"]] == ["u", service()["Group"]]
    output(tool("systemd-sysusers", brought_by="systemd"), "--dry-run", DEPLOY / "systemd/forebay.sysusers")


def test_the_daemon_takes_the_options_that_it_is_started_with() -> None:
    program, command, *arguments = shlex.split(service()["ExecStart"])
    assert (Path(program).name, command) == ("forebay", "serve")
    config = parse(arguments, {}, default_file=Path("/nowhere")).config
    assert config.group == service()["Group"], "a group that shares the daemon is told to it"
    assert config.socket == Path("/run") / service()["RuntimeDirectory"] / "forebay.sock"
    assert config.disks[0].path == Path("/var/cache") / service()["CacheDirectory"]


def test_systemd_waits_longer_than_the_daemon_drains_and_does_not_repeat_what_cannot_work() -> None:
    unit = service()
    assert unit["Type"] == "notify"
    assert unit["Restart"] == "always"
    assert float(unit["TimeoutStopSec"]) > ServerConfig().drain_seconds + 10
    assert unit["RestartPreventExitStatus"] == "2", "the exit status of a configuration that cannot work"
    assert (unit["RuntimeDirectoryMode"], unit["CacheDirectoryMode"]) == ("0750", "0750")
    assert re.fullmatch(r"[1-9]\d*", unit["WatchdogSec"])
