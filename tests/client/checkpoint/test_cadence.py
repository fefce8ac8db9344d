"""When a checkpoint is due, as a function of steps and of rank 0's clock."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.checkpoint.cadence import Cadence, Look
from forebay_core.errors import ConfigurationError


def test_steps_that_are_multiples_are_due_and_the_step_from_which_training_begins_is_not() -> None:
    cadence = Cadence(every_steps=3)
    assert [step for step in range(10) if cadence.is_due(step)] == [3, 6, 9]


def test_without_a_cadence_nothing_is_due_and_nobody_looks() -> None:
    assert not any(Cadence().is_due(step) for step in range(100))
    assert Cadence().look(7, seconds=1e9, seconds_per_step=0.1) == Look(is_due=False, next_step=None)


@given(
    every=st.floats(0.5, 1e5),
    rates=st.lists(st.floats(1e-3, 30), min_size=1, max_size=5),
)
def test_by_time_a_save_is_late_by_two_steps_at_most_and_looks_are_few(every: float, rates: list[float]) -> None:
    cadence = Cadence(every_seconds=every)
    slowest = max(rates)
    step, now, saved_at, look_at, looks = 0, 0.0, 0.0, 1, 0
    while now < 3 * every and step < 3_000:
        step += 1
        now += rates[step % len(rates)]
        if step < look_at:
            assert now - saved_at < every + 1_000 * slowest
            continue
        looks += 1
        found = cadence.look(step, seconds=now - saved_at, seconds_per_step=now / step)
        assert found.is_due == (now - saved_at >= every)
        assert found.next_step is not None
        assert found.next_step > step
        look_at = found.next_step
        if found.is_due:
            saved_at = now
    assert looks <= step


def test_with_even_steps_a_save_by_time_is_late_by_one_step_at_most() -> None:
    cadence = Cadence(every_seconds=10)
    saved: list[float] = []
    look_at, since = 1, 0.0
    for step in range(1, 1_000):
        now = step * 0.1
        if step < look_at:
            continue
        found = cadence.look(step, seconds=now - since, seconds_per_step=0.1)
        look_at = found.next_step or 0
        if found.is_due:
            saved.append(now - since)
            since = now
    assert len(saved) == 9
    assert all(10 <= seconds < 10.21 for seconds in saved)


@pytest.mark.parametrize("bad", [{"every_steps": 0}, {"every_steps": True}, {"every_steps": 1.5}])
def test_steps_that_are_none_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="save_every_steps"):
        Cadence(**bad)


@pytest.mark.parametrize("bad", [0, -1.0, float("inf"), float("nan"), True, "5"])
def test_seconds_that_are_none_are_refused(bad: Any) -> None:
    with pytest.raises(ConfigurationError, match="save_every_seconds"):
        Cadence(every_seconds=bad)
