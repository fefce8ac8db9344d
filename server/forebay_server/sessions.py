"""Sessions: what one loader reads, how far it is, and which pieces it holds leases on.

A session that is not heard of for a while lapses, and its leases with it; a disconnect alone ends nothing. Before that,
after some missed heartbeats, it is quiet: its leases no longer keep pieces from eviction, so that what a killed trainer
had leased does not stand in the way of the next one. The next call makes them count again. `acquire` answers at once: a
piece that is not there gets a demand fill and is pending under its final path. Everything happens on the event loop.
"""

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from forebay_core.errors import CapacityError, ConfigurationError, ForebayError, UnknownSession
from forebay_core.needs import Needs, Progress
from forebay_core.node_layout import piece_path
from forebay_server.filling.bypass import Bypass
from forebay_server.filling.fill import Fill
from forebay_server.filling.fills import Fills
from forebay_server.pool.pool import Pool, Stored
from forebay_server.prefetch.consumption import Consumption
from forebay_server.views import OpenedDataset, View, Views

#: Three heartbeats; well below the time that a demand waits for room.
QUIET_SECONDS = 15.0
#: Leases that are given at a stretch before others have their turn on the event loop: some milliseconds.
_TURN = 256


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
    #: There is no file: the cache has no room for it.
    is_bypassed: bool = False


@dataclass(frozen=True, slots=True)
class Taken:
    """What a session's trainer has taken since the session was opened, as its loader reports it: samples, for how long
    it was blocked for them in all, and for the batch that it waits for now (0: it does not wait), which counts in that
    too."""

    samples: int = 0
    waited_seconds: float = 0.0
    waiting_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.waiting_seconds < float("inf") or not 0 <= self.waited_seconds < float("inf"):
            raise ConfigurationError(f"a trainer has waited for 0 seconds or more, not {self}")


@dataclass(slots=True)
class Session:
    """One loader over one view."""

    id: str
    view: View
    label: str
    process_id: int
    last_seen: float
    progress: Progress
    #: Keys of the leased pieces.
    leases: set[str] = field(default_factory=set)
    is_quiet: bool = False
    taken: Taken = Taken()
    #: What its reports say of its speed.
    consumption: Consumption = field(init=False)

    def __post_init__(self) -> None:
        self.consumption = Consumption(0, self.last_seen)


@dataclass(slots=True)
class SessionCounters:
    """Since the daemon's start. A piece is counted when a session leases it, not when it asks for it again."""

    #: Pieces leased that were in the cache.
    hits: int = 0
    #: Pieces leased that lie in the user's own files.
    in_place: int = 0
    #: Pieces leased whose fill was begun for that.
    misses: int = 0
    #: Pieces leased that were being fetched already, for another session or ahead.
    pending: int = 0
    #: Of the files leased: those that were in the cache, in place, and those that came afterwards.
    hit_bytes: int = 0
    in_place_bytes: int = 0
    fetched_bytes: int = 0
    #: By all trainers together.
    samples: int = 0
    wait_seconds: float = 0.0


