"""The files below one directory, for a daemon that must not be led out of it, and whose writes must last.

Every name is looked up from the root's descriptor, one part after the other, and no symbolic link on the way is
followed: a checkpoint is never written or read through one. What is written goes to a temporary file first, is synced,
takes its name, and then the directories that hold the name are synced. Plain calls of POSIX, of which NFS keeps all:
`link` makes a name only where there is none, also between machines.

The invariant: under a name there is nothing or the whole. Blocking; any thread, also several at once.
"""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import takewhile
from pathlib import Path

from forebay_core.checkpoints.requests import Listed
from forebay_core.errors import AccessDenied, ConfigurationError

#: Below the root; what lies here is nobody's, and what is older than a day was left behind.
TEMPORARY = ".forebay-temporary"
_STALE_SECONDS = 86_400.0
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: What a file system answers where no directory can be made; `ENOENT` is `/proc`'s.
_UNMAKEABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR})
#: What a file system answers that does not sync directories, or need not.
_UNSYNCED = frozenset({errno.EINVAL, errno.ENOTSUP})
#: A directory may be removed, being empty, at the moment before something is put into it.
_TRIES = 20


class Tree:
    """The files below `root`, a real path.

    Errors: `OSError`, `AccessDenied` for a root that became a link or cannot be made, `ConfigurationError` for a file.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._is_swept = False

    def read(self, key: str) -> bytes | None:
        """The content of a file; None where there is none."""
        try:
            with self.opened(key) as descriptor, os.fdopen(os.dup(descriptor), "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    @contextmanager
    def opened(self, key: str) -> Iterator[int]:
        """A descriptor of a regular file."""
        directory, name = _split(key)
        with self._directory(directory) as parent:
            descriptor = os.open(name, _READ, dir_fd=parent)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise FileNotFoundError(errno.ENOENT, "not a regular file", key)
            yield descriptor
        finally:
            os.close(descriptor)

    def head(self, key: str) -> Listed | None:
        """What is there; None where there is no regular file."""
        try:
            with self.opened(key) as descriptor:
                return _listed(key, os.fstat(descriptor))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def list(self, prefix: str) -> tuple[Listed, ...]:
        """All files below a directory, `prefix` being empty or with a slash at its end."""
        try:
            with self._directory([part for part in prefix.split("/") if part]) as descriptor:
                return tuple(sorted(_walk(descriptor, prefix), key=lambda found: found.key))
        except (FileNotFoundError, NotADirectoryError):
            return ()

    def write(self, key: str, chunks: Iterable[bytes]) -> None:
        """Puts a file there, in the place of what is."""
        with self._written(chunks) as (temporary, parent):
            self._named(key, lambda name, at: os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=at))

    def create(self, key: str, chunks: Iterable[bytes]) -> bool:
        """Puts a file there if there is none. Needs a file system with hard links."""
        with self._written(chunks) as (temporary, parent):
            try:
                self._named(key, lambda name, at: _link(temporary, name, parent, at))
            except FileExistsError:
                # a server whose answer was lost is asked again, and finds what it has done
                return os.stat(temporary, dir_fd=parent, follow_symlinks=False).st_nlink == 2
            finally:
                os.unlink(temporary, dir_fd=parent)
        return True

    def remove(self, key: str) -> None:
        """Deletes a file if it is there, and the directories that are empty then."""
        directory, name = _split(key)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), self._directory(directory) as parent:
            os.unlink(name, dir_fd=parent)
            _sync(parent)
        while directory and self._removed(directory):
            directory = directory[:-1]

    def missing(self) -> tuple[Path, ...]:
        """The directories that a first write makes, the innermost first."""
        below = (self._root / TEMPORARY, self._root, *self._root.parents)
        return tuple(takewhile(lambda each: not _mode(each), below))

    def unmake(self, directories: Iterable[Path]) -> None:
        """Removes what was `missing`, as far as nobody has put anything into it."""
        with contextlib.suppress(OSError):
            for each in directories:
                with contextlib.suppress(FileNotFoundError):
                    each.rmdir()

    def _removed(self, directory: Sequence[str]) -> bool:
        with contextlib.suppress(OSError), self._directory(directory[:-1]) as parent:
            os.rmdir(directory[-1], dir_fd=parent)
            return True
        return False

    @contextmanager
    def _written(self, chunks: Iterable[bytes]) -> Iterator[tuple[str, int]]:
        """A synced temporary file: its name, and a descriptor of the directory that it is in."""
        name = secrets.token_hex(12)
        with self._new_file(name) as (file, parent):
            try:
                with _closing(file) as descriptor:
                    self._sweep(parent, os.fstat(descriptor).st_mtime)
                    for chunk in chunks:
                        _write(descriptor, chunk)
                    os.fsync(descriptor)
                yield name, parent
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=parent)
                raise

    @contextmanager
    def _new_file(self, name: str) -> Iterator[tuple[int, int]]:
        """A temporary file to be written and closed, and the directory that it is in."""
        with ExitStack() as opened:
            for tries_left in reversed(range(_TRIES)):
                try:
                    parent = opened.enter_context(self._directory([TEMPORARY], make=True))
                    descriptor = os.open(name, _NEW, 0o666, dir_fd=parent)
                    break
                except FileNotFoundError:
                    if not tries_left:
                        raise
            yield descriptor, parent

    def _named(self, key: str, give: Callable[[str, int], None]) -> None:
        """Makes the directories of a name, has it given, and syncs the directory."""
        directory, name = _split(key)
        for tries_left in reversed(range(_TRIES)):
            try:
                with self._directory(directory, make=True) as parent:
                    give(name, parent)
                    _sync(parent)
            except FileNotFoundError:
                if not tries_left:
                    raise
            else:
                return

    def _sweep(self, parent: int, now: float) -> None:
        """Deletes what writers that were killed have left; `now` by the clock of the file system. Once."""
        if self._is_swept:
            return
        self._is_swept = True
        for name in os.listdir(parent):
            with contextlib.suppress(OSError):
                if now - os.stat(name, dir_fd=parent, follow_symlinks=False).st_mtime > _STALE_SECONDS:
                    os.unlink(name, dir_fd=parent)

    @contextmanager
    def _directory(self, parts: Sequence[str], *, make: bool = False) -> Iterator[int]:
        """A descriptor of a directory below the root. `FileNotFoundError` where it is not there and not to be made."""
        with ExitStack() as opened:
            descriptor = opened.enter_context(_closing(self._opened_root(make=make)))
            for part in parts:
                descriptor = opened.enter_context(_closing(_entered(descriptor, part, make=make)))
            yield descriptor

    def _opened_root(self, *, make: bool) -> int:
        if make:
            self._make_root()
        descriptor = os.open(self._root, _DIRECTORY)
        if Path(f"/proc/self/fd/{descriptor}").readlink() != self._root:
            is_removed = not os.fstat(descriptor).st_nlink
            os.close(descriptor)
            if is_removed:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._root))
            raise AccessDenied(f"file://{self._root} leads elsewhere since it was opened; name the directory itself")
        return descriptor

    def _make_root(self) -> None:
        if self._root.is_dir():
            return
        there, mode = next((path, mode) for path in (self._root, *self._root.parents) if (mode := _mode(path)))
        if not (stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
            what = "is a file" if there == self._root else f"cannot be made, {there} is a file"
            raise ConfigurationError(f"file://{self._root} {what}: give a directory")
        try:
            _make_with_parents(self._root)
        except OSError as error:
            if error.errno not in _UNMAKEABLE:
                raise
            raise AccessDenied(
                f"file://{self._root}: the directory cannot be made in {there} ({error.strerror}); make it for the "
                f"daemon's user, or give another"
            ) from error


def _mode(path: Path) -> int:
    """Of what is there, be it a link; 0 where nothing is."""
    try:
        return path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _entered(descriptor: int, part: str, *, make: bool) -> int:
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, dir_fd=descriptor)
            _sync(descriptor)
    return os.open(part, _DIRECTORY, dir_fd=descriptor)


def _make_with_parents(directory: Path) -> None:
    for tries_left in reversed(range(_TRIES)):
        try:
            _make_once_with_parents(directory)
        except FileNotFoundError:
            if not tries_left:
                raise
        else:
            return


def _make_once_with_parents(directory: Path) -> None:
    missing = takewhile(lambda each: not each.is_dir(), (directory, *directory.parents))
    for each in reversed(list(missing)):
        with contextlib.suppress(FileExistsError):
            each.mkdir()
        with _closing(os.open(each.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as parent:
            _sync(parent)


@contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _split(key: str) -> tuple[list[str], str]:
    *directory, name = key.split("/")
    if not name or any(part in ("", ".", "..") or "\0" in part for part in (*directory, name)):
        raise ConfigurationError(f"{key!r} is no name below a root of checkpoints")
    return directory, name


def _walk(descriptor: int, prefix: str) -> Iterator[Listed]:
    with os.scandir(descriptor) as entries:
        for entry in entries:
            if entry.name == TEMPORARY:
                continue
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                if entry.is_dir(follow_symlinks=False):
                    with _closing(os.open(entry.name, _DIRECTORY, dir_fd=descriptor)) as below:
                        yield from _walk(below, f"{prefix}{entry.name}/")
                elif entry.is_file(follow_symlinks=False):
                    yield _listed(prefix + entry.name, entry.stat(follow_symlinks=False))


def _listed(key: str, status: os.stat_result) -> Listed:
    return Listed(key, status.st_size, status.st_mtime)


def _link(temporary: str, name: str, parent: int, at: int) -> None:
    os.link(temporary, name, src_dir_fd=parent, dst_dir_fd=at, follow_symlinks=False)


def _write(descriptor: int, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync(directory: int) -> None:
    try:
        os.fsync(directory)
    except OSError as error:
        if error.errno not in _UNSYNCED:
            raise
