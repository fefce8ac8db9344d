"""The contract of a place that holds objects, one implementation per module (`file`, `s3`).

A store makes single requests, without retries: it counts them and raises what went wrong as it came (`failures` makes
a typed error of it, `retries` tries again). Keys are raw: never decoded, normalised or re-encoded. Its coroutines run
on the event loop.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from forebay_core.errors import ConfigurationError
from forebay_core.formats.base import Buffer, ByteRange, ObjectInfo

if TYPE_CHECKING:
    from forebay_server.sources.gate import Gate


#: The bytes of a range as they came, in chunks of any length.
Received = list[Buffer]


@dataclass(slots=True)
class RemoteCounters:
    """What was asked of all stores since the daemon's start."""

    #: Requests as they went out, each retry counted; for a local directory, reads.
    requests: int = 0
    #: Requests that were made again.
    retries: int = 0
    #: Bytes of objects received.
    bytes: int = 0
    #: Of the requests those that write or delete, and bytes of objects that were sent, each time that they were.
    writes: int = 0
    sent_bytes: int = 0
    #: Answers that asked for less (503, 429), and requests given up because no byte came for too long.
    throttles: int = 0
    stalls: int = 0
    #: Requests that are over, by what came of them: "ok", an HTTP status such as "503", or what went wrong on the way
    #: ("timeout", "connect", "broken", "short", "changed", "local").
    answers: Counter[str] = field(default_factory=Counter)


class Caller(Protocol):
    """On whose behalf bytes are asked for, as it stands now: what is fetched ahead may become a demand meanwhile."""

    @property
    def before(self) -> float | None:
        """Seconds until it is needed; None: somebody waits."""

    @property
    def is_demand(self) -> bool:
        """Whether somebody waits."""

    @property
    def turn(self) -> int:
        """Counts callers in the order in which they came."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """A caller that somebody waits for."""

    turn: int = 0
    before: float | None = None
    is_demand: bool = True


#: What is small, and for which somebody waits: a listing, a footer.
NOW = Waiter()


class RemoteStore(ABC):
    """One bucket, or the local file system."""

    scheme: str
    #: The URL of the service; empty for the local file system.
    endpoint: str
    account: str
    bucket: str
    #: Whose credentials are used, for people; empty where none are needed.
    who: str
    counters: RemoteCounters
    #: Where all requests take turns; set when it is opened.
    gate: "Gate"

    @abstractmethod
    def list(
        self, directory: str, keep: Callable[[str], bool], *, after: str | None = None
    ) -> AsyncIterator[list[ObjectInfo]]:
        """The objects below a directory whose keys, relative to it, `keep` accepts; empty where there are none.

        In batches. `after`, a relative key, goes on behind it, where the store lists in the order of keys.
        """

    @abstractmethod
    async def head(self, key: str) -> ObjectInfo:
        """One object, under its whole key."""

    @abstractmethod
    async def read(self, key: str, wanted: ByteRange, version: str, received: Received, *, keeps: bool = False) -> None:
        """Appends exactly the bytes of the range, of exactly this version of the object.

        keeps: as they come, so that `received` holds after a failure what had come before it; costs more. Never a byte
        more than was wanted.
        """

    def md5_of(self, version: str) -> str | None:
        """What the version says of the object's bytes: their MD5 in hexadecimal, where it very likely is that."""
        del version
        return None

    def local_path(self, key: str) -> Path | None:
        """The file that is the object, where it is one on this machine."""
        return None


@dataclass(frozen=True, slots=True)
class Target:
    """One object: its store, its whole key there, and its URL for people."""

    store: RemoteStore
    key: str
    url: str


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Time limits of single requests. There is none for a whole request: a long download that moves is fine."""

    #: For a connection to be made: three attempts at a silent host still end in seconds.
    connect_timeout_seconds: float = 3.0
    #: Without a byte of the answer.
    stall_timeout_seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.connect_timeout_seconds <= 0 or self.stall_timeout_seconds <= 0:
            raise ConfigurationError(f"time limits must be positive, not {self}")
