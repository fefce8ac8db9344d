"""How files are cut into parts, and when an upload's turn comes."""

import asyncio
import random

import pytest

from forebay_core.errors import ConfigurationError
from forebay_server.checkpoints.destinations.transfers import MIB, Background, Transfers
from forebay_server.sources.gate import Gate
from forebay_server.sources.pacing import Pace, PaceRules
from forebay_server.sources.remote import NOW, Caller, RemoteCounters, Waiter


def clock() -> float:
    return 0.0


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, []),
        (1, [1]),
        (8 * MIB, [8 * MIB]),
        (8 * MIB + 1, [8 * MIB, 1]),
        (80_000 * MIB, [8 * MIB] * 10_000),
        (80_001 * MIB, [16 * MIB] * 5_000 + [MIB]),
    ],
)
def test_a_file_has_parts_of_8_mib_or_as_many_as_s3_takes(size: int, expected: list[int]) -> None:
    assert Transfers(clock).sizes(size) == expected


@pytest.mark.parametrize("options", [{"parts_at_once": 0}, {"part_bytes": 0}])
def test_transfers_without_a_part_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match="uploads need a part"):
        Transfers(clock, **options)


def test_an_upload_comes_after_what_is_fetched_ahead_until_it_has_waited_long_and_never_before_a_demand() -> None:
    now = 0.0

    async def order_of(callers: dict[str, Caller]) -> list[str]:
        order: list[str] = []
        gate = Gate(Pace(PaceRules.up_to(1), random.Random(1).random), RemoteCounters(), clock)

        async def one(name: str, caller: Caller) -> None:
            async with gate.turn(caller):
                order.append(name)

        async with gate.turn(NOW):
            tasks = [asyncio.create_task(one(name, caller)) for name, caller in callers.items()]
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        return order

    callers: dict[str, Caller] = {
        "upload": Background(1, lambda: now, 0.0),
        "ahead": Waiter(2, 900.0, is_demand=False),
        "demand": NOW,
    }
    assert asyncio.run(order_of(callers)) == ["demand", "ahead", "upload"]
    now = 31.0
    assert asyncio.run(order_of(callers)) == ["demand", "upload", "ahead"]


def test_a_turn_that_is_given_back_is_free_and_a_report_counts_and_slows_like_a_turn() -> None:
    async def run() -> None:
        counters = RemoteCounters()
        gate = Gate(Pace(PaceRules.up_to(1), random.Random(1).random), counters, clock)
        await gate.take(NOW)
        waiting = asyncio.create_task(gate.take(NOW))
        await asyncio.sleep(0)
        assert not waiting.done()
        gate.give_back()
        await waiting
        assert gate.pace.in_flight == 1
        gate.report(None, requests=6)
        gate.report(OSError("a failure of the disk"))
        assert gate.pace.in_flight == 1
        assert counters.answers == {"ok": 6, "local": 1}

    asyncio.run(run())
