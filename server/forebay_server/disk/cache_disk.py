"""One cache directory: the files that are the truth about what is cached.

::

    <root>/disk-id              drawn once; clients find their mount of the disk by it
           lock                 says which daemon owns the directory (`ownership`)
           draining             while an operator wants nothing more on this disk
           index/               an accelerator, rebuilt from the rest (`index`)
           manifests/           of datasets
           digests.db           of pieces that were here (`digests`)
           scrub.json           how far the scrub is (`cache.care`)
           quarantine/          damaged pieces, never served (`quarantine`)
           tmp/<token>-<n>      files being written, or set aside, by the daemon with that token
           pieces/<2 hex>/<key>         a whole piece
                          <key>.json    its sidecar
                          <key>.error   why its last fill failed

A piece counts only with a sidecar that names its key and its exact size. The sidecar is renamed into place before the
data and unlinked after it, so at no instant does a part of a piece look whole. Pieces are not synced as they are
written: after another boot of the machine, those that are not known to be on the disk are verified before they count
(`trusts`), and so are those that somebody has written to. Data files are unlinked, never truncated: readers have them
mapped. Below the root no symbolic link is followed. Methods block; they are safe from any thread, for one key from one
thread at a time.

A directory with other things in it is not taken, and nothing is removed whose name is not one that is made here. What
is deleted under a running daemon is made anew before the next write.
"""

import errno
import os
import re
import secrets
import sys
from contextlib import suppress
from pathlib import Path

from forebay_core.errors import ConfigurationError, ForebayError, InternalError
from forebay_core.node_layout import ERROR_SUFFIX, error_file, piece_path
from forebay_server.disk.blocks import blocks_of
from forebay_server.disk.entry import Entry, Origin
from forebay_server.disk.ownership import Ownership
from forebay_server.disk.root import give_to, prepared_root
from forebay_server.disk.sidecar import entry_of, origin_of, sidecar_of
from forebay_server.disk.temp_file import TempFile
from forebay_server.disk.tree import READ, Tree, names_in, read_small, unlink

#: Beside the disk id while no more is to be put on this disk.
DRAINING_FILE = "draining"
#: A piece's key, which is the name of its file.
KEY = re.compile(r"[0-9a-f]{64}")
_PROBE_BYTES = 64 << 10


def kernel_boot_id() -> str:
    """Drawn by the kernel at each boot: what was not synced before another boot does not count."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


class Replaced(OSError):
    """Another file system lies at the directory's path by now."""


