"""The client of one daemon: rides through its restarts, starts the user's own one, and speaks its errors.

A call that finds no daemon is made again until one answers or `reconnect_seconds` have passed: all calls of the service
may be repeated. A wait that gets long is announced once in the log, and a socket that refuses this user is not waited
for. With `fallback="embedded"` a daemon that is gone for good is then replaced by the user's own: the address changes,
for all threads, and whoever has a session finds that nobody knows it (see `session`). The object holds no connection
(those are the process's, see `channel`): it can be pickled, and used on any thread and on both sides of a fork.
"""

import errno
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from forebay.daemon import channel, copies, embedded
from forebay.daemon.address import Address, of_this_user, resolve
from forebay.daemon.choice import DaemonChoice, Fallback
from forebay.daemon.disks import Disks
from forebay.daemon.reaching import NOBODY_THERE, unreachable, unreachable_reason
from forebay.daemon.status import StatusSnapshot, snapshot
from forebay.daemon.waiting import Waiting
from forebay_core.anonymous import AnonymousFile
from forebay_core.errors import DaemonError, DaemonUnavailable

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from forebay_protos.v1 import daemon_pb2 as pb

CALL_SECONDS = 60.0
OPEN_DATASET_SECONDS = 3600.0
STALL_SECONDS = 30.0
"""A daemon at work on a stream says so every second."""
_ANSWERING_SECONDS = 2.0
"""A socket that answers is tried for so long at least: a channel may still find out that its daemon was restarted."""
_WORK_SECONDS = 1.0
"""A socket on which nobody listens fails a call in milliseconds."""
_logger = logging.getLogger("forebay")
Reply = TypeVar("Reply", bound="Message")
Answer = TypeVar("Answer")


def _never() -> bool:
    return False


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
    #: Of a manifest that this process cannot see.
    copy: AnonymousFile | None = field(default=None, compare=False, repr=False)


