"""What `forebay top` draws from two reports, and how it goes on while a daemon is away."""

import copy
from collections.abc import Iterator
from typing import Any

from rich.console import Console, RenderableType

from forebay.operators.top import drawn, watch
from forebay_core.errors import DaemonUnavailable

COUNTERS = (
    "hits",
    "in_place",
    "misses",
    "pending",
    "remote_bytes",
    "remote_requests",
    "remote_retries",
    "samples",
    "evictions",
    "fill_failures",
)


def report(boot: str = "a", *, at: float = 100.0, **counts: int) -> dict[str, Any]:
    return {
        "time": at,
        "daemon": {
            "version": "1",
            "host": "node",
            "process_id": 7,
            "boot_id": boot,
            "uptime_seconds": 5.0,
            "is_draining": False,
        },
        "disks": [],
        "datasets": {"count": 0, "rows": []},
        "fills": {"count": 0, "demands": 0, "rows": []},
        "sessions": {"count": 0, "rows": []},
        "counters": dict.fromkeys(COUNTERS, 0) | counts,
    }


def text(picture: RenderableType) -> str:
    console = Console(width=200, no_color=True)
    with console.capture() as captured:
        console.print(picture)
    return captured.get()


def test_rates_are_what_happened_between_two_reports() -> None:
    shown = text(
        drawn(
            report(hits=10, remote_bytes=1 << 20),
            report(at=102.0, hits=13, misses=1, samples=500, remote_bytes=5 << 20),
        )
    )
    assert "remote 2.0 MiB/s" in shown
    assert "250 samples/s" in shown
    assert "hits 75%" in shown


def test_a_daemon_that_came_anew_begins_with_counts_of_its_own() -> None:
    shown = text(drawn(report(hits=1000, remote_bytes=1 << 30), report("b", at=101.0, hits=1, remote_bytes=1 << 20)))
    assert "remote 0 B/s" in shown
    assert "-" not in shown.partition("remote")[2]


def test_a_daemon_that_is_away_is_waited_for_and_said_to_be() -> None:
    answers: Iterator[Any] = iter(
        [DaemonUnavailable("nobody answers"), report(at=103.0, hits=4), report(at=104.0, hits=9)]
    )

    def ask() -> dict[str, Any]:
        answer = next(answers, None)
        if answer is None:
            raise KeyboardInterrupt
        if isinstance(answer, Exception):
            raise answer
        return copy.deepcopy(answer)

    pictures: list[str] = []
    watch(ask, lambda picture: pictures.append(text(picture)), report(), interval=1.0, sleep=lambda _: None)
    assert "nobody answers" in pictures[0]
    assert len(pictures) == 3
    assert "hits 100%" in pictures[2]


def uploading(*rows: dict[str, Any], uploaded: int = 0, at: float = 100.0) -> dict[str, Any]:
    found = report(at=at, uploaded_bytes=uploaded)
    pending = [row for row in rows if row["phase"] not in ("durable", "failed")]
    found["uploads"] = {
        "count": len(rows),
        "pending": len(pending),
        "failing": sum(bool(row["error"]) for row in pending),
        "pending_bytes": sum(row["size_bytes"] - row["uploaded_bytes"] for row in pending),
        "oldest_seconds": 7.0,
        "staging": {"path": "/staging", "used_bytes": 3 << 20, "quota_bytes": 8 << 20},
        "rows": list(rows),
    }
    return found


def upload(phase: str, error: str = "", uploaded: int = 0) -> dict[str, Any]:
    row = {
        "root": "s3://b/a",
        "attempt": "g000001-s000000010-0123456789ab",
        "generation": 1,
        "step": 10,
        "error": error,
    }
    return row | {"phase": phase, "size_bytes": 2 << 20, "uploaded_bytes": uploaded, "seconds": 7.0}


def test_uploads_are_shown_with_their_rate_and_why_one_fails() -> None:
    before = uploading(upload("uploading"), uploaded=3 << 20)
    now = uploading(upload("uploading", "AccessDenied: no", 1 << 20), upload("durable"), uploaded=4 << 20, at=102.0)
    shown = text(drawn(before, now))
    assert "1 upload pending, 1.0 MiB to go, 512.0 KiB/s, 1 failing; 3.0 MiB of 8.0 MiB staged" in shown
    assert "uploading: AccessDenied: no" in shown
    assert "1.0 MiB of 2.0 MiB" in shown


def test_without_uploads_and_of_an_older_daemon_nothing_is_said_of_them() -> None:
    assert "upload" not in text(drawn(report(), report()))
    assert "upload" not in text(drawn(uploading(), uploading()))
