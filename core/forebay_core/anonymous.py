"""Files without a name, which other processes of this user open by their owner's descriptor.

The path `/proc/<pid>/fd/<n>` leads to one as long as its owner lives and holds it, whatever process opens it and
however that was started. It is freed with its owner's descriptor and the last mapping, so whatever is killed, nothing
is left. A descriptor's number is given to another file in time: whoever opens one checks the inode. A forked child lets
go of those that it inherited, or their room would stay taken until it ends. One thread at a time uses one.
"""

import os
import re
import tempfile
import weakref
from pathlib import Path

_PATH = re.compile(r"/proc/[0-9]+/fd/[0-9]+")


class AnonymousFile:
    """A new, empty file. Let go of by `close`, with the last reference, and in a forked child.

    In `directory` where such a file can be made there, else in memory, as where None is given.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.descriptor = _create(directory)
        self.path = f"/proc/{os.getpid()}/fd/{self.descriptor}"
        self.inode = os.fstat(self.descriptor).st_ino
        self.size = 0
        self._close = weakref.finalize(self, os.close, self.descriptor)
        _of_this_process.add(self)

    def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """Appends. Raises `OSError` where the disk is full."""
        content = rest = memoryview(chunk)
        while rest:
            rest = rest[os.write(self.descriptor, rest) :]
        self.size += content.nbytes

    def empty(self) -> None:
        """Takes everything out again."""
        os.ftruncate(self.descriptor, 0)
        os.lseek(self.descriptor, 0, os.SEEK_SET)
        self.size = 0

    @property
    def is_open(self) -> bool:
        """Whether this process still holds it."""
        return self._close.alive

    def close(self) -> None:
        """Idempotent. Mappings of it stay."""
        self._close()


def is_anonymous(path: str | os.PathLike[str]) -> bool:
    """Whether the path is one of an anonymous file, of any process."""
    return _PATH.fullmatch(os.fspath(path)) is not None


def _create(directory: Path | None) -> int:
    if directory is not None:
        try:
            with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
                return os.dup(file.fileno())
        except OSError:
            pass
    return os.memfd_create("forebay")


def _let_go() -> None:
    for file in list(_of_this_process):
        file.close()
    _of_this_process.clear()


_of_this_process: "weakref.WeakSet[AnonymousFile]" = weakref.WeakSet()
os.register_at_fork(after_in_child=_let_go)
