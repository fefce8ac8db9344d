"""One cache directory: the files that are the truth about what is cached.

::

    <root>/disk-id              drawn once; clients find their mount of the disk by it
           lock                 flock of the daemon that owns the directory
           index/               an accelerator, rebuilt from the rest (cache/index.py)
           manifests/           of datasets
           tmp/<token>-<n>      files being written by the daemon with that token
           pieces/<2 hex>/<key>         a whole piece
                          <key>.json    its sidecar
                          <key>.error   why its last fill failed

A piece counts only with a sidecar that names its key and its exact size. The sidecar is renamed into place before the
data and unlinked after it, so at no instant does a part of a piece look whole. Pieces are not synced one by one: after
another boot of the machine only those that are known to be on the disk count. Data files are unlinked, never truncated:
readers have them mapped. Below the root no symbolic link is followed. Methods block; they are safe from any thread, for
one key from one thread at a time.

A directory with other things in it is not taken, and nothing is removed whose name is not one that is made here. What
is deleted under a running daemon is made anew before the next write.
"""

import itertools
import json
import os
import re
import secrets
import shutil
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import google_crc32c

from forebay_core.errors import CapacityError, ConfigurationError, ForebayError, InternalError
from forebay_core.filesystems import filesystem_type, is_network
from forebay_core.formats.base import Buffer
from forebay_core.node_layout import DISK_ID_FILE, ERROR_SUFFIX, LOCK_FILE, PIECES_DIRECTORY, error_file, piece_path
from forebay_server.locks import HeldLock, hold

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_MODE, _DIRECTORY_MODE = 0o640, 0o750
_BLOCK = 4096
_WRITE_BYTES = 8 << 20
_SIDECAR_BYTES = 1 << 20
_FORMAT = 1
_TEMP_NAME = re.compile(r"[0-9a-f]{16}-[0-9]+")
_KEY = re.compile(r"[0-9a-f]{64}")
_PIECE_NAME = re.compile(rf"{_KEY.pattern}(\.json|{re.escape(ERROR_SUFFIX)})?")
_LOCK_TEXT = re.compile(rb"[0-9]* *\n?")


