"""Which prefetch may begin, and how long fetches are thought to take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_server.prefetch.choice import MARGIN_SECONDS, Bounds, Load, is_due, may_begin
from forebay_server.prefetch.fetch_time import FetchTime

MIB = 1 << 20
BOUNDS = Bounds(fills=8, bytes=100 * MIB)


@pytest.mark.parametrize(
    ("load", "due", "expected"),
    [
        (Load(0, 0, False), False, True),
        (Load(5, 50 * MIB, False), False, True),
        (Load(6, 60 * MIB, False), False, False),
        (Load(6, 60 * MIB, False), True, True),
        (Load(8, 80 * MIB, False), True, False),
        (Load(1, 10 * MIB, True), False, False),
        (Load(1, 10 * MIB, True), True, True),
        (Load(2, 91 * MIB, False), True, False),
        (Load(2, 90 * MIB, False), True, True),
    ],
)
def test_speculation_yields_to_demands_and_leaves_some_fills_to_what_is_due(
    load: Load, due: bool, expected: bool
) -> None:
    assert may_begin(10 * MIB, load, BOUNDS, due=due) is expected


def test_a_piece_larger_than_all_bytes_goes_alone() -> None:
    assert may_begin(500 * MIB, Load(0, 0, False), BOUNDS, due=False)
    assert not may_begin(500 * MIB, Load(1, 1, False), BOUNDS, due=True)


def test_one_fill_is_enough_to_fetch_ahead_and_none_turns_it_off() -> None:
    assert may_begin(1, Load(0, 0, False), Bounds(1, 1), due=False)
    assert not may_begin(1, Load(0, 0, False), Bounds(0, 1), due=True)


@given(
    st.lists(st.tuples(st.integers(1, 10**9), st.booleans()), max_size=40), st.integers(1, 20), st.integers(1, 10**9)
)
def test_what_is_begun_stays_within_the_bounds(sizes: list[tuple[int, bool]], fills: int, room: int) -> None:
    load = Load(0, 0, False)
    for size, due in sizes:
        if may_begin(size, load, Bounds(fills, room), due=due):
            load = load.plus(size)
            assert load.fills <= fills
            assert load.bytes <= room or load.fills == 1


def test_a_piece_is_due_when_its_fetch_would_take_most_of_the_time_that_is_left() -> None:
    assert is_due(0.0, 0.1)
    assert is_due(20.0 + MARGIN_SECONDS, 10.0)
    assert not is_due(20.1 + MARGIN_SECONDS, 10.0)


def test_fetches_that_become_slow_are_believed_at_once_and_fast_ones_only_in_time() -> None:
    made = FetchTime()
    assert made.predicted(8 * MIB) == 1.0
    for _ in range(5):
        made.took(8 * MIB, 0.2)
    assert made.predicted(8 * MIB) == pytest.approx(0.2)
    assert made.predicted(80 * MIB) == pytest.approx(2.0)
    assert made.predicted(1) == pytest.approx(0.2)
    for _ in range(4):
        made.took(8 * MIB, 5.0)
    assert made.predicted(8 * MIB) > 4.0
    made.took(8 * MIB, 0.2)
    assert made.predicted(8 * MIB) > 4.0
    for _ in range(60):
        made.took(8 * MIB, 0.2)
    assert made.predicted(8 * MIB) < 0.3
