"""Training waits for the copy that is being taken, and for nothing else."""

import threading

from forebay.checkpoint.guarding import Guard
from forebay.checkpoint.handle import SaveHandle
from forebay.checkpoint.staging import Staging
from forebay_core.checkpoints.names import Attempt
from forebay_core.errors import CheckpointError


def handle() -> SaveHandle:
    return SaveHandle(Attempt(1, 5, "0123456789ab"))


def waiting(guard: Guard) -> threading.Thread:
    thread = threading.Thread(target=guard.wait)
    thread.start()
    return thread


def test_a_step_waits_until_the_copy_is_taken_and_the_time_counts_as_blocked() -> None:
    guard, staging, saved = Guard(), Staging(), handle()
    guard.take(staging, saved)
    step = waiting(guard)
    step.join(0.1)
    assert step.is_alive()
    staging._order({})
    step.join(20)
    assert not step.is_alive()
    assert saved.blocked_seconds >= 0.1


def test_without_a_copy_and_once_it_was_waited_for_nothing_is_waited_for() -> None:
    guard, staging, saved = Guard(), Staging(), handle()
    guard.wait()
    guard.take(staging, saved)
    staging._order({})
    guard.wait()
    blocked = saved.blocked_seconds
    guard.wait()
    assert saved.blocked_seconds == blocked


def test_a_copy_that_fails_holds_up_no_step_and_is_for_others_to_tell() -> None:
    guard, staging = Guard(), Staging()
    guard.take(staging, handle())
    staging._fail(CheckpointError("no memory"))
    guard.wait()
