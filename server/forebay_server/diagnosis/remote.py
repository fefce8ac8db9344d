"""The way to a source: what the service says, what listing, asking and reading give, and how fast bytes come.

Each step goes the way that the daemon itself reads. They are made one after the other, and what makes a step senseless
ends them. Runs on the event loop.
"""

import asyncio
import contextlib
import itertools
import statistics
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime

from forebay_core.diagnosis import CredentialFacts, Fact, MeasurementFacts, ProbeFacts
from forebay_core.errors import ForebayError, SourceNotFound, one_line
from forebay_core.formats import by_extension, is_data_key
from forebay_core.formats.base import ByteRange, ObjectInfo
from forebay_core.locations import Source
from forebay_server.concurrency import end_all
from forebay_server.sources.endpoint import ask_endpoint
from forebay_server.sources.failures import STORE_FAILURES, classify, shown
from forebay_server.sources.registry import Stores
from forebay_server.sources.remote import NOW, Received, Target
from forebay_server.sources.retries import OPENING, attempt
from forebay_server.sources.s3 import S3

#: As the daemon reads: so many requests at once, of so many bytes.
_AT_ONCE = 16
_PART_BYTES, _LEAST_PART_BYTES = 8 << 20, 256 << 10
_PAGES = 3
_SMALL_READS = 5


async def remote_facts(stores: Stores, source: Source, seconds: float, most_bytes: int) -> AsyncIterator[Fact]:
    """The facts of a source. `seconds` and `most_bytes` bound the measurement; 0: none is made."""
    try:
        await asyncio.to_thread(stores.permits.check_source, source)
        root = stores.target(source.root)
    except ForebayError as error:
        yield CredentialFacts(error=type(error).__name__, message=one_line(error))
        return
    if isinstance(root.store, S3):
        yield await ask_endpoint(root.store.settings)
    probe = _Probe(stores, source, root)
    yield await probe.find()
    if isinstance(root.store, S3):
        yield _credentials(root.store)
    if probe.objects:
        yield await probe.head()
        async for fact in probe.read(seconds, most_bytes):
            yield fact


def _credentials(store: S3) -> CredentialFacts:
    settings, provider = store.settings, store.settings.credentials.provider
    expiry = provider.expires_at if provider else None
    return CredentialFacts(
        origin=settings.credentials.origin,
        anonymous=settings.credentials.is_anonymous,
        requester_pays=settings.requester_pays,
        expires_in_seconds=(expiry - datetime.now(UTC)).total_seconds() if expiry else 0.0,
        region=settings.region,
        endpoint=shown(settings.endpoint),
    )


