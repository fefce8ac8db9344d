"""A node's counters as Prometheus metrics, read when they are scraped.

Each part of the daemon counts for itself; here one small function per part gives its metrics their names. `PARTS` lists
them; `docs/metrics.md` has a row for each metric, and a test compares the two. Families are made on the event loop, in
some hundred microseconds; the text is made of them in a thread.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from forebay_server.cache.cache import Cache
from forebay_server.cache.room import REASONS
from forebay_server.distribution import Distribution
from forebay_server.node import Node
from forebay_server.pool.health import State
from forebay_server.pool.member import Member
from forebay_server.web.text import plain
from forebay_server.web.uploads import staged

#: A trainer that waits for so long is not just fetching its next batch.
STALLED_SECONDS = 5.0


def families(node: Node) -> list[Metric]:
    """All metrics of a node, as they stand now. On the event loop."""
    return [metric for part in PARTS for metric in part(node)]


def render(found: list[Metric], accept: str) -> tuple[bytes, str]:
    """The exposition of these and of the process's own metrics, in the form that a scraper's `Accept` header asks for,
    and its content type. On any thread."""
    encode, content_type = choose_encoder(accept)
    return encode(_Scrape(found)), content_type


class _Scrape(Collector):
    """One scrape's metrics, in a collection of their own."""

    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        return [*self._found, *_PROCESS.collect()]


_PROCESS = ProcessCollector(registry=None)


def _build(node: Node) -> Iterator[Metric]:
    labels = {"version": node.version, "embedded": str(node.config.embedded).lower()}
    yield _gauge("forebay_build_info", "Always 1; says which version runs.", labels)
    yield _gauge(
        "forebay_draining", "1 while the daemon is ending and takes no new sessions, else 0.", {}, int(node.is_draining)
    )


def _requests(node: Node) -> Iterator[Metric]:
    counters = node.sessions.counters
    yield _counters(
        "forebay_requests",
        "Pieces that sessions leased: hit (in the cache), in_place (in the user's own files), miss (a fetch was begun "
        "for it), pending (being fetched already).",
        "result",
        {
            "hit": counters.hits,
            "in_place": counters.in_place,
            "miss": counters.misses,
            "pending": counters.pending,
        },
    )
    yield _counters(
        "forebay_leased_bytes",
        "Bytes of the pieces that sessions leased, by where they were: cache, in_place, remote (counted when they have "
        "arrived). A piece that is leased again counts again.",
        "source",
        {"cache": counters.hit_bytes, "in_place": counters.in_place_bytes, "remote": counters.fetched_bytes},
    )


def _sessions(node: Node) -> Iterator[Metric]:
    sessions = list(node.sessions)
    yield _gauge("forebay_sessions", "Loaders that are registered.", {}, len(sessions))
    yield _gauge("forebay_leases", "Pieces that sessions hold.", {}, sum(len(session.leases) for session in sessions))
    stalled = sum(session.taken.waiting_seconds >= STALLED_SECONDS for session in sessions)
    yield _gauge(
        "forebay_sessions_stalled",
        f"Sessions whose trainer has waited for its next batch for {STALLED_SECONDS:.0f} s or more.",
        {},
        stalled,
    )
    yield _counters(
        "forebay_client_samples",
        "Samples that trainers have taken, all together, as their loaders reported it.",
        "",
        {"": node.sessions.counters.samples},
    )
    yield _counters(
        "forebay_client_stall_seconds",
        "For how long trainers were blocked waiting for batches, all together, as their loaders reported it.",
        "",
        {"": node.sessions.counters.wait_seconds},
    )


def _fills(node: Node) -> Iterator[Metric]:
    counters, running = node.fills.counters, list(node.fills.running.values())
    demands = sum(fill.is_demand for fill in running)
    running_now = GaugeMetricFamily(
        "forebay_fills_running",
        "Pieces that are being fetched: demand (somebody asked for it), prefetch (nobody has yet).",
        labels=["kind"],
    )
    running_now.add_metric(["demand"], demands)
    running_now.add_metric(["prefetch"], len(running) - demands)
    yield running_now
    yield _counters("forebay_fill_failures", "Pieces that could not be fetched.", "", {"": counters.failures})
    yield _counters(
        "forebay_bypasses",
        "Pieces that had no room in the cache and were streamed to their readers.",
        "",
        {"": node.bypass.bypasses},
    )
    yield _histograms(
        "forebay_fill_seconds",
        "How long a piece took to come into the cache, from the begin of its fetch, waits for room included.",
        "kind",
        {"demand": counters.demand_seconds, "prefetch": counters.prefetch_seconds},
    )


