"""Where the time of a batch went (pure).

`fetch_seconds` is the time the trainer was blocked in `next()`. Its parts are the stages of the awaited batch, cut to
the interval in which the trainer was blocked; what no stage explains is `queue`. So the parts add up to
`fetch_seconds` by construction. All instants are of the monotonic clock, which the processes of one machine share.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

StageName = Literal["remote_wait", "read", "transform", "collate"]


class Stage(NamedTuple):
    """A stretch of work on a batch, in seconds of the monotonic clock."""

    name: StageName
    start: float
    stop: float


class BatchTiming(NamedTuple):
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
    parts: dict[StageName, float] = {"remote_wait": 0.0, "read": 0.0, "transform": 0.0, "collate": 0.0}
    blocked = queue = blocked_until - blocked_from
    for name, start, stop in stages:
        overlap = (stop if stop < blocked_until else blocked_until) - (start if start > blocked_from else blocked_from)
        if overlap > 0.0:
            parts[name] += overlap
            queue -= overlap
    return BatchTiming(
        step,
        blocked,
        parts["remote_wait"],
        parts["read"],
        parts["transform"],
        parts["collate"],
        max(0.0, queue),
        samples,
        at,
    )
