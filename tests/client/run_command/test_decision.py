"""When a job is started again, and when it is not: a table."""

import pytest

from forebay.run_command.decision import Ended, Limits, Restart, Stop, decide, describe, inner_restarts
from forebay_core.errors import ConfigurationError

FAILED, GETS_ON, UNKNOWN = Ended(1, False), Ended(1, True), Ended(1, None)
LIMITS = Limits(max_restarts=9, stalled_restarts=3, first_wait_seconds=1.0, longest_wait_seconds=8.0)


@pytest.mark.parametrize(
    ("starts", "wait_seconds"),
    [
        ([FAILED], 1),
        ([GETS_ON], 1),
        ([FAILED, FAILED], 2),
        ([FAILED, FAILED, FAILED], 4),
        ([FAILED, FAILED, FAILED, GETS_ON], 1),
        ([FAILED, GETS_ON, FAILED, FAILED], 4),
        ([FAILED, *[UNKNOWN] * 6], 1),
        ([FAILED, FAILED, UNKNOWN, FAILED], 4),
    ],
)
def test_a_restart_waits_the_longer_the_longer_nothing_new_was_committed(
    starts: list[Ended], wait_seconds: float
) -> None:
    decided = decide(LIMITS, starts)
    assert isinstance(decided, Restart)
    assert decided.wait_seconds == wait_seconds
    assert f"restart {len(starts)} of 9 in {wait_seconds} s" in decided.why


def test_waiting_has_an_end() -> None:
    decided = decide(Limits(10**4, stalled_restarts=0, longest_wait_seconds=8.0), [FAILED] * 2000)
    assert isinstance(decided, Restart)
    assert decided.wait_seconds == 8.0


@pytest.mark.parametrize(
    ("starts", "status", "said"),
    [
        ([Ended(0, None)], 0, ""),
        ([FAILED, Ended(0, None)], 0, ""),
        (
            [FAILED, FAILED, FAILED, Ended(7, False)],
            7,
            "no new checkpoint was committed in 3 restarts: this is a crash",
        ),
        ([GETS_ON, FAILED, FAILED, FAILED], 1, "crash loop"),
        ([GETS_ON] * 10, 1, "after 9 restarts of 9"),
        ([UNKNOWN] * 10, 1, "after 9 restarts of 9"),
    ],
)
def test_a_job_that_is_done_or_does_not_get_on_is_not_started_again(
    starts: list[Ended], status: int, said: str
) -> None:
    decided = decide(LIMITS, starts)
    assert isinstance(decided, Stop)
    assert decided.status == status
    assert said in decided.why
    assert bool(said) == bool(decided.why)


def test_a_job_that_was_told_to_stop_is_not_started_again() -> None:
    assert decide(LIMITS, [Ended(143, None)], told_to_stop=True) == Stop(143)


def test_no_restarts_are_none() -> None:
    assert isinstance(decide(Limits(0), [FAILED]), Stop)
    with pytest.raises(ConfigurationError, match="--max-restarts -1"):
        Limits(-1)


@pytest.mark.parametrize(
    ("status", "said"), [(3, "exit status 3"), (137, "SIGKILL"), (143, "SIGTERM"), (255, "exit status 255")]
)
def test_a_status_is_told_in_words(status: int, said: str) -> None:
    assert said in describe(status)


@pytest.mark.parametrize(
    ("command", "environment", "restarts"),
    [
        ("torchrun --max-restarts 3 x.py", {}, 3),
        ("/usr/bin/torchrun --max_restarts=2 x.py", {}, 2),
        ("python -m torch.distributed.run --max-restarts=5 x.py", {}, 5),
        ("torchrun x.py", {"PET_MAX_RESTARTS": "4"}, 4),
        ("torchrun --max-restarts 0 x.py", {"PET_MAX_RESTARTS": "4"}, 0),
        ("torchrun --max-restarts", {}, 0),
        ("torchrun x.py", {}, 0),
        ("python x.py --max-restarts 3", {}, 0),
    ],
)
def test_restarts_inside_of_torchrun_are_found(command: str, environment: dict[str, str], restarts: int) -> None:
    assert inner_restarts(command.split(), environment) == restarts
