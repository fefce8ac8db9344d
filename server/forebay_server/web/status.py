"""A node as the status page shows it: one JSON document, described in `docs/status-page.md`.

Its version changes when a field changes its meaning or goes; new fields may come at any time. Lists are bounded, so
that a document costs the daemon a few milliseconds whatever it has to do. Runs on the event loop and only reads.
"""

import heapq
import socket
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, fields
from typing import Any

from forebay_server.cache.books import Holding
from forebay_server.cache.cache import Cache
from forebay_server.checkpoints.counters import UploadCounters
from forebay_server.filling.fill import Fill
from forebay_server.node import Node
from forebay_server.pool.member import Member
from forebay_server.sessions import Session
from forebay_server.web.history import INTERVAL_SECONDS, History, Point, Totals
from forebay_server.web.metrics import STALLED_SECONDS
from forebay_server.web.text import plain, shown_url
from forebay_server.web.uploads import staged, uploads_document
from forebay_server.web.wanting import Wanting, wanting_sessions

VERSION = 1
#: Of sessions, fetches and datasets, how many a document names.
MOST_SESSIONS = 200
MOST_FILLS = 50
MOST_DATASETS = 50

Json = dict[str, Any]


def document(node: Node, history: History) -> Json:
    """The node now."""
    sessions = list(node.sessions)
    return {
        "version": VERSION,
        "time": time.time(),
        "daemon": _daemon(node),
        "disks": _disks(node),
        "datasets": _datasets(node, sessions),
        "fills": _fills(node, sessions),
        "sessions": _sessions(sessions),
        "uploads": uploads_document(staged(node)),
        "counters": _counters(node),
        "history": _history(history.after(-1.0)),
    }


def after(found: Json, seconds: float) -> Json:
    """A document with those points of its history alone that are later than that."""
    points = [point for point in found["history"]["points"] if point[0] > seconds]
    return found | {"history": found["history"] | {"points": points}}


def totals(node: Node) -> Totals:
    """The counts from which the history is made."""
    counters = node.sessions.counters
    here = counters.hits + counters.in_place
    return Totals(
        remote_bytes=node.remote.bytes,
        samples=counters.samples,
        requests=here + counters.misses + counters.pending,
        hits=here,
        wait_seconds=counters.wait_seconds,
    )


def _daemon(node: Node) -> Json:
    return {
        "version": node.version,
        "boot_id": node.boot_id,
        "process_id": node.process_id,
        "host": plain(socket.gethostname()),
        "socket": plain(str(node.config.socket)),
        "uptime_seconds": node.uptime_seconds(),
        "is_embedded": node.config.embedded,
        "is_draining": node.is_draining,
    }


def _disks(node: Node) -> list[Json]:
    return [_disk(member, is_slow=node.pool.is_slow(member)) for member in node.pool.members]


def _disk(member: Member, *, is_slow: bool) -> Json:
    """A directory that could not be claimed has no bytes; one whose disk is lost has none free."""
    cache = member.cache
    return {
        "id": plain(str(member.path)) if cache is None else cache.disk.id,
        "path": plain(str(member.path)),
        "state": member.health.state.value,
        "reason": plain(member.health.reason),
        "is_slow": is_slow,
        "is_draining": member.is_draining,
        "capacity_bytes": 0 if cache is None else cache.ledger.capacity_bytes,
        "used_bytes": 0 if cache is None else cache.ledger.used_bytes,
        "reserved_bytes": 0 if cache is None else cache.ledger.reserved_bytes,
        "lingering_bytes": 0 if cache is None else cache.ledger.lingering_bytes,
        "quarantined_bytes": 0 if cache is None else cache.custody.quarantined_bytes,
        "free_bytes": 0 if cache is None else _free_bytes(cache),
        "pieces": 0 if cache is None else len(cache),
    }


def _free_bytes(cache: Cache) -> int:
    try:
        return max(0, -cache.ledger.missing(0))
    except OSError:
        return 0


