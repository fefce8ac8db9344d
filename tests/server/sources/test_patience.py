"""When a request is given up: by attempts, by time, and not while a store that throttles it answers others."""

import pytest
from obstore import exceptions as obstore_errors
from tenacity import AsyncRetrying, RetryCallState

from forebay_server.sources.gate import Gate
from forebay_server.sources.pacing import Pace, PaceRules
from forebay_server.sources.remote import RemoteCounters
from forebay_server.sources.retries import Patience, RetryPolicy
from tests.server.scripted import ManualClock

POLICY = RetryPolicy(attempts=3, give_up_seconds=10.0, first_wait_seconds=1.0, longest_wait_seconds=4.0)


def failed(status: int) -> RetryCallState:
    error = obstore_errors.GenericError(f"Generic S3 error: no\n\nDebug source:\n    status: {status},\n")
    state = RetryCallState(AsyncRetrying(), None, (), {})
    state.set_exception((type(error), error, None))
    return state


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def gate(clock: ManualClock) -> Gate:
    return Gate(Pace(PaceRules(), lambda: 0.5), RemoteCounters(), clock)


def test_so_many_attempts_may_fail_and_no_more(gate: Gate) -> None:
    patience = Patience(POLICY, gate)
    assert [patience.is_over(failed(500)) for _ in range(3)] == [False, False, True]


def test_no_attempt_is_begun_after_the_time_is_over(gate: Gate, clock: ManualClock) -> None:
    patience = Patience(POLICY, gate)
    clock.now += 9
    assert not patience.is_over(failed(500))
    clock.now += 1
    assert patience.is_over(failed(500))


def test_attempts_that_were_throttled_do_not_count_and_their_time_does(gate: Gate, clock: ManualClock) -> None:
    patience = Patience(POLICY, gate)
    assert not any(patience.is_over(failed(503)) for _ in range(100))
    clock.now += 10
    assert patience.is_over(failed(429))


def test_a_store_that_answers_others_is_not_given_up_for_throttling(gate: Gate, clock: ManualClock) -> None:
    patience = Patience(POLICY, gate)
    for _ in range(10):
        clock.now += 9
        gate.pace.succeeded(gate.pace.begin(), clock.now)
        assert not patience.is_over(failed(503))
    clock.now += 10
    assert patience.is_over(failed(503))


def test_that_it_answers_others_does_not_help_a_request_that_fails_otherwise(gate: Gate, clock: ManualClock) -> None:
    patience = Patience(POLICY, gate)
    clock.now += 10
    gate.pace.succeeded(gate.pace.begin(), clock.now)
    assert patience.is_over(failed(500))


def test_a_throttled_request_waits_at_the_gate_alone_and_others_back_off(gate: Gate) -> None:
    patience = Patience(POLICY, gate)
    assert patience.wait(failed(503)) == 0.0
    assert any(0.0 < patience.wait(failed(500)) <= 4.0 for _ in range(100))
