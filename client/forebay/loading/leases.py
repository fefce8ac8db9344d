"""What a planner wants of a session with the daemon, and who gives it.

`SessionLeases` is a session in the planner's terms; `NoLeases` is for data that no daemon brings, such as a map-style
dataset. Called by the planner's thread, `lease` by readers too.
"""

from collections.abc import Sequence
from typing import Protocol

from forebay.loading.chunk import Int64, PieceFile
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
