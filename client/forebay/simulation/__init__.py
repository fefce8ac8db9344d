"""What a cache of some size would do for some jobs, found by running the code that decides it, on a clock of its own.

The orders and needs are those of `forebay.order`, the policy, its plans and the window of prefetches the daemon's
(`forebay_core.eviction`, `forebay_core.needs`). Left out is what takes time: a fetch is over at once, a trainer never
waits, and reads a step when its turn comes, not some steps ahead. So it says what is fetched how often, not how fast.
Read in this order: `scenario`, `reading`, `cache`, `run`; `optimum` is what no policy can beat.
"""

from forebay.simulation.optimum import optimum
from forebay.simulation.run import Outcome, simulate
from forebay.simulation.scenario import Job, Scenario

__all__ = ["Job", "Outcome", "Scenario", "optimum", "simulate"]
