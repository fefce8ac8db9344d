"""What operators are told exists: commands, settings, metrics, alerts, errors, and the paths of the deployment."""

import re
from pathlib import Path
from typing import Any

import typer.main
import yaml

from forebay.cli import app
from forebay_core import errors
from forebay_server.rpc.limits import DEFAULT_LIMITS, SERVER_OPTIONS
from forebay_server.settings.table import OPTIONS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/operations.md").read_text()
RULES = ROOT / "deploy/prometheus/forebay.rules.yaml"
#: Of loaders and states: what a trainer is told, and `docs/semantics.md` explains.
OF_TRAINERS = {"ColumnNotFound", "StateError", "StateMismatch", "SampleError", "WorkerError", "PieceGone"}
#: Metrics of Prometheus and of its clients for every process.
OF_PROCESSES = {"up", "process_start_time_seconds", "process_open_fds", "process_max_fds"}


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def rows(heading: str) -> set[str]:
    """The first cells of the table below a line that begins so."""
    below = TEXT[TEXT.index(heading) :].splitlines()[2:]
    return {line.split("|")[1].strip().strip("`") for line in below[: below.index("")]}


def test_every_command_and_setting_that_is_named_exists() -> None:
    commands = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert set(re.findall(r"(?:^|`)forebay ([a-z]+)", TEXT, re.MULTILINE)) <= commands
    flags = set(re.findall(r"`(--[a-z-]+)`?", TEXT)) - {"--group-add"}
    assert flags <= {option.flag for option in OPTIONS}
    keys = set(re.findall(r"`([a-z_]+) = ", TEXT)) | {"flight_bytes", "fill_memory_bytes", "remote_requests"}
    assert keys | {"drain_seconds", "allow_read", "allow_changed"} <= {option.key for option in OPTIONS}


def test_every_metric_of_an_alert_is_exported_and_every_alert_is_explained() -> None:
    exported = set(re.findall(r"^\| `(\w+)`", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE))
    words = {"rate", "increase", "changes", "and", "job", "forebay"}
    for alert in alerts():
        expression = re.sub(r'"[^"]*"|\[\w+\]|\b\d[\w.]*', "", alert["expr"])
        named = set(re.findall(r"[a-z_]+", expression)) - words
        assert named
        assert named <= exported | OF_PROCESSES, alert["alert"]
        assert alert["annotations"]["summary"]
        assert alert["labels"]["severity"] in ("warning", "critical")
    assert rows("| alert |") == {alert["alert"] for alert in alerts()}
    assert set(re.findall(r"`(forebay_\w+)`", TEXT)) <= exported


def test_every_error_that_a_daemon_gives_has_a_remedy() -> None:
    crossing = {
        name: kind for name, kind in errors._tree(errors.ForebayError).items() if kind.__module__ == errors.__name__
    }
    leaves = {name for name, kind in crossing.items() if not set(kind.__subclasses__()) & set(crossing.values())}
    missing = leaves - OF_TRAINERS - rows("| error |")
    assert missing == set()
    assert rows("| error |") <= errors._tree(errors.ForebayError).keys()


def test_the_limits_that_are_stated_are_those_that_hold() -> None:
    options = dict(SERVER_OPTIONS)
    connections = options["grpc.max_allowed_incoming_connections"]
    for number in (DEFAULT_LIMITS.sessions, DEFAULT_LIMITS.pieces, connections):
        assert f"{number:,}" in TEXT
    assert f"{DEFAULT_LIMITS.needs // 10**6} million needs of one" in TEXT
    assert f"{DEFAULT_LIMITS.needs_of_all // 10**6} million of all" in TEXT
    assert options["grpc.max_receive_message_length"] == 4 << 20
