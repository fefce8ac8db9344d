"""When people are told that the trainer is blocked, by a clock that the tests move."""

import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from forebay.iteration import Handover
from forebay.loading.stall_watch import StallWatch
from forebay_core.errors import ConfigurationError
from tests.support.leaks import take_stock


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """What was logged since it was asked last."""

    def latest() -> list[str]:
        messages = list(caplog.messages)
        caplog.clear()
        return messages

    with caplog.at_level(logging.WARNING, logger="forebay"):
        yield latest


def test_a_wait_is_told_of_after_a_while_then_each_time_it_has_doubled_and_when_it_ends(
    clock: Clock, said: Callable[[], list[str]]
) -> None:
    watch = StallWatch(60.0, lambda: "piece 7 is in fill", clock=clock)
    watch.blocked_from = clock.now
    told = {}
    for second in range(0, 500):
        clock.now = 1000.0 + second
        watch.look()
        if messages := said():
            told[second] = messages
    assert told == {second: [f"no batch for {second} s: piece 7 is in fill"] for second in (60, 120, 240, 480)}
    watch.blocked_from = None
    assert watch.has_warned
    watch.went_on(clock.now - 1000.0)
    assert said() == ["went on after 499 s"]
    assert not watch.has_warned


def test_each_wait_counts_for_itself(clock: Clock, said: Callable[[], list[str]]) -> None:
    watch = StallWatch(10.0, lambda: "?", clock=clock)
    for _ in range(5):
        watch.blocked_from = clock.now
        clock.now += 9.0
        watch.look()
    assert said() == []
    clock.now += 1.0
    watch.look()
    assert said() == ["no batch for 10 s: ?"]
    watch.blocked_from = clock.now
    clock.now += 11.0
    watch.look()
    assert said() == ["no batch for 11 s: ?"]


def test_nothing_is_said_while_nobody_waits_or_where_none_is_wanted(
    clock: Clock, said: Callable[[], list[str]]
) -> None:
    before = set(threading.enumerate())
    StallWatch(1.0, lambda: "?", clock=clock).look()
    silent = StallWatch(None, lambda: "?", clock=clock)
    silent.start()
    silent.blocked_from = 0.0
    silent.look()
    silent.close()
    assert said() == []
    assert "forebay-stall-watch" not in {thread.name for thread in set(threading.enumerate()) - before}


def test_a_wait_that_ends_while_its_reason_is_looked_for_is_not_told_of(
    clock: Clock, said: Callable[[], list[str]]
) -> None:
    def goes_on() -> str:
        watch.blocked_from = None
        return "nothing any more"

    watch = StallWatch(1.0, goes_on, clock=clock)
    watch.blocked_from = clock.now
    clock.now += 2.0
    watch.look()
    assert not watch.has_warned
    watch.went_on(2.0)
    assert said() == []


def test_a_reason_that_cannot_be_found_does_not_end_the_watch(clock: Clock, said: Callable[[], list[str]]) -> None:
    def fails() -> str:
        raise RuntimeError("dictionary changed size during iteration")

    watch = StallWatch(1.0, fails, clock=clock)
    watch.blocked_from = clock.now
    clock.now += 1.0
    watch.look()
    assert said() == ["no batch for 1 s: why cannot be told (RuntimeError: dictionary changed size during iteration)"]


def test_its_thread_looks_until_it_is_closed(said: Callable[[], list[str]]) -> None:
    before = take_stock().threads
    looked = threading.Event()

    def why() -> str:
        looked.set()
        return "it looks"

    watch = StallWatch(0.01, why)
    watch.start()
    watch.start()
    watch.blocked_from = 0.0
    assert looked.wait(20)
    watch.close(20)
    watch.close()
    assert take_stock().threads == before
    assert all(message.endswith(": it looks") for message in said())


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf"), "60"])
def test_a_limit_that_is_no_number_of_seconds_is_refused(seconds: object) -> None:
    with pytest.raises(ConfigurationError, match="stall_warning_seconds="):
        Handover(stall_warning_seconds=seconds)  # type: ignore[arg-type]