def kernel_boot_id() -> str:
    """Drawn by the kernel at each boot: what was not synced before another boot does not count."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


@dataclass(frozen=True, slots=True)
class Origin:
    """What a piece was made from, for people and for checks; kept in its sidecar."""

    url: str
    version: str
    rows: int
    columns: tuple[str, ...]
    layout: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A whole piece on a disk. `size` in bytes, `blocks` what it takes on the disk in bytes, sidecar included."""

    key: str
    size: int
    blocks: int
    inode: int
    crc32c: int
    #: True once its bytes are known to have reached the disk.
    synced: bool
    boot: str

    @classmethod
    def from_json(cls, value: Any) -> "Entry | None":
        """An entry from what `asdict` made of it; None where the value is anything else."""
        kinds = {"key": str, "size": int, "blocks": int, "inode": int, "crc32c": int, "synced": bool, "boot": str}
        if not isinstance(value, dict) or value.keys() != kinds.keys():
            return None
        if not all(type(value[name]) is kind for name, kind in kinds.items()):
            return None
        return cls(**value)


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
        self._held: list[bytes] = []

    def write(self, chunk: Buffer) -> None:
        """Takes the next bytes in; the chunk is not kept."""
        self._held.append(bytes(chunk))
        self.size += len(self._held[-1])
        if self.size - self.written >= _WRITE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes all that was taken in."""
        block = self._held[0] if len(self._held) == 1 else b"".join(self._held)
        self._held.clear()
        self.crc32c = google_crc32c.extend(self.crc32c, block)
        rest = memoryview(block)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        self.written = self.size

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


class CacheDisk:
    """A cache directory that this process owns. Made by `claim`."""

    def __init__(self, root: Path, lock: HeldLock, *, clock_ns: int) -> None:
        self.root = root
        self.id = ""
        self._lock = lock
        self._started_ns = clock_ns
        self._token = secrets.token_hex(8)
        self._numbers = itertools.count()
        self._boot = kernel_boot_id()
        self._restoring = threading.RLock()
        self._root = os.open(root, _DIRECTORY)
        self._pieces = self._subdirectory(PIECES_DIRECTORY)
        self._tmp = self._subdirectory("tmp")

    @classmethod
    def claim(cls, root: Path, group: str | None = None) -> "CacheDisk":
        """Makes and checks the directory and takes its lock. Raises `ConfigurationError`, `AlreadyRunning`."""
        root = _prepared_root(root, group)
        lock = hold(root / LOCK_FILE, f"the cache directory {root}")
        try:
            disk = cls(root, lock, clock_ns=lock.path.lstat().st_mtime_ns)
            disk.id = disk._read_or_draw_id()
            for name in ("index", "manifests"):
                os.close(disk._subdirectory(name))
        except OSError as error:
            lock.release()
            raise ConfigurationError(f"the cache directory {root} cannot be used: {error} (--cache-dir)") from error
        return disk

    def close(self) -> None:
        for descriptor in (self._tmp, self._pieces, self._root):
            os.close(descriptor)
        self._lock.release()

    @property
    def manifests(self) -> Path:
        return self.root / "manifests"

    @property
    def index(self) -> Path:
        return self.root / "index"

    @property
    def size_bytes(self) -> int:
        """Of the whole file system."""
        found = os.fstatvfs(self._root)
        return found.f_blocks * found.f_frsize

    def free_bytes(self) -> int:
        """What the file system would still give to this process."""
        found = os.fstatvfs(self._root)
        return found.f_bavail * found.f_frsize

    def path(self, key: str) -> Path:
        return self.root / piece_path(key)

    def create(self) -> TempFile:
        """A new, empty temp file."""
        name = f"{self._token}-{next(self._numbers)}"
        try:
            return TempFile(name, os.open(name, _CREATE, _FILE_MODE, dir_fd=self._tmp))
        except FileNotFoundError:
            self._restore()
            return TempFile(name, os.open(name, _CREATE, _FILE_MODE, dir_fd=self._tmp))

    def discard(self, temp: TempFile) -> None:
        """Takes a temp file away. Does nothing once it was committed."""
        if temp.is_open:
            temp.drop()
            temp.close()
            _unlink(temp.name, self._tmp)

    def commit(self, temp: TempFile, key: str, origin: Origin) -> Entry:
        """Makes the temp file the piece `key`: sidecar first, then the data, each by a rename."""
        try:
            found = temp.close()
            facts = {"key": key, "size": temp.size, "crc32c": temp.crc32c, "synced": False, "boot": self._boot}
            if found.st_size != temp.size:
                raise InternalError(f"{temp.name} has {found.st_size} bytes after {temp.size} were written")
            with self._directory_of(key, create=True) as directory:
                sidecar = json.dumps({"version": _FORMAT, **facts, "origin": asdict(origin)}).encode()
                self._place(sidecar, f"{key}.json", directory)
                os.rename(temp.name, key, src_dir_fd=self._tmp, dst_dir_fd=directory)
        except BaseException:
            _unlink(temp.name, self._tmp)
            raise
        return Entry(blocks=blocks_of(found), inode=found.st_ino, **facts)  # type: ignore[arg-type]

    def lookup(self, key: str) -> Entry | None:
        """The piece as its files say; None unless it is whole."""
        try:
            with self._directory_of(key) as directory:
                return self._entry(key, directory)
        except OSError:
            return None

    def stands(self, entry: Entry) -> bool:
        """Whether the entry's data file is still the one at its path."""
        try:
            found = self.path(entry.key).lstat()
        except OSError:
            return False
        return stat.S_ISREG(found.st_mode) and (found.st_ino, found.st_size) == (entry.inode, entry.size)

    def remove(self, key: str) -> None:
        """Unlinks a piece: its data first, then its sidecar."""
        with suppress(FileNotFoundError), self._directory_of(key) as directory:
            _unlink(key, directory)
            _unlink(f"{key}.json", directory)

    def write_error(self, key: str, error: ForebayError) -> None:
        """Says beside the piece's path why its fill failed."""
        with self._directory_of(key, create=True) as directory:
            self._place(error_file(error), f"{key}{ERROR_SUFFIX}", directory)

    def clear_error(self, key: str) -> None:
        with suppress(FileNotFoundError), self._directory_of(key) as directory:
            _unlink(f"{key}{ERROR_SUFFIX}", directory)

    def sweep(self) -> None:
        """Removes what an earlier daemon left in the middle of its work: temp files, errors, and halves of pieces."""
        for name in _names(self._tmp):
            if _TEMP_NAME.fullmatch(name) and not name.startswith(self._token):
                _unlink(name, self._tmp)
        for directory, names in self._prefixes():
            for name in names:
                if _PIECE_NAME.fullmatch(name) and self._is_left_over(name, names, directory):
                    _unlink(name, directory)

    def entries(self) -> Iterator[Entry]:
        """All whole pieces, from their files."""
        for directory, names in self._prefixes():
            for name in names:
                if _KEY.fullmatch(name) and (entry := self._entry(name, directory)) is not None:
                    yield entry

    def trusts(self, entry: Entry) -> bool:
        """False for bytes that may not have reached the disk before the machine went down."""
        return entry.synced or entry.boot == self._boot

    def _entry(self, key: str, directory: int) -> Entry | None:
        try:
            found = os.stat(key, dir_fd=directory, follow_symlinks=False)
            with os.fdopen(os.open(f"{key}.json", _READ, dir_fd=directory), "rb") as file:
                facts = json.loads(file.read(_SIDECAR_BYTES))
        except (OSError, ValueError):
            return None
        if not stat.S_ISREG(found.st_mode) or not isinstance(facts, dict) or facts.get("version") != _FORMAT:
            return None
        known = {name: facts.get(name) for name in ("key", "size", "crc32c", "synced", "boot")}
        entry = Entry.from_json({**known, "blocks": blocks_of(found), "inode": found.st_ino})
        if entry is None or (entry.key, entry.size) != (key, found.st_size) or not self.trusts(entry):
            return None
        return entry

    def _is_left_over(self, name: str, names: set[str], directory: int) -> bool:
        key, _, kind = name.partition(".")
        whole = f".{kind}" != ERROR_SUFFIX and {key, f"{key}.json"} <= names and self._entry(key, directory) is not None
        return not whole and self._is_older_than_this_daemon(name, directory)

    def _is_older_than_this_daemon(self, name: str, directory: int) -> bool:
        try:
            return os.stat(name, dir_fd=directory, follow_symlinks=False).st_ctime_ns < self._started_ns
        except FileNotFoundError:
            return False

    def _prefixes(self) -> Iterator[tuple[int, set[str]]]:
        for prefix in sorted(_names(self._pieces)):
            try:
                descriptor = os.open(prefix, _DIRECTORY, dir_fd=self._pieces)
            except OSError:
                continue
            try:
                yield descriptor, _names(descriptor)
            finally:
                os.close(descriptor)

    @contextmanager
    def _directory_of(self, key: str, *, create: bool = False) -> Iterator[int]:
        if create:
            try:
                self._make_prefix(key)
            except FileNotFoundError:
                self._restore()
                self._make_prefix(key)
        descriptor = os.open(key[:2], _DIRECTORY, dir_fd=self._pieces)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _make_prefix(self, key: str) -> None:
        with suppress(FileExistsError):
            os.mkdir(key[:2], _DIRECTORY_MODE, dir_fd=self._pieces)

    def _restore(self) -> None:
        """Makes subdirectories and the id anew where they are gone. Descriptors keep their numbers: others use them."""
        with self._restoring:
            for name, held in (("tmp", self._tmp), (PIECES_DIRECTORY, self._pieces)):
                made = self._subdirectory(name)
                try:
                    if not os.path.samestat(os.fstat(made), os.fstat(held)):
                        os.dup2(made, held, inheritable=False)
                finally:
                    os.close(made)
            for name in ("index", "manifests"):
                os.close(self._subdirectory(name))
            if self.id and DISK_ID_FILE not in _names(self._root):
                self._place(self.id.encode(), DISK_ID_FILE, self._root)

    def _place(self, content: bytes, name: str, directory: int) -> None:
        temp = self.create()
        try:
            try:
                temp.write(content)
            finally:
                temp.close()
            os.rename(temp.name, name, src_dir_fd=self._tmp, dst_dir_fd=directory)
        except BaseException:
            _unlink(temp.name, self._tmp)
            raise

    def _subdirectory(self, name: str) -> int:
        with suppress(FileExistsError):
            os.mkdir(name, _DIRECTORY_MODE, dir_fd=self._root)
        return os.open(name, _DIRECTORY, dir_fd=self._root)

    def _read_or_draw_id(self) -> str:
        with suppress(FileNotFoundError):
            descriptor = os.open(DISK_ID_FILE, _READ, dir_fd=self._root)
            with os.fdopen(descriptor) as file:
                if (known := file.read(64).strip()).isalnum():
                    return known
        drawn = secrets.token_hex(16)
        self._place(drawn.encode(), DISK_ID_FILE, self._root)
        return drawn