def _leads(node: Node) -> Iterator[Metric]:
    counters = node.fills.leads.counters
    yield _counters(
        "forebay_prefetches",
        "Pieces that came into the cache, by whether that was before their first use: in_time, late (asked for while "
        "on the way), never_begun (asked for before it was begun), unread (removed before anybody asked).",
        "result",
        {
            "in_time": counters.in_time,
            "late": counters.late,
            "never_begun": counters.never_begun,
            "unread": counters.unread,
        },
    )
    yield _histograms(
        "forebay_prefetch_lead_seconds",
        "How long before its first use a piece that was fetched ahead arrived; negative: how long it was waited for.",
        "",
        {"": counters.lead_seconds},
    )


def _remote(node: Node) -> Iterator[Metric]:
    remote = node.remote
    yield _counters("forebay_remote_received_bytes", "Bytes of objects received from stores.", "", {"": remote.bytes})
    yield _counters(
        "forebay_remote_requests",
        "Requests to stores that are over, each retry counted, by what came of them: ok, an HTTP status, or what went "
        "wrong on the way.",
        "code",
        {"ok": 0, "503": 0, **remote.answers},
    )
    yield _counters("forebay_remote_retries", "Requests to stores that were made again.", "", {"": remote.retries})
    yield _counters(
        "forebay_remote_throttles", "Answers of stores that asked for less (503, 429).", "", {"": remote.throttles}
    )
    yield _counters(
        "forebay_remote_stalls",
        "Requests that were given up because no byte came for too long.",
        "",
        {"": remote.stalls},
    )


def _disks(node: Node) -> Iterator[Metric]:
    members = node.pool.members
    state = GaugeMetricFamily(
        "forebay_disk_state", "1 for the state that the disk is in, 0 for the others.", labels=["disk", "state"]
    )
    draining = GaugeMetricFamily(
        "forebay_disk_draining", "1 where the operator wants nothing more on the disk, else 0.", labels=["disk"]
    )
    for member in members:
        for each in State:
            state.add_metric([_disk(member), each.value], int(member.health.state is each))
        draining.add_metric([_disk(member)], int(member.is_draining))
    yield state
    yield draining
    for name, (meaning, value) in _GAUGES.items():
        family = GaugeMetricFamily(f"forebay_disk_{name}", meaning, labels=["disk"])
        for member in members:
            with suppress(OSError):  # a disk that is lost does not even say what is free on it
                family.add_metric([_disk(member)], 0 if member.cache is None else value(member.cache))
        yield family
    evictions = CounterMetricFamily(
        "forebay_evictions",
        "Pieces removed, by why: room for a demand or a prefetch, a capacity that became smaller, a piece that another "
        "disk has too (duplicate), an operator who asked.",
        labels=["disk", "reason"],
    )
    for member in members:
        for reason in REASONS:
            evictions.add_metric(
                [_disk(member), reason], 0 if member.cache is None else member.cache.room.evicted_for[reason]
            )
    yield evictions


def _integrity(node: Node) -> Iterator[Metric]:
    found = {_disk(member): member.cache.integrity for member in node.pool.members if member.cache is not None}
    yield _counters(
        "forebay_checksum_failures",
        "Pieces in the cache that were not what was written; they are fetched again.",
        "disk",
        {disk: counters.damaged for disk, counters in found.items()},
    )
    yield _counters(
        "forebay_verified_bytes",
        "Bytes in the cache that were read and compared with their checksums.",
        "disk",
        {disk: counters.checked_bytes for disk, counters in found.items()},
    )


