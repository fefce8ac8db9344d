"""The daemon's configuration: one frozen dataclass, and how it is read from flags and the environment.

Flags win over `FOREBAY_*` variables, these over the defaults. Everything is checked at construction, so that a daemon
that starts has a configuration that can work.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from forebay_core.capacity import CacheDirectory, Capacity
from forebay_core.errors import ConfigurationError
from forebay_core.node_layout import SOCKET_PATH_BYTES

LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """What a daemon is told. Raises `ConfigurationError` for what cannot work."""

    socket: Path = Path("/run/forebay/forebay.sock")
    #: One directory in this version; a list, because a node has several disks.
    disks: tuple[CacheDirectory, ...] = (CacheDirectory(Path("/var/cache/forebay")),)
    #: Most of a disk: a cache is worth its size, and the floor of free bytes keeps the rest alive.
    capacity: Capacity = field(default_factory=lambda: Capacity(share=0.8))
    #: Group that owns the socket and the files; None keeps the process's own.
    group: str | None = None
    #: Started by a trainer for its user: ends when idle.
    embedded: bool = False
    #: Long enough for a trainer that restarts to find the same daemon.
    idle_seconds: float = 300.0
    read_in_place: Literal["auto", "never"] = "auto"
    #: Each fill has several ranged GETs in flight, so a few fill a network link; more only delay the next one.
    prefetch_fills: int = 16
    #: For pieces that are decoded in memory: some ten of usual size at once, as many as there are threads for.
    fill_memory_bytes: int = 1 << 30
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
        if len(self.disks) != 1:
            raise ConfigurationError(
                f"{len(self.disks)} cache directories are given; this version takes one"
                " (--cache-dir, FOREBAY_CACHE_DIR)"
            )
        if not all(disk.path.is_absolute() for disk in self.disks):
            raise ConfigurationError("a cache directory must be an absolute path (--cache-dir, FOREBAY_CACHE_DIR)")
        if self.read_in_place not in ("auto", "never"):
            raise ConfigurationError(
                f"read in place is auto or never, not {self.read_in_place!r} (FOREBAY_READ_IN_PLACE)"
            )
        if self.log_level not in LOG_LEVELS:
            raise ConfigurationError(f"the log level is one of {', '.join(LOG_LEVELS)}, not {self.log_level!r}")
        if self.prefetch_fills < 0:
            raise ConfigurationError(f"prefetch fills must be 0 or more, not {self.prefetch_fills} (--prefetch-fills)")
        if self.fill_memory_bytes < 1:
            raise ConfigurationError(f"fill_memory_bytes must be at least 1, not {self.fill_memory_bytes}")
        for name in ("idle_seconds", "session_lapse_seconds", "drain_seconds", "room_wait_seconds"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigurationError(f"{name} must be a number of seconds, 0 or more, not {getattr(self, name)}")

    def capacity_of(self, disk: CacheDirectory) -> Capacity:
        return disk.capacity or self.capacity


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A parsed command line: the configuration, and how to report."""

    config: ServerConfig
    json: bool


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> CommandLine:
    """Reads flags over `FOREBAY_*` over defaults. Raises `ConfigurationError`; exits with 2 on unknown flags."""
    given = vars(_parser().parse_args(arguments))
    as_json = bool(given.pop("json"))
    texts = {name: value for name in given if (value := environment.get(f"FOREBAY_{name.upper()}"))}
    texts |= {name: value for name, value in given.items() if value is not None}
    options = {("disks" if name == "cache_dir" else name): _READERS[name](name, text) for name, text in texts.items()}
    return CommandLine(ServerConfig(**options), as_json)  # type: ignore[arg-type]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="forebay serve", description="The forebay node daemon.")
    parser.add_argument("--socket", metavar="PATH", help="Unix socket to serve on")
    parser.add_argument("--cache-dir", metavar="PATH[:CAPACITY]", help="directory that holds the cached pieces")
    parser.add_argument(
        "--capacity", metavar="SIZE", help="most that the cache may hold: bytes, 10GiB or 80%% of the disk"
    )
    parser.add_argument("--group", metavar="NAME", help="group that may use the daemon")
    parser.add_argument("--embedded", action="store_const", const="1", help="end when idle")
    parser.add_argument("--idle-seconds", metavar="S", help="how long an embedded daemon stays without work")
    parser.add_argument("--read-in-place", metavar="auto|never", help="read local files where they lie")
    parser.add_argument("--prefetch-fills", metavar="N", help="pieces fetched ahead at once")
    parser.add_argument("--log-level", metavar="LEVEL", help=f"one of {', '.join(LOG_LEVELS)}")
    parser.add_argument("--log-file", metavar="PATH", help="log to this file instead of standard error")
    parser.add_argument("--json", action="store_true", help="print one JSON line when serving")
    return parser


def _path(_name: str, text: str) -> Path:
    return Path(text).expanduser().absolute()


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError(f"{name} must be a number, not {text!r}") from None


def _count(name: str, text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    raise ConfigurationError(f"{name} must be a whole number, 0 or more, not {text!r}")


def _switch(name: str, text: str) -> bool:
    if text.lower() in {"1", "true", "yes", "on"}:
        return True
    if text.lower() in {"0", "false", "no", "off"}:
        return False
    raise ConfigurationError(f"{name} must be 1 or 0, not {text!r}")


def _text(_name: str, text: str) -> str:
    return text


def _directories(name: str, text: str) -> tuple[CacheDirectory, ...]:
    directory = CacheDirectory.parse(text)
    return (CacheDirectory(_path(name, str(directory.path)), directory.capacity),)


def _capacity(_name: str, text: str) -> Capacity:
    return Capacity.parse(text)


_READERS = {
    "socket": _path,
    "cache_dir": _directories,
    "capacity": _capacity,
    "group": _text,
    "embedded": _switch,
    "idle_seconds": _number,
    "read_in_place": _text,
    "prefetch_fills": _count,
    "log_level": _text,
    "log_file": _path,
}
