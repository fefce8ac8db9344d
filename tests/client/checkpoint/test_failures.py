"""A failure in the background reaches the trainer as was chosen, and is never nothing (CASES 39)."""

import logging
from typing import Any

import pytest

from forebay.checkpoint.failures import Failures
from forebay_core.errors import CheckpointError, CheckpointFenced, ConfigurationError


def test_a_failure_is_raised_once_at_the_next_poll() -> None:
    failures = Failures("raise")
    failures.poll()
    failures.failed(7, CheckpointError("no room"))
    with pytest.raises(CheckpointError, match="no room"):
        failures.poll()
    failures.poll()
    assert failures.unseen == []


def test_so_many_failures_in_a_row_are_raised_and_a_success_between_starts_the_count_anew() -> None:
    failures = Failures(2)
    failures.failed(1, CheckpointError("first"))
    failures.poll()
    failures.succeeded()
    failures.failed(2, CheckpointError("second"))
    failures.poll()
    failures.failed(3, CheckpointError("third"))
    with pytest.raises(CheckpointError, match="third"):
        failures.poll()


def test_warned_failures_are_in_the_log_and_stay_unseen(caplog: pytest.LogCaptureFixture) -> None:
    failures = Failures("warn")
    with caplog.at_level(logging.ERROR, "forebay.checkpoint"):
        failures.failed(5, CheckpointError("the bucket is gone"))
    failures.poll()
    assert "step 5" in caplog.text
    assert "the bucket is gone" in caplog.text
    assert failures.unseen == ["step 5: the bucket is gone"]
    assert failures.total == 1


@pytest.mark.parametrize("mode", ["warn", 5])
def test_being_fenced_is_raised_however_failures_are_taken(mode: Any) -> None:
    failures = Failures(mode)
    failures.failed(5, CheckpointFenced("generation 3 has taken over"))
    with pytest.raises(CheckpointFenced):
        failures.poll()


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "ignore", None])
def test_what_is_no_way_to_take_failures_is_refused(bad: Any) -> None:
    with pytest.raises(ConfigurationError, match="on_failure"):
        Failures(bad)
