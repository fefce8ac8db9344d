"""The policy that keeps what came first: a cache that is full stays as it is.

Readers take pieces as files, so what comes later has to lie somewhere while it is read: it passes through a window of
the cache, the last to come the first to leave. For one pass an epoch it is as good as any policy can be, whatever the
order; it never adapts.
"""

from typing import ClassVar

import numpy as np

from forebay_core.eviction.contract import Residents, Seconds

_WINDOW_PART = 16
"""Enough for what several readers hold at the same time."""


class Never:
    """`--eviction never`."""

    name: ClassVar[str] = "never"

    def rank(self, residents: Residents) -> tuple[Seconds, Seconds]:
        newer = residents.bytes.sum() - np.cumsum(residents.bytes)
        newest_first = -np.arange(len(residents), dtype=np.float64)
        newest_first[newer >= residents.capacity_bytes // _WINDOW_PART] = np.nan
        return newest_first, np.zeros(len(residents))
