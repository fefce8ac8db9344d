"""The bytes of a sealed file, read once from its beginning to its end and checked against what was sealed.

The invariant: a chunk that `next` gave is part of a file whose items up to the chunk's end had the checksums that were
taken while it was written, but for the item that is not over yet; the last call raises if any is wrong. One thread at a
time, which may be another each time.
"""

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import google_crc32c

from forebay_core.checkpoints.documents import FileRecord, Item
from forebay_core.errors import CheckpointDamaged
from forebay_server.sources.failures import shown


class ItemCheck:
    """Compares a file's bytes, given in order, with the checksums of its items."""

    def __init__(self, expected: FileRecord, where: str) -> None:
        self._where = where
        self._items: Iterator[Item] = iter(expected.items)
        self._item = next(self._items, None)
        self._crc32c = 0
        self._offset = 0
        self._skip_empty()

    def add(self, chunk: bytes) -> None:
        """Raises `CheckpointDamaged` at the end of an item that has another checksum."""
        used = 0
        while used < len(chunk):
            if self._item is None:
                raise CheckpointDamaged(f"{self._where} is longer than what was sealed; save it again")
            wanted = self._item.offset + self._item.size_bytes - self._offset
            part = chunk if not used and wanted >= len(chunk) else chunk[used : used + wanted]
            self._crc32c = google_crc32c.extend(self._crc32c, part)
            used += len(part)
            self._offset += len(part)
            if len(part) == wanted:
                self._end(self._item)

    def finish(self) -> None:
        """Raises `CheckpointDamaged` where bytes are missing."""
        if self._item is not None:
            raise CheckpointDamaged(f"{self._where} ends at {self._offset}, before its last item; save it again")

    def _end(self, item: Item) -> None:
        if self._crc32c != item.crc32c:
            raise CheckpointDamaged(
                f"{self._where}: bytes {item.offset} to {item.offset + item.size_bytes} are not what was written"
                f" (CRC-32C {self._crc32c:08x}, not {item.crc32c:08x}); is the disk failing?"
            )
        self._crc32c = 0
        self._item = next(self._items, None)
        self._skip_empty()

    def _skip_empty(self) -> None:
        while self._item is not None and not self._item.size_bytes:
            self._end(self._item)


class SealedFile:
    """A local file that is sent, as a context manager. `with_md5` also takes the MD5 of each chunk."""

    def __init__(self, local: Path, expected: FileRecord, *, with_md5: bool = False) -> None:
        """Raises `CheckpointDamaged` where there is no such file, or of another size."""
        self._where = f"the staged file {shown(str(local))}"
        self._expected = expected
        self._check = ItemCheck(expected, self._where)
        self._digests: list[bytes] | None = [] if with_md5 else None
        self._offset = 0
        try:
            self._descriptor = os.open(local, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise CheckpointDamaged(f"{self._where} cannot be read: {error.strerror}; save it again") from error
        try:
            self._check_size(os.fstat(self._descriptor))
        except BaseException:
            os.close(self._descriptor)
            raise

    def next(self, limit_bytes: int) -> bytes:
        """The next bytes, of which there are fewer only at the end; none behind it."""
        wanted = min(limit_bytes, self._expected.size_bytes - self._offset)
        chunk = self._read(wanted)
        self._check.add(chunk)
        self._offset += len(chunk)
        if self._digests is not None and chunk:
            self._digests.append(hashlib.md5(chunk, usedforsecurity=False).digest())
        if self._offset == self._expected.size_bytes:
            self._check.finish()
        return chunk

    def etag(self, *, parts: bool) -> str | None:
        """What S3 gives for an object of these bytes, put at once or in these parts, where its ETags are made of MD5;
        None where none was taken."""
        if self._digests is None:
            return None
        if not parts:
            return (self._digests or [hashlib.md5(usedforsecurity=False).digest()])[0].hex()
        return f"{hashlib.md5(b''.join(self._digests), usedforsecurity=False).hexdigest()}-{len(self._digests)}"

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _check_size(self, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise CheckpointDamaged(f"{self._where} is no regular file; save it again")
        if found.st_size != self._expected.size_bytes:
            raise CheckpointDamaged(
                f"{self._where} has {found.st_size} bytes, and {self._expected.size_bytes} were sealed; save it again"
            )

    def _read(self, wanted: int) -> bytes:
        try:
            chunk = os.pread(self._descriptor, wanted, self._offset)
            while 0 < len(chunk) < wanted and (more := os.pread(self._descriptor, wanted - len(chunk), self._offset)):
                chunk += more
        except OSError as error:
            raise CheckpointDamaged(f"{self._where} cannot be read: {error.strerror}; is the disk failing?") from error
        if len(chunk) != wanted:
            raise CheckpointDamaged(f"{self._where} was cut short while it was sent; save it again")
        return chunk
