"""What tests of destinations share: sealed files, and destinations of both kinds with nothing faked."""

import time
from collections.abc import Mapping
from pathlib import Path

import google_crc32c

from forebay_core.checkpoints.documents import FileRecord, Item
from forebay_server.checkpoints.destinations.permits import WritePermits
from forebay_server.checkpoints.destinations.registry import Destinations
from forebay_server.checkpoints.destinations.transfers import MIB, Transfers
from forebay_server.sources.registry import Stores
from forebay_server.sources.remote import ConnectionOptions, RemoteCounters
from forebay_server.sources.retries import RetryPolicy
from tests.support.proxy import CountingProxy
from tests.support.seaweedfs import Bucket

#: S3 takes no smaller part but the last.
PART = 5 * MIB
PATIENT = RetryPolicy(attempts=4, give_up_seconds=60, first_wait_seconds=0.01)


def sealed(path: Path, content: bytes, *, items: int = 3) -> FileRecord:
    """Writes a file, and gives what a writer says of it."""
    path.write_bytes(content)
    size = max(1, -(-len(content) // items))
    starts = range(0, len(content), size)
    parts = [content[start : start + size] for start in starts]
    record = [Item(start, len(part), google_crc32c.value(part)) for start, part in zip(starts, parts, strict=True)]
    return FileRecord("__0_0.distcp", len(content), tuple(record))


def destinations(
    environment: Mapping[str, str] | None = None,
    *,
    permits: WritePermits | None = None,
    parts_at_once: int = 4,
    retries: RetryPolicy = PATIENT,
    stall_seconds: float = 30.0,
) -> tuple[Destinations, RemoteCounters]:
    """Of a daemon of its own."""
    counters = RemoteCounters()
    stores = Stores(environment or {}, counters, ConnectionOptions(stall_timeout_seconds=stall_seconds))
    transfers = Transfers(time.monotonic, parts_at_once=parts_at_once, part_bytes=PART)
    return Destinations(stores, transfers, permits or WritePermits(), retries=retries), counters


def environment_of(bucket: Bucket, proxy: CountingProxy | None = None) -> dict[str, str]:
    """What a daemon is told that writes to the bucket, through the proxy."""
    return bucket.server.environment(endpoint=None if proxy is None else proxy.endpoint)
