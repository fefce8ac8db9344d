"""Where the time of a batch went (pure).

`fetch_seconds` is the time the trainer was blocked in `next()`. Its parts are the stages of the awaited batch, cut to
the interval in which the trainer was blocked; what no stage explains is `queue`. So the parts add up to
`fetch_seconds` by construction. All instants are of the monotonic clock, which the processes of one machine share.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

StageName = Literal["remote_wait", "read", "transform", "collate"]


class Stage(NamedTuple):
    """A stretch of work on a batch, in seconds of the monotonic clock."""

    name: StageName
    start: float
    stop: float


@dataclass(frozen=True, slots=True)
class BatchTiming:
    """One batch as the trainer saw it; durations in seconds.

    `step` counts the batches of all epochs as the order numbers them, so it goes on after a resume; `at` is the wall
    clock when the batch was handed over.
    """

    step: int
    fetch_seconds: float
    remote_wait: float
    read: float
    transform: float
    collate: float
    queue: float
    samples: int
    at: float


def time_batch(
    stages: Iterable[Stage], blocked_from: float, blocked_until: float, *, step: int, samples: int, at: float
) -> BatchTiming:
    """Attributes the blocked interval to the stages, which do not overlap one another."""
    parts = {"remote_wait": 0.0, "read": 0.0, "transform": 0.0, "collate": 0.0}
    for stage in stages:
        overlap = min(stage.stop, blocked_until) - max(stage.start, blocked_from)
        if overlap > 0.0:
            parts[stage.name] += overlap
    blocked = blocked_until - blocked_from
    return BatchTiming(
        step=step, fetch_seconds=blocked, queue=max(0.0, blocked - sum(parts.values())), samples=samples, at=at, **parts
    )
