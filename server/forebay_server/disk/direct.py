"""A file's CRC-32C as the disk has it, read in steps, past the page cache where the file system allows that.

What the kernel keeps in memory says nothing of the disk, and reading a whole cache through it would push out what
trainers read. So the file is opened with O_DIRECT, and buffered only where that is refused. Blocking; one thread at a
time.
"""

import errno
import fcntl
import mmap
import os
from contextlib import suppress

import google_crc32c

from forebay_server.disk.entry import Entry

#: Long enough that a disk is read at its speed, short enough to be slowed down evenly. A multiple of every block size.
STEP_BYTES = 4 << 20
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class DirectFile:
    """An open file and how far it has been read."""

    def __init__(self, name: str, directory: int) -> None:
        """Opens the file of that name in an open directory. Raises `OSError`."""
        self._descriptor, self._is_direct = _opened(name, directory)
        try:
            self.found = os.fstat(self._descriptor)
            #: O_DIRECT wants memory that begins at a page.
            self._buffer = mmap.mmap(-1, STEP_BYTES)
        except BaseException:
            os.close(self._descriptor)
            raise
        #: Of what was read so far.
        self.size = 0
        self.crc32c = 0

    def step(self) -> int:
        """Reads on, and returns the number of bytes read: 0 at the end. Raises `OSError` where the disk fails."""
        count = self._read()
        self.crc32c = google_crc32c.extend(self.crc32c, self._buffer[:count])
        self.size += count
        return count

    def difference(self, entry: Entry) -> str | None:
        """How what was read, to its end, differs from what it should be; None: not at all."""
        if self.size != entry.size:
            return f"has {self.size} bytes, not {entry.size}"
        if self.crc32c != entry.crc32c:
            return f"holds other bytes than were written (CRC-32C {self.crc32c:08x}, not {entry.crc32c:08x})"
        return None

    def close(self) -> None:
        os.close(self._descriptor)
        self._buffer.close()

    def _read(self) -> int:
        try:
            return os.preadv(self._descriptor, [self._buffer], self.size)
        except OSError as error:
            if error.errno != errno.EINVAL or not self._is_direct:
                raise
        self._is_direct = False
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        return os.preadv(self._descriptor, [self._buffer], self.size)


def _opened(name: str, directory: int) -> tuple[int, bool]:
    with suppress(OSError):
        return os.open(name, _FLAGS | os.O_DIRECT, dir_fd=directory), True
    return os.open(name, _FLAGS, dir_fd=directory), False
