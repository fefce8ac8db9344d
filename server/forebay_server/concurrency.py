"""Many awaitables with a bound on how many run at once. Called on the event loop."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

A = TypeVar("A")
T = TypeVar("T")


async def gather_bounded(limit: int, function: Callable[[A], Awaitable[T]], items: Sequence[A]) -> list[T]:
    """The results for all items, in their order. The first failure is raised and ends what else runs."""
    results: dict[int, T] = {}
    numbered = iter(enumerate(items))

    async def work() -> None:
        for index, item in numbered:
            results[index] = await function(item)

    workers = [asyncio.create_task(work()) for _ in range(min(limit, len(items)))]
    try:
        await asyncio.gather(*workers)
    finally:
        await end_all(workers)
    return [results[index] for index in range(len(items))]


async def end_all(tasks: Sequence[asyncio.Task[T]]) -> None:
    """Cancels what still runs and waits until it has ended, whatever it ends with."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
