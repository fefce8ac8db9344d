"""Byte ranges of an object in memory: which to fetch, and the fetched ones as a file that pyarrow can read.

Pure, apart from holding the bytes. One thread at a time.
"""

import io
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from forebay_core.formats.base import ByteRange


def coalesce(ranges: Iterable[ByteRange], *, gap_bytes: int) -> list[ByteRange]:
    """The ranges in ascending order, those merged that overlap or lie less than `gap_bytes` apart."""
    merged: list[ByteRange] = []
    for wanted in sorted(ranges, key=lambda r: (r.start, r.stop)):
        if merged and wanted.start - merged[-1].stop < gap_bytes:
            merged[-1] = ByteRange(merged[-1].start, max(merged[-1].stop, wanted.stop))
        else:
            merged.append(wanted)
    return merged


class RangeFile(io.RawIOBase):
    """An object of `size` bytes of which only some ranges are here; reading another place is an `OSError`."""

    def __init__(self, size: int, ranges: Sequence[ByteRange], data: bytes | bytearray) -> None:
        """`ranges`: ascending and apart, as `coalesce` gives them; `data`: their bytes, end to end."""
        self._size = size
        self._ranges = ranges
        self._starts = [r.start for r in ranges]
        offset, self._parts = 0, []
        for part in ranges:
            self._parts.append(memoryview(data)[offset : offset + part.length])
            offset += part.length
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def read_buffer(self, size: int) -> memoryview:
        """The next `size` bytes without a copy: what pyarrow calls where a file has it."""
        start, stop = self._position, min(self._position + size, self._size)
        if start >= stop:
            return memoryview(b"")
        index = bisect_right(self._starts, start) - 1
        if index < 0 or stop > self._ranges[index].stop:
            raise OSError(f"bytes [{start}, {stop}) were not fetched")
        self._position = stop
        first = self._ranges[index].start
        return self._parts[index][start - first : stop - first]

    def read(self, size: int = -1) -> bytes:
        return bytes(self.read_buffer(self._size if size < 0 else size))
