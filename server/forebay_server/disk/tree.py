"""The directories of a cache directory, held open, and how files come into them.

What is written is written to `tmp` first and renamed into its place, so nothing is ever half there. Names are looked up
below the open directories and no symbolic link is followed. What is deleted under a running daemon is made anew before
the next write. Methods block; safe from any thread.
"""

import itertools
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from forebay_core.node_layout import DISK_ID_FILE, PIECES_DIRECTORY
from forebay_server.disk.root import DIRECTORY_MODE
from forebay_server.disk.sidecar import MOST_BYTES as SMALL_BYTES
from forebay_server.disk.temp_file import TempFile

READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_MODE = 0o640


class Tree:
    """The open directories. `id` is the disk's, once it was read or drawn (`identify`)."""

    def __init__(self, root: Path) -> None:
        self.id = ""
        #: Begins the names of this process's temp files.
        self.token = secrets.token_hex(8)
        self._numbers = itertools.count()
        self._restoring = threading.RLock()
        self.root = os.open(root, _DIRECTORY)
        self.pieces = self.subdirectory(PIECES_DIRECTORY)
        self.tmp = self.subdirectory("tmp")
        for name in ("index", "manifests"):
            os.close(self.subdirectory(name))

    def close(self) -> None:
        for descriptor in (self.tmp, self.pieces, self.root):
            os.close(descriptor)

    def create(self) -> TempFile:
        """A new, empty temp file."""
        name = self.temp_name()
        try:
            return TempFile(name, os.open(name, _CREATE, _FILE_MODE, dir_fd=self.tmp))
        except FileNotFoundError:
            self.restore()
            return TempFile(name, os.open(name, _CREATE, _FILE_MODE, dir_fd=self.tmp))

    def temp_name(self) -> str:
        """A name for a new file in `tmp`."""
        return f"{self.token}-{next(self._numbers)}"

    def prefixes(self) -> Iterator[tuple[int, set[str]]]:
        """The directories of pieces, open for as long as they are looked at, with the names in each."""
        for prefix in sorted(names_in(self.pieces)):
            try:
                descriptor = os.open(prefix, _DIRECTORY, dir_fd=self.pieces)
            except OSError:
                continue
            try:
                yield descriptor, names_in(descriptor)
            finally:
                os.close(descriptor)

    @contextmanager
    def of(self, key: str, *, create: bool = False) -> Iterator[int]:
        """The open directory of a piece. Raises `OSError`, `FileNotFoundError` where it is not there nor to be made."""
        if create:
            try:
                self._make_prefix(key)
            except FileNotFoundError:
                self.restore()
                self._make_prefix(key)
        descriptor = os.open(key[:2], _DIRECTORY, dir_fd=self.pieces)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _make_prefix(self, key: str) -> None:
        with suppress(FileExistsError):
            os.mkdir(key[:2], DIRECTORY_MODE, dir_fd=self.pieces)

    def restore(self) -> None:
        """Makes subdirectories and the id anew where they are gone. Descriptors keep their numbers: others use them."""
        with self._restoring:
            for name, held in (("tmp", self.tmp), (PIECES_DIRECTORY, self.pieces)):
                made = self.subdirectory(name)
                try:
                    if not os.path.samestat(os.fstat(made), os.fstat(held)):
                        os.dup2(made, held, inheritable=False)
                finally:
                    os.close(made)
            for name in ("index", "manifests"):
                os.close(self.subdirectory(name))
            if self.id and DISK_ID_FILE not in names_in(self.root):
                self.place(self.id.encode(), DISK_ID_FILE, self.root)

    def place(self, content: bytes, name: str, directory: int) -> None:
        """Writes, or replaces, a small file of an open directory, by a rename. Raises `OSError`."""
        temp = self.create()
        try:
            try:
                temp.write(content)
            finally:
                temp.close()
            os.rename(temp.name, name, src_dir_fd=self.tmp, dst_dir_fd=directory)
        except BaseException:
            unlink(temp.name, self.tmp)
            raise

    def subdirectory(self, name: str) -> int:
        """Opens a directory of the root, made if need be."""
        with suppress(FileExistsError):
            os.mkdir(name, DIRECTORY_MODE, dir_fd=self.root)
        return os.open(name, _DIRECTORY, dir_fd=self.root)

    def identify(self) -> None:
        """Reads the disk's id, or draws one. Raises `OSError`."""
        known = self._known_id()
        drawn = known or secrets.token_hex(16)
        if known is None:
            self.place(drawn.encode(), DISK_ID_FILE, self.root)
        self.id = drawn

    def _known_id(self) -> str | None:
        try:
            known = read_small(DISK_ID_FILE, self.root)[:64].decode("ascii", "replace").strip()
        except FileNotFoundError:
            return None
        return known if known.isalnum() else None


def read_small(name: str, directory: int) -> bytes:
    """A file, or as much of it as a sidecar may have. Raises `OSError`."""
    with os.fdopen(os.open(name, READ, dir_fd=directory), "rb") as file:
        return file.read(SMALL_BYTES)


def names_in(directory: int) -> set[str]:
    with os.scandir(directory) as found:
        return {item.name for item in found}


def unlink(name: str, directory: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)
