"""A directory of the configuration: its cache once it could be claimed, and how its disk is. The pool changes it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from forebay_core.capacity import CacheDirectory, Capacity
from forebay_core.errors import ForebayError, one_line
from forebay_server.cache.cache import Cache
from forebay_server.disk.cache_disk import CacheDisk
from forebay_server.pool.health import CLAIM_SECONDS, Allowance, Health, Speed, State, in_words, trouble_of
from forebay_server.pool.placing import Candidate
from forebay_server.pool.shares import Claim, capacities


@dataclass(slots=True, eq=False)
class Member:
    """A directory of the configuration."""

    directory: CacheDirectory
    #: None while it could not be claimed.
    cache: Cache | None
    health: Health = field(default_factory=Health)
    allowance: Allowance = field(default_factory=lambda: Allowance(0))
    speed: Speed = field(default_factory=Speed)

    @property
    def path(self) -> Path:
        return self.directory.path if self.cache is None else self.cache.disk.root

    @property
    def is_draining(self) -> bool:
        """Whether the operator wants nothing more on it."""
        return self.cache is not None and self.cache.disk.is_draining

    @property
    def is_usable(self) -> bool:
        """Whether what is on it counts."""
        return self.cache is not None and self.health.is_readable

    @property
    def takes_fills(self) -> bool:
        return self.cache is not None and self.health.is_writable and not self.is_draining

    def candidate(self, *, is_slow: bool) -> Candidate:
        """The disk for the choice of where to fill. Raises `OSError` where it does not even say what is free."""
        assert self.cache is not None
        ledger = self.cache.ledger
        return Candidate(
            id=self.cache.disk.id,
            capacity_bytes=ledger.capacity_bytes,
            free_bytes=-ledger.missing(0),
            most_bytes=ledger.most(),
            held_bytes=self.cache.held_bytes,
            fills=self.cache.fills,
            is_slow=is_slow,
            is_unstable=self.health.state is State.UNSTABLE,
        )


class Members:
    """Makes caches of claimed disks, each of its part of its file system."""

    def __init__(self, general: Capacity, make: Callable[[CacheDisk, int], Cache]) -> None:
        self._general, self._make = general, make
        self._claims: list[Claim] = []

    def of(self, found: Iterable[tuple[CacheDirectory, CacheDisk | ForebayError]], now: float) -> list[Member]:
        """A member for each directory, in their order. Raises as `claimed`."""
        listed = list(found)
        disks = [(directory, disk) for directory, disk in listed if isinstance(disk, CacheDisk)]
        made = {member.directory: member for member in self.claimed(disks, now)}
        return [made.get(directory) or _unclaimed(directory, disk, now) for directory, disk in listed]

    def claimed(self, found: Sequence[tuple[CacheDirectory, CacheDisk]], now: float) -> list[Member]:
        """Members of these disks, besides those of before. Raises `ConfigurationError` where those on one file system
        are to hold more than it has."""
        kept = [claim for claim in self._claims if claim.path not in {disk.root for _, disk in found}]
        new = [Claim(disk.root, directory.capacity, disk.device, disk.size_bytes) for directory, disk in found]
        sizes = capacities([*kept, *new], self._general)[len(kept) :]
        self._claims = [*kept, *new]
        return [
            Member(directory, self._make(disk, size), _health(disk, now), Allowance(size))
            for (directory, disk), size in zip(found, sizes, strict=True)
        ]


def _unclaimed(directory: CacheDirectory, reason: object, now: float) -> Member:
    said = one_line(reason) if isinstance(reason, ForebayError) else str(reason)
    return Member(directory, None, Health(State.DOWN, said, now, now + CLAIM_SECONDS))


def _health(disk: CacheDisk, now: float) -> Health:
    health = Health(since=now)
    if disk.refusal is not None and (trouble := trouble_of(disk.refusal)) is not None:
        return health.failed(trouble, in_words(disk.refusal), now)
    return health
