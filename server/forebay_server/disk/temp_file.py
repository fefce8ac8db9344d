"""A file being written, before it is a piece: taken in by a fill's writing thread, made a piece by `CacheDisk.commit`.

The invariant: `crc32c` covers exactly the bytes that are `written`.
"""

import os
from collections import deque

from forebay_core.checksums import crc32c
from forebay_core.formats.base import Buffer
from forebay_server.disk.blocks import blocks_of

_WRITE_BYTES = 8 << 20
#: More buffers than these are joined before they are written; the kernel takes 1024.
_VECTORS = 64


class TempFile:
    """A file being written, not yet a piece. One thread at a time.

    It is written in large blocks: the kernel keeps a file in its page cache in folios as large as its writes were, and
    a reader maps a megabyte of large ones in a twentieth of the time.
    """

    def __init__(self, name: str, descriptor: int) -> None:
        self.name = name
        #: Bytes taken in, and of these, written.
        self.size = 0
        self.written = 0
        self.crc32c = 0
        self._descriptor = descriptor
        self._held: list[Buffer] = []

    def write(self, chunk: Buffer) -> None:
        """Takes the next bytes in, which must not change any more: they may be written later."""
        self._held.append(chunk)
        self.size += memoryview(chunk).nbytes
        if self.size - self.written >= _WRITE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes all that was taken in, as one block."""
        held, self._held = self._held, []
        blocks: list[Buffer] = held if len(held) <= _VECTORS else [b"".join(held)]
        for block in blocks:
            self.crc32c = crc32c(block, self.crc32c)
        self._write(deque(memoryview(block) for block in blocks if len(block)))
        self.written = self.size

    def _write(self, blocks: deque[memoryview]) -> None:
        while blocks:
            count = os.writev(self._descriptor, blocks)
            while blocks and count >= len(blocks[0]):
                count -= len(blocks.popleft())
            if count:
                blocks[0] = blocks[0][count:]

    def sync(self) -> None:
        """Writes all that was taken in, down to the device."""
        self.flush()
        os.fdatasync(self._descriptor)

    def drop(self) -> None:
        """Forgets what was taken in and not written."""
        self._held.clear()

    def blocks(self) -> int:
        """What it would take on the disk as a piece, in bytes."""
        return blocks_of(os.fstat(self._descriptor))

    def close(self) -> os.stat_result:
        """Writes what is left, closes the file and says what became of it. Once only."""
        try:
            self.flush()
            return os.fstat(self._descriptor)
        finally:
            os.close(self._descriptor)
            self._descriptor = -1

    @property
    def is_open(self) -> bool:
        return self._descriptor >= 0
