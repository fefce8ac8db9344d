"""The contract of a place that keeps checkpoints, one implementation per kind of place (`s3`, `file`).

Keys are relative to the root, as `forebay_core.checkpoints.names` makes them. Everything here retries by itself as long
as that is worth it, and then raises a `ForebayError`; what failed may have been applied all the same. A write that was
answered is there for every reader, whole or not at all, and outlives a loss of power.

Coroutines run on the event loop, what touches a disk on threads. Cancelling one leaves either nothing or the whole.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from forebay_core.checkpoints.documents import FileRecord
from forebay_core.checkpoints.requests import Listed
from forebay_server.concurrency import gather_bounded

#: Is told how many bytes of the file have been sent, or received, so far. It is less again where it begins anew.
Progress = Callable[[int], None]
#: Documents that are read at once.
_READS_AT_ONCE = 16


def unheard(sent_bytes: int) -> None:
    """For who does not ask for progress."""


class Destination(ABC):
    """One root."""

    #: Without a trailing slash.
    url: str

    @abstractmethod
    async def get(self, key: str) -> bytes | None:
        """A small object, whole; None where there is none."""

    async def get_many(self, keys: Sequence[str]) -> tuple[bytes | None, ...]:
        """As `get`, for each of the keys."""
        return tuple(await gather_bounded(_READS_AT_ONCE, self.get, keys))

    @abstractmethod
    async def head(self, key: str) -> Listed | None:
        """What is there; None where there is nothing."""

    @abstractmethod
    async def list(self, prefix: str) -> tuple[Listed, ...]:
        """All objects below a prefix that ends with a slash (or all), however deep, in the order of their keys."""

    @abstractmethod
    async def put(self, key: str, body: bytes) -> None:
        """Writes a small object, over what is there."""

    @abstractmethod
    async def put_if_absent(self, key: str, body: bytes) -> bool:
        """True when it was written; False when something else was there. Only where the probe found it to work."""

    @abstractmethod
    async def delete(self, keys: Sequence[str]) -> None:
        """Deletes objects; one that is not there is no error."""

    @abstractmethod
    async def upload(self, local: Path, key: str, *, expected: FileRecord, progress: Progress = unheard) -> None:
        """Writes a local file and verifies that what arrived is what was sealed.

        Raises `CheckpointDamaged` where the file is not what `expected` says, or does not arrive as it was sent.
        """

    @abstractmethod
    async def download(self, key: str, local: Path, *, size_bytes: int, progress: Progress = unheard) -> None:
        """Writes an object into a local file, which is not synced, nor kept after a failure.

        Raises `CheckpointNotFound` where it is not there, `CheckpointDamaged` where its size is another.
        """

    async def try_out(self) -> bool:
        """As `probe_put_if_absent`, for who will not write: what is made on the way is removed again.

        Says whether the root was not there before, and would be made.
        """
        await self.probe_put_if_absent()
        return False

    @abstractmethod
    async def probe_put_if_absent(self) -> bool:
        """Whether `put_if_absent` keeps what it promises, found out at the first call by writing below the root."""
