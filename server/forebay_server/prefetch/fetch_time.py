"""How long the fetch of a piece will take, from how long the latest ones took. Pure.

The estimate rises fast and falls slowly: a piece that comes too early costs nothing, one that is late makes a trainer
wait.
"""

_RISE, _FALL = 0.5, 0.1
#: Before anything is known.
_FIRST_SECONDS = 1.0


class FetchTime:
    """An estimate for pieces of the sizes seen lately."""

    def __init__(self) -> None:
        self._seconds = _FIRST_SECONDS
        self._bytes = 0.0

    def took(self, size: int, seconds: float) -> None:
        """A fetch of `size` bytes took so long."""
        if not self._bytes:
            self._seconds, self._bytes = seconds, float(size)
            return
        weight = _RISE if seconds > self._seconds else _FALL
        self._seconds += weight * (seconds - self._seconds)
        self._bytes += weight * (size - self._bytes)

    def predicted(self, size: int) -> float:
        """Seconds. A larger piece than the latest takes longer in proportion; a smaller one as long as they did."""
        return self._seconds * max(1.0, size / self._bytes) if self._bytes else self._seconds
