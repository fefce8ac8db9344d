"""What is simulated: jobs that read pieces side by side on one node, and the cache before them."""

from dataclasses import dataclass

import numpy as np

from forebay.order import RankOrder
from forebay.order.lanes import Int64
from forebay_core.errors import ConfigurationError
from forebay_core.eviction import DEFAULT_POLICY, POLICIES


@dataclass(frozen=True)
class Job:
    """One loader.

    order: what it reads.
    pieces: int64, the number of each of the order's pieces among all pieces of the scenario: jobs share what has the
        same number.
    epochs: how many it reads.
    positions_per_second: of the order, over all its ranks.
    starts_at: seconds.
    """

    order: RankOrder
    pieces: Int64
    epochs: int
    positions_per_second: float
    starts_at: float = 0.0

    def time_of(self, position: float) -> float:
        """When it is at a position, counted over all epochs; in seconds."""
        return self.starts_at + position / self.positions_per_second

    @property
    def ends_at(self) -> float:
        return self.time_of(self.epochs * self.order.samples)


@dataclass(frozen=True)
class Scenario:
    """Jobs and a cache. Raises `ConfigurationError` for what cannot work.

    piece_bytes: int64, of every piece.
    capacity_bytes: of the cache.
    eviction: the name of a policy.
    prefetch: whether pieces are fetched ahead of their need.
    """

    jobs: tuple[Job, ...]
    piece_bytes: Int64
    capacity_bytes: int
    eviction: str = DEFAULT_POLICY
    prefetch: bool = True

    def __post_init__(self) -> None:
        if self.eviction not in POLICIES:
            raise ConfigurationError(f"eviction is one of {', '.join(POLICIES)}, not {self.eviction!r}")
        if not self.jobs or self.capacity_bytes < 1:
            raise ConfigurationError(
                f"a simulation needs jobs and a cache; got {len(self.jobs)} jobs and {self.capacity_bytes} bytes"
            )
        for job in self.jobs:
            if len(job.pieces) and int(np.max(job.pieces)) >= len(self.piece_bytes):
                raise ConfigurationError(
                    f"a job reads piece {int(np.max(job.pieces))}, and there are {len(self.piece_bytes)} pieces"
                )
