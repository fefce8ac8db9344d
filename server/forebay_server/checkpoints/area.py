"""The staging directory of a node: what ranks write before it is uploaded, and what is fetched for a restore.

::

    <staging>/disk-id            drawn once; clients find their mount of the directory by it
              lock               held by the daemon that owns it
              state/<root>/<attempt>/begun.json      room is kept (`records`)
                                     00000.json      a rank's manifest as it was sealed
                                     seal.json       the daemon is responsible; written last, removed first
              attempts/<root>/<attempt>/...          written by the ranks; read-only once sealed
              fetched/<root>/<attempt>/...           of a restore, written by the daemon

<root> is a digest of the root's URL. Only `attempts/*/*` can be written to by others than the daemon: by its group, if
it has one. Blocking; one thread at a time for one attempt.
"""

import hashlib
import logging
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from forebay_core.checkpoints.names import Attempt, parse_attempt
from forebay_core.errors import ConfigurationError
from forebay_core.filesystems import filesystem_type, is_network
from forebay_core.node_layout import ATTEMPTS_DIRECTORY, DISK_ID_FILE, LOCK_FILE
from forebay_server.checkpoints.below import SUBDIRECTORIES, directories_of
from forebay_server.checkpoints.inspection import sync_directory
from forebay_server.checkpoints.records import Begun, Seal
from forebay_server.process.locks import HeldLock, hold
from forebay_server.process.places import check_place

_log = logging.getLogger(__name__)
_SETTING = "--staging-dir, FOREBAY_STAGING_DIR"
_STATE, _FETCHED = "state", "fetched"
_BEGUN, _SEAL = "begun.json", "seal.json"
_OURS = frozenset({DISK_ID_FILE, LOCK_FILE, _STATE, ATTEMPTS_DIRECTORY, _FETCHED})
_SHARED = 0o2750