class CacheDisk:
    """A cache directory that this process owns. Made by `claim`."""

    def __init__(self, root: Path, ownership: Ownership) -> None:
        self.root = root
        self.tree = Tree(root)
        self.boot = kernel_boot_id()
        #: Whether pieces of another version than their keys say may be used.
        self.allows_changed = False
        self._ownership = ownership
        #: By the clock of files.
        self.started_ns = ownership.since_ns
        self._is_draining = False

    @classmethod
    def claim(cls, root: Path, group: int | None = None) -> "CacheDisk":
        """Makes and checks the directory and takes its lock. Raises `ConfigurationError`, `AlreadyRunning`.

        A cache of before on a disk that takes no writes now is claimed all the same; see `refusal`.
        """
        root = prepared_root(root)
        ownership = Ownership.take(root)
        try:
            if group is not None and ownership.refusal is None:
                give_to(root, group)
            disk = cls(root, ownership)
            disk.tree.identify()
            disk._is_draining = DRAINING_FILE in names_in(disk.tree.root)
        except OSError as error:
            ownership.release()
            raise ConfigurationError(f"the cache directory {root} cannot be used: {error} (--cache-dir)") from error
        except BaseException:
            ownership.release()
            raise
        return disk

    def close(self) -> None:
        self.tree.close()
        self._ownership.release()

    @property
    def id(self) -> str:
        """Drawn once; clients find their mount of the disk by it."""
        return self.tree.id

    @property
    def refusal(self) -> OSError | None:
        """Why the disk took no writes when it was claimed; None where it did, or does since."""
        return self._ownership.refusal

    @property
    def is_draining(self) -> bool:
        """Whether an operator wants nothing more on this disk. Outlives the daemon if the disk takes a note of it."""
        return self._is_draining

    def drain(self, wanted: bool) -> None:
        """Notes it, or that it is over. Raises `OSError` where the note cannot be written or removed; it is done all
        the same, until this daemon ends."""
        self._is_draining = wanted
        if wanted:
            self.tree.place(b"", DRAINING_FILE, self.tree.root)
        else:
            unlink(DRAINING_FILE, self.tree.root)

    @property
    def manifests(self) -> Path:
        return self.root / "manifests"

    @property
    def index(self) -> Path:
        return self.root / "index"

    @property
    def size_bytes(self) -> int:
        """Of the whole file system."""
        found = os.fstatvfs(self.tree.root)
        return found.f_blocks * found.f_frsize

    @property
    def device(self) -> int:
        """Tells the file system from others."""
        return os.fstat(self.tree.root).st_dev

    def free_bytes(self) -> int:
        """What the file system would still give to this process."""
        found = os.fstatvfs(self.tree.root)
        return found.f_bavail * found.f_frsize

    @property
    def inodes(self) -> int:
        """Of the whole file system; 0 where it does not count them."""
        return os.fstatvfs(self.tree.root).f_files

    def free_inodes(self) -> int | None:
        """What the file system would still give to this process; None where it does not count them."""
        found = os.fstatvfs(self.tree.root)
        return found.f_favail if found.f_files else None

    def path(self, key: str) -> Path:
        return self.root / piece_path(key)

    def create(self) -> TempFile:
        """A new, empty temp file."""
        return self.tree.create()

    def discard(self, temp: TempFile) -> None:
        """Takes a temp file away. Does nothing once it was committed."""
        if temp.is_open:
            temp.drop()
            temp.close()
            unlink(temp.name, self.tree.tmp)

    def commit(self, temp: TempFile, key: str, origin: Origin) -> Entry:
        """Makes the temp file the piece `key`: sidecar first, then the data, each by a rename."""
        try:
            found = temp.close()
            if found.st_size != temp.size:
                raise InternalError(f"{temp.name} has {found.st_size} bytes after {temp.size} were written")
            entry = Entry(
                key=key,
                size=temp.size,
                blocks=blocks_of(found),
                inode=found.st_ino,
                crc32c=temp.crc32c,
                synced=False,
                boot=self.boot,
                modified_ns=found.st_mtime_ns,
                dataset=sys.intern(origin.dataset),
                is_changed=bool(origin.instead_of),
            )
            self.put_in_place(temp.name, entry, origin)
        except BaseException:
            unlink(temp.name, self.tree.tmp)
            raise
        return entry

    def lookup(self, key: str) -> Entry | None:
        """The piece as its files say; None unless it is whole."""
        try:
            with self.tree.of(key) as directory:
                return self.read_entry(key, directory)
        except OSError:
            return None

    def stands(self, entry: Entry) -> bool:
        """Whether the entry's data file is still the one at its path."""
        try:
            found = self.path(entry.key).lstat()
        except OSError:
            return False
        return entry.is_of(found)

    def open(self, key: str) -> int | None:
        """A descriptor of the piece's file to read from, for the caller to close; None where there is no file, or it
        cannot be opened."""
        try:
            with self.tree.of(key) as directory:
                return os.open(key, READ, dir_fd=directory)
        except OSError:
            return None

    def remove(self, key: str) -> None:
        """Unlinks a piece: its data first, then its sidecar."""
        with suppress(FileNotFoundError), self.tree.of(key) as directory:
            unlink(key, directory)
            unlink(f"{key}.json", directory)

    def write_error(self, key: str, error: ForebayError) -> None:
        """Says beside the piece's path why its fill failed."""
        with self.tree.of(key, create=True) as directory:
            self.tree.place(error_file(error), f"{key}{ERROR_SUFFIX}", directory)

    def clear_error(self, key: str) -> None:
        with suppress(FileNotFoundError), self.tree.of(key) as directory:
            unlink(f"{key}{ERROR_SUFFIX}", directory)

    def probe(self) -> None:
        """Writes a small file, reads it back from the device, and removes it. Raises `OSError` where that fails, and
        `Replaced`."""
        if not os.path.samestat(self.root.stat(), os.fstat(self.tree.root)):
            raise Replaced(errno.ESTALE, "another file system was mounted there", str(self.root))
        content = secrets.token_bytes(_PROBE_BYTES)
        temp = self.create()
        try:
            temp.write(content)
            temp.sync()
            with os.fdopen(os.open(temp.name, READ, dir_fd=self.tree.tmp), "rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                if file.read(_PROBE_BYTES) != content:
                    raise OSError(errno.EIO, "what was written is not what is read", str(self.root))
        finally:
            self.discard(temp)
        self._ownership.complete()

    def keys(self) -> list[str]:
        """Of all data files, whole or not."""
        return [name for _, names in self.tree.prefixes() for name in names if KEY.fullmatch(name)]

    def size_of(self, key: str) -> int:
        """Of a data file, in bytes; 0 where there is none."""
        try:
            return self.path(key).lstat().st_size
        except OSError:
            return 0

    def trusts(self, entry: Entry) -> bool:
        """False for bytes that may not have reached the disk before the machine went down, or were written to since."""
        return entry.synced or entry.boot == self.boot

    def origin(self, key: str) -> Origin | None:
        """What a piece was made from, as its sidecar says."""
        try:
            with self.tree.of(key) as directory:
                return origin_of(read_small(f"{key}.json", directory))
        except OSError:
            return None

    def put_in_place(self, name: str, entry: Entry, origin: Origin) -> None:
        """Makes a file of `tmp` the piece of the entry: sidecar first, then the data, each by a rename."""
        with self.tree.of(entry.key, create=True) as directory:
            self.write_sidecar(entry, origin, directory)
            os.rename(name, entry.key, src_dir_fd=self.tree.tmp, dst_dir_fd=directory)

    def write_sidecar(self, entry: Entry, origin: Origin, directory: int) -> None:
        """Writes, or replaces, a piece's sidecar in its open directory."""
        self.tree.place(sidecar_of(entry, origin), f"{entry.key}.json", directory)

    def read_note(self, name: str) -> bytes | None:
        """A small file of the root; None where it is not there."""
        try:
            return read_small(name, self.tree.root)
        except OSError:
            return None

    def write_note(self, name: str, content: bytes) -> None:
        """Replaces a small file of the root. Raises `OSError`."""
        self.tree.place(content, name, self.tree.root)

    def read_entry(self, key: str, directory: int) -> Entry | None:
        """The piece as its files in the open directory say; None unless it is whole."""
        try:
            found = os.stat(key, dir_fd=directory, follow_symlinks=False)
            entry = entry_of(read_small(f"{key}.json", directory), found)
        except OSError:
            return None
        if entry is None or entry.key != key or (entry.is_changed and not self.allows_changed):
            return None
        return entry
