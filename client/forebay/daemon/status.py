"""What a daemon says about itself, as frozen values: the mirror of the wire's GetStatusResponse, field by field."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay_protos.v1.daemon_pb2 import DiskStatus as DiskMessage
    from forebay_protos.v1.daemon_pb2 import GetStatusResponse
    from forebay_protos.v1.daemon_pb2 import StagingStatus as StagingMessage

#: Phases of an upload in which nothing is left to do.
ENDED = ("durable", "failed", "superseded")


@dataclass(frozen=True)
class DiskStatus:
    """One cache directory; bytes are allocated blocks, `reserved_bytes` those of fills in progress.

    `state` is normal, unstable, read-only or down, `reason` why; `capacity_bytes` is less than `configured_bytes` where
    the disk turned out not to have as much; a `draining` one takes no new pieces. Without a disk id it is not in use.
    """

    disk_id: str
    path: str
    capacity_bytes: int
    used_bytes: int
    reserved_bytes: int
    pieces: int
    state: str
    reason: str
    slow: bool
    draining: bool
    configured_bytes: int


@dataclass(frozen=True)
class SessionStatus:
    """One loader; `position` is epoch × samples + position, `needs` and `leases` count pieces.

    Its trainer was blocked for batches for `waited_seconds` in all, for the one that it waits for now `waiting_seconds`
    (0: it does not wait).
    """

    session_id: str
    label: str
    process_id: int
    source: str
    position: int
    positions_per_second: float
    needs: int
    leases: int
    waited_seconds: float
    waiting_seconds: float


@dataclass(frozen=True)
class Counters:
    """Counts since the daemon's start."""

    hits: int
    misses: int
    fills: int
    fill_failures: int
    bytes_downloaded: int
    evictions: int
    remote_requests: int
    remote_retries: int
    prefetches: int
    bypasses: int


@dataclass(frozen=True)
class UploadStatus:
    """A checkpoint that is sealed on the node.

    `phase` is queued, uploading, uploaded (other nodes' part is waited for), durable (the copy that is kept), failed or
    superseded (a newer one was sealed before its upload began); bytes are those of this node's ranks, `seconds` count
    from the seal. `error_class` and `error_message` are of the last failure, also of one that is being retried; empty:
    none.
    """

    root: str
    attempt: str
    phase: str
    total_bytes: int
    uploaded_bytes: int
    error_class: str
    error_message: str
    seconds: float


@dataclass(frozen=True)
class StagingStatus:
    """Where checkpoints are before they are at their destination; `path` is empty where there is no place, and `reason`
    says why. While it is `starting` there may be more uploads than it knows of yet."""

    path: str
    reason: str
    quota_bytes: int
    used_bytes: int
    uploads: tuple[UploadStatus, ...]
    starting: bool = False


@dataclass(frozen=True)
class StatusSnapshot:
    """A daemon at one moment. `http_address` is where its status page is, empty where it serves none."""

    version: str
    boot_id: str
    process_id: int
    uptime_seconds: float
    embedded: bool
    draining: bool
    disks: tuple[DiskStatus, ...]
    sessions: tuple[SessionStatus, ...]
    counters: Counters
    fills_running: int
    http_address: str
    staging: StagingStatus


def snapshot(message: "GetStatusResponse") -> StatusSnapshot:
    """The message as values."""
    return StatusSnapshot(
        version=message.version,
        boot_id=message.boot_id,
        process_id=message.process_id,
        uptime_seconds=message.uptime_seconds,
        embedded=message.embedded,
        draining=message.draining,
        disks=tuple(disk_status(disk) for disk in message.disks),
        sessions=tuple(SessionStatus(**_fields(SessionStatus, session)) for session in message.sessions),
        counters=Counters(**_fields(Counters, message.counters)),
        fills_running=message.fills_running,
        http_address=message.http_address,
        staging=_staging(message.staging),
    )


def disk_status(message: "DiskMessage") -> DiskStatus:
    """A disk's message as values."""
    return DiskStatus(**_fields(DiskStatus, message))


def _staging(message: "StagingMessage") -> StagingStatus:
    return StagingStatus(
        path=message.path,
        reason=message.reason,
        quota_bytes=message.quota_bytes,
        used_bytes=message.used_bytes,
        uploads=tuple(UploadStatus(**_fields(UploadStatus, upload)) for upload in message.uploads),
        starting=message.starting,
    )


def _fields(kind: type[DiskStatus | SessionStatus | Counters | UploadStatus], message: object) -> dict[str, Any]:
    return {field.name: getattr(message, field.name) for field in fields(kind)}
