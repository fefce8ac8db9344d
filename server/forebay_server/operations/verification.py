"""`forebay verify`: all cached pieces read in full and compared with their checksums, now.

A running daemon does it for the pieces that it holds (`verify`, on the event loop), and `verify_directory` for a cache
directory that no daemon holds. Both change nothing unless they are asked to repair: then what is damaged goes into
quarantine and is fetched again when it is needed.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass

from forebay_server.cache.cache import Cache
from forebay_server.cache.checking import damage_of, reject
from forebay_server.cache.integrity import Damage, Pacer
from forebay_server.disk.cache_disk import CacheDisk
from forebay_server.disk.custody import Custody

#: Progress is told this often.
_TELL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class VerifyStep:
    """How far a verification is, and what it found since the step before."""

    pieces: int
    bytes: int
    total_pieces: int
    total_bytes: int
    damaged: tuple[Damage, ...] = ()


async def verify(caches: Sequence[Cache], *, repair: bool, clock: Callable[[], float]) -> AsyncIterator[VerifyStep]:
    """Steps, the last of which has all pieces. Nothing slows it down but the disks."""
    for cache in caches:
        await cache.counted()
    entries = [(cache, entry) for cache in caches for entry in cache.entries()]
    progress = _Progress(len(entries), sum(entry.size for _, entry in entries), clock)
    pace = Pacer(float("inf"), clock=clock)
    for cache, entry in entries:
        damage = await damage_of(cache, entry, pace)
        if damage is not None and repair:
            reject(cache, entry, damage)
        if (step := progress.advance(entry.size, damage)) is not None:
            yield step
    yield progress.step()


def verify_directory(disk: CacheDisk, *, repair: bool, clock: Callable[[], float]) -> Iterator[VerifyStep]:
    """The same for a directory that is claimed and has no cache over it. Blocks."""
    disk.allows_changed = True
    custody = Custody(disk)
    try:
        keys = sorted(disk.keys())
        progress = _Progress(len(keys), sum(disk.size_of(key) for key in keys), clock)
        for key in keys:
            size = disk.size_of(key)
            damage = _damage(disk, custody, key)
            if damage is not None and repair and not custody.quarantine(key):
                disk.remove(key)
            if (step := progress.advance(size, damage)) is not None:
                yield step
        yield progress.step()
    finally:
        custody.close()


def _damage(disk: CacheDisk, custody: Custody, key: str) -> Damage | None:
    entry, origin = disk.lookup(key), disk.origin(key)
    reason = "is not whole: it does not fit its sidecar, or has none" if entry is None else custody.difference(entry)
    if reason is None:
        return None
    url, piece = ("", 0) if origin is None else (origin.url, origin.piece)
    return Damage(key, str(disk.root), url, piece, reason)


class _Progress:
    """Collects what is to be told."""

    def __init__(self, total_pieces: int, total_bytes: int, clock: Callable[[], float]) -> None:
        self._totals = total_pieces, total_bytes
        self._clock = clock
        self._told_at = clock()
        self._pieces = self._bytes = 0
        self._damaged: list[Damage] = []

    def advance(self, size: int, damage: Damage | None) -> VerifyStep | None:
        """One piece further: what is to be told now, if anything is."""
        self._pieces += 1
        self._bytes += size
        if damage is not None:
            self._damaged.append(damage)
        return self.step() if self._clock() - self._told_at >= _TELL_SECONDS else None

    def step(self) -> VerifyStep:
        self._told_at = self._clock()
        damaged, self._damaged = tuple(self._damaged), []
        return VerifyStep(self._pieces, self._bytes, *self._totals, damaged)
