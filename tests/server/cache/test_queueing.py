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
