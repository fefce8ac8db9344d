"""The policy that knows nothing of the future: the least recently used leaves first.

Near the worst for epochs: of data that is read once an epoch, what was read longest ago comes next. For comparison, and
for readers that publish no needs.
"""

from typing import ClassVar

import numpy as np

from forebay_core.eviction.contract import Residents, Seconds


class LeastRecentlyUsed:
    """`--eviction lru`."""

    name: ClassVar[str] = "lru"

    def rank(self, residents: Residents) -> tuple[Seconds, Seconds]:
        return residents.last_used, np.zeros(len(residents))
