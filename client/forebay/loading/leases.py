"""What a planner wants of a session with the daemon, and who gives it.

`SessionLeases` is a session in the planner's terms; `SharedLeases` are several, of one dataset each, under one
numbering of pieces; `NoLeases` is for data that no daemon brings, such as a map-style dataset. Called by the planner's
thread, `lease` by readers too.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Protocol

import numpy as np

from forebay.daemon.session import Session, Taken
from forebay.loading.chunk import Chunk, Int64, PieceFile
from forebay.loading.waits import Asking
from forebay.order.mixture_plan import sources_of


class Leases(Protocol):
    """Positions are epoch × samples + position."""

    @property
    def budget_bytes(self) -> int:
        """What should be held at once beyond what the next step needs, as the daemon said with the last lease."""

    def publish(self, pieces: Int64, first: Int64, last: Int64) -> None: ...

    def report(self, position: int, positions_per_second: float, taken: Taken) -> None: ...

    def lease(self, pieces: Sequence[int]) -> list[PieceFile]: ...

    def unreadable(self, piece: int, disk_id: str) -> None:
        """Tells, with the next lease, that the piece cannot be read where it was leased."""

    def release(self, pieces: Sequence[int]) -> None: ...

    def interrupt(self) -> None:
        """Makes calls that wait raise, in whatever thread they are. Any thread."""

    def close(self) -> None: ...


class SessionLeases:
    """One session's."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.publish = session.publish
        self.release = session.release
        self.unreadable = session.unreadable
        self.interrupt = session.interrupt
        self.close = session.close

    @property
    def budget_bytes(self) -> int:
        return self._session.budget_bytes

    def report(self, position: int, positions_per_second: float, taken: Taken) -> None:
        self._session.report(position, positions_per_second, taken)

    def lease(self, pieces: Sequence[int]) -> list[PieceFile]:
        return [
            PieceFile(
                lease.piece,
                str(lease.path),
                lease.inode,
                lease.size,
                lease.offset,
                lease.length,
                in_place=lease.in_place,
                disk_id=lease.disk_id,
            )
            for lease in self._session.acquire(pieces)
        ]


class SharedLeases:
    """Those of several datasets: the i-th one's pieces are numbered from `first_pieces[i]` on; positions are shared."""

    def __init__(self, leases: Sequence[Leases], first_pieces: Sequence[int]) -> None:
        self._leases, self._first_pieces = leases, np.array(first_pieces)
        self._has_leased: set[int] = set()

    @property
    def budget_bytes(self) -> int:
        """A session's budget is its part of the node's cache, and all of them may be held by any mix of the datasets.

        Each has heard it with its own last lease: the smallest may be the latest.
        """
        return len(self._leases) * min((self._leases[owner].budget_bytes for owner in self._has_leased), default=0)

    def publish(self, pieces: Int64, first: Int64, last: Int64) -> None:
        owner = sources_of(self._first_pieces, pieces)
        for number, leases in enumerate(self._leases):
            mine = owner == number
            leases.publish(pieces[mine] - self._first_pieces[number], first[mine], last[mine])

    def report(self, position: int, positions_per_second: float, taken: Taken) -> None:
        """The present wait is of all of them; what the trainer has taken is counted once, with the first."""
        for number, leases in enumerate(self._leases):
            leases.report(
                position, positions_per_second, taken if number == 0 else taken._replace(samples=0, waited_seconds=0.0)
            )

    def lease(self, pieces: Sequence[int]) -> list[PieceFile]:
        """In the order asked for."""
        found: dict[int, PieceFile] = {}
        for number, first_piece, mine in self._shared_out(pieces):
            for file in self._leases[number].lease(mine):
                found[first_piece + file.piece] = file._replace(piece=first_piece + file.piece)
            self._has_leased = self._has_leased | {number}
        return [found[piece] for piece in pieces]

    def unreadable(self, piece: int, disk_id: str) -> None:
        for number, _, (mine,) in self._shared_out([piece]):
            self._leases[number].unreadable(mine, disk_id)

    def release(self, pieces: Sequence[int]) -> None:
        for number, _, mine in self._shared_out(pieces):
            self._leases[number].release(mine)

    def interrupt(self) -> None:
        for leases in self._leases:
            leases.interrupt()

    def close(self) -> None:
        """All of them, whatever becomes of one."""
        with ExitStack() as stack:
            for leases in self._leases:
                stack.callback(leases.close)

    def _shared_out(self, pieces: Sequence[int]) -> Iterator[tuple[int, int, list[int]]]:
        """For each dataset of these pieces its number, its first piece, and its pieces in its own numbering."""
        owner = sources_of(self._first_pieces, pieces)
        for number in sorted(set(owner.tolist())):
            first_piece = int(self._first_pieces[number])
            yield (
                number,
                first_piece,
                [piece - first_piece for piece, of in zip(pieces, owner, strict=True) if of == number],
            )


