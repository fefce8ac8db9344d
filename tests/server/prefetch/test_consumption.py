"""The rate at which a session reads, from its reports."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_server.prefetch.consumption import Consumption


def reports(steps: list[tuple[float, int]], stated: float = 0.0) -> float:
    """The rate after (seconds since the last one, positions read) reports."""
    now, position = 1000.0, 0
    made = Consumption(position, now)
    for seconds, read in steps:
        now, position = now + seconds, position + read
        made.report(position, now)
    return made.rate(stated)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], 0.0),
        ([(5, 500), (5, 500)], 0.0),
        ([(5, 500)] * 3, 100.0),
        ([(5, 500)] * 20, 100.0),
        ([(5, 500)] * 5 + [(5, 0)] * 60 + [(5, 500)], 100.0),
        ([(5, 500)] * 5 + [(300, 0)] + [(5, 500)] * 2, 100.0),
        ([(5, 500)] * 5 + [(300, 500)] + [(5, 500)] * 2, 100.0),
        ([(5, 500)] * 5 + [(5, 10**9)], 100.0),
        ([(5, 500)] * 5 + [(5, -2500)] + [(5, 500)] * 3, 100.0),
        ([(5, 500)] * 9 + [(5, 5000)] * 5, 1000.0),
        ([(0, 500)] * 9, 0.0),
    ],
    ids=[
        "nothing known",
        "too little",
        "steady",
        "steady for long",
        "paused with heartbeats",
        "paused in silence",
        "paused within an interval",
        "jumped ahead",
        "went back",
        "became faster",
        "no time passed",
    ],
)
def test_the_rate_is_what_it_reads_while_it_reads(steps: list[tuple[float, int]], expected: float) -> None:
    assert reports(steps) == pytest.approx(expected)


def test_the_larger_of_the_measured_and_the_stated_rate_counts() -> None:
    steady = [(5.0, 500)] * 5
    assert reports(steady, stated=40.0) == pytest.approx(100.0)
    assert reports(steady, stated=400.0) == pytest.approx(400.0)
    assert reports([], stated=7.0) == 7.0


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(-(10**12), 10**12)), max_size=50))
def test_no_reports_make_a_rate_that_is_negative_or_no_number(steps: list[tuple[float, int]]) -> None:
    assert 0.0 <= reports(steps) < float("inf")
