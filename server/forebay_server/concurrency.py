"""What the event loop's tasks have in common: many at once with a bound, one for all who ask, work in threads, loops
that outlive a failure, and ends that leave nothing behind. Called on the event loop."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

_log = logging.getLogger(__name__)
A = TypeVar("A")
K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
P = ParamSpec("P")
_PAUSE_SECONDS = 1.0


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


class OneForAll(Generic[K, T]):
    """Work that several ask for at the same time and that is done once. A failure reaches all of them; one who gives
    up does not end the work of the others."""

    def __init__(self) -> None:
        self._under_way: dict[K, asyncio.Task[T]] = {}

    async def result(self, key: K, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What the work under this key gives: of the one under way, or of `work()`, begun now."""
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = asyncio.create_task(work())
            task.add_done_callback(lambda done: self._ended(key, done))
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Ends what is under way; those who wait for it are cancelled."""
        await end_all(list(self._under_way.values()))

    def _ended(self, key: K, task: asyncio.Task[T]) -> None:
        del self._under_way[key]
        if not task.cancelled():
            task.exception()  # seen here, since all who waited may be gone


async def repeat(step: Callable[[], Awaitable[None]], what: str, *, pause_seconds: float = _PAUSE_SECONDS) -> None:
    """Awaits `step()` over and over until it is cancelled. A failure is logged, and after a pause it goes on."""
    while True:
        try:
            await step()
        except Exception:
            _log.exception("%s failed once; it goes on", what)
            await asyncio.sleep(pause_seconds)


async def end_all(tasks: Sequence[asyncio.Task[T]]) -> None:
    """Cancels what still runs and waits until it has ended, whatever it ends with."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def in_thread(function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """The result of a blocking function, on a thread of the loop's own; waits for its end as `complete` does."""
    return await complete(asyncio.ensure_future(asyncio.to_thread(function, *arguments, **options)))


async def complete(work: "asyncio.Future[T]") -> T:
    """The result of work that runs in a thread.

    A thread cannot be cancelled: when the caller is, this still waits until the work is over, so that nothing (a
    descriptor, a temp file) is taken away under it, and then raises `CancelledError`.
    """
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            try:
                await asyncio.wait([work])
            except asyncio.CancelledError:
                continue
        if not work.cancelled():
            work.exception()
        raise
