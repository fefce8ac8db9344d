"""The daemon's configuration: one frozen dataclass. `settings` reads it from flags, the environment and a file.

Everything is checked at construction, so that a daemon that starts has a configuration that can work. A new field gets
a line in `settings.table`.
"""

import grp
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from forebay_core.capacity import CacheDirectory, Capacity
from forebay_core.errors import ConfigurationError
from forebay_core.eviction import DEFAULT_POLICY, POLICIES
from forebay_core.node_layout import SOCKET_PATH_BYTES, STAGING_DIRECTORY
from forebay_server.cache.integrity import CarePolicy
from forebay_server.sources.permits import Prefix
from forebay_server.web.address import HttpAddress

LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """What a daemon is told. Raises `ConfigurationError` for what cannot work."""

    socket: Path = Path("/run/forebay/forebay.sock")
    #: One or several, each on a disk of its own or not.
    disks: tuple[CacheDirectory, ...] = (CacheDirectory(Path("/var/cache/forebay")),)
    #: Most of a disk: a cache is worth its size, and the floor of free bytes keeps the rest alive.
    capacity: Capacity = field(default_factory=lambda: Capacity(share=0.8))
    #: Where checkpoints are before their upload, its capacity is a quota; None: `staging` in the first of the disks.
    staging_dir: CacheDirectory | None = None
    #: Group that owns the socket and the files, by name or number; None keeps the process's own.
    group: str | None = None
    #: Started by a trainer for its user: ends when idle.
    embedded: bool = False
    #: Long enough for a trainer that restarts to find the same daemon.
    idle_seconds: float = 300.0
    #: What may be read for clients; nothing here: everything that the daemon itself may read.
    allow_read: tuple[Prefix, ...] = ()
    #: Where checkpoints may be written for clients; nothing here: see `WritePermits`.
    allow_write: tuple[Prefix, ...] = ()
    read_in_place: Literal["auto", "never"] = "auto"
    #: Buckets are read without credentials, also where there are some.
    anonymous: bool = False
    #: The owner of the credentials is charged for reading, as some buckets demand.
    requester_pays: bool = False
    #: Which pieces make room; the other policies are for comparison, and for data that is read but once.
    eviction: str = DEFAULT_POLICY
    #: Each fill has several ranged GETs in flight, so a few fill a network link; more only delay the next one.
    prefetch_fills: int = 16
    #: Bytes of objects in flight, and memory for pieces that are decoded in it; None: as the machine's memory allows.
    flight_bytes: int | None = None
    fill_memory_bytes: int | None = None
    #: Requests to one bucket at once at the most; what a store bears is found out.
    remote_requests: int = 64
    #: Of 8 MiB, in memory, over all checkpoints that are on their way: they fill a link and leave the requests of data
    #: their room.
    upload_parts: int = 8
    #: Without a byte of an answer: a request is then made again on another connection.
    stall_seconds: float = 30.0
    #: Where metrics and the status page are served; None: nowhere.
    http: HttpAddress | None = None
    #: Objects that have changed since they were listed are read all the same, where they are as large as they were.
    allow_changed: bool = False
    #: What is done for pieces in the background: see `CarePolicy`.
    sync_seconds: float = CarePolicy.sync_seconds
    verify_bytes_per_second: int = CarePolicy.verify_bytes_per_second
    scrub_bytes_per_second: int = CarePolicy.scrub_bytes_per_second
    scrub_round_seconds: float = CarePolicy.scrub_round_seconds
    log_level: str = "info"
    log_file: Path | None = None
    #: Clients call at least every 5 s; a minute or two of silence is a client that is gone.
    session_lapse_seconds: float = 120.0
    #: Below the 30 s that service managers wait before SIGKILL.
    drain_seconds: float = 20.0
    #: How long a demanded piece waits for room that leases and mappings hold.
    room_wait_seconds: float = 30.0

    def __post_init__(self) -> None:
        if len(bytes(self.socket)) > SOCKET_PATH_BYTES:
            raise ConfigurationError(
                f"the socket path {self.socket} has more than {SOCKET_PATH_BYTES} bytes, the limit of Unix sockets;"
                " give a shorter one (--socket, FOREBAY_SOCKET)"
            )
        if not self.socket.is_absolute():
            raise ConfigurationError(f"the socket path {self.socket} is not absolute (--socket, FOREBAY_SOCKET)")
        _check_directories(self.disks)
        _check_staging(self.staging_dir, self.disks)
        if self.read_in_place not in ("auto", "never"):
            raise ConfigurationError(
                f"read in place is auto or never, not {self.read_in_place!r} (FOREBAY_READ_IN_PLACE)"
            )
        if self.eviction not in POLICIES:
            raise ConfigurationError(
                f"eviction is one of {', '.join(POLICIES)}, not {self.eviction!r} (--eviction, FOREBAY_EVICTION)"
            )
        if self.log_level not in LOG_LEVELS:
            raise ConfigurationError(f"the log level is one of {', '.join(LOG_LEVELS)}, not {self.log_level!r}")
        for name in ("idle_seconds", "session_lapse_seconds", "drain_seconds", "room_wait_seconds"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigurationError(f"{name} must be a number of seconds, 0 or more, not {getattr(self, name)}")
        self._check_network()
        _ = self.care

    @property
    def care(self) -> CarePolicy:
        """What is done for pieces in the background."""
        return CarePolicy(
            sync_seconds=self.sync_seconds,
            verify_bytes_per_second=self.verify_bytes_per_second,
            scrub_bytes_per_second=self.scrub_bytes_per_second,
            scrub_round_seconds=self.scrub_round_seconds,
        )

    def _check_network(self) -> None:
        for name, lowest in (
            ("prefetch_fills", 0),
            ("remote_requests", 1),
            ("upload_parts", 1),
            ("flight_bytes", 1),
            ("fill_memory_bytes", 1),
        ):
            if (number := getattr(self, name)) is not None and number < lowest:
                flag = name.replace("_", "-")
                raise ConfigurationError(f"{name} must be {lowest} or more, not {number} (--{flag})")
        if not 0 < self.stall_seconds < float("inf"):
            raise ConfigurationError(f"stall_seconds must be more than 0, not {self.stall_seconds} (--stall-seconds)")

    @property
    def staging_path(self) -> Path:
        """Where checkpoints are before they are uploaded."""
        return self.disks[0].path / STAGING_DIRECTORY if self.staging_dir is None else self.staging_dir.path

    @property
    def group_id(self) -> int | None:
        """The group by its number. Raises `ConfigurationError` where there is none of that name."""
        if self.group is None or self.group.isdecimal():
            return None if self.group is None else int(self.group)
        try:
            return grp.getgrnam(self.group).gr_gid
        except KeyError:
            raise ConfigurationError(f"there is no group {self.group!r} (--group, FOREBAY_GROUP)") from None


def _check_directories(disks: Sequence[CacheDirectory]) -> None:
    if not disks:
        raise ConfigurationError("a daemon needs a cache directory (--cache-dir, FOREBAY_CACHE_DIR)")
    if not all(disk.path.is_absolute() for disk in disks):
        raise ConfigurationError("a cache directory must be an absolute path (--cache-dir, FOREBAY_CACHE_DIR)")
    real = [disk.path.resolve() for disk in disks]
    for path, disk in zip(real, disks, strict=True):
        if real.count(path) > 1:
            raise ConfigurationError(f"the cache directory {disk.path} is given twice (--cache-dir, FOREBAY_CACHE_DIR)")
        if any(other in path.parents for other in real):
            raise ConfigurationError(f"the cache directory {disk.path} lies in another one; give one beside it")


def _check_staging(staging: CacheDirectory | None, disks: Sequence[CacheDirectory]) -> None:
    if staging is None:
        return
    where = f"the staging directory {staging.path} (--staging-dir, FOREBAY_STAGING_DIR)"
    if not staging.path.is_absolute():
        raise ConfigurationError(f"{where} must be an absolute path")
    real = staging.path.resolve()
    for disk in disks:
        cache = disk.path.resolve()
        if real == cache or real in cache.parents:
            raise ConfigurationError(f"{where} holds the cache directory {disk.path}; give one beside it")
        if cache in real.parents and real != cache / STAGING_DIRECTORY:
            raise ConfigurationError(f"{where} lies in the cache directory {disk.path}; give one beside it")
