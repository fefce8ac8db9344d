"""What the command line prints on standard output: a status as tables, and JSON for programs.

Colours and the terminal's width are rich's affair on a terminal; into a pipe or file go plain lines of full length.
"""

import dataclasses
import json
import sys
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

from forebay.status import DiskStatus, SessionStatus, StatusSnapshot

PIPED_WIDTH = 4096
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def make_console(file: TextIO) -> Console:
    """A console for the stream: wide and plain where it is no terminal. Text is printed as it stands.

    Paths and keys are users' own: brackets in them are no markup, words between colons no emoji.
    """
    if file.isatty():
        return Console(file=file, highlight=False, markup=False, emoji=False)
    return Console(file=file, width=PIPED_WIDTH, no_color=True, highlight=False, markup=False, emoji=False)


def print_status(snapshot: StatusSnapshot, address: str) -> None:
    """The daemon's status for people."""
    console = make_console(sys.stdout)
    kind = "embedded daemon" if snapshot.embedded else "daemon"
    state = ", draining" if snapshot.draining else ""
    console.print(
        f"{kind} {snapshot.version} at {address}, process {snapshot.process_id}, "
        f"up {duration(snapshot.uptime_seconds)}, {snapshot.fills_running} fills running{state}"
    )
    for table in (_disks(snapshot.disks), _sessions(snapshot.sessions), _counters(snapshot)):
        console.print(table)


def print_json(value: dict[str, Any]) -> None:
    """One JSON object on one line of standard output."""
    print(json.dumps(value), flush=True)


def status_json(snapshot: StatusSnapshot, address: str) -> dict[str, Any]:
    """The status as plain values, with the address that was asked."""
    return {"address": address, **dataclasses.asdict(snapshot)}


def size(count: int) -> str:
    """Bytes as people read them."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{count} B"


def duration(seconds: float) -> str:
    """Seconds as people read them."""
    whole = int(seconds)
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 7200 else f"{whole // 3600} h {whole % 3600 // 60} min"


def _table(title: str, columns: dict[str, bool], rows: list[list[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for name, numeric in columns.items():
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _disks(disks: tuple[DiskStatus, ...]) -> Table:
    columns = {"path": False, "used": True, "reserved": True, "capacity": True, "pieces": True}
    rows = [
        [d.path, size(d.used_bytes), size(d.reserved_bytes), size(d.capacity_bytes), f"{d.pieces:,}"] for d in disks
    ]
    return _table("disks", columns, rows)


def _sessions(sessions: tuple[SessionStatus, ...]) -> Table:
    columns = {"label": False, "pid": True, "source": False, "position": True, "per second": True}
    columns |= {"needs": True, "leases": True}
    rows = [_session(session) for session in sessions]
    return _table("sessions", columns, rows)


def _session(session: SessionStatus) -> list[str]:
    counts = [f"{session.position:,}", f"{session.positions_per_second:,.0f}"]
    counts += [f"{session.needs:,}", f"{session.leases:,}"]
    return [session.label, str(session.process_id), session.source, *counts]


def _counters(snapshot: StatusSnapshot) -> Table:
    counts: dict[str, int] = dataclasses.asdict(snapshot.counters)
    rows = [
        [name.replace("_", " "), size(count) if name.startswith("bytes") else f"{count:,}"]
        for name, count in counts.items()
    ]
    return _table("since its start", {"counter": False, "count": True}, rows)
