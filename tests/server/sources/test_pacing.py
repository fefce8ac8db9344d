"""The window and the pauses of one store, with time in the test's hand."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_core.errors import ConfigurationError
from forebay_server.sources.pacing import Pace, PaceRules, Ticket

RULES = PaceRules(first=8, most=32, first_pause_seconds=1.0, longest_pause_seconds=10.0, longest_obeyed_seconds=60.0)


def pace(rules: PaceRules = RULES, *, drawn: float = 1.0 - 2**-53) -> Pace:
    """A pace whose pauses are whole, unless something else is drawn."""
    return Pace(rules, lambda: drawn)


def window_of_successes(made: Pace, now: float) -> None:
    """As many successes as the window is large, with others in their places at once, as at a gate with a queue."""
    tickets: deque[Ticket] = deque()
    for _ in range(made.limit):
        while made.may_begin(now):
            tickets.append(made.begin())
        made.succeeded(tickets.popleft(), now)
    for _ in tickets:
        made.ended()


def throttle_all(made: Pace, now: float, retry_after: float | None = None) -> int:
    tickets: list[Ticket] = []
    while made.may_begin(now):
        tickets.append(made.begin())
    for ticket in tickets:
        made.throttled(ticket, now, retry_after)
    return len(tickets)


def test_the_window_grows_by_about_one_for_a_full_window_of_successes_up_to_the_most() -> None:
    made = pace()
    seen = []
    for _ in range(40):
        window_of_successes(made, 0.0)
        seen.append(made.limit)
    assert max(after - before for before, after in zip([8, *seen], seen, strict=False)) <= 1
    assert seen[-1] == 32


def test_a_window_that_is_not_used_does_not_grow() -> None:
    made = pace()
    for _ in range(1000):
        made.succeeded(made.begin(), 0.0)
    assert made.limit == 8


def test_requests_that_were_under_way_together_halve_the_window_once() -> None:
    made = pace()
    assert throttle_all(made, 0.0) == 8
    assert (made.limit, made.in_flight) == (4, 0)


def test_nothing_is_sent_in_a_pause_and_pauses_double_until_a_request_succeeds() -> None:
    made, now, pauses = pace(), 0.0, []
    for _ in range(7):
        assert throttle_all(made, now) >= 1
        assert not made.may_begin(now)
        assert not made.may_begin(made.paused_until - 0.001)
        assert made.may_begin(made.paused_until)
        pauses.append(made.paused_until - now)
        now = made.paused_until
    assert pauses == pytest.approx([1, 2, 4, 8, 10, 10, 10])
    assert made.limit == 1
    made.succeeded(made.begin(), now)
    throttle_all(made, now)
    assert made.paused_until - now == pytest.approx(1)


def test_many_daemons_do_not_come_back_together() -> None:
    made = pace(drawn=0.0)
    throttle_all(made, 0.0)
    assert made.paused_until == pytest.approx(0.5)


@pytest.mark.parametrize(("retry_after", "expected"), [(None, 1.0), (0.0, 1.0), (5.0, 5.0), (3600.0, 60.0)], ids=str)
def test_the_store_is_left_alone_for_as_long_as_it_asks_within_reason(
    retry_after: float | None, expected: float
) -> None:
    made = pace()
    throttle_all(made, 100.0, retry_after)
    assert made.paused_until == pytest.approx(100.0 + expected)


def test_a_late_answer_to_an_old_request_neither_grows_nor_shrinks_the_window_but_may_prolong_the_pause() -> None:
    made = pace()
    old = [made.begin() for _ in range(8)]
    made.throttled(old[0], 0.0, None)
    made.succeeded(old[1], 0.1)
    made.throttled(old[2], 0.1, None)
    assert made.limit == 4
    assert made.paused_until == pytest.approx(1.0)
    for _ in old[4:]:
        made.ended()
    throttle_all(made, 1.0)
    assert made.limit == 2
    assert made.paused_until == pytest.approx(3.0), "the second pause in a row, whatever an old request came to"
    made.throttled(old[3], 1.2, 20.0)
    assert made.limit == 2
    assert made.paused_until == pytest.approx(21.2)


def test_a_store_that_has_recovered_is_back_at_half_its_window_within_a_few_round_trips_and_then_grows_on() -> None:
    made, now = pace(), 0.0
    for _ in range(30):
        window_of_successes(made, now)
    assert made.limit >= 30
    for _ in range(8):
        throttle_all(made, now)
        now = made.paused_until
    assert made.limit == 1
    trips = 0
    while made.limit < 15:
        window_of_successes(made, now)
        trips += 1
    assert trips <= 5
    for _ in range(20):
        window_of_successes(made, now)
    assert made.limit == 32


@dataclass
class Store:
    """A store that answers so many requests a second and throttles the others, until it recovers."""

    made: Pace
    per_second: float
    sent_at: list[float] = field(default_factory=list)
    served_until: float = 0.0

    def run(self, start: float, stop: float, trip_seconds: float = 0.1) -> int:
        """Sends whatever may be sent, a round trip at a time; how many were answered."""
        now, answered = start, 0
        while now < stop:
            tickets: list[Ticket] = []
            while self.made.may_begin(now):
                tickets.append(self.made.begin())
            self.sent_at += [now] * len(tickets)
            for number, ticket in enumerate(tickets):
                if number < self.per_second * trip_seconds:
                    self.made.succeeded(ticket, now)
                    answered += 1
                else:
                    self.made.throttled(ticket, now, None)
            now += trip_seconds
        return answered


def test_throughput_recovers_after_throttling_and_there_is_no_storm_meanwhile() -> None:
    made = pace()
    healthy = Store(made, 1e9)
    before = healthy.run(0, 20)
    throttling = Store(made, 0.0)
    throttling.run(20, 120)
    assert len([at for at in throttling.sent_at if at >= 60]) <= 8
    assert len(throttling.sent_at) <= 100
    after = Store(made, 1e9).run(130, 150)
    assert after >= 0.8 * before


def test_a_store_with_a_limit_of_its_own_is_used_near_it() -> None:
    made = pace(PaceRules(first=8, most=64, first_pause_seconds=0.1, longest_pause_seconds=10))
    limited = Store(made, 200.0)
    assert limited.run(0, 100) >= 0.5 * 200 * 100


@given(
    events=st.lists(st.tuples(st.sampled_from(["begin", "ok", "throttled", "ended"]), st.floats(0, 3)), max_size=200),
    drawn=st.floats(0, 1, exclude_max=True),
    retry_after=st.none() | st.floats(0, 1e9),
)
def test_bounds_hold_whatever_happens(events: list[tuple[str, float]], drawn: float, retry_after: float | None) -> None:
    made, now = pace(drawn=drawn), 0.0
    under_way: list[Ticket] = []
    for kind, seconds in events:
        now += seconds
        if kind == "begin":
            if made.may_begin(now):
                assert now >= made.paused_until
                under_way.append(made.begin())
                assert made.in_flight <= made.limit
        elif under_way:
            ticket = under_way.pop()
            if kind == "ok":
                made.succeeded(ticket, now)
            elif kind == "throttled":
                made.throttled(ticket, now, retry_after)
            else:
                made.ended()
        assert made.in_flight == len(under_way)
        assert 1 <= made.limit <= RULES.most
        assert made.paused_until <= now + RULES.longest_obeyed_seconds
    while under_way:
        under_way.pop()
        made.ended()
    assert made.may_begin(now + RULES.longest_obeyed_seconds)


@pytest.mark.parametrize("bad", [{"first": 0}, {"first": 9, "most": 8}, {"first_pause_seconds": 0}])
def test_rules_that_cannot_work_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="pace"):
        PaceRules(**bad)
