"""Turns at a store: as the pace allows, the most urgent first, and nothing lost when a waiter goes away."""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from forebay_server.sources.failures import ShortBody
from forebay_server.sources.gate import Gate
from forebay_server.sources.pacing import Pace, PaceRules
from forebay_server.sources.remote import NOW, Caller, RemoteCounters


@dataclass
class Ahead:
    """A caller whose urgency the test may change."""

    before: float | None
    turn: int = 0

    @property
    def is_demand(self) -> bool:
        return self.before is None


def gate_of(most: int = 1) -> tuple[Gate, RemoteCounters]:
    counters = RemoteCounters()
    loop = asyncio.get_running_loop()
    return Gate(Pace(PaceRules.up_to(most), random.Random(1).random), counters, loop.time), counters


async def queue_up(gate: Gate, callers: Mapping[str, Caller], order: list[str]) -> list["asyncio.Task[None]"]:
    """Tasks that wait for a turn each, and write down when they have it."""

    async def one(name: str, caller: Caller) -> None:
        async with gate.turn(caller):
            order.append(name)

    tasks = [asyncio.create_task(one(name, caller)) for name, caller in callers.items()]
    await asyncio.sleep(0)
    return tasks


def test_demands_go_first_then_what_is_needed_soonest_and_equals_in_their_order() -> None:
    async def run() -> list[str]:
        gate, _ = gate_of()
        order: list[str] = []
        becomes_demand = Ahead(500.0)
        async with gate.turn(NOW):
            callers = {
                "late": Ahead(90.0),
                "soon": Ahead(2.0),
                "demand": Ahead(None),
                "upgraded": becomes_demand,
                "demand too": Ahead(None),
            }
            tasks = await queue_up(gate, callers, order)
            assert gate.has_waiting_demand
            becomes_demand.before = None
        await asyncio.gather(*tasks)
        assert not gate.has_waiting_demand
        return order

    assert asyncio.run(run()) == ["demand", "upgraded", "demand too", "soon", "late"]


def test_no_more_are_under_way_than_the_window_allows() -> None:
    async def run() -> int:
        gate, _ = gate_of(4)
        most = 0

        async def one() -> None:
            nonlocal most
            async with gate.turn(NOW):
                most = max(most, gate.pace.in_flight)
                await asyncio.sleep(0)

        await asyncio.gather(*(one() for _ in range(50)))
        assert gate.pace.in_flight == 0
        return most

    assert asyncio.run(run()) == 4


@pytest.mark.parametrize("granted", [False, True], ids=["waiting", "just granted"])
def test_one_who_goes_away_leaves_its_turn_to_the_next(granted: bool) -> None:
    async def run() -> list[str]:
        gate, _ = gate_of()
        order: list[str] = []
        async with gate.turn(NOW):
            leaving, staying = await queue_up(gate, {"leaving": NOW, "staying": NOW}, order)
            if not granted:
                leaving.cancel()
                await asyncio.sleep(0)
                staying.cancel()
                await asyncio.sleep(0)
                assert not gate.has_waiting_demand
                (staying,) = await queue_up(gate, {"staying": NOW}, order)
        leaving.cancel()
        await asyncio.gather(leaving, staying, return_exceptions=True)
        assert gate.pace.in_flight == 0
        return order

    assert asyncio.run(run()) == ["staying"]


def test_what_became_of_requests_is_counted_and_a_failure_passes_through() -> None:
    async def run() -> RemoteCounters:
        gate, counters = gate_of()
        async with gate.turn(NOW):
            pass
        with pytest.raises(ShortBody):
            async with gate.turn(NOW):
                raise ShortBody("3 of 5 bytes")
        with pytest.raises(asyncio.CancelledError):
            async with gate.turn(NOW):
                raise asyncio.CancelledError
        assert gate.pace.in_flight == 0
        return counters

    assert dict(asyncio.run(run()).answers) == {"ok": 1, "short": 1}
