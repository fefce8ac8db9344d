"""How long a call waits for a daemon, and what people hear of it."""

from contextlib import suppress

import pytest

from forebay.daemon.waiting import ANNOUNCE_SECONDS, Waiting


class Clock:
    """A clock that stands still unless it is told."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_wait_is_over_when_another_pause_would_go_beyond_its_limit() -> None:
    clock = Clock()
    waiting = Waiting(10.0, clock)
    clock.now += 9.97
    assert not waiting.is_over()
    clock.now += 0.02
    assert waiting.is_over()
    assert waiting.seconds() == pytest.approx(9.99)


def test_without_a_limit_there_is_one_try() -> None:
    assert Waiting(0.0, Clock()).is_over()


def test_pauses_double_up_to_half_a_second() -> None:
    waiting = Waiting(10.0, Clock())
    assert [waiting.next_pause() for _ in range(7)] == [0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5]


def test_a_wait_is_news_once_and_not_before_it_has_got_long() -> None:
    clock = Clock()
    waiting = Waiting(60.0, clock)
    clock.now += ANNOUNCE_SECONDS
    assert not waiting.is_news()
    clock.now += 0.1
    assert waiting.is_news()
    assert not waiting.is_news()


def test_starting_a_daemon_of_our_own_is_no_news_and_leaves_the_limit_to_what_comes_after_it() -> None:
    clock = Clock()
    waiting = Waiting(20.0, clock)
    with suppress(OSError), waiting.apart():
        clock.now += 19.0
        raise OSError("it did not start")
    with waiting.apart():
        clock.now += 19.0
    assert not waiting.is_news()
    assert not waiting.is_over()
    clock.now += 20.0
    assert waiting.is_news()
    assert waiting.is_over()
