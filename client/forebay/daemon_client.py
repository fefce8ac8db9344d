"""The client of one daemon: rides through its restarts, starts the user's own one, and speaks its errors.

A call that finds no daemon is made again until one answers or `reconnect_seconds` have passed: all calls of the service
may be repeated. A wait that gets long is announced once in the log, and a socket that refuses this user is not waited
for. The object holds no connection (those are the process's, see `channel`): it can be pickled, and used on any thread
and on both sides of a fork.
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
from forebay.disks import Disks
from forebay.status import StatusSnapshot, snapshot
from forebay.waiting import Waiting
from forebay_core.errors import DaemonUnavailable

if TYPE_CHECKING:
    from google.protobuf.message import Message

CALL_SECONDS = 60.0
OPEN_DATASET_SECONDS = 3600.0
_logger = logging.getLogger("forebay")
Reply = TypeVar("Reply", bound="Message")


@dataclass(frozen=True)
class OpenedDataset:
    """A dataset that the daemon knows, and what was asked for, so that another daemon can be asked for it too.

    The manifest is a file of `size_bytes` as this process sees it; `inode` is that of the file that the daemon meant.
    """

    dataset_id: str
    manifest_path: Path
    inode: int
    size_bytes: int
    urls: tuple[str, ...]
    format_json: str


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
        self.disks = Disks(current)
        self.reconnect_seconds = reconnect_seconds
        self._start = start
        self._reached = False

    def open_dataset(self, urls: Sequence[str], format_json: str = "") -> OpenedDataset:
        """Lets the daemon list the source and build or find its manifest; may take minutes for a new, large one.

        Raises `SourceError` and its kinds, `EmptyDataset`, `ConfigurationError`, `DaemonUnavailable`, `DaemonError`.
        """
        from forebay_protos.v1 import daemon_pb2 as pb

        request = pb.OpenDatasetRequest(urls=list(urls), format_json=format_json)
        answer = self.call("OpenDataset", request, pb.OpenDatasetResponse, timeout_seconds=OPEN_DATASET_SECONDS)
        self.disks.learn((disk.disk_id, disk.path) for disk in answer.disks)
        manifest = answer.manifest
        return OpenedDataset(
            answer.dataset_id,
            self.disks.locate(manifest.disk_id, manifest.path),
            manifest.inode,
            manifest.size_bytes,
            tuple(urls),
            format_json,
        )

    def status(self) -> StatusSnapshot:
        """What the daemon holds and does. Raises `DaemonUnavailable`, `DaemonError`."""
        from forebay_protos.v1 import daemon_pb2 as pb

        return snapshot(self.call("GetStatus", pb.GetStatusRequest(), pb.GetStatusResponse))

    def status_now(self, timeout_seconds: float = 2.0) -> StatusSnapshot:
        """The same in one try, without waiting for a daemon or starting one."""
        from forebay_protos.v1 import daemon_pb2 as pb

        request = pb.GetStatusRequest()
        return snapshot(self.call_once("GetStatus", request, pb.GetStatusResponse, timeout_seconds=timeout_seconds))

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
        waiting = Waiting(self.reconnect_seconds, time.monotonic)
        while True:
            with waiting.apart():
                self._reach()
            try:
                return attempt()
            except DaemonUnavailable as error:
                reason = self._unreachable_reason()
                self._reached = False
                if reason == errno.EACCES or waiting.is_over():
                    raise self._unavailable(reason, error, waiting.seconds()) from None
                if waiting.is_news():
                    _logger.warning("waiting up to %.0f s for a daemon: %s", self.reconnect_seconds, error)
            time.sleep(waiting.next_pause())

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
        return self.__dict__ | {"disks": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.disks = Disks(self._current_environment())
