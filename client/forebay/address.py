"""Where the daemon of this node is: one pure decision from an argument and the environment.

The order: an explicit address, `FOREBAY_ADDRESS`, the system daemon's socket where there is one, else a daemon of this
user's own ("embedded"), whose socket lies in the user's runtime directory and is named after the version and the
credentials of this environment. So a process with other credentials never gets data through somebody else's, and an
upgrade never talks to the daemon of the version before. Nothing here connects, creates or changes anything.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from forebay_core.errors import ConfigurationError
from forebay_core.node_layout import SOCKET_PATH_BYTES

SYSTEM_SOCKET = Path("/run/forebay/forebay.sock")

_DAEMON_PREFIXES = ("AWS_", "GOOGLE_", "AZURE_", "FOREBAY_")
_CLIENT_ONLY = frozenset({"FOREBAY_ADDRESS", "FOREBAY_DEBUG", "FOREBAY_SOCKET"})


@dataclass(frozen=True)
class Address:
    """A daemon's Unix socket, and whether this client may start a daemon of its own there."""

    socket: Path
    embedded: bool


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
    socket = runtime_directory(environment) / f"{identity(environment)}.sock"
    return Address(_fitting(socket, "XDG_RUNTIME_DIR"), embedded=True)


def runtime_directory(environment: Mapping[str, str]) -> Path:
    """The user's own directory for sockets: in `$XDG_RUNTIME_DIR`, else in /tmp under the user's id."""
    if base := environment.get("XDG_RUNTIME_DIR"):
        return Path(base) / "forebay"
    return Path(f"/tmp/forebay-{os.getuid()}")  # noqa: S108 - owner and mode are checked before it is used


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
