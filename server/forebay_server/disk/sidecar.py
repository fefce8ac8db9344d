"""The small JSON file beside each piece, which says what the piece is. Pure.

A piece whose data file was written to since (its modification time is another) is like one that may not have reached
the disk: its bytes are to be verified before they count.
"""

import json
import os
import stat
from dataclasses import asdict
from typing import Any

from forebay_server.disk.blocks import blocks_of
from forebay_server.disk.entry import Entry, Origin

FORMAT = 1
#: More than any sidecar has.
MOST_BYTES = 1 << 20
#: In place of a boot: somebody has written to the file.
TOUCHED = "touched"
_FACTS = ("key", "size", "crc32c", "synced", "boot", "modified_ns")


def sidecar_of(entry: Entry, origin: Origin) -> bytes:
    """The content of a piece's sidecar."""
    facts = {name: getattr(entry, name) for name in _FACTS}
    return json.dumps({"version": FORMAT, **facts, "origin": asdict(origin)}).encode()


def entry_of(sidecar: bytes, found: os.stat_result) -> Entry | None:
    """The piece that a sidecar and the state of its data file make; None unless they fit each other."""
    facts = _facts(sidecar)
    if facts is None or not stat.S_ISREG(found.st_mode):
        return None
    known = {name: facts.get(name) for name in _FACTS}
    if type(known["modified_ns"]) is not int or known["modified_ns"] != found.st_mtime_ns:
        known |= {"modified_ns": found.st_mtime_ns, "synced": False, "boot": TOUCHED}
    origin = facts.get("origin")
    entry = Entry.from_json(
        {
            **known,
            "blocks": blocks_of(found),
            "inode": found.st_ino,
            "dataset": _text(origin, "dataset"),
            "is_changed": bool(_text(origin, "instead_of")),
        }
    )
    return entry if entry is not None and entry.size == found.st_size else None


def origin_of(sidecar: bytes) -> Origin | None:
    """What the piece was made from; None where the sidecar does not say."""
    origin = (_facts(sidecar) or {}).get("origin")
    if not isinstance(origin, dict):
        return None
    columns = origin.get("columns")
    return Origin(
        dataset=_text(origin, "dataset"),
        url=_text(origin, "url"),
        version=_text(origin, "version"),
        rows=_number(origin, "rows"),
        columns=tuple(map(str, columns)) if isinstance(columns, list) else (),
        layout=_text(origin, "layout"),
        piece=_number(origin, "piece"),
        instead_of=_text(origin, "instead_of"),
    )


def _facts(sidecar: bytes) -> dict[str, Any] | None:
    try:
        facts = json.loads(sidecar)
    except (ValueError, RecursionError):
        return None
    return facts if isinstance(facts, dict) and facts.get("version") == FORMAT else None


def _text(facts: Any, name: str) -> str:
    value = facts.get(name) if isinstance(facts, dict) else None
    return value if isinstance(value, str) else ""


def _number(facts: dict[str, Any], name: str) -> int:
    value = facts.get(name)
    return value if type(value) is int else 0
