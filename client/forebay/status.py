"""What a daemon says about itself, as frozen values: the mirror of the wire's GetStatusResponse, field by field."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay_protos.v1.daemon_pb2 import GetStatusResponse


@dataclass(frozen=True)
class DiskStatus:
    """One cache directory; bytes are allocated blocks, `reserved_bytes` those of fills in progress."""

    disk_id: str
    path: str
    capacity_bytes: int
    used_bytes: int
    reserved_bytes: int
    pieces: int


@dataclass(frozen=True)
class SessionStatus:
    """One loader; `position` is epoch × samples + position, `needs` and `leases` count pieces."""

    session_id: str
    label: str
    process_id: int
    source: str
    position: int
    positions_per_second: float
    needs: int
    leases: int


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


@dataclass(frozen=True)
class StatusSnapshot:
    """A daemon at one moment."""

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


def snapshot(message: "GetStatusResponse") -> StatusSnapshot:
    """The message as values."""
    return StatusSnapshot(
        version=message.version,
        boot_id=message.boot_id,
        process_id=message.process_id,
        uptime_seconds=message.uptime_seconds,
        embedded=message.embedded,
        draining=message.draining,
        disks=tuple(DiskStatus(**_fields(DiskStatus, disk)) for disk in message.disks),
        sessions=tuple(SessionStatus(**_fields(SessionStatus, session)) for session in message.sessions),
        counters=Counters(**_fields(Counters, message.counters)),
        fills_running=message.fills_running,
    )


def _fields(kind: type[DiskStatus | SessionStatus | Counters], message: object) -> dict[str, Any]:
    return {field.name: getattr(message, field.name) for field in fields(kind)}
