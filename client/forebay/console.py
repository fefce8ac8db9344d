"""What the command line prints on standard output: a status as tables, and JSON for programs.

Colours and the terminal's width are rich's affair on a terminal; into a pipe or file go plain lines of full length.
"""

import dataclasses
import json
import sys
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from forebay.daemon.status import ENDED, DiskStatus, SessionStatus, StagingStatus, StatusSnapshot, UploadStatus
from forebay_core.printing import printable

PIPED_WIDTH = 4096
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def make_console(file: TextIO) -> Console:
    """A console for the stream: wide and plain where it is no terminal. Text is printed as it stands.

    Paths and keys are users' own: brackets in them are no markup, words between colons no emoji. What a terminal would
    obey in them, `printable` writes out.
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
    if snapshot.http_address:
        console.print(f"status page {snapshot.http_address}")
    console.print(_disks(snapshot.disks))
    print_sessions(snapshot.sessions)
    if snapshot.staging.path or snapshot.staging.reason:
        console.print(_uploads(snapshot.staging))
    console.print(_counters(snapshot))


def print_sessions(sessions: tuple[SessionStatus, ...]) -> None:
    """The sessions for people."""
    make_console(sys.stdout).print(_sessions(sessions) if sessions else "no sessions")


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


def table(title: str, columns: dict[str, bool], rows: list[list[str]]) -> Table:
    """A table for people; `columns` says of each name whether it holds numbers."""
    table = Table(title=title, title_justify="left")
    for name, numeric in columns.items():
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(printable, row))
    return table


def _disks(disks: tuple[DiskStatus, ...]) -> Table:
    columns = {"path": False, "used": True, "reserved": True, "capacity": True, "pieces": True, "state": False}
    rows = [
        [d.path, size(d.used_bytes), size(d.reserved_bytes), size(d.capacity_bytes), f"{d.pieces:,}", disk_state(d)]
        for d in disks
    ]
    return table("disks", columns, rows)


def disk_state(disk: DiskStatus) -> str:
    """A disk's state in words, with all that is not as usual."""
    words = [disk.state, *["slow"] * disk.slow, *["draining"] * disk.draining]
    if disk.disk_id and disk.capacity_bytes < disk.configured_bytes:
        words.append(f"of {size(disk.configured_bytes)} configured")
    return ", ".join(words) + (f": {disk.reason}" if disk.reason else "")


def _sessions(sessions: tuple[SessionStatus, ...]) -> Table:
    columns = {"label": False, "pid": True, "source": False, "position": True, "per second": True}
    columns |= {"needs": True, "leases": True, "waited": True, "waiting": True}
    rows = [_session(session) for session in sessions]
    return table("sessions", columns, rows)


def _session(session: SessionStatus) -> list[str]:
    counts = [f"{session.position:,}", f"{session.positions_per_second:,.0f}"]
    counts += [f"{session.needs:,}", f"{session.leases:,}"]
    counts += [duration(session.waited_seconds), f"{session.waiting_seconds:.0f} s" if session.waiting_seconds else ""]
    return [session.label, str(session.process_id), session.source, *counts]


def _uploads(staging: StagingStatus) -> RenderableType:
    if not staging.path:
        return Text(f"no checkpoints can be staged here: {printable(staging.reason)}")
    pending = [upload for upload in staging.uploads if upload.phase not in ENDED]
    left = sum(upload.total_bytes - upload.uploaded_bytes for upload in pending)
    summary = (
        f"checkpoints: {size(staging.used_bytes)} of {size(staging.quota_bytes)} staged in {printable(staging.path)}, "
        f"{len(pending):,} upload{'s' * (len(pending) != 1)} pending, {size(left)} to go"
    )
    if not staging.uploads:
        return Text(summary)
    columns = {"checkpoint": False, "to": False, "state": False, "uploaded": True, "since": True}
    return Group(Text(summary), table("", columns, [_upload(upload) for upload in staging.uploads]))


def _upload(upload: UploadStatus) -> list[str]:
    why = f": {upload.error_message}" if upload.error_message else ""
    done = f"{size(upload.uploaded_bytes)} of {size(upload.total_bytes)}"
    return [upload.attempt, upload.root, f"{upload.phase}{why}", done, duration(upload.seconds)]


def _counters(snapshot: StatusSnapshot) -> Table:
    counts: dict[str, int] = dataclasses.asdict(snapshot.counters)
    rows = [
        [name.replace("_", " "), size(count) if name.startswith("bytes") else f"{count:,}"]
        for name, count in counts.items()
    ]
    return table("since its start", {"counter": False, "count": True}, rows)