def explain_full(error: OSError, root: Path) -> CapacityError:
    """ENOSPC and EDQUOT as the error that a user can act on."""
    return CapacityError(
        f"the disk of the cache directory {root} is full ({os.strerror(error.errno or 0)});"
        " free some space, or give a smaller capacity (--capacity, FOREBAY_CAPACITY)"
    )


def _prepared_root(root: Path, group: str | None) -> Path:
    try:
        if not root.exists():
            root.mkdir(mode=_DIRECTORY_MODE, parents=True)
        root = root.resolve(strict=True)
        if root.is_dir() and (other := _strange_name(root)) is not None:
            raise ConfigurationError(
                f"the directory {root} holds {other!r} and is not a forebay cache:"
                " give an empty or a new one (--cache-dir)"
            )
        if group is not None:
            shutil.chown(root, group=group)
            root.chmod(0o2750)
        found = root.stat()
    except (OSError, LookupError) as error:
        raise ConfigurationError(f"the cache directory {root} cannot be used: {error} (--cache-dir)") from error
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigurationError(f"the cache directory {root} is not a directory (--cache-dir)")
    if found.st_mode & stat.S_IWOTH:
        raise ConfigurationError(f"others can write to the cache directory {root}; chmod o-w it, or give another one")
    kind = filesystem_type(root)
    if is_network(kind):
        raise ConfigurationError(f"the cache directory {root} is on a network file system ({kind}); give a local one")
    return root


