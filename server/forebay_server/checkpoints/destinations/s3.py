"""A prefix of a bucket of S3, or of what speaks its protocol, as a place of checkpoints.

The requests are `s3_bodies`' and `s3_uploads`'; here they get their retries, and keys relative to the root. Every
request takes its turn at the gate of the bucket, which datasets share. On the event loop.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import obstore
from obstore import exceptions as obstore_errors

from forebay_core.checkpoints.documents import FileRecord
from forebay_core.checkpoints.requests import Listed
from forebay_core.errors import CheckpointDamaged, CheckpointNotFound, SourceUnreachable
from forebay_core.locations import Location
from forebay_server.checkpoints.destinations.base import Destination, Progress, unheard
from forebay_server.checkpoints.destinations.probing import PROBES, is_probe, probe, probe_key
from forebay_server.checkpoints.destinations.s3_bodies import Bodies, is_not_offered, unless_absent
from forebay_server.checkpoints.destinations.s3_uploads import Uploads
from forebay_server.checkpoints.destinations.transfers import Transfers
from forebay_server.sources.failures import is_transient
from forebay_server.sources.retries import READING, RetryPolicy, attempt
from forebay_server.sources.s3 import S3, check_addressable

T = TypeVar("T")
#: Of one request that deletes.
_KEYS_AT_ONCE = 1000


class S3Destination(Destination):
    """One root."""

    def __init__(self, store: S3, root: Location, transfers: Transfers, *, retries: RetryPolicy = READING) -> None:
        self.url = root.url.rstrip("/")
        self._store = store
        self._prefix = f"{root.path.rstrip('/')}/".removeprefix("/")
        self._transfers = transfers
        self._retries = retries
        self._bodies = Bodies(store, self._prefix)
        self._uploads = Uploads(store, self._bodies, transfers, retries)
        self._is_conditional: bool | None = None
        self._probing = asyncio.Lock()

    async def get(self, key: str) -> bytes | None:
        whole = self._whole(key)
        return await self._attempt(whole, lambda: self._bodies.get(whole))

    async def head(self, key: str) -> Listed | None:
        meta = await self._meta(self._whole(key))
        return None if meta is None else self._listed(meta)

    async def list(self, prefix: str) -> tuple[Listed, ...]:
        found = await self._list(prefix)
        if not found:
            await self._attempt(self._prefix + PROBES, self._check_that_it_is_s3)
            found = await self._list(prefix)
        return found

    async def _list(self, prefix: str) -> tuple[Listed, ...]:
        below = self._prefix + prefix
        found: list[Any] = []

        async def go_on() -> None:
            async for page in self._store.pages(below, after=found[-1]["path"] if found else None):
                found.extend(page)

        await self._attempt(below, go_on)
        return tuple(self._listed(meta) for meta in found if meta["path"].startswith(below))

    async def _check_that_it_is_s3(self) -> None:
        """Raises where a key that is not there gets another answer than S3's: to obstore, a page that asks to sign in
        is an empty listing, and a job that sees no checkpoints begins anew."""
        key = self._prefix + probe_key()
        if await self._bodies.get(key) is not None:
            raise SourceUnreachable(f"{self.url}: what was never written is there; check AWS_ENDPOINT_URL")

    async def put(self, key: str, body: bytes) -> None:
        whole = self._whole(key)
        await self._bodies.checking()
        await self._attempt(whole, lambda: self._bodies.put(whole, body))

    async def put_if_absent(self, key: str, body: bytes) -> bool:
        whole, attempts = self._whole(key), 0
        await self._bodies.checking()

        async def once() -> bool:
            nonlocal attempts
            attempts += 1
            try:
                await self._bodies.put(whole, body, mode="create")
            except obstore_errors.AlreadyExistsError as error:
                if is_transient(error):  # another one is being written at this moment
                    raise
                return attempts > 1 and await self._bodies.get(whole) == body
            return True

        return await self._attempt(whole, once)

    async def delete(self, keys: Sequence[str]) -> None:
        whole = [self._whole(key) for key in keys]
        for start in range(0, len(whole), _KEYS_AT_ONCE):
            await self._delete(whole[start : start + _KEYS_AT_ONCE])

    async def upload(self, local: Path, key: str, *, expected: FileRecord, progress: Progress = unheard) -> None:
        await self._uploads.upload(local, self._whole(key), expected, progress)

    async def download(self, key: str, local: Path, *, size_bytes: int, progress: Progress = unheard) -> None:
        whole = self._whole(key)
        url = self._store.url_of(whole)
        meta = await self._meta(whole)
        if meta is None:
            raise CheckpointNotFound(f"{url}: there is no such object")
        if meta["size"] != size_bytes:
            raise CheckpointDamaged(f"{url} has {meta['size']} bytes, and {size_bytes} were saved")
        version = self._store.version_of(meta, whole)
        await self._transfers.receive(
            self._store, whole, version, local, size_bytes=size_bytes, url=url, progress=progress
        )

    async def probe_put_if_absent(self) -> bool:
        async with self._probing:
            if self._is_conditional is None:
                self._is_conditional = await probe(self, is_refusal=is_not_offered)
        return self._is_conditional

    async def _delete(self, whole: Sequence[str]) -> None:
        async def request(store: Any) -> None:
            self._bodies.count(1)
            await obstore.delete_async(store, [*whole])

        await self._attempt(whole[0], lambda: self._store.asking(request))

    async def _meta(self, whole: str) -> Any:
        return await self._attempt(whole, lambda: unless_absent(self._store.meta(whole)))

    async def _attempt(self, whole: str, request: Callable[[], Awaitable[T]]) -> T:
        url = self.url if is_probe(whole.removeprefix(self._prefix)) else self._store.url_of(whole)
        return await attempt(self._store, url, self._retries, request)

    def _whole(self, key: str) -> str:
        whole = self._prefix + key
        check_addressable(whole, self._store.url_of)
        return whole

    def _listed(self, meta: Any) -> Listed:
        modified: datetime = meta["last_modified"]
        return Listed(meta["path"].removeprefix(self._prefix), meta["size"], modified.timestamp())
