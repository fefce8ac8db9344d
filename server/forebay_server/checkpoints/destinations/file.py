"""A directory of a file system, local or of the network, as a place of checkpoints.

Not through obstore, which never syncs and follows links out of its root. A file is sent as it is read, each item's
checksum compared; synced without an error and of the right size, it has arrived: a file system says no more. There are
no retries, because what a file system refuses once (no room, no right) it refuses again.

Put-if-absent is `link(2)`, which file systems without hard links (FAT, some of FUSE) do not have: the probe finds out.
Coroutines on the event loop, files on threads.
"""

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from forebay_core.checkpoints.documents import FileRecord
from forebay_core.checkpoints.requests import Listed
from forebay_core.errors import AccessDenied, CheckpointDamaged, CheckpointNotFound, ForebayError, SourceUnreachable
from forebay_server.checkpoints.destinations.base import Destination, Progress, unheard
from forebay_server.checkpoints.destinations.content import SealedFile
from forebay_server.checkpoints.destinations.probing import PROBES, is_probe, probe
from forebay_server.checkpoints.destinations.transfers import Transfers
from forebay_server.checkpoints.destinations.tree import Tree
from forebay_server.concurrency import in_thread
from forebay_server.sources.failures import shown

T = TypeVar("T")
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
#: What `link` answers where there are no hard links.
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL, errno.EMLINK})


class FileDestination(Destination):
    """One root, whose path is a real one."""

    def __init__(self, root: Path, transfers: Transfers) -> None:
        self.url = f"file://{root}"
        self._tree = Tree(root)
        self._transfers = transfers
        self._is_conditional: bool | None = None
        self._probing = asyncio.Lock()

    async def get(self, key: str) -> bytes | None:
        return await self._run(key, lambda: self._tree.read(key))

    async def head(self, key: str) -> Listed | None:
        return await self._run(key, lambda: self._tree.head(key))

    async def list(self, prefix: str) -> tuple[Listed, ...]:
        found = await self._run(prefix, lambda: self._tree.list(prefix))
        return tuple(each for each in found if not each.key.startswith(f"{PROBES}/"))

    async def put(self, key: str, body: bytes) -> None:
        await self._run(key, lambda: self._tree.write(key, [body]))

    async def put_if_absent(self, key: str, body: bytes) -> bool:
        return await self._run(key, lambda: self._tree.create(key, [body]))

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            await self._run(key, partial(self._tree.remove, key))

    async def upload(self, local: Path, key: str, *, expected: FileRecord, progress: Progress = unheard) -> None:
        async with self._transfers.memory.taken(self._transfers.caller(), self._transfers.part_bytes):
            tell = _from_thread(progress)

            def copy(is_over: threading.Event) -> int:
                with SealedFile(local, expected) as file:
                    self._tree.write(key, _chunks(file, self._transfers.part_bytes, tell, is_over))
                found = self._tree.head(key)
                return found.size_bytes if found else -1

            arrived = await self._run_to_its_end(key, copy)
        if arrived != expected.size_bytes:
            raise CheckpointDamaged(
                f"{self._url(key)} has {arrived} bytes, and {expected.size_bytes} were written; do others write it?"
            )
        progress(expected.size_bytes)

    async def download(self, key: str, local: Path, *, size_bytes: int, progress: Progress = unheard) -> None:
        tell = _from_thread(progress)

        def copy(is_over: threading.Event) -> None:
            with self._tree.opened(key) as descriptor:
                if (found := os.fstat(descriptor).st_size) != size_bytes:
                    raise CheckpointDamaged(f"{self._url(key)} has {found} bytes, and {size_bytes} were saved")
                _copy(descriptor, local, self._transfers.part_bytes, tell, is_over)

        await self._run_to_its_end(key, copy)

    async def try_out(self) -> bool:
        missing = await in_thread(self._tree.missing)
        try:
            await self.probe_put_if_absent()
        finally:
            await in_thread(self._tree.unmake, missing)
        return len(missing) > 1

    async def probe_put_if_absent(self) -> bool:
        async with self._probing:
            if self._is_conditional is None:
                self._is_conditional = await probe(self, is_refusal=_has_no_links)
        return self._is_conditional

    async def _run_to_its_end(self, key: str, work: Callable[[threading.Event], T]) -> T:
        """Long work on a thread. It is told when nobody waits for it any more, and waited for."""
        is_over = threading.Event()
        working = asyncio.ensure_future(self._run(key, lambda: work(is_over)))
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            is_over.set()
            await asyncio.gather(working, return_exceptions=True)
            raise

    async def _run(self, key: str, work: Callable[[], T]) -> T:
        try:
            return await in_thread(work)
        except OSError as error:
            if isinstance(error, ForebayError):
                raise
            raise self._typed(error, key) from error

    def _typed(self, error: OSError, key: str) -> ForebayError:
        url, reason = self._url(key), error.strerror or str(error)
        if isinstance(error, FileNotFoundError):
            return CheckpointNotFound(f"{url}: there is no such file")
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            return AccessDenied(
                f"{url}: a file, or a link, which is not followed, is in the way; move it away, or give another root"
            )
        url = shown(self.url) if is_probe(key) else url
        if error.errno in _DENIED:
            return AccessDenied(f"{url}: the daemon may not do that ({reason}); check the owner and mode of {self.url}")
        if error.errno in _FULL:
            return SourceUnreachable(f"{url}: there is no room at the destination ({reason}); make some")
        return SourceUnreachable(f"{url}: {reason}; check the file system of {self.url}")

    def _url(self, key: str) -> str:
        return shown(f"{self.url}/{key}")


class _Over(OSError):
    """Nobody waits for the copy any more."""


def _chunks(file: SealedFile, limit: int, tell: Progress, is_over: threading.Event) -> Iterator[bytes]:
    sent = 0
    while chunk := file.next(limit):
        if is_over.is_set():
            raise _Over
        yield chunk
        sent += len(chunk)
        tell(sent)


def _copy(descriptor: int, local: Path, limit: int, tell: Progress, is_over: threading.Event) -> None:
    done = 0
    with os.fdopen(os.open(local, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644), "wb") as file:
        try:
            while count := os.sendfile(file.fileno(), descriptor, done, limit):
                if is_over.is_set():
                    raise _Over
                done += count
                tell(done)
        except BaseException:
            local.unlink()
            raise


def _from_thread(progress: Progress) -> Progress:
    """Tells it on the event loop."""
    loop = asyncio.get_running_loop()

    def tell(count: int) -> None:
        loop.call_soon_threadsafe(progress, count)

    return tell


def _has_no_links(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in _NO_LINKS
