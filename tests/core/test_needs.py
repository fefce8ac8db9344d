"""Needs: grouped and merged as a slow loop over them would."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_core.errors import ConfigurationError
from forebay_core.needs import IDLE_AFTER_SECONDS, NOMINAL_RATE, Needs, Progress, next_use

PIECES = 6
need = st.tuples(st.integers(0, PIECES - 1), st.integers(0, 50), st.integers(0, 20))
session = st.tuples(st.lists(need, max_size=20), st.integers(0, 80), st.sampled_from([0.0, 1.0, 4.0]))


def build(needs: list[tuple[int, int, int]]) -> Needs:
    columns = np.array(needs, np.int64).reshape(-1, 3)
    return Needs.build(columns[:, 0], columns[:, 1], columns[:, 1] + columns[:, 2], piece_count=PIECES)


@given(st.lists(session, max_size=4))
def test_next_use_is_the_soonest_over_all_needs_and_sessions(
    sessions: list[tuple[list[tuple[int, int, int]], int, float]],
) -> None:
    slow = [float("inf")] * PIECES
    for needs, position, rate in sessions:
        for piece, first, length in needs:
            if first + length > position:
                slow[piece] = min(slow[piece], max(0, first - position) / (rate or NOMINAL_RATE))
    fast = next_use(PIECES, [Progress(build(needs), position, rate) for needs, position, rate in sessions], 0.0)
    assert fast.tolist() == slow


@pytest.mark.parametrize(
    ("pieces", "first", "last", "part"),
    [
        ([0, 1], [0], [1, 1], "one length"),
        ([PIECES], [0], [1], f"piece {PIECES}"),
        ([-1], [0], [1], "piece -1"),
        ([0], [2], [1], "first <= last"),
        ([0], [-1], [1], "0 <= first"),
    ],
)
def test_lists_that_make_no_sense_are_refused(pieces: list[int], first: list[int], last: list[int], part: str) -> None:
    arrays = [np.array(values, np.int64) for values in (pieces, first, last)]
    with pytest.raises(ConfigurationError, match=part):
        Needs.build(*arrays, piece_count=PIECES)


def test_nothing_needed_is_fine() -> None:
    assert len(build([])) == len(Needs.none()) == 0
    assert np.isinf(next_use(PIECES, [Progress(build([]), 5, 1.0)], 0.0)).all()


def test_what_an_idle_session_needs_is_as_much_further_away_as_it_has_been_idle() -> None:
    idle = Progress(build([(0, 10, 5), (1, 0, 5)]), 0, 2.0, active_at=100.0)
    active = Progress(build([(0, 40, 5), (2, 60, 5)]), 0, 1.0, active_at=100.0)

    def seconds(now: float) -> list[float]:
        found: list[float] = next_use(PIECES, [idle, replace(active, active_at=now)], now).tolist()
        return found[:3]

    assert seconds(100.0 + IDLE_AFTER_SECONDS) == [5.0, 0.0, 60.0], "a slow step is not idle"
    assert seconds(100.0 + IDLE_AFTER_SECONDS + 30) == [35.0, 30.0, 60.0], "before what is needed later"
    assert seconds(100.0 + IDLE_AFTER_SECONDS + 90) == [40.0, 90.0, 60.0], "after what is needed sooner"


def test_a_session_that_stands_still_is_not_slow() -> None:
    moving = Progress(Needs.none(), 0, 0.0, active_at=1.0).reported(0, 5.0, now=2.0)
    assert (moving.positions_per_second, moving.active_at) == (5.0, 1.0)
    moving = moving.reported(20, 10.0, now=3.0)
    assert (moving.position, moving.positions_per_second, moving.active_at) == (20, 10.0, 3.0)
    assert moving.reported(20, 0.001, now=9.0) == moving
    assert moving.reported(21, 0.0, now=9.0).positions_per_second == 10.0
