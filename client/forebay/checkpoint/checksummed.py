"""A file that is written from its start to its end, with size and CRC-32C of each item taken on the way."""

import io
from types import TracebackType
from typing import IO, Any, Self

from forebay_core.checkpoints.documents import FileRecord, Item
from forebay_core.checksums import crc32c

#: Small enough that the checksum, which holds the interpreter, holds up nobody.
_STRIDE_BYTES = 1 << 20
_CRUMB_BYTES = 32 << 10


class ChecksummedFile(io.RawIOBase):
    """Over a file that buffers. `torch.save` writes to it, in crumbs: it can tell, and cannot seek."""

    def __init__(self, under: IO[bytes]) -> None:
        self._under = under
        self._end = 0
        self._began = 0
        self._crc32c = 0
        self._crumbs = bytearray()
        self._items: list[Item] = []

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._end

    def write(self, content: Any) -> int:
        view = memoryview(content).cast("B")
        self._end += len(view)
        if len(view) < _CRUMB_BYTES:
            self._crumbs += view
            return len(view)
        self._sweep()
        for start in range(0, len(view), _STRIDE_BYTES):
            self._put(view[start : start + _STRIDE_BYTES])
        return len(view)

    def end_item(self) -> tuple[int, int]:
        """Ends the item that was written since the last call; its offset and size in bytes."""
        self._sweep()
        item = Item(self._began, self._end - self._began, self._crc32c)
        self._items.append(item)
        self._began, self._crc32c = self._end, 0
        return item.offset, item.size_bytes

    def _sweep(self) -> None:
        if self._crumbs:
            self._put(bytes(self._crumbs))
            self._crumbs.clear()

    def _put(self, content: bytes | memoryview) -> None:
        self._crc32c = crc32c(content, self._crc32c)
        self._under.write(content)

    def record(self, name: str) -> FileRecord:
        """What was written. All of it belongs to items that have ended."""
        assert self._began == self._end
        self._under.flush()
        return FileRecord(name, self._end, tuple(self._items))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
