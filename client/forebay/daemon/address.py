"""Where the daemon of this node is: one pure decision from an argument and the environment.

The order: an explicit address, `FOREBAY_ADDRESS`, the system daemon's socket where there is one, else a daemon of this
user's own ("embedded"), whose socket lies in a directory of the user's and is named after the version and the
credentials of this environment. So a process with other credentials never gets data through somebody else's, and an
upgrade never talks to the daemon of the version before. Nothing here connects, creates or changes anything: the file
system is only looked at, and all processes of a user with one environment find the same.
"""

import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from forebay_core.errors import ConfigurationError
from forebay_core.node_layout import SOCKET_PATH_BYTES

SYSTEM_SOCKET = Path("/run/forebay/forebay.sock")
SHARED_DIRECTORIES = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108 - owner and mode are checked before one is used

_DAEMON_PREFIXES = ("AWS_", "GOOGLE_", "AZURE_", "FOREBAY_")
_CLIENT_ONLY = frozenset(
    {
        *("FOREBAY_ADDRESS", "FOREBAY_COPIES_CAPACITY", "FOREBAY_DAEMON_WAIT_SECONDS", "FOREBAY_DEBUG"),
        *("FOREBAY_FALLBACK", "FOREBAY_SOCKET"),
    }
)


@dataclass(frozen=True)
class Address:
    """A daemon's Unix socket, and whether this client may start a daemon of its own there.

    `passed_over` says which other places there would have been, and why they are not taken.
    """

    socket: Path
    embedded: bool
    passed_over: tuple[str, ...] = ()


def resolve(address: str | None, environment: Mapping[str, str], *, system_socket: Path = SYSTEM_SOCKET) -> Address:
    """The daemon's address for a process with this environment.

    Raises `ConfigurationError` for what is not a Unix socket's absolute path, or is too long for one.
    """
    if address is not None:
        return Address(_parse(address, "address"), embedded=False)
    if given := environment.get("FOREBAY_ADDRESS"):
        return Address(_parse(given, "FOREBAY_ADDRESS"), embedded=False)
    if system_socket.is_socket():
        return Address(system_socket, embedded=False)
    return of_this_user(environment)


def of_this_user(environment: Mapping[str, str]) -> Address:
    """The address of the user's own daemon. Raises `ConfigurationError` where there is no place for its socket."""
    directory, passed_over = runtime_directory(environment)
    return Address(directory / f"{identity(environment)}.sock", embedded=True, passed_over=passed_over)


def runtime_directory(
    environment: Mapping[str, str], *, shared: Sequence[Path] = SHARED_DIRECTORIES
) -> tuple[Path, tuple[str, ...]]:
    """The user's own directory for sockets, and what is wrong with those that would have come before it.

    In `$XDG_RUNTIME_DIR`, else under the user's id in /tmp or /var/tmp: the first of these that is this user's alone,
    or can be made. So a variable that names a directory of before a logout, and somebody else's directory under our
    name, are passed over. Raises `ConfigurationError` where none is left.
    """
    given = environment.get("XDG_RUNTIME_DIR")
    candidates = [Path(given) / "forebay"] if given else []
    candidates += [base / f"forebay-{os.getuid()}" for base in shared]
    problems: list[str] = []
    for candidate in candidates:
        problem = problem_of(candidate)
        if problem is None:
            return candidate, tuple(problems)
        problems.append(problem)
    raise ConfigurationError(
        f"there is no place for the socket of a daemon of this user: {'; '.join(problems)}; "
        "set XDG_RUNTIME_DIR to a directory that only this user can write"
    )


def problem_of(directory: Path) -> str | None:
    """Why a directory cannot hold this user's sockets, such as that another user could answer there as our daemon;
    None where it can, or can be made."""
    if len(os.fsencode(directory / identity({}))) + len(".sock") > SOCKET_PATH_BYTES:
        return f"{directory} is too long for a socket's path"
    try:
        found = directory.lstat()
    except FileNotFoundError:
        can_be_made = os.access(directory.parent, os.W_OK | os.X_OK)
        return None if can_be_made else f"{directory} cannot be made"
    except OSError as error:
        return f"{directory} cannot be looked at ({os.strerror(error.errno or 0).lower()})"
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        return f"{directory} is not a directory that only this user can write"
    return None if os.access(directory, os.W_OK | os.X_OK) else f"{directory} cannot be written"


def identity(environment: Mapping[str, str]) -> str:
    """A short name for (version, credentials, endpoints, daemon settings): equal ones share an embedded daemon."""
    digest = hashlib.sha256(version("forebay").encode())
    for name in sorted(environment):
        if name.startswith(_DAEMON_PREFIXES) and name not in _CLIENT_ONLY:
            for part in (name, environment[name]):
                data = os.fsencode(part)
                digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:12]


def _parse(text: str, setting: str) -> Path:
    path = text.removeprefix("unix://") if text.startswith("unix://") else text.removeprefix("unix:")
    if not path.startswith("/"):
        raise ConfigurationError(
            f"{setting} {text!r} is not a Unix socket; give an absolute path such as unix:{SYSTEM_SOCKET}"
        )
    return _fitting(Path(path), setting)


def _fitting(socket: Path, setting: str) -> Path:
    length = len(os.fsencode(socket))
    if length > SOCKET_PATH_BYTES:
        raise ConfigurationError(
            f"socket path {str(socket)!r} has {length} bytes and a Unix socket takes at most {SOCKET_PATH_BYTES}; "
            f"set {setting} to a shorter one"
        )
    return socket
