"""What the commands print for people; `--json` has everything."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from forebay.checkpoints_command.asking import Removed
from forebay.checkpoints_command.contents import where
from forebay.checkpoints_command.upcoming import Upcoming
from forebay.console import duration, size, table
from forebay.daemon.checkpoint_root import Checkpoint, Listing
from forebay.digest import SampleDigest
from forebay.order_command.tables import step_heading, step_table
from forebay_core.printing import printable

#: Rows of ranks, of which a large job has thousands.
_MOST_RANKS = 64


def listed(listing: Listing, now: float) -> Table:
    """The attempts, the newest first; `now` in seconds since 1970."""
    columns = {"attempt": False, "generation": True, "step": True, "state": False, "where": False}
    columns |= {"ranks": True, "size": True, "age": True}
    count = sum(each.is_committed for each in listing.checkpoints)
    title = f"{count:,} committed of {len(listing.checkpoints):,} in {printable(listing.root)}"
    return table(title, columns, [_row(each, now) for each in listing.checkpoints])


def _row(checkpoint: Checkpoint, now: float) -> list[str]:
    attempt, decided = checkpoint.attempt, checkpoint.decided_unix_seconds
    return [
        attempt.name,
        str(attempt.generation),
        f"{attempt.step:,}",
        checkpoint.said_state,
        where(checkpoint),
        str(checkpoint.world_size or ""),
        size(checkpoint.size_bytes) if checkpoint.size_bytes else "",
        duration(max(0.0, now - decided)) if decided else "",
    ]


def shown(found: Mapping[str, Any], upcoming: Upcoming | None, now: float) -> RenderableType:
    """One checkpoint."""
    parts: list[RenderableType] = [Text(line) for line in _head(found, now)]
    if found["ranks"]:
        parts.append(_ranks(found["ranks"]))
    if upcoming is not None:
        parts += [Text(f"next: {step_heading(upcoming.found, upcoming.world_size)}")]
        parts += [step_table(upcoming.manifest, upcoming.batches)]
    parts += [Text(printable(f"note: {note}")) for note in found["notes"]]
    return Group(*parts)


def _head(found: Mapping[str, Any], now: float) -> list[str]:
    decided = found["decided_unix_seconds"]
    state = found["state"] or ("unreadable" if decided else "undecided")
    state += f" {duration(max(0.0, now - decided))} ago, {_instant(decided)}" if decided else ""
    state += f": {found['reason']}" if found["reason"] else ""
    begun = ", ".join(f"{key} {_plain(value)}" for key, value in found["begun"].items() if _is_plain(value))
    parent = f"went on from {found['parent']}" if found["parent"] else "began anew"
    lines = [
        f"{found['attempt']} in {found['root']}",
        f"step {found['step']:,}, {state}",
        f"{found['where'] or 'nowhere'}; {found['world_size'] or '?'} ranks, {size(found['size_bytes'])}",
        f"generation {found['generation']} {parent}" + (f" ({begun})" if begun else ""),
    ]
    if (position := found["position"]) is not None:
        lines.append(_position(position))
    if found["sample_digest"]:
        lines.append(f"sample digest {SampleDigest.decode(found['sample_digest'])}")
    return [printable(line) for line in lines]


def _position(state: Mapping[str, Any]) -> str:
    samples = state["dataset"].get("samples", 0) if isinstance(state["dataset"], Mapping) else 0
    share = f" of {samples:,}" if samples else ""
    return f"position: epoch {state['epoch']}, {state['position']:,}{share} samples handed out"


def _ranks(rows: Sequence[Mapping[str, Any]]) -> Table:
    keys = sorted({key for row in rows for key, value in row["notes"].items() if _is_plain(value)})
    columns = {"rank": True, "files": True, "size": True, "where": False} | dict.fromkeys(keys, False)
    title = "ranks" if len(rows) <= _MOST_RANKS else f"the first {_MOST_RANKS} of {len(rows):,} ranks"
    return table(title, columns, [_rank(row, keys) for row in rows[:_MOST_RANKS]])


def _rank(row: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    places = [name for name, is_there in (("durable", row["is_durable"]), ("here", row["is_staged_here"])) if is_there]
    notes = [_plain(row["notes"].get(key, "")) for key in keys]
    return [str(row["rank"]), str(row["files"]), size(row["size_bytes"]), ", ".join(places), *notes]


def print_removed(console: Console, removed: Sequence[Removed], *, dry_run: bool) -> None:
    """What went, or would go."""
    verb = "would delete" if dry_run else "deleted"
    if not removed:
        console.print("nothing is to go" if dry_run else "nothing had to go")
        return
    columns = {"attempt": False, "why": False, "objects": True, "size": True}
    rows = [[each.attempt, each.state, f"{each.objects:,}", size(each.size_bytes)] for each in removed]
    objects, total = sum(each.objects for each in removed), sum(each.size_bytes for each in removed)
    console.print(table(f"{verb} {objects:,} objects, {size(total)}", columns, rows))


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float)


def _plain(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _instant(unix_seconds: float) -> str:
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
