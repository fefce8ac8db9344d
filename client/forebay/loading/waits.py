"""What the next batch waits for, in words: from the awaited chunk, who reads it, and what the planner is at.

Called on a watching thread while the others go on, so it takes no locks and only looks; what it says may be a moment
old.
"""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Protocol

from forebay.loading.chunk import Chunk

_OUR_CODE = str(Path(__file__).parents[1]) + os.sep


@dataclass(frozen=True, slots=True)
class Reading:
    """Who reads the awaited chunk, in words, with what they are doing. The chunk is None before it is planned."""

    chunk: Chunk | None
    reader: str


@dataclass(frozen=True, slots=True)
class Asking:
    """A call to the daemon under way: what for, which pieces, since when on the monotonic clock."""

    what: str
    pieces: tuple[int, ...]
    since: float


class Names(Protocol):
    """How people call things; answers for the watching thread."""

    def piece(self, piece: int) -> str:
        """The shard of a piece, and which rows."""

    def daemon(self) -> str:
        """What the daemon says of itself now, or that it does not answer."""


class NoNames:
    """For an order without pieces and without a daemon."""

    def piece(self, piece: int) -> str:
        return f"piece {piece}"

    def daemon(self) -> str:
        return "there is no daemon"


class Planner(Protocol):
    """What can be seen of a planner from outside."""

    @property
    def thread(self) -> int | None:
        """The identity of its thread, once it runs."""

    def asking(self) -> Asking | None:
        """The oldest of the calls to the daemon that are under way."""


def explain(reading: Reading, planner: Planner, names: Names) -> str:
    """What the next batch waits for."""
    if reading.chunk is None:
        return _planning(planner, names)
    chunk = reading.chunk
    missing = [file.piece for file in chunk.files if not file.inode and not os.path.lexists(file.path)]
    if missing:
        pieces = _pieces(missing, names)
        return f"waits for {pieces}, which the daemon is filling or has queued; {names.daemon()}"
    return f"all its data is here, and it is with {reading.reader}"


def _planning(planner: Planner, names: Names) -> str:
    asking = planner.asking()
    if asking is None:
        return f"the next step is not planned yet; the planner is {whereabouts(planner.thread)}"
    of = f" of {_pieces(asking.pieces, names)}" if asking.pieces else ""
    seconds = time.monotonic() - asking.since
    return (
        f"nothing is planned yet: the daemon was asked for {asking.what}{of} {seconds:.0f} s ago and has not answered; "
        f"{names.daemon()}"
    )


def whereabouts(thread: int | None) -> str:
    """Where a thread of this process is: in which function that forebay has called, and where in that it stands."""
    innermost = sys._current_frames().get(thread) if thread is not None else None
    if innermost is None:
        return "not running"
    called: FrameType | None = None
    at: FrameType | None = innermost
    while at is not None and not at.f_code.co_filename.startswith(_OUR_CODE):
        called, at = at, at.f_back
    if called is None or at is None or called is innermost:
        return f"in {_place(innermost)}"
    return f"in {_place(called)}, there in {_place(innermost)}"


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}, line {frame.f_lineno})"


def _pieces(pieces: Sequence[int], names: Names) -> str:
    more = f" and {len(pieces) - 1} more" if len(pieces) > 1 else ""
    return f"{names.piece(pieces[0])}{more}"
