"""What is staged on a node and on its way to its destination, as the status page and the metrics say it.

Reads on the event loop. A node without a place for checkpoints has nothing pending, and a quota of 0.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forebay_core.errors import CheckpointError, one_line
from forebay_server.checkpoints.counters import UploadCounters
from forebay_server.checkpoints.statuses import Status
from forebay_server.node import Node
from forebay_server.web.text import plain, shown_url

#: How many uploads a document names.
MOST_UPLOADS = 50


@dataclass(frozen=True, slots=True)
class Staged:
    """The staging area. `path` is empty where there is none, for the `reason`."""

    path: str
    reason: str
    quota_bytes: int
    used_bytes: int
    statuses: Sequence[Status]
    counters: UploadCounters

    @property
    def pending(self) -> list[Status]:
        return [status for status in self.statuses if status.phase.is_pending]

    @property
    def failing(self) -> int:
        """Pending ones whose last try failed."""
        return sum(status.error is not None for status in self.pending)

    @property
    def pending_bytes(self) -> int:
        return sum(status.total_bytes - status.uploaded_bytes for status in self.pending)

    @property
    def oldest_seconds(self) -> float:
        """Since when the oldest pending one is sealed; 0: none is."""
        return max((status.seconds for status in self.pending), default=0.0)


def staged(node: Node) -> Staged:
    """The node's, as it stands now."""
    try:
        desk = node.desk
    except CheckpointError as error:
        return Staged("", one_line(error), 0, 0, (), UploadCounters())
    return Staged(str(desk.area.root), "", desk.quota_bytes, desk.used_bytes, desk.statuses(), desk.counters)


def uploads_document(found: Staged) -> dict[str, Any]:
    """Pending ones first, of these those that fail, then the oldest; of the others the newest."""
    first = heapq.nsmallest(MOST_UPLOADS, found.statuses, key=_place)
    return {
        "count": len(found.statuses),
        "pending": len(found.pending),
        "failing": found.failing,
        "pending_bytes": found.pending_bytes,
        "oldest_seconds": found.oldest_seconds,
        "staging": {
            "path": plain(found.path),
            "reason": plain(found.reason),
            "quota_bytes": found.quota_bytes,
            "used_bytes": found.used_bytes,
        },
        "rows": [_row(status) for status in first],
    }


def _place(status: Status) -> tuple[bool, bool, float]:
    is_pending = status.phase.is_pending
    return not is_pending, status.error is None, -status.seconds if is_pending else status.seconds


def _row(status: Status) -> dict[str, Any]:
    return {
        "root": shown_url(status.root),
        "attempt": status.attempt.name,
        "generation": status.attempt.generation,
        "step": status.attempt.step,
        "phase": status.said_phase,
        "size_bytes": status.total_bytes,
        "uploaded_bytes": status.uploaded_bytes,
        "seconds": status.seconds,
        "error": "" if status.error is None else plain(one_line(status.error)),
    }
