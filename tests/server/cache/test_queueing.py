"""Who gets room next, and who gives up."""

from dataclasses import dataclass

from forebay_server.cache.queueing import RoomQueue
from tests.server.scripted import ManualClock


@dataclass
class Waiting:
    turn: int
    asked_at: float = 0.0


def test_room_goes_to_the_demand_that_was_made_first() -> None:
    queue = RoomQueue(ManualClock(), 30)
    early, late = Waiting(1), Waiting(2)
    queue.join(late)
    assert not queue.must_wait(early.turn)
    queue.join(early)
    assert queue.must_wait(late.turn)
    queue.leave(early)
    assert not queue.must_wait(late.turn)
    assert not queue.is_empty()
    assert queue.has_waiting.is_set()
    queue.leave(late)
    assert queue.is_empty()
    assert not queue.has_waiting.is_set()


def test_a_demand_gives_up_when_nothing_moves() -> None:
    clock = ManualClock()
    queue = RoomQueue(clock, 30)
    demand = Waiting(1, clock())
    clock.now += 29
    assert not queue.gives_up(demand)
    clock.now += 1
    assert queue.gives_up(demand)


def test_a_demand_waits_on_while_trainers_read_on_but_not_for_ever() -> None:
    clock = ManualClock()
    queue = RoomQueue(clock, 30)
    demand = Waiting(1, clock())
    for _ in range(14):
        clock.now += 20
        assert not queue.gives_up(demand)
        queue.moved()
    clock.now += 20
    assert queue.gives_up(demand)


def test_after_one_has_given_up_those_that_can_pass_by_wait_far_shorter_for_some_minutes() -> None:
    """CASES 30."""
    clock = ManualClock()
    queue = RoomQueue(clock, 30)
    first = Waiting(1, clock())
    clock.now += 29
    assert not queue.gives_up(first, passes_by=True), "nobody has given up yet"
    clock.now += 1
    assert queue.gives_up(first, passes_by=True)
    later = Waiting(2, clock())
    assert not queue.gives_up(later, passes_by=True)
    clock.now += 1
    assert queue.gives_up(later, passes_by=True)
    assert not queue.gives_up(later), "it would be an error"
    clock.now += 299
    assert not queue.gives_up(Waiting(3, clock() - 1), passes_by=True)


def test_in_a_jam_one_waits_on_while_trainers_read_on_but_not_for_long() -> None:
    clock = ManualClock()
    queue = RoomQueue(clock, 30)
    clock.now += 30
    assert queue.gives_up(Waiting(1, clock() - 30), passes_by=True)
    demand = Waiting(2, clock())
    for _ in range(19):
        clock.now += 0.5
        assert not queue.gives_up(demand, passes_by=True)
        queue.moved()
    clock.now += 0.5
    assert queue.gives_up(demand, passes_by=True)
