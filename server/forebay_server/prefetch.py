"""Fetching ahead: the pieces that sessions need soonest and that are not there yet, a few at a time.

A prefetch may push out only what is needed later than what it brings; where that is not possible it waits until
something changes. A piece whose fill failed is left alone until somebody demands it. Woken by events (needs, positions,
ends of fills, departures), at most once in a short while. One task on the event loop.
"""

import asyncio
import logging
from collections.abc import Iterator
from heapq import merge

from forebay_server.cache.cache import Cache
from forebay_server.concurrency import repeat
from forebay_server.fill import Fill, Fills
from forebay_server.views import View, Views

_log = logging.getLogger(__name__)
#: Fills end, and many sessions report their positions, at any moment: look again at most this often, and less often
#: while nothing fits.
_PAUSE_SECONDS = 0.02
_FULL_PAUSE_SECONDS = 0.25


class Prefetcher:
    """Starts prefetches while there are needs, room, and fewer than `limit` of them in flight."""

    def __init__(self, cache: Cache, fills: Fills, views: Views, *, limit: int, read_in_place: bool) -> None:
        self._cache = cache
        self._fills = fills
        self._views = views
        self._limit = limit
        self._read_in_place = read_in_place
        self._wake = asyncio.Event()
        self._is_full = False
        fills.listen(self._ended)

    def wake(self) -> None:
        """Something changed that may allow, or ask for, another prefetch."""
        self._wake.set()

    async def run(self) -> None:
        """Works until it is cancelled."""
        if self._limit > 0:
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
        running = sum(not fill.is_demand for fill in self._fills.running.values())
        free = self._limit - running
        if free <= 0:
            return
        for seconds, view, piece in self._candidates():
            if view.key(piece) not in self._fills.running:
                free -= self._begin(view, piece, seconds)
                if free == 0:
                    return

    def _begin(self, view: View, piece: int, seconds: float) -> bool:
        """Whether a fill was begun. A piece that the disk does not let begin is passed over from now on."""
        key = view.key(piece)
        try:
            if self._cache.find(key) is None:
                self._fills.start(view.job(piece), before=seconds)
                return True
        except OSError as error:
            _log.error("piece %d of %s cannot be fetched ahead: %s", piece, view.manifest.root, error)
            self._views.ended(key, has_failed=True)
        self._wake.set()
        return False

    def _candidates(self) -> Iterator[tuple[float, View, int]]:
        limit = self._limit + len(self._fills.running)
        views = [view for view in self._views if not (self._read_in_place and view.is_in_place)]
        ordered = [
            ((seconds, number, piece) for seconds, piece in view.soonest(limit)) for number, view in enumerate(views)
        ]
        for seconds, number, piece in merge(*ordered):
            yield seconds, views[number], piece

    def _ended(self, fill: Fill) -> None:
        self._views.ended(fill.job.key, has_failed=fill.has_failed)
        if fill.found_no_room:
            self._is_full = True
        else:
            self._wake.set()