def _care(node: Node) -> Iterator[Metric]:
    caches = {_disk(member): member.cache for member in node.pool.members if member.cache is not None}
    synced = {disk: float(cache.integrity.synced) for disk, cache in caches.items()}
    yield _counters("forebay_synced_pieces", "Pieces that were written through to the disk.", "disk", synced)
    family = GaugeMetricFamily(
        "forebay_disk_withheld_bytes", "Of pieces in quarantine, or set aside until they are verified.", labels=["disk"]
    )
    for disk, cache in caches.items():
        family.add_metric([disk], cache.ledger.withheld_bytes)
    yield family
    disputed = "Pieces whose bytes were not those that were expected, and that were fetched once more."
    yield _counters("forebay_disputed_fills", disputed, "", {"": node.fills.counters.disputed})
    changed = "Objects that were read at another version than their manifests name."
    yield _counters("forebay_changed_objects", changed, "", {"": node.fills.changes.objects})


def _uploads(node: Node) -> Iterator[Metric]:
    found = staged(node)
    counters = found.counters
    yield _gauge(
        "forebay_pending_uploads", "Checkpoints that are sealed here and not durable yet.", {}, len(found.pending)
    )
    yield _gauge("forebay_failing_uploads", "Of these, those whose last try failed.", {}, found.failing)
    yield _gauge(
        "forebay_pending_upload_bytes", "Of these, what is not at the destination yet.", {}, found.pending_bytes
    )
    yield _gauge(
        "forebay_oldest_upload_seconds",
        "Since when the oldest of these is sealed; 0: there is none.",
        {},
        found.oldest_seconds,
    )
    yield _counters(
        "forebay_uploads",
        "Sealed checkpoints by what became of them: durable, lost (they will not be: given up for a newer one, "
        "abandoned, or damaged here).",
        "result",
        {"durable": counters.durable, "lost": counters.lost},
    )
    yield _counters(
        "forebay_upload_failures", "Tries of uploads that failed and are made again.", "", {"": counters.failures}
    )
    yield _counters(
        "forebay_uploaded_bytes",
        "Bytes of checkpoints sent, those of a try that failed too.",
        "",
        {"": counters.sent_bytes},
    )
    yield _histograms(
        "forebay_upload_seconds", "How long checkpoints took from the seal until durable.", "", {"": counters.seconds}
    )
    yield _gauge(
        "forebay_staging_quota_bytes", "The most that may be staged; 0: nothing can be.", {}, found.quota_bytes
    )
    yield _gauge("forebay_staging_used_bytes", "Of checkpoints that are staged.", {}, found.used_bytes)


_GAUGES: dict[str, tuple[str, Callable[[Cache], float]]] = {
    "capacity_bytes": ("The most that the disk's cache may hold.", lambda cache: cache.ledger.capacity_bytes),
    "used_bytes": ("Of whole pieces.", lambda cache: cache.ledger.used_bytes),
    "reserved_bytes": ("Set aside for fetches.", lambda cache: cache.ledger.reserved_bytes),
    "lingering_bytes": (
        "Of removed pieces that readers still have mapped.",
        lambda cache: cache.ledger.lingering_bytes,
    ),
    "quarantined_bytes": ("Of damaged pieces that are kept to be looked at.", lambda c: c.custody.quarantined_bytes),
    "free_bytes": ("What the disk's file system has left.", lambda cache: cache.disk.free_bytes()),
    "pieces": ("Whole pieces.", len),
}


def _disk(member: Member) -> str:
    return plain(str(member.path))


PARTS: tuple[Callable[[Node], Iterator[Metric]], ...] = (
    _build,
    _requests,
    _sessions,
    _fills,
    _leads,
    _remote,
    _disks,
    _integrity,
    _care,
    _uploads,
)


def _gauge(name: str, meaning: str, labels: Mapping[str, str], value: float = 1) -> Metric:
    family = GaugeMetricFamily(name, meaning, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def _counters(name: str, meaning: str, label: str, values: Mapping[str, float]) -> Metric:
    """A counter by the values of one label; without a label it has one value, under the empty name."""
    family = CounterMetricFamily(name, meaning, labels=[label] if label else [])
    for value, count in values.items():
        family.add_metric([value] if label else [], count)
    return family


def _histograms(name: str, meaning: str, label: str, values: Mapping[str, Distribution]) -> Metric:
    """Distributions by the values of one label, like counters."""
    family = HistogramMetricFamily(name, meaning, labels=[label] if label else [])
    for value, found in values.items():
        buckets = [("+Inf" if bound == math.inf else str(bound), count) for bound, count in found.cumulative()]
        family.add_metric([value] if label else [], buckets=buckets, sum_value=found.total)
    return family
