"""Where a daemon logs to."""

import logging
from pathlib import Path

from forebay_server.__main__ import handler_of
from forebay_server.config import ServerConfig

_LINE = logging.LogRecord("x", logging.INFO, "", 0, "x" * 100_000, None, None)


def logged(config: ServerConfig, *, megabytes: int) -> None:
    handler = handler_of(config)
    for _ in range(10 * megabytes):
        handler.emit(_LINE)
    handler.close()


def test_the_log_of_a_daemon_that_nobody_looks_after_stays_bounded(home: Path) -> None:
    logged(ServerConfig(embedded=True, log_file=home / "d.log"), megabytes=20)
    assert {path.name for path in home.glob("d.log*")} == {"d.log", "d.log.1"}
    assert sum(path.stat().st_size for path in home.glob("d.log*")) < 9 << 20


def test_another_daemons_log_is_left_to_whoever_runs_it(home: Path) -> None:
    logged(ServerConfig(log_file=home / "d.log"), megabytes=10)
    assert [path.name for path in home.glob("d.log*")] == ["d.log"]
    assert (home / "d.log").stat().st_size >= 10_000_000
