"""The handle of a save: three futures, the times to them, and what was blocked."""

import pytest

from forebay.checkpoint.handle import POINTS, SaveHandle
from forebay_core.checkpoints.names import Attempt
from forebay_core.errors import CheckpointError, ConfigurationError

ATTEMPT = Attempt(1, 20, "0123456789ab")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_points_are_reached_one_after_another_with_their_seconds() -> None:
    clock = Clock()
    handle = SaveHandle(ATTEMPT, clock)
    assert (handle.staged_seconds, handle.local_seconds, handle.durable_seconds) == (None, None, None)
    for point, seconds in zip(POINTS, (1.0, 3.0, 9.0), strict=True):
        clock.now = 100 + seconds
        handle.reach(point)
        handle.wait(point, timeout=0)
    assert (handle.staged_seconds, handle.local_seconds, handle.durable_seconds) == (1.0, 3.0, 9.0)
    assert handle.step == 20


def test_a_failure_leaves_what_was_reached_and_fails_the_rest() -> None:
    handle = SaveHandle(ATTEMPT)
    handle.reach("staged")
    handle.fail(CheckpointError("the disk is full"))
    handle.wait("staged", timeout=0)
    for point in POINTS[1:]:
        with pytest.raises(CheckpointError, match="the disk is full"):
            handle.wait(point, timeout=0)
    assert "the disk is full" in repr(handle)


def test_waiting_ends_with_the_time_given_and_says_for_what() -> None:
    with pytest.raises(TimeoutError, match="step 20 is not local"):
        SaveHandle(ATTEMPT).wait("local", timeout=0.01)


def test_a_point_that_there_is_none_of_is_named_beside_those_that_there_are() -> None:
    with pytest.raises(ConfigurationError, match="'done': wait for staged, local, durable"):
        SaveHandle(ATTEMPT).wait("done", timeout=0.01)  # type: ignore[arg-type]


def test_a_time_out_that_is_the_reason_of_the_failure_is_raised_as_it_is() -> None:
    handle = SaveHandle(ATTEMPT)
    handle.fail(TimeoutError("the store"))
    with pytest.raises(TimeoutError, match="the store"):
        handle.wait("local", timeout=5)


def test_futures_cannot_be_cancelled_and_blocked_times_add_up() -> None:
    handle = SaveHandle(ATTEMPT)
    assert not handle.local.cancel()
    handle.blocked(0.5)
    handle.blocked(0.25)
    assert handle.blocked_seconds == 0.75
