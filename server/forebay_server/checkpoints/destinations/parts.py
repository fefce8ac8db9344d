"""The parts of one large file on their way to a store, which asks for the next one when it has room for it.

Each part takes its memory before it is read, then its place among those on their way and its turn at the store's gate,
and gives all of it back when obstore lets go of its bytes, which is when it was sent: obstore tells nobody, but the
last reference to them goes then, on a thread of its own. So the memory and the turns of uploads are bounded over all
files together, and between two parts of an upload a demand goes first.

The invariant: what was taken is given back once, by the end of the context for all parts that obstore has, and for one
that it was still waiting for as soon as that is not in vain any more. On the event loop.
"""

import asyncio
import contextlib
import weakref
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from forebay_server.checkpoints.destinations.base import Progress
from forebay_server.checkpoints.destinations.content import SealedFile
from forebay_server.checkpoints.destinations.transfers import Transfers
from forebay_server.concurrency import complete
from forebay_server.memory import Memory
from forebay_server.sources.gate import Gate
from forebay_server.sources.remote import Caller


class Stopped(Exception):
    """Raised to obstore, so that it takes back what it has begun at the store."""


class Parts:
    """One attempt at sending a file, as a context manager; nobody reads the file when it has ended."""

    def __init__(self, file: SealedFile, sizes: list[int], gate: Gate, transfers: Transfers, caller: Caller) -> None:
        self.taken = 0
        self.sent_bytes = 0
        self.on_sent: Progress | None = None
        self._file = file
        self._sizes = sizes
        self._gate = gate
        self._transfers = transfers
        self._caller = caller
        self._loop = asyncio.get_running_loop()
        self._held: dict[int, ExitStack] = {}
        self._reading: list[asyncio.Future[bytes]] = []
        self._is_over = False

    async def chunks(self) -> AsyncGenerator[memoryview, None]:
        """What obstore is given: buffers of these sizes, each let go of when it is sent."""
        for number, size in enumerate(self._sizes):
            yield await self._next(number, size)

    def stop(self) -> None:
        """Nothing more is sent: the next part that is asked for is refused."""
        self._is_over = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.stop()
        await asyncio.gather(*self._reading, return_exceptions=True)
        while self._held:
            self._held.popitem()[1].close()

    async def _next(self, number: int, size: int) -> memoryview:
        """One part, of which nobody here keeps a reference."""
        held = self._held[number] = ExitStack()
        await self._take(held, self._transfers.memory, size)
        view = memoryview(await self._read(size))
        await self._take(held, self._transfers.flight, size)
        await self._gate.take(self._caller)
        held.callback(self._gate.give_back)
        self._refuse_when_over(held)
        self.taken += 1
        weakref.finalize(view, self._let_go, number, size).atexit = False
        return view

    async def _take(self, held: ExitStack, shared: Memory, size: int) -> None:
        await shared.take(self._caller, size)
        held.callback(shared.give_back, size)
        self._refuse_when_over(held)

    async def _read(self, size: int) -> bytes:
        reading = asyncio.ensure_future(asyncio.to_thread(self._file.next, size))
        self._reading = [reading]
        return await complete(reading)

    def _refuse_when_over(self, held: ExitStack) -> None:
        if self._is_over:
            held.close()
            raise Stopped

    def _let_go(self, number: int, size: int) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._sent, number, size)

    def _sent(self, number: int, size: int) -> None:
        if held := self._held.pop(number, None):
            held.close()
        if not self._is_over and self.on_sent is not None:
            self.sent_bytes += size
            self.on_sent(self.sent_bytes)
