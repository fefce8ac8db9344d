"""The loop that fetches ahead: the pieces that sessions need soonest and that are not there yet, as `choice` allows.

A prefetch may push out only what is needed later than what it brings; where that is not possible it waits until
something changes. A piece whose fill failed is left alone until somebody demands it. Woken by events (needs, positions,
ends of fills, departures), at most once in a short while. One task on the event loop.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from heapq import merge

from forebay_server.concurrency import repeat
from forebay_server.filling.fill import Fill
from forebay_server.filling.fills import Fills
from forebay_server.filling.job import Job
from forebay_server.pool.pool import Pool
from forebay_server.prefetch.choice import Bounds, Load, is_due, may_begin
from forebay_server.prefetch.fetch_time import FetchTime
from forebay_server.views import View, Views

_log = logging.getLogger(__name__)
#: Fills end, and many sessions report their positions, at any moment: look again at most this often, and less often
#: while nothing fits.
_PAUSE_SECONDS = 0.02
_FULL_PAUSE_SECONDS = 0.25


class Prefetcher:
    """Starts prefetches while there are needs, room, and `bounds` let them. `demand_waits` tells whether somebody who
    is waited for cannot send a request yet."""

    def __init__(
        self,
        pool: Pool,
        fills: Fills,
        views: Views,
        *,
        bounds: Bounds,
        read_in_place: bool,
        clock: Callable[[], float],
        demand_waits: Callable[[], bool] = lambda: False,
    ) -> None:
        self.fetch_time = FetchTime()
        self._pool = pool
        self._fills = fills
        self._views = views
        self._bounds = bounds
        self._read_in_place = read_in_place
        self._clock = clock
        self._demand_waits = demand_waits
        self._wake = asyncio.Event()
        self._is_full = False
        fills.listen(self._ended)

    def wake(self) -> None:
        """Something changed that may allow, or ask for, another prefetch."""
        self._wake.set()

    async def run(self) -> None:
        """Works until it is cancelled."""
        if self._bounds.fills > 0:
            await repeat(self._look, "fetching ahead")

    async def _look(self) -> None:
        await self._wake.wait()
        self._wake.clear()
        self._is_full = False
        try:
            self._start()
        except BaseException:
            self._wake.set()
            raise
        await asyncio.sleep(_FULL_PAUSE_SECONDS if self._is_full else _PAUSE_SECONDS)

    def _start(self) -> None:
        if not self._pool.takes_fills:
            return
        load = self._load()
        for seconds, view, piece in self._candidates():
            if view.key(piece) in self._fills.running:
                continue
            job = view.job(piece)
            due = self._is_due(job, seconds)
            if not may_begin(job.fetched_bytes, load, self._bounds, due=due):
                return
            if self._begin(job, seconds, due=due):
                load = load.plus(job.fetched_bytes)

    def _load(self) -> Load:
        """What is under way, after a look at when it is needed by now."""
        running = [fill for fill in self._fills.running.values() if fill.before is not None]
        for fill in running:
            fill.before = self._views.seconds_until(fill.job.key, otherwise=fill.before)
            fill.is_due = fill.before is not None and self._is_due(fill.job, fill.before)
        return Load(len(running), sum(fill.job.fetched_bytes for fill in running), self._demand_waits())

    def _is_due(self, job: Job, seconds: float) -> bool:
        return is_due(seconds, self.fetch_time.predicted(job.fetched_bytes))

    def _begin(self, job: Job, seconds: float, *, due: bool) -> bool:
        """Whether a fill was begun. A piece that the disk does not let begin is passed over from now on."""
        try:
            if self._pool.find(job.key) is None:
                self._fills.start(job, before=seconds).is_due = due
                return True
        except OSError as error:
            _log.error("%s cannot be fetched ahead: %s", job.name, error)
            self._views.ended(job.key, has_failed=True)
        self._wake.set()
        return False

    def _candidates(self) -> Iterator[tuple[float, View, int]]:
        limit = self._bounds.fills + len(self._fills.running)
        views = [view for view in self._views if not (self._read_in_place and view.is_in_place)]
        ordered = [
            ((seconds, number, piece) for seconds, piece in view.soonest(limit)) for number, view in enumerate(views)
        ]
        for seconds, number, piece in merge(*ordered):
            yield seconds, views[number], piece

    def _ended(self, fill: Fill) -> None:
        if not fill.has_failed and not fill.found_no_room:
            self.fetch_time.took(fill.job.fetched_bytes, self._clock() - fill.began_at)
        self._views.ended(fill.job.key, has_failed=fill.has_failed)
        if fill.found_no_room:
            self._is_full = True
        else:
            self._wake.set()
