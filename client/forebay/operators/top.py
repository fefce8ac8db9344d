"""`forebay top`: the daemon's work as it goes on, in the terminal, until Ctrl-C.

Rates are differences of two reports. A daemon that is away is waited for, and said to be away; one that came anew
begins with counts of its own. Drawing is apart from asking: `drawn` is a function of two reports.
"""

import sys
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from forebay.command_options import AddressOption, JsonOption
from forebay.console import duration, make_console, print_json, size, table
from forebay.operators.asking import Operator
from forebay_core.errors import DaemonUnavailable

Report = Mapping[str, Any]
_ROWS = 12


def top(
    interval: Annotated[float, typer.Option(help="Seconds between looks.", metavar="S", min=0.1)] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look twice, print once and end; so it is in a pipe.")] = False,
    address: AddressOption = None,
    as_json: JsonOption = False,
) -> int:
    """Watch the daemon: disks, throughput, what is fetched for whom, who waits, what is uploaded."""
    operator = Operator(address)
    before = operator.report()
    if as_json:
        print_json(before)
        return 0
    console = make_console(sys.stdout)
    if once or not console.is_terminal:
        time.sleep(interval)
        console.print(drawn(before, operator.report()))
        return 0
    with Live(console=console, screen=True, auto_refresh=False) as live:
        watch(operator.report, lambda picture: live.update(picture, refresh=True), before, interval=interval)
    return 0


def watch(
    report: Callable[[], Report],
    show: Callable[[RenderableType], None],
    before: Report,
    *,
    interval: float,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Shows one picture after the other until it is interrupted."""
    try:
        while True:
            sleep(interval)
            try:
                now = report()
            except DaemonUnavailable as error:
                show(Text(f"the daemon does not answer: {error}", style="bold red"))
                continue
            show(drawn(before, now))
            before = now
    except KeyboardInterrupt:
        return


def drawn(before: Report, now: Report) -> RenderableType:
    """The present state, and what happened between two reports of one daemon."""
    if before["daemon"]["boot_id"] != now["daemon"]["boot_id"]:
        before = now
    parts = (_head(before, now), _disks(now), _fills(now), _sessions(now), _datasets(now), _uploads(before, now))
    return Group(*(part for part in parts if part is not None))


def _head(before: Report, now: Report) -> RenderableType:
    daemon, counters = now["daemon"], now["counters"]
    seconds = max(now["time"] - before["time"], 1e-3)
    change = {name: counters[name] - before["counters"][name] for name in counters}
    asked = change["hits"] + change["in_place"] + change["misses"] + change["pending"]
    ratio = f"{(change['hits'] + change['in_place']) / asked:.0%}" if asked else "–"
    rates = (
        f"remote {size(int(change['remote_bytes'] / seconds))}/s, {change['remote_requests'] / seconds:,.0f} requests/s"
        f" ({change['remote_retries']:,} retried)   {change['samples'] / seconds:,.0f} samples/s to trainers"
        f"   hits {ratio}   evictions {change['evictions']:,}   failures {change['fill_failures']:,}"
    )
    state = ", draining" if daemon["is_draining"] else ""
    name = f"forebay {daemon['version']} on {daemon['host']}, process {daemon['process_id']}"
    return Group(Text(f"{name}, up {duration(daemon['uptime_seconds'])}{state}", style="bold"), Text(rates))


def _disks(now: Report) -> RenderableType:
    columns = {"disk": False, "state": False, "used": True, "reserved": True, "capacity": True, "": True}
    rows = [
        [
            disk["path"],
            _state(disk),
            size(disk["used_bytes"]),
            size(disk["reserved_bytes"]),
            size(disk["capacity_bytes"]),
            f"{disk['used_bytes'] / max(1, disk['capacity_bytes']):.0%}",
        ]
        for disk in now["disks"]
    ]
    return table("", columns, rows)


def _state(disk: Report) -> str:
    marks = [name for name in ("slow", "draining") if disk[f"is_{name}"]]
    reason = f": {disk['reason']}" if disk["reason"] else ""
    return ", ".join([disk["state"], *marks]) + reason


def _fills(now: Report) -> RenderableType | None:
    fills = now["fills"]
    if not fills["count"]:
        return None
    columns = {"being fetched": False, "piece": True, "for": False, "received": True, "since": True}
    rows = [
        [
            fill["object"],
            str(fill["piece"]),
            f"{fill['kind']}, {fill['sessions']['count']} sessions",
            f"{size(fill['received_bytes'])} of {size(fill['total_bytes'])}",
            f"{fill['seconds']:.1f} s",
        ]
        for fill in fills["rows"][:_ROWS]
    ]
    return table(f"{fills['count']:,} fills, {fills['demands']:,} of them demanded", columns, rows)


def _sessions(now: Report) -> RenderableType:
    sessions = now["sessions"]
    if not sessions["count"]:
        return Text("no sessions")
    columns = {"session": False, "pid": True, "source": False, "position": True, "per second": True}
    columns |= {"leases": True, "waiting": True}
    rows = [
        [
            session["label"],
            str(session["process_id"]),
            session["source"],
            f"{session['position']:,}",
            f"{session['positions_per_second']:,.0f}",
            f"{session['leases']:,}",
            f"{session['waiting_seconds']:.1f} s" if session["waiting_seconds"] else "",
        ]
        for session in sessions["rows"][:_ROWS]
    ]
    return table(f"{sessions['count']:,} sessions", columns, rows)


def _datasets(now: Report) -> RenderableType | None:
    datasets = now["datasets"]
    if not datasets["count"]:
        return None
    columns = {"dataset": False, "on disk": True, "pieces": True, "sessions": True}
    rows = [
        [
            row["source"],
            "in place" if row["is_in_place"] else size(row["bytes"]),
            f"{row['pieces']:,}",
            f"{row['sessions']:,}",
        ]
        for row in datasets["rows"][:_ROWS]
    ]
    return table(f"{datasets['count']:,} datasets", columns, rows)


def _uploads(before: Report, now: Report) -> RenderableType | None:
    """Nothing where nothing is staged, or by a daemon that does not say."""
    uploads = now.get("uploads")
    if not uploads or not uploads["count"]:
        return None
    columns = {"checkpoint": False, "to": False, "state": False, "uploaded": True, "since": True}
    rows = [
        [
            f"step {row['step']:,}",
            row["root"],
            f"{row['phase']}: {row['error']}" if row["error"] else row["phase"],
            f"{size(row['uploaded_bytes'])} of {size(row['size_bytes'])}",
            duration(row["seconds"]),
        ]
        for row in uploads["rows"][:_ROWS]
    ]
    staging = uploads["staging"]
    summary = (
        f"{uploads['pending']:,} upload{'s' * (uploads['pending'] != 1)} pending, "
        f"{size(uploads['pending_bytes'])} to go, {_upload_rate(before, now)}, "
        f"{uploads['failing']:,} failing; {size(staging['used_bytes'])} of {size(staging['quota_bytes'])} staged"
    )
    return Group(Text(summary), table("", columns, rows))


def _upload_rate(before: Report, now: Report) -> str:
    seconds = max(now["time"] - before["time"], 1e-3)
    sent = now["counters"]["uploaded_bytes"] - before["counters"].get("uploaded_bytes", 0)
    return f"{size(max(0, int(sent / seconds)))}/s"
