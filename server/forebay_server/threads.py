"""Waiting for a thread's work from the event loop, without leaving it behind."""

import asyncio
from typing import TypeVar

T = TypeVar("T")


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
