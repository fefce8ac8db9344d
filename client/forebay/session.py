"""One reader's session with the daemon: needs, position and leases, kept alive over the daemon's restarts.

The session remembers what it told the daemon: its needs, its position, the pieces it holds. When the daemon does not
know it any more (`UnknownSession`: it was restarted, or the session lapsed) `publish` and `acquire` register it anew,
say it all again and repeat the call, so callers see a pause and nothing else; paths leased before may be in fill again.
`report`, `release` and `close` are one quick try each and leave that to the next `publish` or `acquire`.

Used by the loader's planner, and at the same time by a reader that found a leased file gone and leases it again:
`_state` guards what is remembered and is never held in a call, `_recovery` lets one thread register anew. A process
forked from the session's owner can go on using it; what it closes is its own copy, never the owner's session.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from forebay.daemon_client import DaemonClient, OpenedDataset
from forebay_core.errors import DaemonError, DaemonUnavailable, ForebayError, ObjectChanged, UnknownSession

if TYPE_CHECKING:
    from forebay_protos.v1 import daemon_pb2 as pb

NEEDS_PER_MESSAGE = 20_000
HEARTBEAT_SECONDS = 5.0
CLOSE_SECONDS = 2.0
_logger = logging.getLogger("forebay")
Answer = TypeVar("Answer")
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Lease:
    """A piece that may be read: `length` bytes at `offset` of the file, or the whole file where `length` is 0.

    While `pending`, the file is not there yet and `inode` and `size` are 0: it appears at `path` by a rename, or
    `path` + ".error" says why not.
    """

    piece: int
    path: Path
    inode: int
    size: int
    offset: int
    length: int
    pending: bool
    #: The source's own file, read where it lies.
    in_place: bool


@dataclass(frozen=True)
class _Needs:
    pieces: Indices
    first: Indices
    last: Indices

    def messages(self, session_id: str) -> "list[pb.PublishNeedsRequest]":
        from forebay_protos.v1 import daemon_pb2 as pb

        return [
            pb.PublishNeedsRequest(
                session_id=session_id,
                pieces=self.pieces[begin : begin + NEEDS_PER_MESSAGE].tolist(),
                first=self.first[begin : begin + NEEDS_PER_MESSAGE].tolist(),
                last=self.last[begin : begin + NEEDS_PER_MESSAGE].tolist(),
            )
            for begin in range(0, max(1, len(self.pieces)), NEEDS_PER_MESSAGE)
        ]


class Session:
    """One reader of an opened dataset, registered with the client's daemon when it is made. Thread-safe.

    `columns` empty means all; `label` is shown by `forebay status`. `publish` and `acquire` wait for a daemon as long
    as the client does, and for the dataset's manifest where a new daemon has to build it; the others end in seconds.

    Raises `ColumnNotFound`, `ConfigurationError` for a dataset that the daemon does not know, `DaemonUnavailable`,
    `DaemonError`.
    """

    def __init__(self, client: DaemonClient, dataset: OpenedDataset, columns: Sequence[str], label: str) -> None:
        self._client = client
        self._dataset = dataset
        self._columns = tuple(columns)
        self._label = label
        self._id = ""
        self._needs: _Needs | None = None
        self._position: tuple[int, float] | None = None
        self._held: set[int] = set()
        self._unreleased: set[int] = set()
        self._closed = False
        #: What this session should hold at once, in bytes, beyond what its next step needs; as the daemon said last.
        self.budget_bytes = 0
        self._use_here()
        self._register()

    def publish(self, pieces: Indices, first: Indices, last: Indices) -> None:
        """Replaces the needs: piece `pieces[i]` is wanted at some position in [first[i], last[i]); int64[n] each."""
        if not len(pieces) == len(first) == len(last):
            raise ValueError(f"needs of unequal lengths: {len(pieces)}, {len(first)} and {len(last)}")
        needs = _Needs(pieces, first, last)
        with self._lock():
            self._needs = needs
        self._known(lambda session_id: self._send_needs(session_id, needs))

    def report(self, position: int, positions_per_second: float = 0.0) -> None:
        """Says how far the reader is (epoch × samples + position), and that it lives. One try, at most
        `HEARTBEAT_SECONDS`; a daemon that does not answer, or does not know the session, is no error."""
        with self._lock():
            self._position = (position, positions_per_second)
            session_id = self._id
        try:
            self._send_position(session_id, once=True)
        except DaemonError as error:
            _logger.debug("position not reported: %s", error)

    def acquire(self, pieces: Sequence[int]) -> list[Lease]:
        """Leases the pieces, in the order given; answers at once, with `pending` leases for what is in fill.

        Raises `DaemonUnavailable` after the client's `reconnect_seconds`, `CapacityError`, `ConfigurationError` for a
        piece that does not exist, `DaemonError` when the daemon's disk is not visible here.
        """
        wanted = [int(piece) for piece in pieces]
        leases = self._known(lambda session_id: self._send_acquire(session_id, wanted))
        with self._lock():
            self._held.update(wanted)
            self._unreleased.difference_update(wanted)
        return leases

    def release(self, pieces: Iterable[int]) -> None:
        """Gives leases back. One try: what a silent daemon did not hear goes with the next release."""
        with self._lock():
            gone = {int(piece) for piece in pieces} | self._unreleased
            self._held -= gone
            self._unreleased = gone
            session_id = self._id
        if gone:
            self._send_release(session_id, gone)

    def close(self) -> None:
        """Ends the session and its leases; idempotent, quick, and silent when the daemon is gone."""
        with self._lock():
            session_id, closed, self._closed = self._id, self._closed, True
        if closed or self._owner != os.getpid():
            return
        from forebay_protos.v1 import daemon_pb2 as pb

        request = pb.CloseSessionRequest(session_id=session_id)
        try:
            self._client.call_once("CloseSession", request, pb.CloseSessionResponse, timeout_seconds=CLOSE_SECONDS)
        except ForebayError as error:
            _logger.debug("session not closed: %s", error)

    def _known(self, attempt: Callable[[str], Answer]) -> Answer:
        begin = time.monotonic()
        while True:
            with self._lock():
                session_id = self._id
                if self._closed:
                    raise DaemonError(f"the session {self._label!r} is closed; open another")
            try:
                return attempt(session_id)
            except UnknownSession as error:
                if time.monotonic() - begin > max(self._client.reconnect_seconds, 1.0):
                    raise DaemonUnavailable(
                        f"the daemon at {self._client.address.socket} keeps forgetting its sessions; its log says why"
                    ) from error
                self._recover(session_id)

    def _recover(self, lost: str) -> None:
        """Registers anew unless another thread has done so since `lost` was used."""
        with self._recovery_lock():
            if self._id == lost and not self._closed:
                _logger.info("the daemon lost the session %r: registering again", self._label)
                self._register()
                self._say_again()

    def _say_again(self) -> None:
        with self._lock():
            session_id, needs, position, held = self._id, self._needs, self._position, sorted(self._held)
        try:
            if position is not None:
                self._send_position(session_id, once=False)
            if needs is not None:
                self._send_needs(session_id, needs)
            if held:
                self._send_acquire(session_id, held)
        except UnknownSession:
            _logger.debug("the daemon was restarted once more")

    def _register(self) -> None:
        from forebay_protos.v1 import daemon_pb2 as pb

        request = pb.OpenSessionRequest(
            dataset_id=self._dataset.dataset_id, columns=self._columns, label=self._label, process_id=os.getpid()
        )
        try:
            answer = self._client.call("OpenSession", request, pb.OpenSessionResponse)
        except ForebayError as error:
            if isinstance(error, DaemonUnavailable) or not self._id:
                raise
            self._reopen_dataset()
            answer = self._client.call("OpenSession", request, pb.OpenSessionResponse)
        self._client.disks.learn((disk.disk_id, disk.path) for disk in answer.disks)
        with self._lock():
            self._id = answer.session_id
            self._owner = os.getpid()
            self._unreleased.clear()

    def _reopen_dataset(self) -> None:
        """For a daemon that came back without its cache; the source must still be the same dataset."""
        opened = self._client.open_dataset(self._dataset.urls, self._dataset.format_json)
        if opened.dataset_id != self._dataset.dataset_id:
            raise ObjectChanged(
                f"{opened.urls[0]} is not the dataset any more that this loader opened, and the daemon has lost the "
                "old one; restart from the last checkpoint"
            )

    def _send_needs(self, session_id: str, needs: _Needs) -> None:
        from forebay_protos.v1 import daemon_pb2 as pb

        self._client.stream("PublishNeeds", needs.messages(session_id), pb.PublishNeedsResponse)

    def _send_position(self, session_id: str, *, once: bool) -> None:
        from forebay_protos.v1 import daemon_pb2 as pb

        with self._lock():
            position, rate = self._position or (0, 0.0)
        request = pb.ReportPositionRequest(session_id=session_id, position=position, positions_per_second=rate)
        call = self._client.call_once if once else self._client.call
        call("ReportPosition", request, pb.ReportPositionResponse, timeout_seconds=HEARTBEAT_SECONDS)

    def _send_acquire(self, session_id: str, pieces: list[int]) -> list[Lease]:
        from forebay_protos.v1 import daemon_pb2 as pb

        request = pb.AcquireRequest(session_id=session_id, pieces=pieces)
        answer = self._client.call("Acquire", request, pb.AcquireResponse)
        self.budget_bytes = answer.budget_bytes
        return [self._lease(lease) for lease in answer.leases]

    def _send_release(self, session_id: str, pieces: set[int]) -> None:
        from forebay_protos.v1 import daemon_pb2 as pb

        request = pb.ReleaseRequest(session_id=session_id, pieces=sorted(pieces))
        try:
            self._client.call_once("Release", request, pb.ReleaseResponse, timeout_seconds=HEARTBEAT_SECONDS)
        except UnknownSession:
            _logger.debug("the daemon had lost the session with its leases")
        except DaemonError as error:
            _logger.debug("leases not given back yet: %s", error)
            return
        with self._lock():
            self._unreleased -= pieces

    def _lease(self, lease: "pb.Lease") -> Lease:
        return Lease(
            piece=lease.piece,
            path=self._client.disks.locate(lease.disk_id, lease.path),
            inode=lease.inode,
            size=lease.size_bytes,
            offset=lease.offset_bytes,
            length=lease.length_bytes,
            pending=lease.pending,
            in_place=not lease.disk_id,
        )

    def _use_here(self) -> None:
        self._process = os.getpid()
        self._state = threading.Lock()
        self._recovery = threading.Lock()

    def _lock(self) -> threading.Lock:
        """The state's lock, a new one in a forked process: there another thread may have held it for ever."""
        if self._process != os.getpid():
            self._use_here()
        return self._state

    def _recovery_lock(self) -> threading.Lock:
        self._lock()
        return self._recovery