class _Probe:
    """The requests of one diagnosis. `objects` are those that were found, by whole keys."""

    def __init__(self, stores: Stores, source: Source, root: Target) -> None:
        self._stores = stores
        self._source = source
        self._root = root
        self.objects: list[ObjectInfo] = []

    async def find(self) -> ProbeFacts:
        """The objects on the first pages of the source, or the one object that it is."""
        begun = time.monotonic()
        try:
            more = await attempt(self._root.store, self._root.url, OPENING, self._find)
        except ForebayError as error:
            return _failed("list", self._root.url, error, begun)
        return ProbeFacts(
            "list",
            shown(self._source.display),
            time.monotonic() - begun,
            objects=len(self.objects),
            bytes=sum(obj.size for obj in self.objects),
            more=more,
        )

    async def _find(self) -> bool:
        """Whether there are further pages."""
        self.objects = []
        single = self._source if self._source.kind == "object" else self._source.as_object()
        if single is not None and by_extension(self._source.urls[0]):
            with contextlib.suppress(FileNotFoundError):
                return await self._find_one(single)
        pages = self._root.store.list(self._root.key, self._keep)
        async with contextlib.aclosing(pages):  # type: ignore[type-var]
            for _ in range(_PAGES):
                page = await anext(pages, None)
                if page is None:
                    break
                self.objects += page
            else:
                return True
        if not self.objects:
            raise SourceNotFound(f"{shown(self._source.display)}: nothing found; check the name")
        return False

    async def _find_one(self, single: Source) -> bool:
        target = self._stores.target(single.root, single.urls[0].rpartition("/")[2])
        info = await target.store.head(target.key)
        self.objects = [
            ObjectInfo(key=info.key.removeprefix(self._root.key).lstrip("/"), size=info.size, version=info.version)
        ]
        return False

    def _keep(self, key: str) -> bool:
        return is_data_key(key) and self._source.matches(key)

    async def head(self) -> ProbeFacts:
        """One object, of middling size."""
        target, begun = self._target(self._middling()), time.monotonic()
        try:
            await attempt(target.store, target.url, OPENING, lambda: target.store.head(target.key))
        except ForebayError as error:
            return _failed("head", target.url, error, begun)
        return ProbeFacts("head", shown(target.url), time.monotonic() - begun)

    async def read(self, seconds: float, most_bytes: int) -> AsyncIterator[Fact]:
        """A small read, some more for the latency, and many at once for the bandwidth."""
        obj = self._middling()
        target, begun = self._target(obj), time.monotonic()
        first = ByteRange(0, min(obj.size, 1 << 20))
        try:
            await attempt(
                target.store, target.url, OPENING, lambda: target.store.read(target.key, first, obj.version, [])
            )
        except ForebayError as error:
            yield _failed("read", target.url, error, begun)
            return
        took = time.monotonic() - begun
        yield ProbeFacts("read", shown(target.url), took, bytes=first.length)
        if seconds and obj.size:
            yield await self._measure(seconds, most_bytes, first.length / max(took, 1e-6))

    async def _measure(self, seconds: float, most_bytes: int, one_stream: float) -> MeasurementFacts:
        target = self._target(self._middling())
        try:
            latency = await self._latency(target)
            part = int(min(_PART_BYTES, max(_LEAST_PART_BYTES, one_stream * seconds / _AT_ONCE)))
            moved, took = await self._move(seconds, most_bytes, part)
        except STORE_FAILURES as error:
            typed = classify(error, url=target.url, endpoint=target.store.endpoint, who=target.store.who)
            return MeasurementFacts("remote", error=type(typed).__name__, message=one_line(typed))
        return MeasurementFacts("remote", bytes=moved, seconds=took, latency_seconds=latency, requests_at_once=_AT_ONCE)

    async def _latency(self, target: Target) -> float:
        obj, times = self._middling(), []
        for _ in range(_SMALL_READS):
            begun = time.monotonic()
            await target.store.read(target.key, ByteRange(0, 1), obj.version, [])
            times.append(time.monotonic() - begun)
        return statistics.median(times)

    async def _move(self, seconds: float, most_bytes: int, part_bytes: int) -> tuple[int, float]:
        """Bytes read by many requests at once, and the time that it took."""
        parts = itertools.takewhile(lambda _: time.monotonic() - begun < seconds, self._parts(part_bytes, most_bytes))
        moved = 0

        async def work() -> None:
            nonlocal moved
            for obj, wanted in parts:
                target = self._target(obj)
                received: Received = []
                async with target.store.gate.turn(NOW):
                    await target.store.read(target.key, wanted, obj.version, received)
                moved += sum(memoryview(chunk).nbytes for chunk in received)

        begun = time.monotonic()
        workers = [asyncio.create_task(work()) for _ in range(_AT_ONCE)]
        try:
            done, _ = await asyncio.wait(workers, timeout=3 * seconds)
            for worker in done:
                worker.result()
        finally:
            took = time.monotonic() - begun
            await end_all(workers)
        return moved, took

    def _parts(self, part_bytes: int, most_bytes: int) -> Iterator[tuple[ObjectInfo, ByteRange]]:
        """Parts of the objects, of another object each time, over and over until they are `most_bytes`."""
        largest = max(obj.size for obj in self.objects)
        starts = itertools.cycle(range(0, largest, part_bytes))
        left = most_bytes
        for start, obj in ((start, obj) for start in starts for obj in self.objects if obj.size > start):
            wanted = ByteRange(start, min(start + part_bytes, obj.size))
            if wanted.length > left:
                return
            left -= wanted.length
            yield obj, wanted

    def _target(self, obj: ObjectInfo) -> Target:
        return self._stores.target(self._source.root, obj.key)

    def _middling(self) -> ObjectInfo:
        by_size: Sequence[ObjectInfo] = sorted((obj for obj in self.objects if obj.size), key=lambda obj: obj.size)
        return by_size[len(by_size) // 2] if by_size else self.objects[0]


def _failed(action: str, url: str, error: ForebayError, begun: float) -> ProbeFacts:
    return ProbeFacts(action, shown(url), time.monotonic() - begun, error=type(error).__name__, message=one_line(error))
