"""Says that the daemon's cache has no room for what an order mixes, and with which numbers it would have.

What is mixed at a time is read off the needs: the pieces whose bounds hold a position in the middle of an epoch. Called
by the planner's thread, at most once for a loader does it speak.
"""

import logging
from collections.abc import Callable

import numpy as np

from forebay.loading.chunk import Int64
from forebay.order import RankOrder

_log = logging.getLogger("forebay")
_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
_UNITS = ((_GIB, "GiB"), (_MIB, "MiB"), (_KIB, "KiB"))


class SmallCacheWarning:
    """One warning for one loader.

    order: what the loader reads.
    piece_bytes: int64 [pieces], how large each piece is in the cache.
    window: that of the order; None where it has none, since any sample may come at any time.
    with_window: the same order with another window.
    capacity_bytes: asks how large the cache is, all in all; 0 where nobody says.
    """

    def __init__(
        self,
        order: RankOrder,
        piece_bytes: Int64,
        *,
        window: int | None,
        with_window: Callable[[int], RankOrder],
        capacity_bytes: Callable[[], int],
    ) -> None:
        self._order, self._piece_bytes, self._window = order, piece_bytes, window
        self._with_window, self._capacity_bytes = with_window, capacity_bytes
        self._has_spoken = False
        self._growth = 1.0

    def __call__(self, epoch: int, budget_bytes: int, growth: float = 1.0) -> None:
        """The loader cannot hold what it should: `budget_bytes` is its part of the cache.

        growth: how much larger in the cache the pieces have turned out to be than they were stated.
        """
        if self._has_spoken:
            return
        self._has_spoken = True
        self._growth = growth
        mixed = self._mixed(self._order, epoch)
        _log.warning(
            "the order mixes about %s at a time and the cache gives this loader %s, so pieces may be fetched again "
            "within the epoch: %s",
            _rounded(mixed),
            _rounded(budget_bytes),
            self._remedy(epoch, mixed, budget_bytes),
        )

    def _remedy(self, epoch: int, mixed: int, budget_bytes: int) -> str:
        capacity = self._capacity_bytes()
        enough = _size_above(-(-capacity * mixed // max(1, budget_bytes)))
        remedy = f"give the daemon --capacity of at least {enough}" if capacity else "give the daemon more --capacity"
        if self._window is None:
            return f'{remedy}, or take shuffle="window"'
        window = self._fitting_window(self._window, epoch, budget_bytes)
        return remedy if window is None else f"{remedy}, or order=forebay.OrderOptions(window={window})"

    def _fitting_window(self, window: int, epoch: int, budget_bytes: int) -> int | None:
        """The largest window found that fits into the budget, from this one on down, or None."""
        while window > 1:
            mixed = self._mixed(self._with_window(window), epoch)
            if mixed <= budget_bytes:
                return window
            window = min(window - 1, window * budget_bytes // mixed)
        return None

    def _mixed(self, order: RankOrder, epoch: int) -> int:
        return int(mixed_bytes(order, self._piece_bytes, epoch) * self._growth)


def mixed_bytes(order: RankOrder, piece_bytes: Int64, epoch: int) -> int:
    """Bytes of the pieces that this rank has to hold at once to bring in none twice: those in mid-epoch."""
    needs, middle = order.needs(epoch, 0), order.samples // 2
    pieces, _ = np.unique(needs.pieces[(needs.first <= middle) & (middle < needs.last)], return_index=True)
    return int(piece_bytes[pieces].sum())


def _rounded(size: int) -> str:
    unit, name = next(((unit, name) for unit, name in _UNITS if size >= unit), (1, "bytes"))
    return f"{size / unit:.3g} {name}"


def _size_above(size: int) -> str:
    """As `--capacity` takes it, rounded up."""
    unit, name = next(((unit, name) for unit, name in _UNITS if size >= 4 * unit), _UNITS[-1])
    return f"{-(-size // unit)}{name}"
