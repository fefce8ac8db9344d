"""Sessions: what one loader reads, how far it is, and which pieces it holds leases on.

A session that is not heard of for a while lapses, and its leases with it; a disconnect alone ends nothing. Before that,
after some missed heartbeats, it is quiet: its leases no longer keep pieces from eviction, so that what a killed trainer
had leased does not stand in the way of the next one. The next call makes them count again. `acquire` answers at once: a
piece that is not there gets a demand fill and is pending under its final path. Everything happens on the event loop.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from forebay_core.errors import ConfigurationError, UnknownSession
from forebay_core.node_layout import piece_path
from forebay_server.cache.cache import Cache
from forebay_server.fill import Fills
from forebay_server.needs import Needs, Progress
from forebay_server.views import OpenedDataset, View, Views

#: Three heartbeats; well below the time that a demand waits for room.
QUIET_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Lease:
    """A piece that the session may read. `disk_id` is empty where `path` is absolute (a source read in place).

    `inode` and `size` (bytes) are of the file, 0 while pending; `length` 0 means the whole file.
    """

    piece: int
    disk_id: str
    path: str
    inode: int = 0
    size: int = 0
    offset: int = 0
    length: int = 0
    is_pending: bool = False


@dataclass(slots=True)
class Session:
    """One loader over one view."""

    id: str
    view: View
    label: str
    process_id: int
    last_seen: float
    progress: Progress = field(default_factory=lambda: Progress(Needs.none(), 0, 0.0))
    #: Keys of the leased pieces.
    leases: set[str] = field(default_factory=set)
    is_quiet: bool = False


@dataclass(slots=True)
class SessionCounters:
    """Since the daemon's start."""

    hits: int = 0
    misses: int = 0


class Sessions:
    """All sessions of a daemon."""

    def __init__(
        self,
        cache: Cache,
        fills: Fills,
        views: Views,
        *,
        clock: Callable[[], float],
        lapse_seconds: float,
        read_in_place: bool = True,
    ) -> None:
        self.counters = SessionCounters()
        self._cache = cache
        self._fills = fills
        self._views = views
        self._clock = clock
        self._lapse_seconds = lapse_seconds
        self._read_in_place = read_in_place
        self._open: dict[str, Session] = {}
        self._listeners: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._open.values())

    def budget_bytes(self) -> int:
        """What one session should hold at once: an equal part of half the cache, so that others can come and go."""
        return self._cache.ledger.capacity_bytes // (2 * max(1, len(self._open)))

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls `listener()` when needs or positions change from now on."""
        self._listeners.append(listener)

    def open(self, opened: OpenedDataset, columns: Sequence[str], *, label: str, process_id: int) -> Session:
        """Registers a loader. Raises `ColumnNotFound`."""
        view = self._views.open(opened, columns)
        session = Session(uuid.uuid4().hex, view, label, process_id, self._clock())
        self._open[session.id] = session
        self._views.update(view, session.id, session.progress, has_other_needs=False)
        return session

    def get(self, session_id: str) -> Session:
        """The session, which is alive as this shows. Raises `UnknownSession`."""
        session = self._open.get(session_id)
        if session is None:
            raise UnknownSession(
                f"no session {session_id!r}: the daemon was restarted, or the session lapsed; open a new one"
            )
        session.last_seen = self._clock()
        if session.is_quiet:
            session.is_quiet = False
            for key in session.leases:
                self._cache.pin(key)
        return session

    def publish(self, session: Session, needs: Needs) -> None:
        """Replaces the session's needs."""
        self._set(session, Progress(needs, session.progress.position, session.progress.positions_per_second))

    def report(self, session: Session, position: int, positions_per_second: float) -> None:
        """Takes in how far the session is. Raises `ConfigurationError`."""
        if position < 0 or not 0 <= positions_per_second < float("inf"):
            raise ConfigurationError(f"a position and a rate are 0 or more, not {position} and {positions_per_second}")
        if position != session.progress.position:
            self._cache.moved()
        rate = positions_per_second or session.progress.positions_per_second
        self._set(session, Progress(session.progress.needs, position, rate))

    async def acquire(self, session: Session, pieces: Sequence[int]) -> list[Lease]:
        """Leases the pieces, in the order given. Raises `ConfigurationError`, or the error of a piece's last fill that
        its readers cannot find beside it, and then leases none."""
        session.view.check(pieces)
        for piece in pieces:
            self._fills.raise_unsaid(session.view.key(piece))
        return [await self._acquire(session, piece) for piece in pieces]

    def release(self, session: Session, pieces: Iterable[int]) -> None:
        """Gives leases back; ignores what is not leased."""
        for piece in pieces:
            if 0 <= piece < session.view.manifest.pieces:
                key = session.view.key(piece)
                if key in session.leases:
                    session.leases.remove(key)
                    self._cache.unpin(key)

    def close(self, session_id: str) -> None:
        """Ends a session and its leases; ignores one that is not there."""
        session = self._open.pop(session_id, None)
        if session is None:
            return
        self._hush(session)
        self._views.update(session.view, session.id, None, has_other_needs=True)
        self._views.close(session.view)
        self._tell()

    def lapse(self) -> list[Session]:
        """Ends the sessions that were not heard of for too long, and quiets those on the way there."""
        now = self._clock()
        lapsed = [session for session in self._open.values() if now - session.last_seen > self._lapse_seconds]
        for session in lapsed:
            self.close(session.id)
        for session in self._open.values():
            if now - session.last_seen > QUIET_SECONDS:
                self._hush(session)
        return lapsed

    def _hush(self, session: Session) -> None:
        if not session.is_quiet:
            session.is_quiet = True
            for key in session.leases:
                self._cache.unpin(key)

    async def _acquire(self, session: Session, piece: int) -> Lease:
        if self._read_in_place and (found := await session.view.in_place(piece)) is not None:
            self.counters.hits += 1
            return Lease(piece, "", str(found.path), found.inode, found.size, found.offset, found.length)
        key = session.view.key(piece)
        is_new = key not in session.leases
        if is_new and session.id in self._open:
            session.leases.add(key)
            self._cache.pin(key)
        entry = None if key in self._fills.running else self._cache.find(key)
        self.counters.hits += is_new and entry is not None
        self.counters.misses += is_new and entry is None
        disk = self._cache.disk
        if entry is None:
            self._fills.start(session.view.job(piece))
            return Lease(piece, disk.id, piece_path(key), is_pending=True)
        return Lease(piece, disk.id, piece_path(key), entry.inode, entry.size)

    def _set(self, session: Session, progress: Progress) -> None:
        self.get(session.id)
        has_other_needs = progress.needs is not session.progress.needs
        session.progress = progress
        self._views.update(session.view, session.id, progress, has_other_needs=has_other_needs)
        self._tell()

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()
