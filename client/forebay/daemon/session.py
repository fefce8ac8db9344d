"""One reader's session with the daemon: needs, position and leases, kept alive over the daemon's restarts.

The session remembers what it told the daemon: its needs, its position, the pieces it holds. When the daemon does not
know it any more (`UnknownSession`: it was restarted, or the session lapsed) `publish` and `acquire` register it anew,
say it all again and repeat the call, so callers see a pause and nothing else; paths leased before may be in fill again.
`report`, `release` and `close` are one quick try each; a `report` that finds a restarted daemon registers anew too, so
that it goes on fetching ahead for a trainer that wants nothing new at the moment.

Where this process cannot see the daemon's files, or the cache has no room for a piece, what is leased is a copy
(`copies`), and the daemon gets its own lease back.

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
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from forebay.daemon.client import DaemonClient, OpenedDataset
from forebay.daemon.copies import Copies, warn_once
from forebay.daemon.disks import is_visible_in_place
from forebay_core.anonymous import AnonymousFile, is_anonymous
from forebay_core.errors import DaemonError, DaemonUnavailable, ForebayError, ObjectChanged, UnknownSession

if TYPE_CHECKING:
    from forebay_protos.v1 import daemon_pb2 as pb

NEEDS_PER_MESSAGE = 20_000
#: Well below what the daemon takes in one call, and what its answer may be long.
PIECES_PER_MESSAGE = 8_192
HEARTBEAT_SECONDS = 5.0
CLOSE_SECONDS = 2.0
RECOVERIES = 5
"""How often one call may find its session forgotten before it is a fault of the daemon, not its restarts."""
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
    #: Of the daemon; empty where the file is not on one of its disks.
    disk_id: str = ""


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


class Taken(NamedTuple):
    """What the trainer has taken since reading began: samples, for how long it was blocked for them in all, and for the
    batch that it waits for now (0: it does not wait), which counts in that too."""

    samples: int = 0
    waited_seconds: float = 0.0
    waiting_seconds: float = 0.0


_NOTHING = Taken()


class _Report(NamedTuple):
    """What `report` was told last."""

    position: int = 0
    positions_per_second: float = 0.0
    taken: Taken = Taken()


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
        self._position: _Report | None = None
        #: Of what the trainer has taken, what the daemon has heard of, and what a daemon before it had.
        self._heard = self._heard_before = Taken()
        self._held: set[int] = set()
        self._unreleased: set[int] = set()
        self._unreadable: set[tuple[int, str]] = set()
        self._closed = False
        self._is_ended = False
        self._boot_id = ""
        self._granted_bytes = 0
        self._copies = Copies(client.environment)
        self._use_here()
        self._register()

    @property
    def budget_bytes(self) -> int:
        """What this session should hold at once beyond what its next step needs; as the daemon said last."""
        return self._copies.budget_bytes(self._granted_bytes, holds_others=bool(self._held))

    def publish(self, pieces: Indices, first: Indices, last: Indices) -> None:
        """Replaces the needs: piece `pieces[i]` is wanted at some position in [first[i], last[i]); int64[n] each."""
        if not len(pieces) == len(first) == len(last):
            raise ValueError(f"needs of unequal lengths: {len(pieces)}, {len(first)} and {len(last)}")
        needs = _Needs(pieces, first, last)
        with self._lock():
            self._needs = needs
        self._known(lambda session_id: self._send_needs(session_id, needs))

    def report(
        self,
        position: int,
        positions_per_second: float = 0.0,
        taken: Taken = _NOTHING,
    ) -> None:
        """Says how far the reader is (epoch × samples + position), and that it lives. One try, at most
        `HEARTBEAT_SECONDS`; a daemon that does not answer, or does not know the session, is no error."""
        with self._lock():
            self._position = _Report(position, positions_per_second, taken)
            session_id = self._id
        try:
            self._send_position(session_id, once=True)
        except UnknownSession:
            self._try_to_recover(session_id)
        except DaemonError as error:
            _logger.debug("position not reported: %s", error)

    def acquire(self, pieces: Sequence[int]) -> list[Lease]:
        """Leases the pieces, in the order given; answers at once, with `pending` leases for what is in fill, but where
        pieces have to be copied.

        Raises `DaemonUnavailable` after the client's `reconnect_seconds`, `CapacityError` where there is no room for a
        copy, `ConfigurationError` for a piece that does not exist, and the error of a fill where it is copied.
        """
        wanted = [int(piece) for piece in pieces]
        found = self._known(lambda session_id: self._send_acquire(session_id, wanted))
        with self._lock():
            self._held.update(wanted)
            self._unreleased.difference_update(wanted)
        leases = [self._seen(lease) or self._copied(lease.piece) for lease in found]
        if copied := {lease.piece for lease in leases if is_anonymous(lease.path)}:
            self._give_back(copied)
        return leases

    def release(self, pieces: Iterable[int]) -> None:
        """Gives leases back. One try: what a silent daemon did not hear goes with the next release."""
        gone = {int(piece) for piece in pieces}
        self._give_back({piece for piece in gone if piece not in self._copies})
        self._copies.drop(gone)

    def unreadable(self, piece: int, disk_id: str) -> None:
        """Tells the daemon, with the next `acquire`, that it cannot be read where it was leased."""
        with self._lock():
            self._unreadable.add((piece, disk_id))

    def interrupt(self) -> None:
        """Ends calls that wait for the daemon, or for a copy, in whatever thread they are; nothing is leased after."""
        self._is_ended = True

    def close(self) -> None:
        """Ends the session and its leases; idempotent, quick, and silent when the daemon is gone."""
        self.interrupt()
        with self._lock():
            session_id, closed, self._closed = self._id, self._closed, True
        self._copies.close()
        if closed or self._owner != os.getpid():
            return
        from forebay_protos.v1 import daemon_pb2 as pb

        request = pb.CloseSessionRequest(session_id=session_id)
        try:
            self._client.call_once("CloseSession", request, pb.CloseSessionResponse, timeout_seconds=CLOSE_SECONDS)
        except ForebayError as error:
            _logger.debug("session not closed: %s", error)

    def _give_back(self, pieces: set[int]) -> None:
        with self._lock():
            gone = pieces | self._unreleased
            self._held -= gone
            self._unreleased = gone
            session_id = self._id
        if gone:
            self._send_release(session_id, gone)

    def _try_to_recover(self, lost: str) -> None:
        try:
            self._recover(lost)
        except ForebayError as error:
            _logger.debug("not registered anew yet: %s", error)

    def _known(self, attempt: Callable[[str], Answer]) -> Answer:
        lost_at: list[float] = []
        while True:
            with self._lock():
                session_id = self._id
                if self._closed:
                    raise DaemonError(f"the session {self._label!r} is closed; open another")
            try:
                return attempt(session_id)
            except UnknownSession as error:
                lost_at.append(time.monotonic())
                patience = max(self._client.reconnect_seconds, 1.0)
                if len(lost_at) > RECOVERIES and lost_at[-1] - lost_at[0] > patience:
                    raise DaemonUnavailable(
                        f"the daemon at {self._client.address.socket} keeps forgetting its sessions; its log says why"
                    ) from error
                self._recover(session_id)

    def _recover(self, lost: str) -> None:
        """Registers anew unless another thread has done so since `lost` was used."""
        with self._recovery_lock():
            if self._id == lost and not self._closed:
                before = self._boot_id
                self._register()
                why = "let it lapse" if self._boot_id == before else "was restarted"
                _logger.info("the daemon %s: the session %r is registered anew", why, self._label)
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
            answer = self._client.call("OpenSession", request, pb.OpenSessionResponse, is_ended=self._has_ended)
        except ForebayError as error:
            if isinstance(error, DaemonUnavailable) or not self._id:
                raise
            self._reopen_dataset()
            answer = self._client.call("OpenSession", request, pb.OpenSessionResponse, is_ended=self._has_ended)
        self._client.disks.learn((disk.disk_id, disk.path) for disk in answer.disks)
        with self._lock():
            self._id, self._boot_id = answer.session_id, answer.boot_id
            self._owner = os.getpid()
            self._unreleased.clear()
            self._heard_before = self._heard

    def _reopen_dataset(self) -> None:
        """For a daemon that came back without its cache; the source must still be the same dataset."""
        check_same(self._dataset, self._client.open_dataset(self._dataset.urls, self._dataset.format_json))

    def _send_needs(self, session_id: str, needs: _Needs) -> None:
        from forebay_protos.v1 import daemon_pb2 as pb

        messages = needs.messages(session_id)
        self._client.stream("PublishNeeds", messages, pb.PublishNeedsResponse, is_ended=self._has_ended)

    def _send_position(self, session_id: str, *, once: bool) -> None:
        from forebay_protos.v1 import daemon_pb2 as pb

        with self._lock():
            said, before = self._position or _Report(), self._heard_before
        request = pb.ReportPositionRequest(
            session_id=session_id,
            position=said.position,
            positions_per_second=said.positions_per_second,
            samples=max(0, said.taken.samples - before.samples),
            waited_seconds=max(0.0, said.taken.waited_seconds - before.waited_seconds),
            waiting_seconds=said.taken.waiting_seconds,
        )
        call = self._client.call_once if once else self._client.call
        call("ReportPosition", request, pb.ReportPositionResponse, timeout_seconds=HEARTBEAT_SECONDS)
        with self._lock():
            self._heard = max(self._heard, said.taken)

    def _send_acquire(self, session_id: str, pieces: list[int]) -> "list[pb.Lease]":
        from forebay_protos.v1 import daemon_pb2 as pb

        leases: list[pb.Lease] = []
        for start in range(0, max(1, len(pieces)), PIECES_PER_MESSAGE):
            part = pieces[start : start + PIECES_PER_MESSAGE]
            with self._lock():
                told = [(piece, disk_id) for piece, disk_id in self._unreadable if piece in part]
            unreadable = [pb.UnreadablePiece(piece=piece, disk_id=disk_id) for piece, disk_id in told]
            request = pb.AcquireRequest(session_id=session_id, pieces=part, unreadable=unreadable)
            answer = self._client.call("Acquire", request, pb.AcquireResponse, is_ended=self._has_ended)
            self._granted_bytes = answer.budget_bytes
            self._client.disks.learn((disk.disk_id, disk.path) for disk in answer.disks)
            with self._lock():
                self._unreadable.difference_update(told)
            leases += answer.leases
        return leases

    def _send_release(self, session_id: str, pieces: set[int]) -> None:
        from forebay_protos.v1 import daemon_pb2 as pb

        ordered = sorted(pieces)
        parts = [ordered[start : start + PIECES_PER_MESSAGE] for start in range(0, len(ordered), PIECES_PER_MESSAGE)]
        try:
            for part in parts:
                request = pb.ReleaseRequest(session_id=session_id, pieces=part)
                self._client.call_once("Release", request, pb.ReleaseResponse, timeout_seconds=HEARTBEAT_SECONDS)
        except UnknownSession:
            _logger.debug("the daemon had lost the session with its leases")
        except DaemonError as error:
            _logger.debug("leases not given back yet: %s", error)
            return
        with self._lock():
            self._unreleased -= pieces

    def _seen(self, lease: "pb.Lease") -> Lease | None:
        """The lease of a file that this process sees; None of any other, and where there is none."""
        path = self._path(lease)
        if path is None:
            return None
        return Lease(
            piece=lease.piece,
            path=path,
            inode=lease.inode,
            size=lease.size_bytes,
            offset=lease.offset_bytes,
            length=lease.length_bytes,
            pending=lease.pending,
            in_place=not lease.disk_id,
            disk_id=lease.disk_id,
        )

    def _path(self, lease: "pb.Lease") -> Path | None:
        if lease.bypassed:
            what = f"pieces of {self._dataset.urls[0]} for which the daemon's cache has no room"
            warn_once(what, "give the cache more capacity, or cut smaller pieces (piece_bytes=)")
            return None
        disks, path = self._client.disks, Path(lease.path)
        if lease.disk_id:
            found = disks.locate(lease.disk_id, lease.path)
            if found is None:
                warn_once(*disks.why_not(lease.disk_id))
            return found
        if is_visible_in_place(path, inode=lease.inode, size=lease.size_bytes):
            return path
        remedy = "mount it here under the same path, for this user to read"
        warn_once(f"{path.parent}, whose files the daemon reads in place, is not visible here", remedy)
        return None

    def _copied(self, piece: int) -> Lease:
        from forebay_protos.v1 import daemon_pb2 as pb

        def read(file: AnonymousFile) -> None:
            def attempt(session_id: str) -> None:
                request = pb.ReadRequest(session_id=session_id, piece=piece)
                self._client.read("Read", request, pb.ReadResponse, file, is_ended=self._has_ended)

            self._known(attempt)

        self._lock()
        with self._copying:
            file = self._copies.get(piece, read)
        return Lease(piece, Path(file.path), file.inode, file.size, 0, 0, pending=False, in_place=False)

    def _has_ended(self) -> bool:
        return self._is_ended

    def _use_here(self) -> None:
        self._process = os.getpid()
        self._state = threading.Lock()
        self._recovery = threading.Lock()
        self._copying = threading.Lock()

    def _lock(self) -> threading.Lock:
        """The state's lock, a new one in a forked process: there another thread may have held it for ever."""
        if self._process != os.getpid():
            self._use_here()
        return self._state

    def _recovery_lock(self) -> threading.Lock:
        self._lock()
        return self._recovery


def check_same(opened: OpenedDataset, again: OpenedDataset) -> None:
    """Raises `ObjectChanged` where a dataset that was opened again is another by now."""
    if again.dataset_id != opened.dataset_id:
        raise ObjectChanged(
            f"{again.urls[0]} is not the dataset any more that this loader opened, and the daemon has lost the "
            "old one; restart from the last checkpoint"
        )