class StagingArea:
    """A staging directory that this process owns. Made by `claim`."""

    def __init__(self, root: Path, lock: HeldLock, group: int | None, *, is_private: bool) -> None:
        self.root = root
        self.id = ""
        self._lock = lock
        self._group = group
        #: Where nobody but this user shares the daemon, nobody else writes.
        self._writable, self._sealed = (0o700, 0o500) if is_private else (0o2770, 0o2550)

    @classmethod
    def claim(cls, root: Path, group: int | None = None, *, is_private: bool = False) -> "StagingArea":
        """Makes and checks the directory and takes its lock. Raises `ConfigurationError`, `AlreadyRunning`.

        The group, that of this process where none is given, may write attempts; with `is_private` this user alone.
        """
        try:
            root = _prepared(root)
            lock = hold(root / LOCK_FILE, f"the staging directory {root}")
        except OSError as error:
            raise ConfigurationError(f"the staging directory {root} cannot be used: {error} ({_SETTING})") from error
        try:
            area = cls(root, lock, group, is_private=is_private)
            area._lay_out()
        except OSError as error:
            lock.release()
            raise ConfigurationError(f"the staging directory {root} cannot be used: {error} ({_SETTING})") from error
        return area

    def close(self) -> None:
        self._lock.release()

    def free_bytes(self) -> int:
        found = os.statvfs(self.root)
        return found.f_bavail * found.f_frsize

    def free_inodes(self) -> int | None:
        """None where the file system does not count them."""
        found = os.statvfs(self.root)
        return found.f_favail if found.f_files else None

    @property
    def size_bytes(self) -> int:
        """Of the file system."""
        found = os.statvfs(self.root)
        return found.f_blocks * found.f_frsize

    @property
    def device(self) -> int:
        return self.root.stat().st_dev

    @property
    def inodes(self) -> int:
        return os.statvfs(self.root).f_files

    # -- attempts -------------------------------------------------------------------------------------------------

    def directory(self, root: str, attempt: Attempt) -> Path:
        """Where ranks write the attempt."""
        return self.root / ATTEMPTS_DIRECTORY / _digest(root) / attempt.name

    def fetched(self, root: str, attempt: Attempt) -> Path:
        """Where files of the attempt are that were fetched for a restore."""
        return self.root / _FETCHED / _digest(root) / attempt.name

    def begin(self, record: Begun) -> None:
        """Writes the record, and makes the directories. May be repeated."""
        state = self._make_state(record.root, record.attempt)
        _place(state, _BEGUN, record.encode())
        directory = self.directory(record.root, record.attempt)
        self._make(directory.parent, _SHARED)
        for each in (directory, *(directory / name for name in SUBDIRECTORIES)):
            self._make(each, self._writable)

    def freeze(self, root: str, attempt: Attempt) -> None:
        """Nobody can add, remove or exchange a file of the attempt from now on. Raises `OSError`."""
        for each in directories_of(self.directory(root, attempt)):
            _set_mode(each, self._sealed)

    def thaw(self, root: str, attempt: Attempt) -> None:
        """Ends that. What is no directory any more stays as it is."""
        for each in reversed(directories_of(self.directory(root, attempt))):
            with suppress(OSError):
                _set_mode(each, self._writable)

    def seal(self, record: Seal, manifests: Sequence[bytes]) -> None:
        """Writes it down, durably: first the manifests, one for each of the record's ranks."""
        state = self._make_state(record.root, record.attempt)
        for rank, content in zip(record.ranks, manifests, strict=True):
            _place(state, _manifest(rank), content)
        self.note(record)
        for each in (state.parent, state.parent.parent):
            sync_directory(each)

    def note(self, record: Seal) -> None:
        """Replaces the record of a sealed attempt, durably."""
        _place(self._state(record.root, record.attempt), _SEAL, record.encode())

    def manifests(self, record: Seal) -> list[bytes]:
        """As they were sealed, in the order of the record's ranks. Raises `OSError`."""
        state = self._state(record.root, record.attempt)
        return [(state / _manifest(rank)).read_bytes() for rank in record.ranks]

    def records(self) -> Iterator[Begun | Seal]:
        """What was written down and is readable: of each attempt the seal, if it has one."""
        for state in sorted((self.root / _STATE).glob("*/*")):
            with suppress(ValueError, OSError):
                record = _record(state)
                if self._state(record.root, record.attempt) == state:
                    yield record

    def remove(self, root: str, attempt: Attempt) -> None:
        """Removes all of an attempt, the seal first: what is being removed is not taken for whole. Raises `OSError`."""
        state = self._state(root, attempt)
        for name in (_SEAL, _BEGUN):
            (state / name).unlink(missing_ok=True)
        self._remove_tree(self.directory(root, attempt))
        self._remove_tree(state)

    def remove_fetched(self, root: str, attempt: Attempt) -> None:
        self._remove_tree(self.fetched(root, attempt))

    def make_fetched(self, root: str, attempt: Attempt) -> Path:
        directory = self.fetched(root, attempt)
        for each in (directory.parent, directory, *(directory / name for name in SUBDIRECTORIES)):
            self._make(each, _SHARED)
        return directory

    def tidy(self) -> None:
        """At the start: what is of no attempt, and what was fetched for readers that are gone, is removed."""
        for directory in (self.root / _FETCHED).glob("*"):
            self._tidy_away(directory)
        known = {(_digest(record.root), record.attempt.name) for record in self.records()} | self._unreadable()
        for place in (ATTEMPTS_DIRECTORY, _STATE):
            for directory in sorted((self.root / place).glob("*/*")):
                if parse_attempt(directory.name) and (directory.parent.name, directory.name) not in known:
                    self._tidy_away(directory)
            for of_root in (self.root / place).glob("*"):
                with suppress(OSError):  # of a root that has attempts
                    of_root.rmdir()

    def _unreadable(self) -> set[tuple[str, str]]:
        """What was sealed and cannot be understood here, such as by a newer forebay: nobody else may have it."""
        found = set()
        for state in sorted((self.root / _STATE).glob("*/*")):
            try:
                Seal.decode((state / _SEAL).read_bytes())
            except FileNotFoundError:
                continue
            except (ValueError, OSError) as error:
                _log.error("%s cannot be read: its checkpoint is kept and not uploaded (%s)", state / _SEAL, error)
                found.add((state.parent.name, state.name))
        return found

    def _tidy_away(self, directory: Path) -> None:
        """What cannot be removed stays: what is pending must not wait for it."""
        try:
            self._remove_tree(directory)
        except OSError as error:
            _log.warning("%s is of no checkpoint and cannot be removed, remove it: %s", directory, error)

    # -- the directories ------------------------------------------------------------------------------------------

    def _lay_out(self) -> None:
        self._make(self.root, _SHARED)
        for name in (_STATE, ATTEMPTS_DIRECTORY, _FETCHED):
            self._make(self.root / name, _SHARED)
        with suppress(FileNotFoundError):
            self.id = (self.root / DISK_ID_FILE).read_text()[:64].strip()
        if not self.id.isalnum():
            self.id = secrets.token_hex(16)
            _place(self.root, DISK_ID_FILE, self.id.encode(), group=self._group)

    def _make(self, directory: Path, mode: int) -> None:
        with suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        if self._group is not None and directory.stat().st_gid != self._group:
            os.chown(directory, -1, self._group, follow_symlinks=False)
        _set_mode(directory, mode)

    def _make_state(self, root: str, attempt: Attempt) -> Path:
        state = self._state(root, attempt)
        for each in (state.parent, state):
            self._make(each, _SHARED)
        return state

    def _state(self, root: str, attempt: Attempt) -> Path:
        return self.root / _STATE / _digest(root) / attempt.name

    def _remove_tree(self, directory: Path) -> None:
        with suppress(FileNotFoundError):
            for each in reversed(directories_of(directory)):
                with suppress(OSError):
                    _set_mode(each, self._writable)
            shutil.rmtree(directory)


