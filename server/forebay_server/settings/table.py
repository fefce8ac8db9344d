"""All settings of a daemon: one line for each field of `ServerConfig` that an operator may set.

From a line's name follow the flag (`--idle-seconds`), the variable (`FOREBAY_IDLE_SECONDS`) and the key of the
configuration file (`idle_seconds`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forebay_core.eviction import POLICIES
from forebay_server.config import LOG_LEVELS
from forebay_server.settings.readers import (
    BYTES,
    CAPACITY,
    COUNT,
    DIRECTORY,
    HTTP,
    NUMBER,
    PATH,
    PREFIX,
    RATE,
    SWITCH,
    TEXT,
    Reader,
)


@dataclass(frozen=True, slots=True)
class Option:
    """One setting."""

    #: Of `ServerConfig`.
    field: str
    reader: Reader
    metavar: str
    help: str
    #: Where it is not the field's.
    name: str = ""
    #: For a field that is a tuple: splits a variable's text. The flag is repeated, and the file has a list.
    split: Callable[[str], Sequence[str]] | None = None

    @property
    def key(self) -> str:
        return self.name or self.field

    @property
    def flag(self) -> str:
        return f"--{self.key.replace('_', '-')}"

    @property
    def variable(self) -> str:
        return f"FOREBAY_{self.key.upper()}"


def by_comma(text: str) -> list[str]:
    """The parts of `a, b,c`."""
    return [part.strip() for part in text.split(",") if part.strip()]


OPTIONS = (
    Option("socket", PATH, "PATH", "Unix socket to serve on"),
    Option(
        "disks", DIRECTORY, "PATH[:SIZE]", "directory that holds the cached pieces", name="cache_dir", split=by_comma
    ),
    Option("capacity", CAPACITY, "SIZE", "most that a directory may hold: bytes, 10GiB or 80% of the disk"),
    Option("staging_dir", DIRECTORY, "PATH[:SIZE]", "directory of checkpoints before their upload, and its quota"),
    Option("group", TEXT, "NAME", "group that may use the daemon"),
    Option("eviction", TEXT, "POLICY", f"which pieces make room: {', '.join(POLICIES)}"),
    Option(
        "allow_read", PREFIX, "PREFIX", "URL prefix or directory that may be read; without any, all", split=by_comma
    ),
    Option(
        "allow_write",
        PREFIX,
        "PREFIX",
        "URL prefix or directory below which checkpoints may be written; without any, all but the daemon's own",
        split=by_comma,
    ),
    Option("prefetch_fills", COUNT, "N", "pieces fetched ahead at once"),
    Option("flight_bytes", BYTES, "SIZE", "bytes of objects on their way at once, in memory"),
    Option("fill_memory_bytes", BYTES, "SIZE", "memory for pieces that are decoded in it"),
    Option("remote_requests", COUNT, "N", "requests to one bucket at once, at the most"),
    Option("upload_parts", COUNT, "N", "parts of checkpoints, of 8 MiB, on their way at once"),
    Option("stall_seconds", NUMBER, "S", "without a byte, before a request is made again"),
    Option("read_in_place", TEXT, "auto|never", "read local files where they lie"),
    Option("anonymous", SWITCH, "", "read buckets without credentials"),
    Option("requester_pays", SWITCH, "", "pay for reading buckets that demand it"),
    Option("allow_changed", SWITCH, "", "read objects that changed since they were listed, if their size is the same"),
    Option("sync_seconds", NUMBER, "S", "how often pieces are written through to the disk; 0: never"),
    Option("verify_bytes_per_second", RATE, "SIZE", "rate of verifying pieces after an unclean boot; 0: on demand"),
    Option("scrub_bytes_per_second", RATE, "SIZE", "rate of reading all pieces for damage; 0: never"),
    Option("scrub_round_seconds", NUMBER, "S", "from the beginning of such a round to the next"),
    Option("embedded", SWITCH, "", "end when idle"),
    Option("idle_seconds", NUMBER, "S", "how long an embedded daemon stays without work"),
    Option("session_lapse_seconds", NUMBER, "S", "how long a silent client keeps its session and leases"),
    Option("drain_seconds", NUMBER, "S", "how long running demands may take at the end"),
    Option("http", HTTP, "HOST:PORT", "serve metrics and the status page there; port 0: any that is free"),
    Option("log_level", TEXT, "LEVEL", f"one of {', '.join(LOG_LEVELS)}"),
    Option("log_file", PATH, "PATH", "log to this file instead of standard error"),
)