def _datasets(node: Node, sessions: Sequence[Session]) -> Json:
    """By bytes in the cache; those that are read now are among them whatever they hold."""
    holdings = _holdings(node)
    readers = Counter(session.view.manifest.root for session in sessions)
    in_place = {session.view.manifest.root for session in sessions if node.reads_in_place(session.view)}
    held = {root: holdings[root].bytes if root in holdings else 0 for root in {*holdings, *readers}}
    named = heapq.nlargest(MOST_DATASETS, held, key=lambda root: (held[root], readers[root], root))
    rows = [
        {
            "source": shown_url(root),
            "bytes": held[root],
            "pieces": holdings[root].pieces if root in holdings else 0,
            "sessions": readers[root],
            "is_in_place": root in in_place,
        }
        for root in named
    ]
    return {"count": len(held), "rows": rows}


def _holdings(node: Node) -> dict[str, Holding]:
    """By dataset, over all disks."""
    merged: dict[str, Holding] = {}
    for cache in node.pool.caches:
        for root, holding in cache.holdings.items():
            before = merged.get(root, Holding())
            merged[root] = Holding(before.pieces + holding.pieces, before.bytes + holding.bytes)
    return merged


def _fills(node: Node, sessions: Sequence[Session]) -> Json:
    """Demands before prefetches, the oldest first."""
    running = list(node.fills.running.values())
    first = heapq.nsmallest(MOST_FILLS, running, key=lambda fill: (not fill.is_demand, fill.began_at))
    wanting = wanting_sessions([fill.job for fill in first], sessions)
    return {
        "count": len(running),
        "demands": sum(fill.is_demand for fill in running),
        "rows": [_fill(node, fill, wanting[fill.job.key]) for fill in first],
    }


def _fill(node: Node, fill: Fill, wanting: Wanting) -> Json:
    job = fill.job
    return {
        "id": job.key[:16],
        "object": shown_url(job.url),
        "source": shown_url(job.root),
        "piece": job.piece.index,
        "rows": job.piece.cut.rows,
        "kind": "demand" if fill.is_demand else "prefetch",
        "seconds": node.clock() - fill.began_at,
        "received_bytes": fill.received_bytes,
        "total_bytes": fill.total_bytes,
        "sessions": {"count": wanting.count, "ids": wanting.ids},
    }


def _sessions(sessions: Sequence[Session]) -> Json:
    """Those whose trainers wait longest first, then in the order in which they came."""
    first = heapq.nsmallest(MOST_SESSIONS, sessions, key=lambda session: -session.taken.waiting_seconds)
    return {"count": len(sessions), "stalled_seconds": STALLED_SECONDS, "rows": [_session(each) for each in first]}


def _session(session: Session) -> Json:
    return {
        "id": session.id,
        "label": plain(session.label),
        "process_id": session.process_id,
        "source": shown_url(session.view.manifest.root),
        "position": session.progress.position,
        "positions_per_second": session.progress.positions_per_second,
        "samples": session.taken.samples,
        "needs": len(session.progress.needs),
        "leases": len(session.leases),
        "waited_seconds": session.taken.waited_seconds,
        "waiting_seconds": session.taken.waiting_seconds,
        "is_quiet": session.is_quiet,
    }


def _counters(node: Node) -> Json:
    sessions, fills, remote = node.sessions.counters, node.fills.counters, node.remote
    return {
        "hits": sessions.hits,
        "in_place": sessions.in_place,
        "misses": sessions.misses,
        "pending": sessions.pending,
        "leased_bytes": sessions.hit_bytes + sessions.in_place_bytes + sessions.fetched_bytes,
        "samples": sessions.samples,
        "wait_seconds": sessions.wait_seconds,
        "fills": fills.fills,
        "fill_failures": fills.failures,
        "prefetches": fills.prefetches,
        "evictions": node.pool.evictions,
        "remote_bytes": remote.bytes,
        "remote_requests": remote.requests,
        "remote_retries": remote.retries,
        **_upload_counters(staged(node).counters),
    }


def _upload_counters(counters: UploadCounters) -> Json:
    return {
        "uploads": counters.durable,
        "uploads_lost": counters.lost,
        "upload_failures": counters.failures,
        "uploaded_bytes": counters.sent_bytes,
    }


def _history(points: Sequence[Point]) -> Json:
    return {
        "interval_seconds": INTERVAL_SECONDS,
        "fields": [field.name for field in fields(Point)],
        "points": [[round(value, 3) for value in astuple(point)] for point in points],
    }
