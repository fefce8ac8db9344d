"""What is kept of committed attempts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_core.checkpoints.names import Attempt
from forebay_core.checkpoints.protocol import Retention, to_retire
from forebay_core.errors import ConfigurationError
from tests.core.checkpoints.attempts import attempt_of

TEN = [attempt_of(1, step) for step in range(100, 1100, 100)]


def kept_steps(keep_last: int, keep_every_steps: int = 0) -> list[int]:
    gone = to_retire(TEN, keep_last, keep_every_steps)
    return [each.step for each in TEN if each not in gone]


@pytest.mark.parametrize(
    ("keep_last", "every", "kept"),
    [
        (0, 0, [100, 200, 300, 400, 500, 600, 700, 800, 900, 1000]),
        (0, 500, [100, 200, 300, 400, 500, 600, 700, 800, 900, 1000]),
        (3, 0, [800, 900, 1000]),
        (1, 0, [900, 1000]),
        (2, 400, [400, 800, 900, 1000]),
        (20, 0, [100, 200, 300, 400, 500, 600, 700, 800, 900, 1000]),
    ],
)
def test_the_newest_are_kept_and_multiples_besides_and_two_always(keep_last: int, every: int, kept: list[int]) -> None:
    """CASES 43"""
    assert kept_steps(keep_last, every) == kept


def test_a_lower_step_of_a_newer_generation_is_newer() -> None:
    """CASES 45"""
    old, new = [attempt_of(1, step) for step in (800, 900)], [attempt_of(2, step) for step in (300, 400)]
    assert to_retire(new + old, 2) == tuple(old)


attempts = st.lists(st.builds(attempt_of, st.integers(1, 3), st.integers(0, 9), st.integers(0, 3)), unique=True)


@given(attempts, st.integers(0, 5), st.integers(0, 4))
def test_whatever_is_configured_the_newest_two_stay_and_the_order_given_does_not_matter(
    committed: list[Attempt], keep_last: int, every: int
) -> None:
    """CASES 43"""
    gone = to_retire(committed, keep_last, every)
    newest = sorted(committed)
    assert not set(gone) & set(newest[-max(keep_last, 2) :])
    assert list(gone) == sorted(gone)
    assert to_retire(newest, keep_last, every) == gone
    assert to_retire(set(committed) - set(gone), keep_last, every) == ()


@pytest.mark.parametrize("wrong", [{"keep_last": -1}, {"keep_every_steps": -1}])
def test_a_retention_of_negative_numbers_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match="give whole numbers from 0"):
        Retention(**wrong)
