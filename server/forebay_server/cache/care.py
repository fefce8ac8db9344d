"""What is done for the pieces of one cache in the background, all of it slowly and none of it in a fill's way.

- *Syncing*: what was filled since is written through to the disk and marked so, every few seconds. What is marked
  counts after a power loss.
- *Proving*: what may not have reached the disk before the machine went down, or was written to by somebody, is read in
  full; until then it is not served. (One that is demanded first is proven by its fill.)
- *Scrubbing*: all pieces are read, round after round, and a restart goes on where it was.

A piece that is not what was written is taken out of use, into the quarantine, and fetched again by whoever needs it.
Three tasks on the event loop; files are read and synced on threads.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass

from forebay_server.cache.cache import Cache
from forebay_server.cache.checking import damage_of, reject
from forebay_server.cache.integrity import CarePolicy, Pacer
from forebay_server.concurrency import repeat
from forebay_server.disk.entry import Entry

_log = logging.getLogger(__name__)
_NOTE = "scrub.json"
#: How often the scrub writes down where it is, in pieces: what is read twice after a restart.
_NOTE_EVERY = 32
#: How often one looks for pieces to prove, and for the time of the next round.
_LOOK_SECONDS = 1.0
_LONGEST_NAP_SECONDS = 60.0
#: Pieces in a row that cannot be read: then it is the disk, and others judge of that.
_UNREADABLE = 3


class Care:
    """The three tasks of one cache."""

    def __init__(
        self, cache: Cache, policy: CarePolicy, *, clock: Callable[[], float], wall_clock: Callable[[], float]
    ) -> None:
        """`clock` for pauses; `wall_clock` gives seconds since 1970, which outlive the process."""
        self.counters = cache.integrity
        self._cache = cache
        self._policy = policy
        self._clock = clock
        self._wall_clock = wall_clock
        self._unsynced: dict[str, None] = {}
        #: Pieces in a row.
        self._unreadable = 0
        cache.listen(self._changed)

    async def run(self) -> None:
        """Works until it is cancelled."""
        await self._cache.counted()
        policy = self._policy
        tasks = []
        if policy.sync_seconds and policy.sync_bytes_per_second:
            tasks.append(repeat(self._sync_later, "syncing pieces"))
        if policy.verify_bytes_per_second:
            tasks.append(repeat(self._prove_later, "proving pieces"))
        if policy.scrub_bytes_per_second:
            tasks.append(repeat(self._scrub_later, "scrubbing"))
        await asyncio.gather(*tasks)

    async def sync(self) -> None:
        """Writes through and marks all that is not marked yet."""
        pace = Pacer(self._policy.sync_bytes_per_second, clock=self._clock)
        for key in list(self._unsynced):
            entry = self._cache.entry(key)
            if entry is None:
                continue  # it has left, or is about to and may yet be spared
            self._unsynced.pop(key, None)
            if not entry.synced:
                await self._sync(entry)
                await pace(entry.size)

    async def prove(self) -> None:
        """Reads all that is not proven; what proves whole counts from then on."""
        pace = Pacer(self._policy.verify_bytes_per_second, clock=self._clock)
        for entry in self._cache.doubts:
            if self._cache.is_current(entry):
                damage = await damage_of(self._cache, entry, pace)
                if damage is not None:
                    reject(self._cache, entry, damage)
                elif await self._cache.revise(entry, self._cache.custody.confirm):
                    self.counters.proven += 1

    async def scrub(self) -> None:
        """Goes on with the round that is under way, to its end; or begins one."""
        round_ = await self._cache.in_thread(self._noted)
        if round_.is_over:
            round_ = _Round(self._wall_clock())
        self._unreadable = 0
        pace = Pacer(self._policy.scrub_bytes_per_second, clock=self._clock)
        there = list(self._cache.keys())
        keys = await self._cache.in_thread(sorted, [key for key in there if key > round_.after])
        try:
            for number, key in enumerate(keys, 1):
                await self._scrub(key, pace)
                if self._unreadable >= _UNREADABLE:
                    _log.error("%s cannot be read: its scrub pauses", self._cache.disk.root)
                    return
                round_.after = key
                if number % _NOTE_EVERY == 0:
                    await self._cache.in_thread(self._note, round_)
            round_.is_over = True
            self.counters.rounds += 1
        finally:
            self._note(round_)

    async def _sync_later(self) -> None:
        await asyncio.sleep(self._policy.sync_seconds)
        await self.sync()

    async def _prove_later(self) -> None:
        await self.prove()
        await asyncio.sleep(_LOOK_SECONDS)

    async def _scrub_later(self) -> None:
        round_ = await self._cache.in_thread(self._noted)
        early = round_.began + self._policy.scrub_round_seconds - self._wall_clock()
        if round_.is_over and early > 0:
            await asyncio.sleep(min(early, _LONGEST_NAP_SECONDS))
        else:
            await self.scrub()
            await asyncio.sleep(_LONGEST_NAP_SECONDS if self._unreadable else _LOOK_SECONDS)

    async def _sync(self, entry: Entry) -> None:
        try:
            await self._cache.in_thread(self._cache.custody.sync, entry.key)
            if await self._cache.revise(entry, self._cache.custody.mark_synced):
                self.counters.synced += 1
        except FileNotFoundError:
            return
        except OSError as error:
            _log.error("piece %s on %s cannot be synced: %s", entry.key, self._cache.disk.root, error)
            self._unsynced[entry.key] = None

    async def _scrub(self, key: str, pace: Pacer) -> None:
        entry = self._cache.entry(key)
        if entry is None or key in self._cache.doubts:
            return
        damage = await damage_of(self._cache, entry, pace)
        self._unreadable = self._unreadable + 1 if damage is not None and damage.is_unreadable else 0
        if damage is not None and self._unreadable < _UNREADABLE:
            reject(self._cache, entry, damage)

    def _changed(self, key: str, is_there: bool) -> None:
        if is_there:
            self._unsynced[key] = None
        else:
            self._unsynced.pop(key, None)

    def _noted(self) -> "_Round":
        content = self._cache.disk.read_note(_NOTE)
        return _Round.parse(content, now=self._wall_clock()) if content else _Round(self._wall_clock())

    def _note(self, round_: "_Round") -> None:
        try:
            self._cache.disk.write_note(_NOTE, round_.text())
        except OSError as error:
            _log.debug("where the scrub of %s is cannot be written down: %s", self._cache.disk.root, error)


@dataclass(slots=True)
class _Round:
    """Where a round of the scrub is: when it began, in seconds since 1970, and the last key that it has read."""

    began: float
    after: str = ""
    is_over: bool = False

    @classmethod
    def parse(cls, content: bytes, *, now: float) -> "_Round":
        """From what `text` gave; a new one from anything else, or from the future."""
        try:
            facts = json.loads(content)
            round_ = cls(float(facts["began"]), str(facts["after"]), bool(facts["is_over"]))
        except (ValueError, LookupError, TypeError):
            return cls(now)
        return round_ if round_.began <= now else cls(now)

    def text(self) -> bytes:
        return json.dumps({"began": self.began, "after": self.after, "is_over": self.is_over}).encode()
