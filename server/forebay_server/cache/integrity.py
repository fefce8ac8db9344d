"""What the words of the cache's integrity mean: what was counted, what was found, and how fast one may look. Pure."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields

from forebay_core.errors import ConfigurationError


@dataclass(slots=True)
class IntegrityCounters:
    """Of one cache since the daemon's start."""

    #: Pieces that are known to have reached the disk since.
    synced: int = 0
    #: Pieces and bytes that were read and compared with their checksums, for whatever reason.
    checked: int = 0
    checked_bytes: int = 0
    #: Of these, pieces of an unclean boot, or written to by somebody, that proved to be whole.
    proven: int = 0
    #: Pieces that were not what was written.
    damaged: int = 0
    #: Times that the scrub has been through all pieces.
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class Damage:
    """A piece that is not what was written."""

    key: str
    #: The cache directory.
    disk: str
    #: Of the object that it was made from, and the piece's number in its dataset; empty and 0 where nobody knows.
    url: str
    piece: int
    reason: str
    #: The disk does not give it, whatever it holds.
    is_unreadable: bool = False

    def __str__(self) -> str:
        return f"piece {self.piece} of {self.url or 'an unknown object'} on {self.disk} ({self.key}) {self.reason}"


@dataclass(frozen=True)
class CarePolicy:
    """How much of a disk the care may take. Rates are bytes per second; 0 turns what it is the rate of off."""

    #: Dirty pages are written back by the kernel within half a minute anyway; a sync then finds little to do.
    sync_seconds: float = 30.0
    sync_bytes_per_second: int = 256 << 20
    #: After an unclean boot nothing else has warmed up yet, and a cache that is not proven is fetched again.
    verify_bytes_per_second: int = 256 << 20
    #: A hundredth of what an NVMe gives; a terabyte in 18 hours.
    scrub_bytes_per_second: int = 16 << 20
    #: From the beginning of a round to that of the next at the least.
    scrub_round_seconds: float = 86_400.0

    def __post_init__(self) -> None:
        for option in fields(self):
            if not 0 <= getattr(self, option.name) < float("inf"):
                raise ConfigurationError(f"{option.name} must be 0 or more, not {getattr(self, option.name)}")


class Pacer:
    """Lets so many bytes a second go by, and catches up on what a pause of its caller left over for a moment."""

    def __init__(
        self,
        bytes_per_second: float,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`bytes_per_second` may be infinite. `sleep` takes seconds."""
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._due = clock()

    async def __call__(self, count: int) -> None:
        """Waits until `count` bytes more may have gone by."""
        self._due = max(self._due, self._clock() - _CATCH_UP_SECONDS) + count / self._bytes_per_second
        if (early := self._due - self._clock()) > 0:
            await self._sleep(early)


_CATCH_UP_SECONDS = 1.0