class NoLeases:
    """For an order without pieces: there is nothing to hold and nobody to tell."""

    budget_bytes = 0

    def publish(self, pieces: Int64, first: Int64, last: Int64) -> None:
        """Nobody listens."""

    def report(self, position: int, positions_per_second: float, taken: Taken) -> None:
        """Nobody listens."""

    def lease(self, pieces: Sequence[int]) -> list[PieceFile]:
        """Of no pieces."""
        assert not pieces
        return []

    def unreadable(self, piece: int, disk_id: str) -> None:
        """There is no piece."""

    def release(self, pieces: Sequence[int]) -> None:
        """Nothing is held."""

    def interrupt(self) -> None:
        """Nobody waits."""

    def close(self) -> None:
        """Nothing is open."""


class Questions:
    """The calls to the daemon that are under way, at most one of a thread; to be seen by any thread."""

    def __init__(self) -> None:
        self._open: dict[int, Asking] = {}

    @contextmanager
    def asking(self, what: str, pieces: Sequence[int] = ()) -> Iterator[None]:
        """While the daemon is asked for this."""
        thread = threading.get_ident()
        self._open[thread] = Asking(what, tuple(pieces), time.monotonic())
        try:
            yield
        finally:
            del self._open[thread]

    def oldest(self) -> Asking | None:
        """The one that has been waited for longest."""
        return min(list(self._open.values()), key=lambda asking: asking.since, default=None)


class WatchedLeases:
    """Leases whose calls can be seen while they last."""

    def __init__(self, leases: Leases, questions: Questions) -> None:
        self._leases, self._asking = leases, questions.asking

    @property
    def budget_bytes(self) -> int:
        return self._leases.budget_bytes

    def publish(self, pieces: Int64, first: Int64, last: Int64) -> None:
        with self._asking("taking note of what will be needed"):
            self._leases.publish(pieces, first, last)

    def report(self, position: int, positions_per_second: float, taken: Taken) -> None:
        with self._asking("taking note of the position"):
            self._leases.report(position, positions_per_second, taken)

    def lease(self, pieces: Sequence[int]) -> list[PieceFile]:
        with self._asking("leases", pieces):
            return self._leases.lease(pieces)

    def unreadable(self, piece: int, disk_id: str) -> None:
        self._leases.unreadable(piece, disk_id)

    def release(self, pieces: Sequence[int]) -> None:
        with self._asking("taking leases back"):
            self._leases.release(pieces)

    def interrupt(self) -> None:
        self._leases.interrupt()

    def close(self) -> None:
        self._leases.close()


def tell_unreadable(leases: Leases, chunk: Chunk, path: str) -> None:
    """Tells of the file at a path, if any of the chunk's, that it cannot be read."""
    for file in chunk.files if path else ():
        if file.path == path:
            leases.unreadable(file.piece, file.disk_id)
