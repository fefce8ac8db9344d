"""Needs: grouped and merged as a slow loop over them would."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_core.errors import ConfigurationError
from forebay_server.needs import NOMINAL_RATE, Needs, Progress, next_use

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
    fast = next_use(PIECES, [Progress(build(needs), position, rate) for needs, position, rate in sessions])
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
    assert np.isinf(next_use(PIECES, [Progress(build([]), 5, 1.0)])).all()
