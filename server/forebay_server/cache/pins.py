"""Which pieces must stay in the cache, on whichever disk they are: those that sessions hold leases on.

A piece may be pinned before it is there. Used on the event loop.
"""

from collections import Counter
from collections.abc import Callable, Iterator


class Pins:
    """How often each key is pinned."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls `listener()` each time that a key is free again, from now on."""
        self._listeners.append(listener)

    def pin(self, key: str) -> None:
        """Keeps the piece from eviction until as many `unpin`."""
        self._counts[key] += 1

    def unpin(self, key: str) -> None:
        self._counts[key] -= 1
        if self._counts[key] <= 0:
            del self._counts[key]
            for listener in self._listeners:
                listener()

    def __contains__(self, key: str) -> bool:
        return key in self._counts

    def __iter__(self) -> Iterator[str]:
        return iter(self._counts)