def _strange_name(root: Path) -> str | None:
    """A name in a directory that is no cache; None where it is one, is empty, or is left by a first start cut short."""
    with suppress(FileNotFoundError):
        if stat.S_ISREG((root / DISK_ID_FILE).lstat().st_mode):
            return None
    return next((path.name for path in sorted(root.iterdir()) if not _is_of_a_first_start(path)), None)


def _is_of_a_first_start(path: Path) -> bool:
    mode = path.lstat().st_mode
    if path.name == LOCK_FILE and stat.S_ISREG(mode):
        with path.open("rb") as file:
            return _LOCK_TEXT.fullmatch(file.read(64)) is not None
    if path.name == PIECES_DIRECTORY and stat.S_ISDIR(mode):
        return not any(path.iterdir())
    if path.name == "tmp" and stat.S_ISDIR(mode):
        return all(_TEMP_NAME.fullmatch(temp.name) for temp in path.iterdir())
    return path.name == "lost+found" and stat.S_ISDIR(mode)


def blocks_of(found: os.stat_result) -> int:
    """Bytes on the disk of a data file and its sidecar. Never less than the length: some file systems allocate late."""
    return max(found.st_blocks * 512, room_for(found.st_size) - _BLOCK) + _BLOCK


def room_for(size: int) -> int:
    """Bytes on the disk that a piece of that length takes, with its sidecar, as far as one can know beforehand."""
    return -(-size // _BLOCK) * _BLOCK + _BLOCK


def _names(directory: int) -> set[str]:
    with os.scandir(directory) as found:
        return {item.name for item in found}


def _unlink(name: str, directory: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)
