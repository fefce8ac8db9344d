"""The client of one daemon: rides through its restarts, starts the user's own one, and speaks its errors.

A call that finds no daemon is made again until one answers or `reconnect_seconds` have passed: all calls of the service
may be repeated. The wait is announced once in the log, and a socket that refuses this user is not waited for. The
object holds no connection (those are the process's, see `channel`): it can be pickled, and used on any thread and on
both sides of a fork.
"""

import errno
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from forebay import channel, embedded
from forebay.address import Address, resolve
from forebay.mounts import Mounts
from forebay.status import StatusSnapshot, snapshot
from forebay_core.errors import DaemonUnavailable

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from forebay.session import Session

CALL_SECONDS = 60.0
OPEN_DATASET_SECONDS = 3600.0
_ANNOUNCE_SECONDS = 2.0
_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 0.5
_logger = logging.getLogger("forebay")
Reply = TypeVar("Reply", bound="Message")


@dataclass(frozen=True)
class OpenedDataset:
    """A dataset that the daemon knows, and its manifest file as this process sees it."""

    dataset_id: str
    manifest_path: Path


class DaemonClient:
    """The way to the daemon at `address`; see `forebay.address.resolve` for what None means.

    `environment` (default: the process's) decides the address and is handed to an embedded daemon; `start=False` never
    starts one. Building it is cheap and connects nowhere.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        reconnect_seconds: float = 60.0,
        start: bool = True,
    ) -> None:
        self._environment = dict(environment) if environment is not None else None
        current = self._current_environment()
        self.address: Address = resolve(address, current)
        self.mounts = Mounts(current)
        self.reconnect_seconds = reconnect_seconds
        self._start = start
        self._reached = False
        self._sources: dict[str, tuple[tuple[str, ...], str]] = {}

    def open_dataset(self, urls: Sequence[str], format_json: str = "") -> OpenedDataset:
        """Lets the daemon list the source and build or find its manifest; may take minutes for a new, large one.

        Raises `SourceError` and its kinds, `EmptyDataset`, `ConfigurationError`, `DaemonUnavailable`, `DaemonError`.
        """
        from forebay_protos.v1 import daemon_pb2 as pb

        request = pb.OpenDatasetRequest(urls=list(urls), format_json=format_json)
        answer = self.call("OpenDataset", request, pb.OpenDatasetResponse, timeout_seconds=OPEN_DATASET_SECONDS)
        self.mounts.learn((disk.disk_id, disk.path) for disk in answer.disks)
        self._sources[answer.dataset_id] = (tuple(urls), format_json)
        manifest = self.mounts.locate(answer.manifest.disk_id, answer.manifest.path)
        return OpenedDataset(answer.dataset_id, manifest)

    def open_session(self, dataset_id: str, columns: Sequence[str], label: str) -> "Session":
        """Registers a reader of the dataset; `columns` empty means all, `label` is shown by `forebay status`.

        Raises `ColumnNotFound`, `ConfigurationError` for an unknown dataset, `DaemonUnavailable`, `DaemonError`.
        """
        from forebay.session import Session

        return Session(self, dataset_id, tuple(columns), label, self._sources.get(dataset_id))

    def status(self) -> StatusSnapshot:
        """What the daemon holds and does. Raises `DaemonUnavailable`, `DaemonError`."""
        from forebay_protos.v1 import daemon_pb2 as pb

        return snapshot(self.call("GetStatus", pb.GetStatusRequest(), pb.GetStatusResponse))

    def call(
        self, method: str, request: "Message", reply: type[Reply], *, timeout_seconds: float = CALL_SECONDS
    ) -> Reply:
        """One call, repeated while no daemon answers; for the session."""
        return self._riding(
            lambda: channel.call(self.address.socket, method, request, reply, timeout_seconds=timeout_seconds)
        )

    def stream(self, method: str, requests: Sequence["Message"], reply: type[Reply]) -> Reply:
        """One call with a stream of requests, repeated while no daemon answers; for the session."""
        return self._riding(
            lambda: channel.stream(self.address.socket, method, requests, reply, timeout_seconds=CALL_SECONDS)
        )

    def call_once(self, method: str, request: "Message", reply: type[Reply], *, timeout_seconds: float) -> Reply:
        """One try, without waiting for a daemon or starting one; for heartbeats and farewells."""
        return channel.call(self.address.socket, method, request, reply, timeout_seconds=timeout_seconds)

    def _riding(self, attempt: Callable[[], Reply]) -> Reply:
        begin = time.monotonic()
        pause, announced = _FIRST_PAUSE_SECONDS, False
        while True:
            self._reach()
            try:
                return attempt()
            except DaemonUnavailable as error:
                waited = time.monotonic() - begin
                reason = self._unreachable_reason()
                self._reached = False
                if waited + pause > self.reconnect_seconds or reason == errno.EACCES:
                    raise self._unavailable(reason, error, waited) from None
                if waited > _ANNOUNCE_SECONDS and not announced:
                    announced = True
                    _logger.warning("waiting up to %.0f s for a daemon: %s", self.reconnect_seconds, error)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _reach(self) -> None:
        if self._reached or not self.address.embedded:
            return
        if self._start:
            embedded.ensure_running(self.address, self._current_environment())
        else:
            self._check_directory()
        self._reached = True

    def _check_directory(self) -> None:
        if self.address.socket.parent.exists():
            embedded.check_directory(self.address.socket.parent)

    def _unreachable_reason(self) -> int:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(1.0)
            return connection.connect_ex(str(self.address.socket))

    def _unavailable(self, reason: int, error: DaemonUnavailable, waited: float) -> DaemonUnavailable:
        path = self.address.socket
        if reason == errno.EACCES:
            return DaemonUnavailable(f"the daemon's socket {path} refuses this user; join the group that owns it")
        if reason in (errno.ENOENT, errno.ENOTDIR, errno.ECONNREFUSED):
            what = "no socket is there" if reason == errno.ENOENT else os.strerror(reason).lower()
            if self.address.embedded and self._start:
                return error
            return DaemonUnavailable(
                f"no daemon answers at {path} ({what}, waited {waited:.0f} s); "
                f"start one with: forebay serve --socket {path}"
            )
        return error

    def _current_environment(self) -> Mapping[str, str]:
        return os.environ if self._environment is None else self._environment

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"mounts": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.mounts = Mounts(self._current_environment())
