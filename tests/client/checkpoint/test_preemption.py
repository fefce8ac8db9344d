"""What one rank does about SIGTERM: real signals to this process, or to small ones of its own."""

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from forebay.checkpoint.preemption import Preempted, Preemption
from forebay.checkpoint.stopping import StoppingStep
from forebay_core.errors import CheckpointError, ConfigurationError


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def alone(clock: Clock | None = None) -> Preemption:
    made = Preemption(StoppingStep(None, 0, 1), grace_seconds=25.0, clock=clock or Clock())
    made.install()
    return made


def test_sigterm_is_noted_and_the_step_under_way_is_the_last() -> None:
    preemption = alone(clock := Clock())
    assert not preemption.due(1)
    assert not preemption.is_wanted
    assert preemption.remaining_seconds == 25.0
    signal.raise_signal(signal.SIGTERM)
    clock.now += 20
    signal.raise_signal(signal.SIGTERM)
    assert preemption.is_wanted
    assert preemption.remaining_seconds == 5.0
    assert preemption.due(2)
    clock.now += 20
    assert preemption.remaining_seconds == 0.0


def test_leaving_is_an_exit_with_the_status_of_sigterm_which_says_what_was_reached(
    caplog: pytest.LogCaptureFixture,
) -> None:
    preemption = alone()
    with pytest.raises(SystemExit) as leaving:
        preemption.leave("step 7 is saved, durable")
    assert isinstance(leaving.value, Preempted)
    assert leaving.value.code == 143
    assert str(leaving.value) == "told to stop (SIGTERM): step 7 is saved, durable; leaving with exit status 143"
    assert str(leaving.value) in caplog.text


def test_a_handler_that_was_there_is_called_last_and_is_there_again() -> None:
    called: list[int] = []

    def previous(number: int, _frame: FrameType | None) -> None:
        called.append(number)

    signal.signal(signal.SIGTERM, previous)
    preemption = alone()
    signal.raise_signal(signal.SIGTERM)
    assert preemption.due(1)
    assert called == []
    with pytest.raises(Preempted):
        preemption.leave("done")
    assert called == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is previous


def test_a_handler_that_was_set_since_is_left_alone() -> None:
    preemption = alone()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    preemption.close()
    preemption.close()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_a_rank_that_another_has_told_has_its_grace_from_then_on() -> None:
    store, clock = HashStore(), Clock()
    ranks = [Preemption(StoppingStep(store, rank, 2, clock=clock), clock=clock) for rank in range(2)]
    ranks[0].install()
    signal.raise_signal(signal.SIGTERM)
    assert not ranks[0].due(4)
    clock.now += 10
    assert not ranks[1].due(4)
    assert ranks[1].is_wanted
    clock.now += 1
    assert [rank.due(5) for rank in ranks] == [True, True]
    assert [rank.remaining_seconds for rank in ranks] == [14.0, 24.0]


def test_once_told_to_stop_a_failure_among_ranks_is_the_end_with_its_cause() -> None:
    preemption = alone()
    with pytest.raises(CheckpointError), preemption.leaving_on_failure():
        raise CheckpointError("a rank is gone")
    signal.raise_signal(signal.SIGTERM)
    said = pytest.raises(Preempted, match=r"nothing more is saved.*CheckpointError: a rank is gone")
    with said as left, preemption.leaving_on_failure():
        raise CheckpointError("a rank is gone")
    assert isinstance(left.value.__cause__, CheckpointError)


class Gone:
    """A store whose process has ended."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("Connection reset by peer")


def test_a_store_that_is_gone_ends_a_rank_that_was_told_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "forebay")
    clock = Clock()
    preemption = Preemption(StoppingStep(Gone(), 0, 2, clock=clock), clock=clock)
    preemption.install()
    for step in range(3):
        clock.now += 1
        assert not preemption.due(step)
    assert caplog.text.count("Connection reset by peer") == 1
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Preempted, match="Connection reset by peer"):
        preemption.due(3)


def test_another_thread_cannot_take_sigterm_over() -> None:
    raised: list[Exception] = []

    def install() -> None:
        try:
            Preemption(StoppingStep(None, 0, 1)).install()
        except ConfigurationError as error:
            raised.append(error)

    thread = threading.Thread(target=install)
    thread.start()
    thread.join()
    assert "main thread" in str(raised[0])


@pytest.mark.parametrize("grace", [0, -1, float("nan")])
def test_a_grace_that_is_none_is_refused(grace: float) -> None:
    with pytest.raises(ConfigurationError, match="grace_seconds="):
        Preemption(StoppingStep(None, 0, 1), grace_seconds=grace)


CHILD = """
import os, signal, sys, time
from forebay.checkpoint.preemption import Preemption
from forebay.checkpoint.stopping import StoppingStep
Preemption(StoppingStep(None, 0, 1)).install()
runs, says = os.pipe()
child = os.fork()
if child == 0:
    os.write(says, b".")  # Python drops a signal that comes in the midst of a fork
    while True:
        time.sleep(0.05)
os.read(runs, 1)
os.kill(child, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_ends_by_sigterm_as_ever() -> None:
    output = subprocess.check_output([sys.executable, "-c", CHILD], timeout=60, env=os.environ)
    assert int(output) == -signal.SIGTERM
