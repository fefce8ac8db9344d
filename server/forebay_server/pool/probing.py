"""Looks after the disks: probes those that something went wrong with, and claims those that could not be claimed.

A probe writes a little and reads it back. It runs in a thread of its own, so that a disk that hangs holds up nobody;
one that does not answer in time has failed. What follows from a probe is decided by `health`. One task on the event
loop.
"""

import asyncio
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from forebay_core.capacity import CacheDirectory
from forebay_core.errors import ForebayError, one_line
from forebay_server.concurrency import OneForAll, repeat
from forebay_server.disk.cache_disk import CacheDisk, Replaced
from forebay_server.pool.health import CLAIM_SECONDS, Health, State, Trouble, in_words, trouble_of
from forebay_server.pool.member import Member, Members
from forebay_server.pool.pool import Pool

T = TypeVar("T")
#: How often disks that were found full are let hold more.
_LOOK_SECONDS = 10.0
_ANSWER_SECONDS = 30.0


class Prober:
    """Of the disks of a pool."""

    def __init__(
        self,
        pool: Pool,
        members: Members,
        claim: Callable[[CacheDirectory], CacheDisk],
        *,
        clock: Callable[[], float],
        answer_seconds: float = _ANSWER_SECONDS,
    ) -> None:
        """`claim` claims a directory of the configuration; it blocks, and raises as `CacheDisk.claim`."""
        self._pool, self._members, self._claim, self._clock = pool, members, claim, clock
        self._answer_seconds = answer_seconds
        #: One probe of a disk at a time, for all who ask.
        self._under_way: OneForAll[Member, None] = OneForAll()
        self._threads = ThreadPoolExecutor(2 * len(pool.members), "forebay-probe")

    async def run(self) -> None:
        """Works until it is cancelled."""
        await repeat(self._look, "looking after the disks")

    async def probe_due(self) -> None:
        """Probes every disk that it is time for."""
        now = self._clock()
        due = [member for member in self._pool.members if (member.health.probe_at or math.inf) <= now]
        await asyncio.gather(*(self._under_way.result(member, partial(self._probe, member)) for member in due))

    async def close(self) -> None:
        """Ends what is under way; a disk that hangs is not waited for."""
        await self._under_way.close()
        self._threads.shutdown(wait=False)

    async def _look(self) -> None:
        self._pool.has_changed.clear()
        self._pool.look()
        due = min((member.health.probe_at or math.inf for member in self._pool.members), default=math.inf)
        try:
            await asyncio.wait_for(self._pool.has_changed.wait(), max(0.0, min(_LOOK_SECONDS, due - self._clock())))
        except TimeoutError:
            await self.probe_due()

    async def _probe(self, member: Member) -> None:
        if member.cache is None:
            await self._claim_again(member)
            return
        try:
            await self._answer(member.cache.disk.probe)
            health = member.health.probed(None, "", self._clock())
        except Replaced:
            await self._claim_again(member)
            return
        except TimeoutError:
            said = f"it does not answer within {self._answer_seconds:g} s"
            health = member.health.probed(Trouble.FAULT, said, self._clock())
        except OSError as error:
            health = member.health.probed(trouble_of(error) or Trouble.FAULT, in_words(error), self._clock())
        self._pool.change(member, health)

    async def _claim_again(self, member: Member) -> None:
        try:
            disk = await self._answer(lambda: self._claim(member.directory))
            (made,) = self._members.claimed([(member.directory, disk)], self._clock())
        except (ForebayError, TimeoutError) as error:
            said, now = one_line(error), self._clock()
            since = member.health.since if member.health.state is State.DOWN else now
            self._pool.change(member, Health(State.DOWN, said, since, now + CLAIM_SECONDS))
            return
        self._pool.attach(member, made)

    async def _answer(self, work: Callable[[], T]) -> T:
        """What the work gives; a thread that hangs is left behind."""
        return await asyncio.wait_for(
            asyncio.get_running_loop().run_in_executor(self._threads, work), self._answer_seconds
        )
