"""The policy for known futures: what is needed furthest away leaves first (L. A. Belady, "A study of replacement
algorithms for a virtual-storage computer", 1966).

First goes what nobody needs, then what nobody needs by the horizon of what sessions have said, then what cannot be told
yet, then the rest by its next use; of equals the least recently used. What lies beyond the horizon is worth more than
what nobody needs: a look-ahead that throws it away does worse than none.
"""

from typing import ClassVar

from forebay_core.eviction.contract import Residents, Seconds


class NextUse:
    """`--eviction next-use`."""

    name: ClassVar[str] = "next-use"

    def rank(self, residents: Residents) -> tuple[Seconds, Seconds]:
        return -residents.next_use, residents.last_used
