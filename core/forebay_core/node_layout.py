"""Names and limits that the daemon and its clients on one machine agree on: the socket, the wire, the cache directory.

::

    <socket>                     the daemon's; <socket>.lock is held by its owner
    <cache directory>/disk-id    drawn once; clients find their mount of the disk by it
                      lock       held by the daemon that owns the directory
                      pieces/<2 hex>/<key>         a whole piece
                                     <key>.error   why its last fill failed, while there is no piece
                      staging/   unless it is elsewhere: checkpoints before they are uploaded
    <staging directory>/disk-id, lock, attempts/      likewise

Pure, apart from reading an error's file.
"""

import json
import os
from pathlib import Path

from forebay_core.errors import ForebayError, by_name, one_line

#: sun_path of `sockaddr_un` on Linux, less its terminating NUL.
SOCKET_PATH_BYTES = 107
#: Trailing metadata of a call that failed: the name of the error's class. The message is in the status.
ERROR_KEY = "forebay-error"
DISK_ID_FILE = "disk-id"
LOCK_FILE = "lock"
PIECES_DIRECTORY = "pieces"
#: Of a cache directory, where checkpoints are staged unless another place is given; and of that place.
STAGING_DIRECTORY = "staging"
ATTEMPTS_DIRECTORY = "attempts"
ERROR_SUFFIX = ".error"


def socket_lock(socket: Path) -> Path:
    """The file whose lock the owner of a socket holds."""
    return Path(f"{socket}.lock")


def piece_path(key: str) -> str:
    """Where a piece lies, relative to the cache directory."""
    return f"{PIECES_DIRECTORY}/{key[:2]}/{key}"


def error_file(error: ForebayError) -> bytes:
    """The content of an error's file beside a piece."""
    return json.dumps({"error": type(error).__name__, "message": one_line(error)}).encode()


def read_error(piece: str | os.PathLike[str]) -> ForebayError | None:
    """What the daemon wrote down of a failed fill beside the piece's path; None where it did not, or not readably."""
    try:
        found = json.loads(Path(f"{os.fspath(piece)}{ERROR_SUFFIX}").read_bytes())
        return by_name(found["error"])(found["message"])
    except (FileNotFoundError, ValueError, LookupError, TypeError):
        return None
