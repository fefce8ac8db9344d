"""Bringing a whole dataset into the cache before anybody reads it (`forebay warm`). Called on the event loop.

A warming is a session that needs every piece in a far future: so trainers' pieces come first, both to be fetched and to
stay, and one warming does not push out what it has brought itself. Where nothing that may go is left it ends, and says
how much did not fit. A check fetches nothing and only counts.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

import numpy as np

from forebay_core.errors import ForebayError, one_line
from forebay_core.needs import NOMINAL_RATE, Needs
from forebay_server.filling.fill import Fill
from forebay_server.filling.fills import Fills
from forebay_server.pool.pool import Pool
from forebay_server.sessions import Session, Sessions

#: Beyond all that a trainer publishes: years of positions at the rate of one that says nothing.
_FAR = 1 << 50
_TELL_SECONDS = 0.5
_SLICE = 500
_MESSAGES = 3


@dataclass(slots=True)
class WarmStep:
    """How far a warming is, in pieces; `bytes` are those of the files that it brought."""

    total: int
    #: That were in the cache already, or lie in the user's own files, which are read in place.
    there: int = 0
    in_place: int = 0
    fetched: int = 0
    bytes: int = 0
    failed: int = 0
    #: Not there and not fetched: it is a check, or there is no room for them.
    missing: int = 0
    #: The first failures.
    messages: list[str] = field(default_factory=list)


class Warming:
    """One dataset's way into the cache."""

    def __init__(self, pool: Pool, fills: Fills, sessions: Sessions, *, limit: int, clock: Callable[[], float]) -> None:
        """`limit`: pieces that are fetched at once."""
        self._pool = pool
        self._fills = fills
        self._sessions = sessions
        self._limit = max(1, limit)
        self._clock = clock

    async def steps(self, session: Session, *, check: bool, in_place: bool) -> AsyncGenerator[WarmStep, None]:
        """Steps, the last of which has all pieces accounted for. Ends the session, also when it is closed before."""
        step = WarmStep(session.view.manifest.pieces)
        try:
            if in_place:
                step.in_place = step.total
            else:
                if not check:
                    self._sessions.publish(session, _far_needs(step.total))
                async for _ in self._walk(session, step, check=check):
                    yield step
            yield step
        finally:
            self._sessions.close(session.id)

    async def _walk(self, session: Session, step: WarmStep, *, check: bool) -> AsyncGenerator[None, None]:
        view, told_at = session.view, self._clock()
        running: dict[asyncio.Task[object], Fill] = {}
        is_full = False
        for piece in range(step.total):
            if self._pool.find(view.key(piece)) is not None:
                step.there += 1
            elif check or is_full:
                step.missing += 1
            else:
                fill = self._fills.start(view.job(piece), before=_seconds_until(piece))
                running[fill.task] = fill
            while len(running) >= self._limit:
                is_full |= await self._take(running, step, session)
            if self._clock() - told_at >= _TELL_SECONDS or piece % _SLICE == 0:
                told_at = self._clock()
                self._sessions.get(session.id)
                yield
                await asyncio.sleep(0)
        while running:
            await self._take(running, step, session)
            yield

    async def _take(self, running: "dict[asyncio.Task[object], Fill]", step: WarmStep, session: Session) -> bool:
        """Takes in what has ended; whether one of them found no room."""
        done, _ = await asyncio.wait(running, timeout=_TELL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        self._sessions.get(session.id)
        found_no_room = False
        for task in done:
            fill = running.pop(task)
            error = None if task.cancelled() else task.exception()
            if fill.entry is not None:
                step.fetched += 1
                step.bytes += fill.entry.size
            elif error is None:
                found_no_room = True
                step.missing += 1
            else:
                _account(step, error)
        return found_no_room


def _account(step: WarmStep, error: BaseException) -> None:
    step.failed += 1
    if len(step.messages) < _MESSAGES:
        step.messages.append(one_line(error) if isinstance(error, ForebayError) else f"{type(error).__name__}: {error}")


def _far_needs(pieces: int) -> Needs:
    every = np.arange(pieces, dtype=np.int64)
    return Needs.build(every, _FAR + every, _FAR + every + 1, piece_count=pieces)


def _seconds_until(piece: int) -> float:
    return (_FAR + piece) / NOMINAL_RATE
