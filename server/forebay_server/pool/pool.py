"""The node's cache: a `Cache` for each of its disks, and which of them holds, or gets, a piece.

A piece's disk is chosen once, when its fill begins, because who leases a piece in fill is told where it will appear; a
fill that its disk fails moves to another. What is found on any disk is used there, and of two copies one is kept. What
goes wrong with a disk is told here (`failed`), and what follows is decided by `health`. Everything happens on the event
loop.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from forebay_core.errors import CapacityError, ConfigurationError
from forebay_server.cache.cache import Cache
from forebay_server.cache.pins import Pins
from forebay_server.concurrency import end_all
from forebay_server.disk.cache_disk import CacheDisk
from forebay_server.disk.digests import Digest
from forebay_server.disk.entry import Entry
from forebay_server.pool.health import Health, Trouble, in_words, slow_ones, trouble_of
from forebay_server.pool.member import Member
from forebay_server.pool.placing import choose

_log = logging.getLogger(__name__)
_READ_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Stored:
    """A whole piece, and the cache of the disk that holds it."""

    cache: Cache
    entry: Entry


class Pool:
    """All cache directories of a node, in the order of the configuration."""

    def __init__(self, members: Sequence[Member], pins: Pins, *, clock: Callable[[], float]) -> None:
        self.members = list(members)
        self.pins = pins
        #: Set when a disk's health has changed.
        self.has_changed = asyncio.Event()
        #: Called with each cache that is attached later.
        self.on_attach: Callable[[Cache], None] = lambda _cache: None
        self._clock = clock
        self._listeners: list[Callable[[str, bool], None]] = []
        self._work: set[asyncio.Task[object]] = set()
        #: Of disks that were mounted anew.
        self._retired: list[Cache] = []
        for cache in self.caches:
            self._listen_to(cache)

    # -- what is there --------------------------------------------------------------------------------------------

    def find(self, key: str) -> Stored | None:
        """The whole piece `key`, checked against its file; None where it must be filled."""
        for cache in sorted(self.caches, key=lambda cache: not cache.holds(key)):
            if (entry := cache.find(key)) is not None:
                return Stored(cache, entry)
        return None

    def holds(self, key: str) -> bool:
        """Whether the piece is there as far as the books say, without a look at its file."""
        return any(cache.holds(key) for cache in self.caches)

    def listen(self, listener: Callable[[str, bool], None]) -> None:
        """Calls `listener(key, is_there)` at each arrival and departure from now on."""
        self._listeners.append(listener)

    def digest(self, key: str) -> Digest | None:
        """What the piece held when it left, on whatever disk it was. Blocks; on any thread."""
        found = (cache.digests.get(key) for cache in self.caches)
        return next((digest for digest in found if digest is not None), None)

    def keys(self) -> Iterator[str]:
        return chain.from_iterable(cache.keys() for cache in self.caches)

    def __len__(self) -> int:
        return sum(map(len, self.caches))

    @property
    def caches(self) -> list[Cache]:
        """Of the directories that were claimed; one whose disk is down holds nothing."""
        return [member.cache for member in self.members if member.cache is not None]

    @property
    def usable(self) -> list[Cache]:
        """Those of which what they hold counts."""
        return [member.cache for member in self.members if member.is_usable and member.cache is not None]

    @property
    def disks(self) -> list[CacheDisk]:
        return [cache.disk for cache in self.caches]

    @property
    def capacity_bytes(self) -> int:
        """Of all disks together that are of use, as it is at the moment."""
        return sum(cache.ledger.capacity_bytes for cache in self.usable)

    @property
    def evictions(self) -> int:
        return sum(cache.room.evictions for cache in self.caches)

    @property
    def takes_fills(self) -> bool:
        """Whether any disk does."""
        return any(member.takes_fills for member in self.members)

    def is_slow(self, member: Member) -> bool:
        """Whether the disk takes far longer to write to than the fastest."""
        return str(member.path) in slow_ones({str(each.path): each.speed for each in self.members})

    # -- arrivals -------------------------------------------------------------------------------------------------

    def expect(self, key: str, size: int, *, avoid: Collection[Cache] = ()) -> Cache | None:
        """Announces a fill of about `size` bytes: the cache that it goes to, where nothing of an earlier file or error
        is at the piece's path when this returns; None where there is no other than those to avoid.

        A piece that is being evicted is filled again where it was: it may yet be spared. So is one that is in doubt.
        """
        avoided, failure = set(avoid), None
        while (cache := self._leaving(key, avoided) or self._placed(key, size, avoided)) is not None:
            try:
                cache.expect(key)
            except OSError as error:
                cache.arrived(key)
                self.failed(cache, error)
                avoided.add(cache)
                failure = error
                continue
            return cache
        if failure is not None and not avoid:
            raise failure
        return None

    def moved(self) -> None:
        """A trainer has read on, or room was given back: what waits for room may hope."""
        for cache in self.caches:
            cache.room.moved()

    def wrote(self, cache: Cache, count: int, seconds: float) -> None:
        """So many bytes of a fill went to the disk in that time."""
        if (member := self._member(cache)) is not None:
            member.speed = member.speed.after(count, seconds)

    def no_disk(self) -> CapacityError:
        """Why nothing can be filled, where no disk takes fills."""
        said = "; ".join(
            f"{member.path} is {'draining' if member.is_draining else f'{member.health.state}: {member.health.reason}'}"
            for member in self.members
        )
        return CapacityError(f"no disk of the cache takes new pieces ({said}): forebay disk admit PATH, once it can")

    def _leaving(self, key: str, avoided: Collection[Cache]) -> Cache | None:
        filled = (member.cache for member in self.members if member.takes_fills)
        there = (cache for cache in filled if cache is not None and cache not in avoided)
        return next((cache for cache in there if cache.is_leaving(key) or key in cache.doubts), None)

    def _placed(self, key: str, size: int, avoided: Collection[Cache]) -> Cache | None:
        by_id, candidates = {}, []
        for member in self.members:
            if member.takes_fills and member.cache is not None and member.cache not in avoided:
                try:
                    candidate = member.candidate(is_slow=self.is_slow(member))
                except OSError as error:
                    self.failed(member.cache, error)
                    continue
                by_id[candidate.id] = member.cache
                candidates.append(candidate)
        chosen = choose(candidates, key, size)
        return by_id[chosen.id] if chosen is not None else None

    # -- disks that fail, and come back ---------------------------------------------------------------------------

    def failed(self, cache: Cache, error: OSError, *, wanted_bytes: int = 0) -> None:
        """Something on the disk went wrong, while it was to take so many bytes."""
        trouble, member, now = trouble_of(error), self._member(cache), self._clock()
        if member is None:
            return
        ledger = cache.ledger
        if trouble is Trouble.FULL and ledger.missing(wanted_bytes) <= 0:
            written = sum(min(each.bytes, each.written) for each in ledger.reservations)
            member.allowance = member.allowance.shrunk(ledger.used_bytes + written, now)
            self._allow(member)
            said = member.allowance.bytes(now)
            _log.warning("the disk of %s is full; it may hold %d bytes for now: %s", member.path, said, error)
        if trouble is not None:
            self.change(member, member.health.failed(trouble, in_words(error), now))

    def change(self, member: Member, health: Health) -> None:
        """Takes a disk's new health in. What comes back counts again in the background."""
        before, member.health = member.health, health
        self.has_changed.set()
        if before.state is health.state:
            return
        _log.warning("%s is %s: %s", member.path, health.state, health.reason or f"it was {before.state}")
        if member.cache is None:
            return
        if not health.is_readable:
            member.cache.lose()
        elif not before.is_readable:
            self._in_background(member.cache.regain())

    def attach(self, member: Member, made: Member) -> None:
        """Puts what was made of a member's directory in its place: it could not be claimed before, or was mounted
        anew."""
        assert made.cache is not None
        if member.cache is not None:
            member.cache.lose()
            self._retired.append(member.cache)
        member.cache, member.allowance = made.cache, made.allowance
        self._listen_to(made.cache)
        _log.warning("%s is in use now", member.path)
        member.health = made.health
        self.has_changed.set()
        self._in_background(made.cache.start())
        self.on_attach(made.cache)

    def drain(self, path: str, *, wanted: bool) -> Member:
        """Puts nothing more on a disk, or ends that: then a disk that is out is looked at at once. What is on it is
        served. Raises `ConfigurationError` for a directory that is none of the cache's."""
        member = self._at(path)
        if member.cache is not None:
            try:
                member.cache.disk.drain(wanted)
            except OSError as error:
                _log.warning("%s: a restart will not know that it is %s: %s", member.path, "draining" * wanted, error)
        if not wanted:
            self.change(member, member.health.admitted(self._clock()))
        _log.warning("%s %s", member.path, "takes no new pieces: an operator drains it" if wanted else "is admitted")
        return member

    def _at(self, path: str) -> Member:
        for member in self.members:
            names = {
                str(member.path),
                str(member.directory.path),
                *(() if member.cache is None else [member.cache.disk.id]),
            }
            if str(Path(path)) in names:
                return member
        known = ", ".join(str(member.path) for member in self.members)
        raise ConfigurationError(f"{path} is no cache directory of this daemon; it has {known}")

    def unreadable(self, key: str, disk_id: str) -> None:
        """A reader could not read the piece on that disk: it is filled again, and the disk is looked at.

        Only what this daemon finds itself counts against the disk.
        """
        cache = next((cache for cache in self.caches if cache.disk.id == disk_id), None)
        if cache is None:
            return
        try:
            descriptor = cache.drop(key)
        except OSError as error:
            self.failed(cache, error)
            return
        if descriptor is not None:
            _log.warning("a reader cannot read piece %s on %s; it is fetched again", key, cache.disk.root)
            self._in_background(self._examine(cache, descriptor))

    def look(self) -> None:
        """Lets disks that were found full hold a little more, as time goes by."""
        for member in self.members:
            self._allow(member)

    def _in_background(self, work: Coroutine[Any, Any, object]) -> None:
        task: asyncio.Task[object] = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _examine(self, cache: Cache, descriptor: int) -> None:
        error = await cache.in_thread(_read_through, descriptor)
        if error is not None:
            self.failed(cache, error)

    def _allow(self, member: Member) -> None:
        if member.cache is not None:
            member.cache.ledger.capacity_bytes = member.allowance.bytes(self._clock())

    def _member(self, cache: Cache) -> Member | None:
        """None for the cache of a disk that was mounted anew."""
        return next((member for member in self.members if member.cache is cache), None)

    # -- start and end --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Learns what each disk holds, all at the same time."""
        await asyncio.gather(*(cache.start() for cache in self.caches))

    async def close(self) -> None:
        """Ends what is under way in the background, and writes the indexes to their end."""
        await end_all(list(self._work))
        await asyncio.gather(*(cache.close() for cache in [*self.caches, *self._retired]))

    def _listen_to(self, cache: Cache) -> None:
        cache.listen(lambda key, is_there: self._moved(cache, key, is_there=is_there))

    def _moved(self, cache: Cache, key: str, *, is_there: bool) -> None:
        if is_there and any(other is not cache and other.holds(key) for other in self.caches):
            self._in_background(cache.room.evict([key], reason="duplicate"))
        for listener in self._listeners:
            listener(key, is_there or self.holds(key))


def _read_through(descriptor: int) -> OSError | None:
    """What is wrong with a file, from the device; closes it."""
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        while os.read(descriptor, _READ_BYTES):
            pass
    except OSError as error:
        return error
    finally:
        os.close(descriptor)
    return None
