"""Files that are sent to a bucket: one part as one request, more as a multipart upload.

What arrived is what was sealed: the bytes that are sent are those whose CRC-32C was compared item by item on the way
(`content`), and the store looks at the checksum of each part, or its ETag is compared, or the object is read back
(`s3_bodies`). In the end the store is asked what it has: it must be of this size, and have the ETag that was given.

A multipart upload is obstore's: it ends at the first of its requests that fails and is taken back then, and the file is
sent anew. So that a store which refuses a request now and then is ever done with a large file, obstore makes those of
the second and later attempts again by itself, and these repeats are the only requests that are not counted. A daemon
that is killed leaves parts behind, which no listing shows: a lifecycle rule of the bucket
(AbortIncompleteMultipartUpload) deletes them. On the event loop.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import obstore

from forebay_core.checkpoints.documents import FileRecord
from forebay_core.errors import CheckpointDamaged
from forebay_core.formats.base import ByteRange
from forebay_server.checkpoints.destinations.base import Progress
from forebay_server.checkpoints.destinations.content import ItemCheck, SealedFile
from forebay_server.checkpoints.destinations.parts import Parts
from forebay_server.checkpoints.destinations.s3_bodies import PLAIN, Bodies, plain, unless_absent
from forebay_server.checkpoints.destinations.transfers import Transfers
from forebay_server.concurrency import in_thread
from forebay_server.sources.failures import shown
from forebay_server.sources.remote import Caller, Received
from forebay_server.sources.retries import RetryPolicy, attempt, persist
from forebay_server.sources.s3 import S3
from forebay_server.sources.s3_settings import Opening

T = TypeVar("T")
#: How often a file is sent that does not arrive as it was sent.
_SENDINGS = 3
#: Of one request, within an attempt that is not the first.
_REPEATS = 5
#: For obstore to take back what it has begun at the store, once nobody waits for it any more.
_TAKE_BACK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _Sent:
    """The ETag that the store gave, and the one of these bytes where ETags are made of MD5s; None: not taken."""

    etag: str
    of_bytes: str | None


@dataclass(frozen=True, slots=True)
class _File:
    """What is sent where, and what was sealed of it."""

    local: Path
    key: str
    expected: FileRecord

    def opened(self, *, with_md5: bool) -> SealedFile:
        return SealedFile(self.local, self.expected, with_md5=with_md5)


class Uploads:
    """Of one destination."""

    def __init__(self, store: S3, bodies: Bodies, transfers: Transfers, retries: RetryPolicy) -> None:
        self._store = store
        self._bodies = bodies
        self._transfers = transfers
        self._retries = retries

    async def upload(self, local: Path, key: str, expected: FileRecord, progress: Progress) -> None:
        """Sends a file and verifies it. See `Destination.upload`."""
        opening = await self._bodies.checking()
        caller = self._transfers.caller()
        for _ in range(_SENDINGS):
            sent = await self._send(_File(local, key, expected), opening, progress, caller)
            if await self._is_there(key, expected, sent):
                progress(expected.size_bytes)
                return
        raise CheckpointDamaged(
            f"{self._store.url_of(key)} is not what was sent, {_SENDINGS} times: {shown(self._store.endpoint)}, or what"
            " lies before it, damages what it is given; look into its log"
        )

    async def _send(self, file: _File, opening: Opening, progress: Progress, caller: Caller) -> _Sent:
        sizes = self._transfers.sizes(file.expected.size_bytes)
        is_first = True

        async def once() -> _Sent:
            nonlocal is_first
            repeating = opening if is_first else replace(opening, repeats=_REPEATS)
            is_first = False
            progress(0)
            if len(sizes) <= 1:
                return await self._send_at_once(file, opening, caller)
            return await self._store.asking(
                lambda store: self._send_parts(store, file, sizes, progress, with_md5=opening == PLAIN, caller=caller),
                repeating,
            )

        return await persist(self._store, self._store.url_of(file.key), self._retries, once)

    async def _send_at_once(self, file: _File, opening: Opening, caller: Caller) -> _Sent:
        size = file.expected.size_bytes
        async with self._transfers.memory.taken(caller, size):
            with file.opened(with_md5=opening == PLAIN) as opened:
                body = await in_thread(opened.next, size)
            async with self._transfers.flight.taken(caller, size), self._store.gate.turn(caller):
                etag = await self._bodies.send(file.key, body, opening)
        return _Sent(etag, opened.etag(parts=False))

    async def _send_parts(
        self, store: Any, file: _File, sizes: list[int], progress: Progress, *, with_md5: bool, caller: Caller
    ) -> _Sent:
        gate = self._store.gate
        with file.opened(with_md5=with_md5) as opened:
            async with Parts(opened, sizes, gate, self._transfers, caller) as parts:
                parts.on_sent = progress
                sending = obstore.put_async(
                    *(store, file.key, parts.chunks()),
                    use_multipart=True,
                    chunk_size=sizes[0],
                    max_concurrency=self._transfers.parts_at_once,
                )
                try:
                    result = await _taken_back_when_cancelled(sending, parts)
                except Exception as error:
                    gate.report(error)
                    raise
                finally:
                    self._bodies.count(parts.taken + 2, sum(sizes[: parts.taken]))
                gate.report(None, requests=parts.taken + 2)
            return _Sent(plain(result["e_tag"]), opened.etag(parts=True))

    async def _is_there(self, key: str, expected: FileRecord, sent: _Sent) -> bool:
        """Whether the store has what was sent."""
        url = self._store.url_of(key)
        meta = await attempt(self._store, url, self._retries, lambda: unless_absent(self._store.meta(key)))
        if meta is None or meta["size"] != expected.size_bytes or plain(meta["e_tag"]) != sent.etag:
            return False
        if sent.of_bytes in (None, sent.etag):
            return True
        return await self._is_same(key, self._store.version_of(meta, key), expected)

    async def _is_same(self, key: str, version: str, expected: FileRecord) -> bool:
        """Whether what is there, read back, is what was sealed."""
        check = ItemCheck(expected, self._store.url_of(key))
        caller = self._transfers.caller()
        for start in range(0, expected.size_bytes, self._transfers.part_bytes):
            wanted = ByteRange(start, min(start + self._transfers.part_bytes, expected.size_bytes))
            received: Received = []

            async def go_on(wanted: ByteRange = wanted, received: Received = received) -> None:
                rest = ByteRange(wanted.start + sum(memoryview(chunk).nbytes for chunk in received), wanted.stop)
                await self._store.read(key, rest, version, received)

            async with self._transfers.memory.taken(caller, wanted.length):
                await attempt(self._store, self._store.url_of(key), self._retries, go_on, caller)
                try:
                    for chunk in received:
                        check.add(bytes(chunk))
                except CheckpointDamaged:
                    return False
        return True


async def _taken_back_when_cancelled(sending: Awaitable[T], parts: Parts) -> T:
    """The result. Where the caller is cancelled, obstore is told at its next part, so that it leaves nothing behind."""
    task = asyncio.ensure_future(sending)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        parts.stop()
        await asyncio.wait([task], timeout=_TAKE_BACK_SECONDS)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
