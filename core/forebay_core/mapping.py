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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from forebay_core.anonymous import is_anonymous
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
        is read where it lies: symbolic links are followed and no lock is taken, since nobody of ours removes it. So it
        is with an anonymous file (`forebay_core.anonymous`), which has no name that could be removed.
        `address`: map it there, over whatever is mapped; it is not unmapped then, since the place is its owner's.
        Raises `PieceGone` where the file is missing, was removed, or is another than the one expected; `OSError` else.
        """
        file = Path(path)
        has_name = not is_anonymous(path)
        is_ours = has_name and not in_place
        try:
            fd = os.open(file, _READ_FLAGS | (os.O_NOFOLLOW if is_ours else 0))
        except FileNotFoundError:
            raise PieceGone(f"{file} is not there any more: lease the piece again") from None
        try:
            if is_ours:
                fcntl.flock(fd, fcntl.LOCK_SH)
            found = os.fstat(fd)
            if has_name and found.st_nlink == 0:
                raise PieceGone(f"{file} was removed while it was opened: lease the piece again")
            length = _checked_length(file, found, inode=inode, size=size, offset=offset, length=length)
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
    with unmapped(path) as is_free:
        return not is_free


@contextmanager
def unmapped(path: str | os.PathLike[str]) -> Iterator[bool]:
    """Keeps everybody from mapping the file while the block runs, where nobody has it mapped: True, also for a file
    that is not there. Where somebody has: False, and nobody is kept from anything.

    Who opens the file in the meantime waits, and then finds it without a link if the block has removed it.
    """
    try:
        fd = os.open(path, _READ_FLAGS | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield True
        return
    try:
        yield _lock_alone(fd)
    finally:
        os.close(fd)


class Lingering:
    """A file that was removed and is still mapped by somebody: its bytes stay on the disk. Made by `remove`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        #: What it takes on the disk, in bytes.
        self.bytes = max(os.fstat(fd).st_blocks * 512, os.fstat(fd).st_size)

    def is_over(self) -> bool:
        """Whether nobody has it mapped any more. The descriptor that kept it in sight is closed then; ask no more."""
        if not _lock_alone(self._fd):
            return False
        os.close(self._fd)
        return True

    def close(self) -> None:
        """Loses sight of it."""
        os.close(self._fd)


def remove(path: str | os.PathLike[str], unlink: Callable[[], None]) -> Lingering | None:
    """Calls `unlink`, which removes the file whoever has it mapped; what lingers of it then, if anything does."""
    try:
        fd = os.open(path, _READ_FLAGS | os.O_NOFOLLOW)
    except OSError:
        unlink()
        return None
    try:
        unlink()
        # Asked only now: whoever locks it from here on finds no link and lets go.
        lingering = Lingering(fd)
        return None if lingering.is_over() else lingering
    except BaseException:
        os.close(fd)
        raise


def _lock_alone(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _checked_length(
    path: Path, found: os.stat_result, *, inode: int | None, size: int | None, offset: int, length: int | None
) -> int:
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
