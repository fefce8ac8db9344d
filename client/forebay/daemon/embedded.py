"""Starts the user's own daemon when none runs, once however many processes ask at the same time.

All starts of a user are serialised by one lock in the runtime directory, held until the new daemon serves: the others
then find it answering. One whose starter was killed may be on its way unseen; the second finds its socket or its cache
taken, says so and ends, and is looked for, or started elsewhere, once more. The daemon is handed over to init and has a
session of its own, so it outlives this process and leaves no zombie in it; its standard output is a pipe on which it
says that it serves, and whose end says that it died. The lock's file stays (unlinking a lock file lets two owners in);
the lock itself ends with its holder. Called from any thread; blocks until the daemon serves, at most `START_SECONDS`.
"""

import fcntl
import json
import logging
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forebay.daemon.address import Address, problem_of
from forebay.daemon.embedded_place import Place, choose_place
from forebay.run_progress import without_marks
from forebay_core.errors import AlreadyRunning, ConfigurationError, DaemonUnavailable
from forebay_core.node_layout import socket_lock

START_SECONDS = 60.0
"""Importing the daemon takes a second, and half a minute where its code lies on a busy network file system."""
_STARTS = 3
_LINE_BYTES = 1 << 16
_POLL_SECONDS = 0.05
_logger = logging.getLogger("forebay")


def ensure_running(address: Address, environment: Mapping[str, str]) -> None:
    """Returns when a daemon answers at the address; starts one with this environment where none does.

    Raises `DaemonUnavailable` with the last line of its log when the daemon ends instead of serving, and
    `ConfigurationError` when somebody else owns the runtime directory.
    """
    directory = claim_directory(address.socket.parent)
    if answers(address.socket):
        return
    deadline = time.monotonic() + START_SECONDS
    with _locked(directory / "spawn.lock", deadline):
        _start_where_none_serves(address, environment, deadline)


def claim_directory(directory: Path) -> Path:
    """The runtime directory, made with mode 0700 or found to be a directory that is this user's alone."""
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        check_directory(directory)
    except OSError as error:
        raise ConfigurationError(f"{directory} cannot be made: {error.strerror}; set XDG_RUNTIME_DIR") from error
    return directory


def check_directory(directory: Path) -> None:
    """Refuses a directory through which another user could answer as our daemon."""
    if (problem := problem_of(directory)) is not None:
        raise ConfigurationError(f"{problem}; remove it, or set XDG_RUNTIME_DIR")


def answers(path: Path) -> bool:
    """Whether something listens on the Unix socket now."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        try:
            connection.connect(str(path))
        except BlockingIOError:
            return True
        except OSError:
            return False
    return True


def is_locked(path: Path) -> bool:
    """Whether a living process holds the lock of that file.

    Asked by trying to share it, so that two who ask at once do not take each other for its holder; only a daemon that
    asks for the lock in that same moment does not get it then.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return not _try_lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _start_where_none_serves(address: Address, environment: Mapping[str, str], deadline: float) -> None:
    taken: AlreadyRunning | None = None
    for _ in range(_STARTS):
        if _serves(address, deadline):
            return
        try:
            _start(address, environment, deadline)
        except AlreadyRunning as error:
            taken = error
        else:
            return
    raise DaemonUnavailable(f"the daemon that was started has ended: {taken}") from taken


def _serves(address: Address, deadline: float) -> bool:
    """Whether a daemon answers; waits for one that holds the socket's lock and does not answer yet."""
    _until(lambda: answers(address.socket) or not is_locked(socket_lock(address.socket)), deadline)
    return answers(address.socket)


def _start(address: Address, environment: Mapping[str, str], deadline: float) -> None:
    place = choose_place(environment, is_locked)
    log = address.socket.with_suffix(".log")
    for problem in (*address.passed_over, *place.passed_over):
        _logger.warning("passed over for the daemon of this user: %s", problem)
    _logger.info("starting a daemon of this user: %s; its log is %s", place.describe(), log)
    reader, writer = os.pipe()
    try:
        _spawn(_command(address.socket, place, log), environment, writer, _open_log(log, place))
    finally:
        os.close(writer)
    try:
        _wait_until_serving(reader, log, deadline)
    finally:
        os.close(reader)


def _command(socket_path: Path, place: Place, log: Path) -> list[str]:
    options = ["--embedded", "--json", "--socket", str(socket_path), "--log-file", str(log), *place.options()]
    return [sys.executable, "-P", "-m", "forebay_server", *options]


def _spawn(command: list[str], environment: Mapping[str, str], output: int, log: int) -> None:
    """Through a shell that ends at once, so that the daemon is a child of init and not of the trainer."""
    try:
        subprocess.run(  # noqa: S603 - the command is our own
            ["/bin/sh", "-c", '"$@" &', "sh", *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=log,
            env=without_marks(environment),
            cwd="/",
            start_new_session=True,
            check=True,
        )
    finally:
        os.close(log)


def _open_log(log: Path, place: Place) -> int:
    """The log for what a daemon says before it has opened it itself, or cannot log any more."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    os.write(descriptor, f"forebay: an embedded daemon with {place.describe()}\n".encode())
    return descriptor


def _wait_until_serving(reader: int, log: Path, deadline: float) -> None:
    line = b""
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    while not line.endswith(b"\n"):
        if not poll.poll(1000 * max(0.0, deadline - time.monotonic())):
            raise DaemonUnavailable(
                f"the daemon that was started does not serve after {START_SECONDS:.0f} s; see {log}"
            )
        more = os.read(reader, _LINE_BYTES)
        if not more:
            break
        line += more
    said = _parsed(line)
    if "socket" not in said:
        reason = said.get("message") or _last_line(log)
        if said.get("error") == AlreadyRunning.__name__:
            raise AlreadyRunning(reason)
        raise DaemonUnavailable(f"the daemon that was started has ended: {reason} (its log is {log})")


def _parsed(line: bytes) -> dict[str, Any]:
    """The line that a daemon prints when it serves, or when it cannot; empty where it ended without one."""
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


@contextmanager
def _locked(path: Path, deadline: float) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if not _until(lambda: _try_lock(descriptor, fcntl.LOCK_EX), deadline):
            raise DaemonUnavailable(f"another process has been starting a daemon for {START_SECONDS:.0f} s; see {path}")
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _until(condition: Callable[[], bool], deadline: float) -> bool:
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