class Sessions:
    """All sessions of a daemon."""

    def __init__(
        self,
        pool: Pool,
        fills: Fills,
        views: Views,
        *,
        clock: Callable[[], float],
        lapse_seconds: float,
        read_in_place: bool = True,
        bypass: Bypass | None = None,
    ) -> None:
        self.counters = SessionCounters()
        self._bypass = bypass
        self._pool = pool
        self._fills = fills
        self._views = views
        self._clock = clock
        self._lapse_seconds = lapse_seconds
        self._read_in_place = read_in_place
        self._open: dict[str, Session] = {}
        #: How many leases wait for each piece that is being fetched.
        self._awaited: Counter[str] = Counter()
        self._listeners: list[Callable[[], None]] = []
        fills.listen(self._fetched)

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._open.values())

    def count_needs(self, *, besides: Session | None) -> int:
        """How many needs are published, of all sessions but one."""
        return sum(len(session.progress.needs) for session in self._open.values() if session is not besides)

    def budget_bytes(self) -> int:
        """What one session should hold at once: an equal part of half the cache, so that others can come and go."""
        return self._pool.capacity_bytes // (2 * max(1, len(self._open)))

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls `listener()` when needs or positions change from now on."""
        self._listeners.append(listener)

    def open(self, opened: OpenedDataset, columns: Sequence[str], *, label: str, process_id: int) -> Session:
        """Registers a loader. Raises `ColumnNotFound`."""
        view = self._views.open(opened, columns)
        now = self._clock()
        session = Session(uuid.uuid4().hex, view, label, process_id, now, Progress(Needs.none(), 0, 0.0, now))
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
                self._pool.pins.pin(key)
        return session

    def publish(self, session: Session, needs: Needs) -> None:
        """Replaces the session's needs."""
        self._set(session, replace(session.progress, needs=needs, active_at=self._clock()))

    def report(self, session: Session, position: int, positions_per_second: float, taken: Taken | None = None) -> None:
        """Takes in how far the session is, and how long its trainer waits. A rate counts while it moves.

        Raises `ConfigurationError`.
        """
        if position < 0 or not 0 <= positions_per_second < float("inf"):
            raise ConfigurationError(f"a position and a rate are 0 or more, not {position} and {positions_per_second}")
        if taken is not None:
            self.counters.samples += max(0, taken.samples - session.taken.samples)
            self.counters.wait_seconds += max(0.0, taken.waited_seconds - session.taken.waited_seconds)
            session.taken = taken
        if position != session.progress.position:
            self._pool.moved()
        now = self._clock()
        session.consumption.report(position, now)
        rate = session.consumption.rate(positions_per_second)
        self._set(session, session.progress.reported(position, rate, now))

    async def acquire(
        self, session: Session, pieces: Sequence[int], unreadable: Sequence[tuple[int, str]] = ()
    ) -> list[Lease]:
        """Leases the pieces, in the order given. Raises `ConfigurationError`, or the error of a piece's last fill that
        its readers cannot find beside it, and then leases none.

        `unreadable`: pieces that the reader found to be so, each with the id of the disk that it was leased on.
        """
        session.view.check([*pieces, *(piece for piece, _ in unreadable)])
        for piece, disk_id in unreadable:
            self._pool.unreadable(session.view.key(piece), disk_id)
        for piece in pieces:
            self._fills.raise_unsaid(session.view.key(piece))
        if session.progress.idle_seconds(self._clock()) > 0:
            self._set(session, replace(session.progress, active_at=self._clock()))
        leases = []
        for number, piece in enumerate(pieces, start=1):
            leases.append(await self._acquire(session, piece))
            if number % _TURN == 0:
                await asyncio.sleep(0)
        return leases

    def release(self, session: Session, pieces: Iterable[int]) -> None:
        """Gives leases back; ignores what is not leased."""
        for piece in pieces:
            if 0 <= piece < session.view.manifest.pieces:
                key = session.view.key(piece)
                if key in session.leases:
                    session.leases.remove(key)
                    self._pool.pins.unpin(key)

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
                self._pool.pins.unpin(key)

    async def _acquire(self, session: Session, piece: int) -> Lease:
        if self._read_in_place and (found := await session.view.in_place(piece)) is not None:
            self.counters.in_place += 1
            self.counters.in_place_bytes += found.length
            return Lease(piece, "", str(found.path), found.inode, found.size, found.offset, found.length)
        key = session.view.key(piece)
        if self._passes_by(key):
            return Lease(piece, "", "", is_bypassed=True)
        is_new = key not in session.leases
        if is_new and session.id in self._open:
            session.leases.add(key)
            self._pool.pins.pin(key)
        stored = None if key in self._fills.running else self._pool.find(key)
        if is_new:
            self._count(key, stored)
        if stored is None and not is_new and (disk := self._fills.said(key)) is not None:
            return Lease(piece, disk.id, piece_path(key), is_pending=True)
        if stored is None:
            fill = self._begun(session, piece)
            if fill is None:
                return Lease(piece, "", "", is_bypassed=True)
            return Lease(piece, fill.cache.disk.id, piece_path(key), is_pending=True)
        if self._fills.leads.used(key):
            self._tell()  # it has left the window of those that displaced others
        return Lease(piece, stored.cache.disk.id, piece_path(key), stored.entry.inode, stored.entry.size)

    def _passes_by(self, key: str) -> bool:
        is_refused = self._bypass is not None and self._bypass.has(key)
        return is_refused and key not in self._fills.running and self._pool.find(key) is None

    def _begun(self, session: Session, piece: int) -> Fill | None:
        """The fill of a piece; None where no disk takes it and it passes the cache by."""
        job = session.view.job(piece)
        try:
            return self._fills.start(job)
        except (CapacityError, OSError) as error:
            if self._bypass is None or (isinstance(error, ForebayError) and not isinstance(error, CapacityError)):
                raise
            self._bypass.refused(job, error)
        if job.key in session.leases:
            self.release(session, [piece])
        return None

    def _count(self, key: str, stored: Stored | None) -> None:
        counters = self.counters
        if stored is not None:
            counters.hits += 1
            counters.hit_bytes += stored.entry.size
            return
        self._awaited[key] += 1
        if key in self._fills.running:
            counters.pending += 1
        else:
            counters.misses += 1

    def _fetched(self, fill: Fill) -> None:
        awaited = self._awaited.pop(fill.job.key, 0)
        if fill.entry is not None:
            if self._bypass is not None:
                self._bypass.admitted(fill.key)
            self.counters.fetched_bytes += awaited * fill.entry.size

    def _set(self, session: Session, progress: Progress) -> None:
        self.get(session.id)
        has_other_needs = progress.needs is not session.progress.needs
        session.progress = progress
        self._views.update(session.view, session.id, progress, has_other_needs=has_other_needs)
        self._tell()

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()
