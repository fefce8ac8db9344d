"""The position and its state."""

import json
from typing import Any

import pytest

from forebay.progress import Identity, Progress, SavedState, check, decode
from forebay_core.errors import ConfigurationError, StateError, StateMismatch

ORDER = {"algorithm": "window-1", "seed": 17, "lanes": 16, "window": 16384, "sticky": True, "tail": "even"}
IDENTITY = Identity("sha256:" + "ab" * 32, 1_281_167, ORDER)


def at(epoch: int, position: int) -> Progress:
    progress = Progress()
    progress.commit(epoch, position, 256)
    return progress


def reloaded(progress: Progress) -> Progress:
    fresh = Progress()
    fresh.load(decode(json.loads(json.dumps(progress.encode(IDENTITY)))))
    return fresh


def test_a_state_is_small_json_and_comes_back_as_it_was() -> None:
    progress = at(3, 524288)
    state = progress.encode(IDENTITY)
    assert len(json.dumps(state)) < 1024
    assert decode(state) == SavedState(IDENTITY, 3, 524288, 256)
    check(decode(state), IDENTITY)
    assert reloaded(progress).encode(IDENTITY) == state


def test_a_loaded_position_is_gone_on_from_and_not_taken_for_a_break() -> None:
    progress = reloaded(at(3, 512))
    assert progress.begin() == (3, 512)


@pytest.mark.parametrize("resumes", [1, 2, 3])
def test_resuming_several_times_in_an_epoch_keeps_its_number(resumes: int) -> None:
    progress = at(2, 100)
    for resume in range(resumes):
        progress = reloaded(progress)
        assert progress.begin() == (2, 100 + 10 * resume)
        progress.commit(2, 110 + 10 * resume, 256)
    assert (progress.epoch, progress.position) == (2, 100 + 10 * resumes)


def test_an_iteration_after_a_break_begins_the_next_epoch() -> None:
    assert at(0, 40).begin() == (1, 0)


def test_an_iteration_before_any_batch_begins_the_same_epoch_again() -> None:
    progress = Progress()
    assert progress.begin() == (0, 0)
    assert progress.begin() == (0, 0)


def test_a_state_of_an_epochs_end_resumes_at_the_start_of_the_next() -> None:
    progress = reloaded(at(1, 0))
    assert progress.begin() == (1, 0)


def test_set_epoch_of_the_present_epoch_keeps_the_position() -> None:
    progress = reloaded(at(2, 512))
    progress.set_epoch(2)
    assert progress.begin() == (2, 512)


def test_set_epoch_of_another_epoch_starts_it_from_the_beginning() -> None:
    progress = at(0, 512)
    progress.set_epoch(5)
    assert progress.begin() == (5, 0)


def test_set_epoch_never_drops_a_loaded_position_silently() -> None:
    progress = reloaded(at(2, 512))
    with pytest.raises(StateError, match="would drop the loaded position"):
        progress.set_epoch(0)
    assert progress.begin() == (2, 512)
    progress.set_epoch(7)
    assert progress.begin() == (7, 0)


@pytest.mark.parametrize("epoch", [1.5, True, "3", None, -1])
def test_what_is_not_an_epoch_is_refused(epoch: Any) -> None:
    with pytest.raises(ConfigurationError, match="set_epoch"):
        Progress().set_epoch(epoch)


def test_a_mismatch_names_every_field_that_differs_and_none_that_does_not() -> None:
    other = Identity("sha256:" + "cd" * 32, 7, {**ORDER, "seed": 18, "lanes": 8})
    with pytest.raises(StateMismatch) as caught:
        check(SavedState(other, 0, 0, None), IDENTITY)
    message = str(caught.value)
    for field in ("dataset.fingerprint", "dataset.samples", "order.seed is 17 here, 18 in the state", "order.lanes"):
        assert field in message
    for field in ("window", "sticky", "tail", "algorithm"):
        assert field not in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"version": 1},
        None,
        [],
        "state",
        {**Progress().encode(IDENTITY), "epoch": "three"},
        {**Progress().encode(IDENTITY), "epoch": -1},
        {**Progress().encode(IDENTITY), "position": -1},
        {**Progress().encode(IDENTITY), "position": 1_281_168},
        {**Progress().encode(IDENTITY), "version": 2},
        {**Progress().encode(IDENTITY), "dataset": None},
        {**Progress().encode(IDENTITY), "position": 3.7},
        {**Progress().encode(IDENTITY), "position": True},
        {**Progress().encode(IDENTITY), "position": "12"},
        {**Progress().encode(IDENTITY), "epoch": float("inf")},
        {**Progress().encode(IDENTITY), "epoch": 1 << 80},
    ],
)
def test_what_is_not_a_state_is_refused_in_one_line(state: Any) -> None:
    with pytest.raises(StateError) as caught:
        decode(state)
    assert "\n" not in str(caught.value)
