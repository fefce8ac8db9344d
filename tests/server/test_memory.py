"""Memory shared by fills: in the order of the demands, and never for longer than it is held."""

import asyncio
from dataclasses import dataclass

from forebay_server.memory import Memory


@dataclass(eq=False)
class Taker:
    turn: int
    is_demand: bool = True


class Shared:
    """A memory of 100 bytes, and who came to hold some of it, in this order."""

    def __init__(self) -> None:
        self.memory = Memory(100)
        self.holders: list[int] = []
        self._ends: dict[int, asyncio.Event] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}

    async def begin(self, taker: Taker, amount: int) -> None:
        self._ends[taker.turn] = asyncio.Event()
        self.tasks[taker.turn] = asyncio.create_task(self._hold(taker, amount))
        await self.settle()

    async def end(self, turn: int) -> None:
        self._ends[turn].set()
        await self.tasks[turn]
        await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def _hold(self, taker: Taker, amount: int) -> None:
        async with self.memory.taken(taker, amount):
            self.holders.append(taker.turn)
            await self._ends[taker.turn].wait()


def test_demands_come_in_the_order_in_which_they_were_made_then_prefetches() -> None:
    async def run() -> None:
        shared = Shared()
        await shared.begin(Taker(0), 80)
        await shared.begin(Taker(1, is_demand=False), 30)
        await shared.begin(Taker(3), 30)
        await shared.begin(Taker(2), 90)
        assert shared.holders == [0]
        assert shared.memory.is_awaited_before(3)
        assert not shared.memory.is_awaited_before(2), "the prefetch before it counts for nothing"
        await shared.end(0)
        assert shared.holders == [0, 2], "what would fit beside does not overtake"
        await shared.end(2)
        assert shared.holders == [0, 2, 3, 1]
        await shared.end(3)
        await shared.end(1)
        assert shared.memory.used_bytes == 0

    asyncio.run(run())


def test_what_is_larger_than_all_of_it_goes_alone() -> None:
    async def run() -> None:
        shared = Shared()
        await shared.begin(Taker(0), 10)
        await shared.begin(Taker(1), 500)
        await shared.begin(Taker(2), 10)
        assert shared.holders == [0]
        await shared.end(0)
        assert shared.holders == [0, 1]
        await shared.end(1)
        assert shared.holders == [0, 1, 2]
        await shared.end(2)

    asyncio.run(run())


def test_nothing_is_waited_for_by_who_needs_none() -> None:
    async def run() -> None:
        shared = Shared()
        await shared.begin(Taker(0), 100)
        await shared.begin(Taker(1), 50)
        await shared.begin(Taker(2), 0)
        assert shared.holders == [0, 2]
        for turn in (0, 1, 2):
            await shared.end(turn)

    asyncio.run(run())


def test_one_who_is_cancelled_holds_nothing_and_lets_others_through() -> None:
    async def run() -> None:
        shared = Shared()
        await shared.begin(Taker(0), 60)
        await shared.begin(Taker(1), 90)
        await shared.begin(Taker(2), 40)
        shared.tasks[1].cancel()
        await shared.settle()
        assert shared.holders == [0, 2]
        await shared.begin(Taker(3), 90)
        shared.tasks[0].cancel()
        shared.tasks[2].cancel()
        shared.tasks[3].cancel()
        await asyncio.gather(*shared.tasks.values(), return_exceptions=True)
        assert shared.memory.used_bytes == 0

    asyncio.run(run())
