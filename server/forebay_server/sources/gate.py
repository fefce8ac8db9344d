"""The way of all requests to one store: they take turns as its pace allows, the most urgent first.

A demand goes before what is fetched ahead, and that in the order in which it is needed; both may change while a request
waits, so it is looked at when a turn is free. What became of each request is counted here, and tells the pace. Used on
the event loop.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from forebay_server.sources.failures import code_of, is_stall, throttle_of
from forebay_server.sources.pacing import Pace, Ticket
from forebay_server.sources.remote import Caller, RemoteCounters


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    caller: Caller
    number: int
    turn: "asyncio.Future[Ticket]"

    def urgency(self) -> tuple[bool, float, int]:
        before = self.caller.before
        return before is not None, before or 0.0, self.number


class Gate:
    """The requests to one store."""

    def __init__(self, pace: Pace, counters: RemoteCounters, clock: Callable[[], float]) -> None:
        self.pace = pace
        self.clock = clock
        self._counters = counters
        self._numbers = itertools.count()
        self._waiting: list[_Waiting] = []
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def has_waiting_demand(self) -> bool:
        """Whether somebody who is waited for cannot send its request yet."""
        return any(waiting.caller.before is None for waiting in self._waiting)

    @asynccontextmanager
    async def turn(self, caller: Caller) -> AsyncIterator[None]:
        """Waits for a turn; the request is made within the context, and its failure passes through it."""
        ticket = await self.take(caller)
        try:
            yield
        except BaseException as error:
            self._failed(ticket, error)
            raise
        else:
            self.pace.succeeded(ticket, self.clock())
            self._counters.answers["ok"] += 1
        finally:
            self._grant()

    def give_back(self) -> None:
        """Ends a turn that was taken by `take`, where what became of it is not known, or is said by `report`."""
        self.pace.ended()
        self._grant()

    def report(self, error: BaseException | None, *, requests: int = 1) -> None:
        """Counts requests that had their turns by `take`: all of them went well, or one of them failed so."""
        ticket = self.pace.begin()
        if error is None:
            self.pace.succeeded(ticket, self.clock())
            self._counters.answers["ok"] += requests
        else:
            self._failed(ticket, error)
        self._grant()

    def _failed(self, ticket: Ticket, error: BaseException) -> None:
        if not isinstance(error, Exception):  # cancelled: nobody waits for the answer any more
            self.pace.ended()
            return
        self._counters.answers[code_of(error)] += 1
        self._counters.stalls += is_stall(error)
        throttle = throttle_of(error)
        if throttle is None:
            self.pace.ended()
            return
        self._counters.throttles += 1
        self.pace.throttled(ticket, self.clock(), throttle.retry_after_seconds)

    async def take(self, caller: Caller) -> Ticket:
        """Waits for a turn that ends with `give_back`."""
        if not self._waiting and self.pace.may_begin(self.clock()):
            return self.pace.begin()
        waiting = _Waiting(caller, next(self._numbers), asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._grant()
        try:
            return await waiting.turn
        except asyncio.CancelledError:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            elif not waiting.turn.cancelled():
                self.pace.ended()
            self._grant()
            raise

    def _grant(self) -> None:
        now = self.clock()
        while self._waiting and self.pace.may_begin(now):
            chosen = min(self._waiting, key=_Waiting.urgency)
            self._waiting.remove(chosen)
            if not chosen.turn.done():  # else its task was cancelled and has not run yet
                chosen.turn.set_result(self.pace.begin())
        if self._waiting and now < self.pace.paused_until:
            self._set_alarm(self.pace.paused_until - now)

    def _set_alarm(self, seconds: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = asyncio.get_running_loop().call_later(seconds, self._grant)
