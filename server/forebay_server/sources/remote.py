"""The contract of a place that holds objects, one implementation per module (`file`, `s3`).

A store makes single requests, without retries: it counts them and raises what went wrong as it came (`failures` makes
a typed error of it, `retries` tries again). Keys are raw: never decoded, normalised or re-encoded. Its coroutines run
on the event loop.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from forebay_core.errors import ConfigurationError
from forebay_core.formats.base import Buffer, ByteRange, ObjectInfo


@dataclass(slots=True)
class RemoteCounters:
    """What was asked of all stores since the daemon's start."""

    #: Requests as they went out, each retry counted; for a local directory, reads.
    requests: int = 0
    #: Requests that were made again.
    retries: int = 0
    #: Bytes of objects received.
    bytes: int = 0


class RemoteStore(ABC):
    """One bucket, or the local file system."""

    scheme: str
    #: The URL of the service; empty for the local file system.
    endpoint: str
    account: str
    bucket: str
    counters: RemoteCounters

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
    async def read(self, key: str, wanted: ByteRange, version: str) -> Buffer:
        """Exactly the bytes of the range, of exactly this version of the object."""

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
