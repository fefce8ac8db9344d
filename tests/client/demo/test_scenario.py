"""What the demo decides without starting anything: its directory, the moment of the kill, and what counts as failed."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from forebay.demo import report
from forebay.demo.command import Display
from forebay.demo.records import Event
from forebay.demo.scenario import DemoFailed, Options, claim_directory, play, restored_by, time_to_kill
from forebay_core.errors import ConfigurationError

GOOD: dict[str, Any] = {
    "samples_repeated": 0,
    "samples_skipped": 0,
    "order_equal": True,
    "loss_first": 5.0,
    "loss_last": 2.0,
    "killed_at_step": 184,
    "resumed_at_step": 180,
}


def saved(step: int, epoch: int, position: int, kind: str = "local") -> Event:
    return Event(0, kind, step, epoch, position)


def test_the_kill_comes_some_steps_after_the_first_save_of_the_second_epoch_once_it_is_local() -> None:
    events = [Event(0, "started", 0, 0, 0), saved(160, 0, 10_240), saved(180, 1, 1_216)]
    assert not time_to_kill(events[:2], 184)
    assert not time_to_kill(events, 183)
    assert time_to_kill(events, 184)
    assert time_to_kill([*events, saved(200, 1, 2_496)], 201)


def test_a_save_at_the_border_of_the_epochs_is_not_one_in_the_second() -> None:
    assert not time_to_kill([saved(161, 1, 0)], 170)


def test_a_second_run_that_begins_at_the_beginning_is_a_failed_demo() -> None:
    found = Event(1, "restored", 180, 1, 1_216, source="local", generation=2)
    assert restored_by([found, saved(200, 1, 2_496)]) == found
    with pytest.raises(DemoFailed, match="found no checkpoint"):
        restored_by([Event(1, "started", 0, 0, 0), saved(20, 0, 1_280)])


def test_a_new_directory_is_made_and_given_by_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with claim_directory(Path("some/where")) as directory:
        assert directory == tmp_path / "some" / "where"
        assert directory.is_dir()


def test_an_earlier_demos_directory_is_emptied(tmp_path: Path) -> None:
    with claim_directory(tmp_path / "demo") as directory:
        (directory / "cache").mkdir()
        (directory / "cache" / "piece").write_text("old")
        (directory / "run-0.log").write_text("old")
    with claim_directory(tmp_path / "demo") as directory:
        assert [entry.name for entry in directory.iterdir() if not entry.name.startswith(".")] == []


def test_a_directory_that_is_not_a_demos_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="choose another"), claim_directory(tmp_path):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(ConfigurationError, match="not a directory"), claim_directory(tmp_path / "thesis.txt"):
        pass


def test_two_demos_do_not_share_a_directory(tmp_path: Path) -> None:
    with claim_directory(tmp_path / "demo") as directory:
        (directory / "run-0.log").write_text("in use")
        with pytest.raises(ConfigurationError, match="another demo is running"), claim_directory(tmp_path / "demo"):
            pass
        assert (directory / "run-0.log").read_text() == "in use"


def test_a_bucket_that_is_none_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not a bucket"):
        play(Options(directory=tmp_path / "demo", bucket="data"), Display(Console(quiet=True)))
    assert not (tmp_path / "demo").exists()


def test_an_exact_recovery_has_no_failures() -> None:
    assert report.failures(GOOD) == []


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ({"samples_repeated": 3}, "3 samples were repeated"),
        ({"samples_skipped": 2}, "2 samples were skipped"),
        ({"order_equal": False}, "the order differs from that of one process"),
        ({"loss_last": 5.0}, "the loss did not fall"),
        ({"resumed_at_step": 184}, "the kill left nothing to repeat"),
    ],
)
def test_every_kind_of_failure_is_said(damage: dict[str, Any], says: str) -> None:
    assert report.failures(GOOD | damage) == [says]
