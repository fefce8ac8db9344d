"""A destination before a real one, whose calls a test sees, holds up, or lets fail."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from forebay_core.checkpoints.documents import FileRecord
from forebay_core.checkpoints.requests import Listed
from forebay_core.errors import ForebayError
from forebay_server.checkpoints.destinations.base import Destination, Progress, unheard

LIMIT_SECONDS = 30.0


class Watched(Destination):
    """`calls`: (name, key) of all writing calls that were let through, in order; and of `fails` with what, how often.

    With `holds` set, no upload goes on until it is cleared.
    """

    def __init__(self, real: Destination) -> None:
        self.url = real.url
        self.calls: list[tuple[str, str]] = []
        #: The keys of all that were asked for, also of those that failed.
        self.asked: list[str] = []
        #: By the end of the key: the errors of the next calls that write or upload it.
        self.fails: dict[str, list[ForebayError]] = {}
        self.is_conditional = True
        self.held = asyncio.Event()
        self._real = real
        self._open = asyncio.Event()
        self._open.set()

    def hold(self) -> None:
        """Uploads wait from now on; `held` is set by the first."""
        self._open.clear()
        self.held.clear()

    def release(self) -> None:
        self._open.set()

    def written(self) -> list[str]:
        """The keys, in order."""
        return [key for _, key in self.calls]

    async def _pass(self, name: str, key: str) -> None:
        self.asked.append(key)
        for end, errors in self.fails.items():
            if key.endswith(end) and errors:
                raise errors.pop(0)
        if name == "upload" and not self._open.is_set():
            self.held.set()
            async with asyncio.timeout(LIMIT_SECONDS):
                await self._open.wait()

    async def get(self, key: str) -> bytes | None:
        return await self._real.get(key)

    async def head(self, key: str) -> Listed | None:
        return await self._real.head(key)

    async def list(self, prefix: str) -> tuple[Listed, ...]:
        return await self._real.list(prefix)

    async def put(self, key: str, body: bytes) -> None:
        await self._pass("put", key)
        await self._real.put(key, body)
        self.calls.append(("put", key))

    async def put_if_absent(self, key: str, body: bytes) -> bool:
        assert self.is_conditional
        await self._pass("put_if_absent", key)
        done = await self._real.put_if_absent(key, body)
        self.calls.append(("put_if_absent", key))
        return done

    async def delete(self, keys: Sequence[str]) -> None:
        await self._real.delete(keys)
        self.calls += [("delete", key) for key in keys]

    async def upload(self, local: Path, key: str, *, expected: FileRecord, progress: Progress = unheard) -> None:
        await self._pass("upload", key)
        await self._real.upload(local, key, expected=expected, progress=progress)
        self.calls.append(("upload", key))

    async def download(self, key: str, local: Path, *, size_bytes: int, progress: Progress = unheard) -> None:
        await self._pass("download", key)
        await self._real.download(key, local, size_bytes=size_bytes, progress=progress)
        self.calls.append(("download", key))

    async def probe_put_if_absent(self) -> bool:
        return self.is_conditional and await self._real.probe_put_if_absent()
