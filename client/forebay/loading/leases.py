"""What a planner wants of a session with the daemon, and who gives it.

`SessionLeases` is a session in the planner's terms; `NoLeases` is for data that no daemon brings, such as a map-style
dataset. Called by the planner's thread, `lease` by readers too.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from forebay.loading.chunk import Int64, PieceFile
from forebay.loading.waits import Asking
from forebay.session import Session


class Leases(Protocol):
    """Positions are epoch × samples + position."""

    @property
    def budget_bytes(self) -> int:
        """What should be held at once beyond what the next step needs, as the daemon said with the last lease."""

    def publish(self, pieces: Int64, first: Int64, last: Int64) -> None: ...

    def report(self, position: int, positions_per_second: float) -> None: ...

    def lease(self, pieces: Sequence[int]) -> list[PieceFile]: ...

    def release(self, pieces: Sequence[int]) -> None: ...

    def close(self) -> None: ...


class SessionLeases:
    """One session's."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.publish = session.publish
        self.report = session.report
        self.release = session.release
        self.close = session.close

    @property
    def budget_bytes(self) -> int:
        return self._session.budget_bytes

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
            )
            for lease in self._session.acquire(pieces)
        ]


class NoLeases:
    """For an order without pieces: there is nothing to hold and nobody to tell."""

    budget_bytes = 0

    def publish(self, pieces: Int64, first: Int64, last: Int64) -> None:
        """Nobody listens."""

    def report(self, position: int, positions_per_second: float) -> None:
        """Nobody listens."""

    def lease(self, pieces: Sequence[int]) -> list[PieceFile]:
        """Of no pieces."""
        assert not pieces
        return []

    def release(self, pieces: Sequence[int]) -> None:
        """Nothing is held."""

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

    def report(self, position: int, positions_per_second: float) -> None:
        with self._asking("taking note of the position"):
            self._leases.report(position, positions_per_second)

    def lease(self, pieces: Sequence[int]) -> list[PieceFile]:
        with self._asking("leases", pieces):
            return self._leases.lease(pieces)

    def release(self, pieces: Sequence[int]) -> None:
        with self._asking("taking leases back"):
            self._leases.release(pieces)

    def close(self) -> None:
        self._leases.close()
