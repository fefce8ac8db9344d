"""How far ahead of its readers a prefetch may push others out: the window through which pieces pass.

A prefetch into free room, or over what no session needs, costs nothing. One that displaces what somebody needs later
gives up, for being early, what would have been the better choice at the time of its use: pieces read in between are
needed later still. Without a bound such prefetches fetch nearly everything anew in each epoch; without any, prefetching
ends when the cache is full. So what was brought in over others and has not been read yet may take one part of the
cache. When that is full, only the pieces in it that are needed later make room for what is needed sooner.

Bookkeeping alone; used on the event loop, and by the simulator.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K")
"""What names a piece."""

_PART = 32
"""The cost of being early grows with it. With this part of the cache hit ratios stay within about a hundredth of what
they are without any prefetch (`benchmarks/bench_eviction.py`), and of 100 GiB it is fifty of the largest usual pieces:
seconds of a fast network."""


_DUE_PART = 8
"""What is due, needed before it could be fetched any later, would be a demand in a moment: it gives up next to nothing
for being early, and where it has no room its reader waits. The bound is for caches that their readers turn over in
seconds, where all would be due."""


def window_bytes(capacity_bytes: int, *, due: bool = False) -> int:
    """The part of a cache through which pieces pass; for those that are due."""
    return capacity_bytes // (_DUE_PART if due else _PART)


@dataclass(slots=True)
class Transit(Generic[K]):
    """The pieces that were brought in over others and are not read yet, with their bytes."""

    _bytes: dict[K, int] = field(default_factory=dict)
    _total: int = 0

    def __contains__(self, key: K) -> bool:
        return key in self._bytes

    def __iter__(self) -> Iterator[K]:
        return iter(self._bytes)

    @property
    def bytes(self) -> int:
        """What they take together."""
        return self._total

    def has_room(self, key: K, total: int, capacity_bytes: int, *, due: bool = False) -> bool:
        """Whether a piece of so many bytes may push others out. One always may, however small the cache is."""
        others = self._total - self._bytes.get(key, 0)
        return others == 0 or others + total <= window_bytes(capacity_bytes, due=due)

    def enter(self, key: K, total: int) -> None:
        """The piece pushes others out, or takes more."""
        self.leave(key)
        self._bytes[key] = total
        self._total += total

    def leave(self, key: K) -> None:
        """The piece is read, or gone. Does nothing for any other."""
        self._total -= self._bytes.pop(key, 0)
