"""A cached file mapped into memory, under a shared lock that lives exactly as long as its bytes can be seen.

A reader opens the file, locks it (`flock`, shared), checks that it is still the file that was leased, maps it and
closes the descriptor. A `flock` belongs to the open file description, and the mapping keeps that alive: so the lock
ends when the last view of the bytes is gone, or with the process, however it dies, and no descriptor is spent on it
(Python's own `mmap` would keep one for each mapping). The daemon asks `is_mapped` before it removes a file; who comes
between the question and the removal finds the file without a link, and gets `PieceGone`.

Views outlive `close`: the pages go when the last of them does. Safe for several threads.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import weakref
from pathlib import Path

import numpy as np
import pyarrow as pa

from forebay_core.errors import PieceGone

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
MAP_FAILED = ctypes.c_void_p(-1).value
_MADV_POPULATE_READ = 22
_MAP_FIXED = 0x10
_MAP_POPULATE = 0x8000
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC


class MappedFile:
    """A range of a file, mapped for reading. Made by `open`."""

    def __init__(self, path: Path, view: memoryview) -> None:
        self.path = path
        #: The bytes asked for, read-only. Keeps the mapping and its lock alive, as does everything made over it.
        self.view = view

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        inode: int | None = None,
        size: int | None = None,
        offset: int = 0,
        length: int | None = None,
        in_place: bool = False,
        address: int | None = None,
    ) -> "MappedFile":
        """Maps bytes [offset, offset + length) of the file, by default all that follows the offset.

        `inode` and `size` (bytes, of the whole file) are checked where given. `in_place` is for a user's own file that
        is read where it lies: symbolic links are followed and no lock is taken, since nobody of ours removes it.
        `address`: map it there, over whatever is mapped; it is not unmapped then, since the place is its owner's.
        Raises `PieceGone` where the file is missing, was removed, or is another than the one expected; `OSError` else.
        """
        file = Path(path)
        try:
            fd = os.open(file, _READ_FLAGS | (0 if in_place else os.O_NOFOLLOW))
        except FileNotFoundError:
            raise PieceGone(f"{file} is not there any more: lease the piece again") from None
        try:
            if not in_place:
                fcntl.flock(fd, fcntl.LOCK_SH)
            length = _checked_length(file, os.fstat(fd), inode=inode, size=size, offset=offset, length=length)
            return cls(file, _map(fd, offset, length, file, address))
        finally:
            os.close(fd)

    def populate(self, start: int = 0, stop: int | None = None) -> None:
        """Faults bytes [start, stop) of the view in, so that a failing disk is an `OSError` here and no SIGBUS later.

        Does nothing on a kernel that cannot (before Linux 5.14).
        """
        stop = len(self.view) if stop is None else min(stop, len(self.view))
        if start >= stop:
            return
        base = np.frombuffer(self.view, np.uint8).ctypes.data
        code = populate(base + start, base + stop)
        if code:
            reason = f"cannot read bytes [{start}, {stop}) from the disk ({os.strerror(code)})"
            raise OSError(code, reason, str(self.path))

    def close(self) -> None:
        """Drops this object's view. The pages and the lock go with the last view that others still hold."""
        self.view = memoryview(b"")

    def __enter__(self) -> "MappedFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def populate(start: int, stop: int) -> int:
    """Faults the addresses [start, stop) in. The error number where the disk fails; 0 else, or on an old kernel."""
    first = start // mmap.PAGESIZE * mmap.PAGESIZE
    if libc.madvise(first, stop - first, _MADV_POPULATE_READ) == 0:
        return 0
    code = ctypes.get_errno()
    return 0 if code == errno.EINVAL else code


def map_shared(fd: int, length: int) -> memoryview:
    """The first bytes of a file, faulted in, to read and to write; whoever maps the file sees what is written.

    Unmapped with the last view; no descriptor is kept.
    """
    flags = mmap.MAP_SHARED | _MAP_POPULATE
    address = libc.mmap(None, length, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0)
    if address == MAP_FAILED:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot map {length} bytes of shared memory ({os.strerror(code)})")
    pages = _Pages()
    weakref.finalize(pages, libc.munmap, address, length).atexit = False
    memory = (ctypes.c_ubyte * length).from_address(address)
    memory.pages = pages  # type: ignore[attr-defined]
    return memoryview(memory).cast("B")


def is_mapped(path: str | os.PathLike[str]) -> bool:
    """Whether any process has the file mapped or is about to (holds its lock). False for a file that is not there."""
    try:
        fd = os.open(path, _READ_FLAGS | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _checked_length(
    path: Path, found: os.stat_result, *, inode: int | None, size: int | None, offset: int, length: int | None
) -> int:
    if found.st_nlink == 0:
        raise PieceGone(f"{path} was removed while it was opened: lease the piece again")
    if inode is not None and found.st_ino != inode:
        raise PieceGone(f"{path} is another file (inode {found.st_ino}, leased {inode}): lease the piece again")
    if size is not None and found.st_size != size:
        raise PieceGone(f"{path} has {found.st_size} bytes, leased were {size}: lease the piece again")
    length = found.st_size - offset if length is None else length
    if offset < 0 or length < 0 or offset + length > found.st_size:
        wanted = f"[{offset}, {offset + length})"
        raise PieceGone(f"{path} has {found.st_size} bytes, not all of {wanted}: lease the piece again")
    return length


class _Pages:
    """Owns a mapping: every view leads back to one, and its end unmaps."""

    __slots__ = ("__weakref__",)


def _map(fd: int, offset: int, length: int, path: Path, at: int | None) -> memoryview:
    if length == 0:
        return memoryview(b"")
    lead = offset % mmap.PAGESIZE
    flags = mmap.MAP_SHARED | (0 if at is None else _MAP_FIXED)
    address = libc.mmap(at, lead + length, mmap.PROT_READ, flags, fd, offset - lead)
    if address == MAP_FAILED:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot map {length} bytes ({os.strerror(code)})", str(path))
    pages = _Pages()
    if at is None:
        # Not at exit: views that live until then would point at nothing.
        weakref.finalize(pages, libc.munmap, address, lead + length).atexit = False
    return memoryview(pa.foreign_buffer(address + lead, length, base=pages)).cast("B")