def _prepared(root: Path) -> Path:
    for path in reversed([path for path in root.parents if not path.exists()]):
        path.mkdir()
        path.chmod(0o755)
    with suppress(FileExistsError):
        root.mkdir(mode=0o700)
    if not root.is_dir():
        raise ConfigurationError(f"the staging directory {root} is not a directory ({_SETTING})")
    check_place(root, "the staging directory", _SETTING)
    root = root.resolve(strict=True)
    if is_network(kind := filesystem_type(root)):
        raise ConfigurationError(f"{root} is on a network file system ({kind}); give a local one ({_SETTING})")
    strange = next((path.name for path in sorted(root.iterdir()) if path.name not in _OURS), None)
    if strange is not None and not (root / DISK_ID_FILE).is_file():
        raise ConfigurationError(
            f"the directory {root} holds {strange!r} and is no staging directory: give an empty or a new one"
            f" ({_SETTING})"
        )
    return root


def _digest(root: str) -> str:
    return hashlib.sha256(root.encode()).hexdigest()[:32]


def _manifest(rank: int) -> str:
    return f"{rank:05d}.json"


def _record(state: Path) -> Begun | Seal:
    with suppress(FileNotFoundError):
        return Seal.decode((state / _SEAL).read_bytes())
    return Begun.decode((state / _BEGUN).read_bytes())


def _set_mode(directory: Path, mode: int) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:
            os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


def _place(directory: Path, name: str, content: bytes, *, group: int | None = None) -> None:
    """Writes, or replaces, a small file, durably."""
    temp = directory / f".{name}"
    temp.unlink(missing_ok=True)
    descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
    with os.fdopen(descriptor, "wb") as file:
        if group is not None:
            os.fchown(descriptor, -1, group)
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    temp.rename(directory / name)
    sync_directory(directory)
