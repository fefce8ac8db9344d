"""One plan for many evictions: used up in order, by each as far as he may, and while it is fresh."""

import numpy as np

from forebay_core.eviction import BEYOND, FRESH_SECONDS, NOBODY, POLICIES, UNKNOWN, Departures, Residents, plan
from tests.server.scripted import ManualClock


def residents(*next_use: float, capacity: int = 10_000) -> tuple[list[str], Residents]:
    """Pieces of 10 bytes, named by their number and used in that order."""
    count = len(next_use)
    numbers = np.arange(count)
    found = Residents(
        np.full(count, 10), np.array(next_use), numbers.astype(np.float64), np.zeros(count, np.bool_), capacity
    )
    return [str(number) for number in numbers], found


class Plan:
    """A fresh plan over some residents, version 1."""

    def __init__(self, *next_use: float, missing: int = 10, capacity: int = 10_000) -> None:
        self.clock = ManualClock()
        self.departures: Departures[str] = Departures(self.clock)
        keys, found = residents(*next_use, capacity=capacity)
        self.departures.keep(plan(POLICIES["next-use"], keys, found, missing), version=1, made_at=self.clock())

    def take(
        self,
        missing: int = 10,
        *,
        before: float | None = None,
        version: int = 1,
        in_use: str = "",
        displaces: bool = True,
    ) -> list[str] | None:
        found = self.departures.take(
            missing, before=before, version=version, is_free=lambda key: key != in_use, displaces=displaces
        )
        return None if found is None else [departure.key for departure in found]


def test_a_plan_is_for_more_than_is_missing_but_for_no_large_part_of_the_cache() -> None:
    uses = [NOBODY, *map(float, range(60))]
    policy = POLICIES["next-use"]
    assert len(plan(policy, *residents(*uses), 10)) == 32
    assert len(plan(policy, *residents(*uses, capacity=800), 10)) == 5
    assert len(plan(policy, *residents(*uses, capacity=800), 200)) == 20
    assert plan(policy, *residents(*uses), 620) == []


def test_a_plan_is_used_up_in_order_skips_what_is_in_use_and_ends_with_its_time() -> None:
    made = Plan(NOBODY, *map(float, range(60)))
    assert made.take(20, in_use="60") == ["0", "59"]
    assert made.take(version=2) is None, "other needs, another plan"
    assert made.take() == ["58"]
    made.clock.now += FRESH_SECONDS
    assert made.take() is None


def test_a_prefetch_takes_nothing_that_is_needed_as_soon_and_leaves_the_plan_to_others() -> None:
    made = Plan(5.0, 9.0, NOBODY)
    assert made.take(20, before=9.0) == [], "not even what nobody needs, since that is not enough"
    assert made.take(20, before=8.0) == ["2", "1"]
    assert made.take(before=8.0) == []
    assert made.take() == ["0"]
    assert made.take() is None, "used up"


def test_a_prefetch_passes_over_what_is_not_known_yet() -> None:
    made = Plan(5.0, UNKNOWN, NOBODY)
    assert made.take(20, before=1.0) == ["2", "0"]
    assert made.take() == ["1"]


def test_a_prefetch_that_may_displace_nothing_takes_what_nobody_needs_by_the_horizon() -> None:
    made = Plan(5.0, 9.0, BEYOND, NOBODY)
    assert made.take(20, before=1.0, displaces=False) == ["3", "2"]
    assert made.take(before=1.0, displaces=False) == []
    assert made.take(before=1.0) == ["1"]
