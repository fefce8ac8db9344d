"""The local file system as a store, read with os.scandir and os.pread on threads.

Not through obstore: its local store refuses names that end in `#1` or hold a control character, and one such file fails
a whole listing. Here a key is the path as the file system has it.

The invariant: a version is inode, modification time and size as the open file has them *after* the bytes were read, so
that bytes of a file which is replaced, or rewritten underneath, are never handed on as those of the version asked for.
Symbolic links are followed, as far as the daemon's permits go; a directory that contains itself is entered once.
"""

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from forebay_core.errors import BadObject
from forebay_core.formats.base import ByteRange, ObjectInfo
from forebay_server.sources.failures import ShortBody, changed
from forebay_server.sources.permits import Permits
from forebay_server.sources.remote import Received, RemoteCounters, RemoteStore

_BATCH = 4096
#: Without waiting for a writer, where a pipe was put into the place of a file.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class FileStore(RemoteStore):
    """Keys are absolute paths. Methods run on the event loop, what touches a disk on threads."""

    scheme = "file"
    endpoint = ""
    account = ""
    bucket = ""
    who = ""

    def __init__(self, counters: RemoteCounters, permits: Permits) -> None:
        self.counters = counters
        self._permits = permits

    async def list(
        self, directory: str, keep: Callable[[str], bool], *, after: str | None = None
    ) -> AsyncIterator[list[ObjectInfo]]:
        del after  # a local listing is not resumed
        files = _walk(Path(directory), keep, self._permits)
        while batch := await asyncio.to_thread(_next_batch, files):
            self.counters.requests += 1
            yield batch

    async def head(self, key: str) -> ObjectInfo:
        self.counters.requests += 1
        status = await asyncio.to_thread(_looked_at, key, self._permits)
        return ObjectInfo(key=key, size=status.st_size, version=_version(status))

    async def read(self, key: str, wanted: ByteRange, version: str, received: Received, *, keeps: bool = False) -> None:
        del keeps  # a read of a file does not break in the middle
        self.counters.requests += 1
        data = await asyncio.to_thread(_read, key, wanted, version, self._permits)
        self.counters.bytes += len(data)
        received.append(data)

    def local_path(self, key: str) -> Path | None:
        return Path(key)


def _version(status: os.stat_result) -> str:
    return f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"


def _looked_at(path: str, permits: Permits) -> os.stat_result:
    if not stat.S_ISREG(Path(path).stat().st_mode):
        raise FileNotFoundError(f"{path} is not a file")
    descriptor = os.open(path, _READ)
    try:
        permits.check_opened(descriptor, path)
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _read(path: str, wanted: ByteRange, version: str, permits: Permits) -> bytes:
    descriptor = os.open(path, _READ)
    try:
        permits.check_opened(descriptor, path)
        data = _pread(descriptor, wanted)
        if (now := _version(os.fstat(descriptor))) != version:
            raise changed(f"file://{path}", was=version, now=now)
    finally:
        os.close(descriptor)
    if len(data) != wanted.length:
        raise ShortBody(f"{len(data)} of {wanted.length} bytes at {wanted.start}")
    return data


def _pread(descriptor: int, wanted: ByteRange) -> bytes:
    first = os.pread(descriptor, wanted.length, wanted.start)
    if len(first) in (0, wanted.length):
        return first
    rest = ByteRange(wanted.start + len(first), wanted.stop)
    return first + _pread(descriptor, rest)


def _next_batch(files: Iterator[ObjectInfo]) -> list[ObjectInfo]:
    return list(islice(files, _BATCH))


def _walk(root: Path, keep: Callable[[str], bool], permits: Permits) -> Iterator[ObjectInfo]:
    """Every regular file below the root that `keep` accepts, keys relative to it; none where the root is a file."""
    if not stat.S_ISDIR(root.stat().st_mode):
        return
    pending = [("", frozenset({_identity(root.stat())}))]
    while pending:
        inside, above = pending.pop()
        with _entries(root / inside, permits) as entries:
            for entry in entries:
                key = f"{inside}{entry.name}"
                if entry.is_dir():
                    identity = _identity(entry.stat())
                    if identity not in above:
                        pending.append((f"{key}/", above | {identity}))
                elif keep(key):
                    yield from _described(entry, root / key, key)


@contextmanager
def _entries(directory: Path, permits: Permits) -> Iterator[Iterator[os.DirEntry[str]]]:
    descriptor = os.open(directory, _READ | os.O_DIRECTORY)
    try:
        permits.check_opened(descriptor, str(directory))
        with os.scandir(descriptor) as entries:
            yield entries
    finally:
        os.close(descriptor)


def _described(entry: os.DirEntry[str], path: Path, key: str) -> Iterator[ObjectInfo]:
    try:
        key.encode()
    except UnicodeEncodeError:
        name = os.fsencode(path)
        raise BadObject(f"file {name!r}: its name is not valid UTF-8; rename it") from None
    try:
        status = entry.stat()
    except OSError as error:
        error.filename = str(path)
        raise
    if stat.S_ISREG(status.st_mode):
        yield ObjectInfo(key=key, size=status.st_size, version=_version(status))


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