class DaemonClient:
    """The way to the daemon at `address`; see `forebay.daemon.address.resolve` for what None means.

    `fallback` and `reconnect_seconds` are what `forebay.daemon.choice` says, None what the environment does.
    `environment` (default: the process's) decides the address and is handed to an embedded daemon; `start=False` never
    starts one. Building it is cheap and connects nowhere.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        reconnect_seconds: float | None = None,
        fallback: Fallback | None = None,
        start: bool = True,
    ) -> None:
        self._environment = dict(environment) if environment is not None else None
        current = self.environment
        choice = DaemonChoice(address, fallback, reconnect_seconds).completed(current)
        self.address: Address = resolve(address, current)
        self.disks = Disks(current)
        self.reconnect_seconds = 0.0 if choice.fallback == "error" else choice.wait_seconds or 0.0
        self._start = start and choice.fallback != "error"
        self._replaces = start and choice.fallback == "embedded"
        self._reached = False
        self._has_answered = False

    def open_dataset(self, urls: Sequence[str], format_json: str = "") -> OpenedDataset:
        """Lets the daemon list the source and build or find its manifest; may take minutes for a new, large one.

        Raises `SourceError` and its kinds, `EmptyDataset`, `ConfigurationError`, `DaemonUnavailable`, `DaemonError`.
        """
        from forebay_protos.v1 import daemon_pb2 as pb

        request = pb.OpenDatasetRequest(urls=list(urls), format_json=format_json)
        answer = self.call("OpenDataset", request, pb.OpenDatasetResponse, timeout_seconds=OPEN_DATASET_SECONDS)
        self.disks.learn((disk.disk_id, disk.path) for disk in answer.disks)
        manifest, asked_for = answer.manifest, (tuple(urls), format_json)
        path = self.disks.locate(manifest.disk_id, manifest.path)
        if path is not None:
            return OpenedDataset(answer.dataset_id, path, manifest.inode, manifest.size_bytes, *asked_for)
        copies.warn_once(*self.disks.why_not(manifest.disk_id))
        wanted = pb.ReadManifestRequest(dataset_id=answer.dataset_id)
        copy = copies.copied(lambda file: self.read("ReadManifest", wanted, pb.ReadManifestResponse, file))
        return OpenedDataset(answer.dataset_id, Path(copy.path), copy.inode, copy.size, *asked_for, copy)

    def status(self, *, is_ended: Callable[[], bool] = _never) -> StatusSnapshot:
        """What the daemon holds and does. Raises `DaemonUnavailable`, `DaemonError`, which also once it is ended."""
        from forebay_protos.v1 import daemon_pb2 as pb

        return snapshot(self.call("GetStatus", pb.GetStatusRequest(), pb.GetStatusResponse, is_ended=is_ended))

    def status_now(self, timeout_seconds: float = 2.0) -> StatusSnapshot:
        """The same in one try, without waiting for a daemon or starting one."""
        from forebay_protos.v1 import daemon_pb2 as pb

        request = pb.GetStatusRequest()
        return snapshot(self.call_once("GetStatus", request, pb.GetStatusResponse, timeout_seconds=timeout_seconds))

    def check_health(self, timeout_seconds: float = 2.0) -> None:
        """One try. Raises `DaemonUnavailable` where no daemon answers, or one that is ending."""
        from grpc_health.v1 import health_pb2

        request, reply = health_pb2.HealthCheckRequest(), health_pb2.HealthCheckResponse
        answer = self.call_once("grpc.health.v1.Health/Check", request, reply, timeout_seconds=timeout_seconds)
        if answer.status != reply.SERVING:
            raise DaemonUnavailable(f"the daemon at {self.address.socket} is ending and takes no new work")

    def call(
        self,
        method: str,
        request: "Message",
        reply: type[Reply],
        *,
        timeout_seconds: float = CALL_SECONDS,
        is_ended: Callable[[], bool] = _never,
    ) -> Reply:
        """One call, repeated while no daemon answers and it is not ended; for the session."""
        return self._riding(
            lambda socket: channel.call(socket, method, request, reply, timeout_seconds=timeout_seconds), is_ended
        )

    def stream(
        self,
        method: str,
        requests: Sequence["Message"],
        reply: type[Reply],
        *,
        is_ended: Callable[[], bool] = _never,
    ) -> Reply:
        """The same with a stream of requests."""
        return self._riding(
            lambda socket: channel.stream(socket, method, requests, reply, timeout_seconds=CALL_SECONDS), is_ended
        )

    def read(
        self,
        method: str,
        request: "Message",
        reply: "type[pb.ReadResponse] | type[pb.ReadManifestResponse]",
        file: AnonymousFile,
        *,
        is_ended: Callable[[], bool] = _never,
    ) -> None:
        """The same with a stream of chunks as the answer, which becomes the content of the file."""

        def attempt(socket: Path) -> None:
            channel.receive(
                *(socket, method, request, reply, lambda chunks: copies.write(chunks, file)),
                is_ended=is_ended,
                stall_seconds=STALL_SECONDS,
            )

        self._riding(attempt, is_ended)

    def call_once(self, method: str, request: "Message", reply: type[Reply], *, timeout_seconds: float) -> Reply:
        """One try, without waiting for a daemon or starting one; for heartbeats and farewells."""
        return channel.call(self.address.socket, method, request, reply, timeout_seconds=timeout_seconds)

    def _riding(self, attempt: Callable[[Path], Answer], is_ended: Callable[[], bool]) -> Answer:
        waiting = Waiting(self.reconnect_seconds, time.monotonic)
        while True:
            address = self.address
            with waiting.apart():
                self._reach()
            begin = time.monotonic()
            try:
                answer = attempt(address.socket)
                self._has_answered = True
                return answer
            except DaemonUnavailable as error:
                if is_ended():
                    raise DaemonError("the loader was closed while it waited for the daemon") from error
                if time.monotonic() - begin > _WORK_SECONDS and not error.is_silent:
                    waiting = Waiting(self.reconnect_seconds, time.monotonic)  # it went at work on this call
                reason = unreachable_reason(address.socket)
                self._reached = False
                if self._gives_up(address, reason, waiting):
                    if not self._replace(address, reason):
                        raise self._unavailable(reason, error, waiting.seconds()) from None
                    waiting = Waiting(self.reconnect_seconds, time.monotonic)
                elif waiting.is_news():
                    _logger.warning("waiting up to %.0f s for a daemon: %s", self.reconnect_seconds, error)
            time.sleep(waiting.next_pause())

    def _gives_up(self, address: Address, reason: int, waiting: Waiting) -> bool:
        is_known_lost = not self._has_answered or address.socket in _replaced
        if reason == errno.EACCES or (self._replaces and is_known_lost and reason in NOBODY_THERE):
            return True
        return waiting.is_over() and (reason != 0 or waiting.seconds() > _ANSWERING_SECONDS)

    def _replace(self, lost: Address, reason: int) -> bool:
        """Goes on with a daemon of this user's own, where that was asked for; True also where another thread has."""
        if not self._replaces or lost.embedded:
            return False
        if self.address is lost:
            self.address = of_this_user(self.environment)
            if lost.socket not in _replaced:
                _replaced.add(lost.socket)
                _logger.warning(
                    "the daemon at %s does not answer (%s): going on with one of this user's own, at %s, which fetches "
                    "anew what it does not have (fallback='embedded')",
                    *(lost.socket, os.strerror(reason).lower() if reason else "it hangs", self.address.socket),
                )
        return True

    def _reach(self) -> None:
        if self._reached or not self.address.embedded:
            return
        if self._start:
            embedded.ensure_running(self.address, self.environment)
        elif self.address.socket.parent.exists():
            embedded.check_directory(self.address.socket.parent)
        self._reached = True

    def _unavailable(self, reason: int, error: DaemonUnavailable, waited: float) -> DaemonUnavailable:
        if reason in NOBODY_THERE and self.address.embedded and self._start:
            return error
        return unreachable(self.address.socket, reason, f", waited {waited:.0f} s") or error

    @property
    def environment(self) -> Mapping[str, str]:
        """What was given, else the process's own."""
        return os.environ if self._environment is None else self._environment

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"disks": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.disks = Disks(self.environment)


_replaced: set[Path] = set()
"""The sockets of which this process has said that their daemon is replaced."""
