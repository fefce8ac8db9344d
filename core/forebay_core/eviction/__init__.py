"""Which cached pieces make room for others: rules alone, without a cache.

Read in this order: `contract` (what a policy is, and what none of them may do), `next_use`, `lru` and `never` (the
policies), `departures` (one choice for many evictions), `transit` (how far ahead a prefetch may push others out).
"""

from forebay_core.eviction.contract import BEYOND, NOBODY, UNKNOWN, Policy, Residents, may_go, victims
from forebay_core.eviction.departures import FRESH_SECONDS, Departure, Departures, departures_of, plan
from forebay_core.eviction.lru import LeastRecentlyUsed
from forebay_core.eviction.never import Never
from forebay_core.eviction.next_use import NextUse
from forebay_core.eviction.transit import Transit, window_bytes

#: By the name that `--eviction` takes.
POLICIES: dict[str, Policy] = {policy.name: policy for policy in (NextUse(), LeastRecentlyUsed(), Never())}
DEFAULT_POLICY = NextUse.name

__all__ = [
    "BEYOND",
    "DEFAULT_POLICY",
    "FRESH_SECONDS",
    "NOBODY",
    "POLICIES",
    "UNKNOWN",
    "Departure",
    "Departures",
    "LeastRecentlyUsed",
    "Never",
    "NextUse",
    "Policy",
    "Residents",
    "Transit",
    "departures_of",
    "may_go",
    "plan",
    "victims",
    "window_bytes",
]
