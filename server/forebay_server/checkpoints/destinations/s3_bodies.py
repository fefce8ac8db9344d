"""Single objects of a bucket: read whole and put whole, each put checked.

What arrived is what was sent, because the store looks at the CRC-64/NVME that goes with a body and refuses another one.
AWS's own service does; of another the first put finds out, by a checksum that is wrong. Where a store does not look at
it, its ETag is compared with the MD5 of what was sent, and where the ETag is made of something else, the object is read
back. Single requests, without retries; on the event loop.
"""

import asyncio
import hashlib
from collections.abc import Awaitable
from typing import Any, Literal, TypeVar

import obstore
from obstore import exceptions as obstore_errors

from forebay_core.errors import CheckpointError
from forebay_server.checkpoints.destinations.probing import probe_key
from forebay_server.sources.failures import DAMAGED_ON_THE_WAY, ShortBody, store_code
from forebay_server.sources.retries import READING, attempt
from forebay_server.sources.s3 import S3
from forebay_server.sources.s3_settings import Opening

T = TypeVar("T")
Mode = Literal["create", "overwrite"]
PLAIN, CHECKED = Opening(), Opening(checksums=True)
_WRONG = Opening(wrong_checksum=True)
_NOT_OFFERED = frozenset({"NotImplemented", "MethodNotAllowed", "InvalidArgument", "InvalidRequest"})
#: Documents are read into memory as a whole.
_LARGEST_BYTES = 256 << 20


class Bodies:
    """The objects of one bucket, by their whole keys. `root`: the whole key of a directory, where a probe may lie."""

    def __init__(self, store: S3, root: str) -> None:
        self._store = store
        self._root = root
        self._checking: Opening | None = None
        self._probing = asyncio.Lock()

    async def checking(self) -> Opening:
        """How bodies are put: with checksums where the store looks at them. Found out once, with retries."""
        async with self._probing:
            if self._checking is None:
                self._checking = CHECKED if await self._looks_at_checksums() else PLAIN
        return self._checking

    async def get(self, key: str) -> bytes | None:
        """Its bytes; None where the store says that there is no such object."""

        async def request(store: Any) -> bytes:
            self._store.counters.requests += 1
            result = await obstore.get_async(store, key)
            self._store.version_of(result.meta, key)
            if result.meta["size"] > _LARGEST_BYTES:
                raise CheckpointError(f"{self._store.url_of(key)} has {result.meta['size']} bytes: it is no document")
            body = bytes(await result.bytes_async())
            self._store.counters.bytes += len(body)
            if len(body) != result.meta["size"]:
                raise ShortBody(f"{len(body)} of {result.meta['size']} bytes")
            return body

        return await unless_absent(self._store.asking(request))

    async def put(self, key: str, body: bytes, *, mode: Mode = "overwrite") -> None:
        """Writes it. What obstore raises is raised; with mode `create` its `AlreadyExistsError` too."""
        opening = await self.checking()
        etag = await self.send(key, body, opening, mode=mode)
        if opening == PLAIN and not is_md5(etag, body) and await self.get(key) != body:
            raise ShortBody("the store has other bytes than it was sent")

    async def send(self, key: str, body: bytes | memoryview, opening: Opening, *, mode: Mode = "overwrite") -> str:
        """One request; the ETag that it gives."""

        async def request(store: Any) -> str:
            self.count(1, len(body))
            result = await obstore.put_async(store, key, body, mode=mode, use_multipart=False)
            return plain(result["e_tag"])

        return await self._store.asking(request, opening)

    def count(self, requests: int, sent_bytes: int = 0) -> None:
        """Requests that write."""
        counters = self._store.counters
        counters.requests += requests
        counters.writes += requests
        counters.sent_bytes += sent_bytes

    async def _looks_at_checksums(self) -> bool:
        if self._store.settings.is_aws:
            return True
        key = self._root + probe_key()

        async def ask() -> bool:
            try:
                await self.send(key, b"forebay", _WRONG)
            except obstore_errors.BaseError as error:
                if store_code(error) in DAMAGED_ON_THE_WAY:
                    return True
                if store_code(error) in _NOT_OFFERED:
                    return False
                raise
            self.count(1)
            await self._store.asking(lambda store: obstore.delete_async(store, key))
            return False

        return await attempt(self._store, self._store.url_of(self._root).rstrip("/"), READING, ask)


async def unless_absent(answer: Awaitable[T]) -> T | None:
    """The answer; None where the store itself says that there is no such object, and not something on the way to it."""
    try:
        return await answer
    except FileNotFoundError as error:
        if store_code(error) != "NoSuchKey":
            raise
        return None


def is_not_offered(error: BaseException) -> bool:
    """True where the store says that it does not do what was asked for at all."""
    return store_code(error) in _NOT_OFFERED


def is_md5(etag: str, body: bytes) -> bool:
    """Whether an ETag is the MD5 of a body."""
    return plain(etag) == hashlib.md5(body, usedforsecurity=False).hexdigest()


def plain(etag: str | None) -> str:
    """The ETag without what stores put around it."""
    return (etag or "").removeprefix("W/").strip('"')
