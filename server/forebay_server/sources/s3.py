"""A bucket of S3, or of what speaks its protocol, through obstore.

obstore makes no retries here, limits the wait for a connection and for the next bytes, and not the length of a request.
What it is set up with, and which credentials it uses, is `s3_settings`' and `credentials`' affair. Credentials that the
store refuses in the middle of a run are taken anew once, from where they came from, and the request made again.

The invariant: the bytes of a range are handed on only where the answer carries the version that was asked for, also
where a server ignores If-Match.
"""

import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import obstore
from obstore import exceptions as obstore_errors
from obstore.store import S3Store

from forebay_core.errors import BadObject, ForebayError, SourceUnreachable
from forebay_core.formats.base import ByteRange, ObjectInfo
from forebay_server.sources.endpoint import ask_endpoint
from forebay_server.sources.failures import (
    STORE_FAILURES,
    ShortBody,
    changed,
    is_bare_redirect,
    is_refusal,
    is_transient,
    says_changed,
    shown,
    wrong_region,
)
from forebay_server.sources.remote import ConnectionOptions, Received, RemoteCounters, RemoteStore
from forebay_server.sources.s3_settings import Opening, Settings, settings_of

if TYPE_CHECKING:
    from obstore import ObjectMeta

T = TypeVar("T")
#: As many as a page of S3 holds, so that a batch is a request.
_PAGE = 1000
#: What of a body is kept when the connection breaks in the middle of it comes in chunks of this size.
_CHUNK_BYTES = 2 << 20
#: Credentials that are refused again so soon after they were taken anew are wrong: no request is made twice for them.
_RENEW_SECONDS = 10.0
_STORE_ERRORS = (obstore_errors.BaseError, OSError, ForebayError)
_PLAIN = Opening()
_MD5_ETAG = re.compile(r'"?([0-9a-f]{32})"?')


class S3(RemoteStore):
    """One bucket. Raises `ConfigurationError` or `AccessDenied` for settings that cannot work, before any request."""

    scheme = "s3"
    account = ""

    def __init__(
        self,
        bucket: str,
        environment: Mapping[str, str],
        counters: RemoteCounters,
        options: ConnectionOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bucket = bucket
        self.counters = counters
        self._environment = environment
        self._options = options
        self._clock = clock
        self._generation = 0
        self._renewed_at = float("-inf")
        self._stores: dict[Opening, S3Store] = {}
        self._open()

    async def list(
        self, directory: str, keep: Callable[[str], bool], *, after: str | None = None
    ) -> AsyncIterator[list[ObjectInfo]]:
        prefix = f"{directory}/" if directory else ""
        async for page in self.pages(prefix, after=None if after is None else prefix + after):
            yield [self._relative(meta, prefix) for meta in page if _is_below(meta["path"], prefix, keep)]

    async def pages(self, prefix: str, *, after: str | None = None) -> "AsyncIterator[Sequence[ObjectMeta]]":
        """What the store says of the objects below a prefix, page by page, beginning behind the key `after`."""
        last = after
        pages: AsyncIterator[Any] | None = None

        async def next_page(store: S3Store) -> Any:
            nonlocal pages
            if pages is None:
                self.counters.requests += 1
                pages = aiter(obstore.list(store, prefix or None, offset=last, chunk_size=_PAGE))
            try:
                return await anext(pages, None)
            except BaseException:
                pages = None
                raise

        while (page := await self.asking(next_page)) is not None:
            self.counters.requests += len(page) == _PAGE
            last = page[-1]["path"] if page else last
            yield page

    async def head(self, key: str) -> ObjectInfo:
        check_addressable(key, self.url_of)
        meta = await self.meta(key)
        return ObjectInfo(key=key, size=meta["size"], version=self.version_of(meta, key))

    async def meta(self, key: str) -> "ObjectMeta":
        """What the store says of one object, its ETag at the least."""
        found = await self.asking(lambda store: self._head(store, key))
        self.version_of(found, key)
        return found

    async def _head(self, store: S3Store, key: str) -> "ObjectMeta":
        self.counters.requests += 1
        try:
            return await obstore.head_async(store, key)
        except (obstore_errors.BaseError, FileNotFoundError) as error:
            await self._explain(store, key, error)
            raise

    async def _explain(self, store: S3Store, key: str, error: Exception) -> None:
        """Raises the failure of a GET in place of a HEAD's, whose answer has no body to say what was wrong."""
        if is_transient(error) or "Server returned" not in str(error):
            return
        self.counters.requests += 1
        await obstore.get_async(store, key, options={"range": (0, 1)})

    async def read(self, key: str, wanted: ByteRange, version: str, received: Received, *, keeps: bool = False) -> None:
        check_addressable(key, self.url_of)
        await self.asking(lambda store: self._read(store, key, wanted, version, received, keeps=keeps))

    async def _read(
        self, store: S3Store, key: str, wanted: ByteRange, version: str, received: Received, *, keeps: bool
    ) -> None:
        self.counters.requests += 1
        options: Any = {"range": (wanted.start, wanted.stop), "if_match": version}
        try:
            result = await obstore.get_async(store, key, options=options)
        except obstore_errors.BaseError as error:
            if says_changed(error) and (now := await self._present_version(store, key)) != version:
                raise changed(self.url_of(key), was=version, now=now) from error
            raise
        if (now := self.version_of(result.meta, key)) != version:
            raise changed(self.url_of(key), was=version, now=now)
        missing = wanted.length
        async for chunk in result.stream(min_chunk_size=_CHUNK_BYTES) if keeps else _whole(result):
            missing -= len(chunk)
            self.counters.bytes += len(chunk)
            if missing < 0:
                break
            received.append(chunk)
        if missing:
            raise ShortBody(f"{wanted.length - missing} of {wanted.length} bytes at {wanted.start}")

    def _open(self) -> None:
        self.settings: Settings = settings_of(self.bucket, self._environment)
        self.endpoint, self.who = self.settings.endpoint, self.settings.credentials.origin
        self._stores = {_PLAIN: self.settings.open(self._options)}

    def _opened(self, opening: Opening) -> S3Store:
        if opening not in self._stores:
            self._stores[opening] = self.settings.open(self._options, opening)
        return self._stores[opening]

    async def asking(self, request: Callable[[S3Store], Awaitable[T]], opening: Opening = _PLAIN) -> T:
        """What the request gives. Where its credentials are refused, it is made once more with those taken anew."""
        generation = self._generation
        try:
            return await request(self._opened(opening))
        except _STORE_ERRORS as error:
            provider = self.settings.credentials.provider
            if provider is not None and provider.failure is not None:
                raise provider.failure from error
            if is_bare_redirect(error) and (region := (await ask_endpoint(self.settings)).bucket_region):
                raise wrong_region(f"s3://{self.bucket}", self.endpoint, region) from error
            if not is_refusal(error) or not self._renew(generation):
                raise
        self.counters.retries += 1
        return await request(self._opened(opening))

    def _renew(self, generation: int) -> bool:
        """Takes the credentials anew, unless another request has done so since. False where that changes nothing."""
        if generation != self._generation:
            return True
        now = self._clock()
        if not self.settings.credentials.can_change or now - self._renewed_at < _RENEW_SECONDS:
            return False
        self._renewed_at = now
        self._open()
        self._generation += 1
        return True

    def md5_of(self, version: str) -> str | None:
        """The ETag of an object that was put in one piece, unless it is encrypted with a key of KMS or the client's."""
        found = _MD5_ETAG.fullmatch(version)
        return found[1] if found else None

    async def _present_version(self, store: S3Store, key: str) -> str:
        """The object's version as it is now; empty where that cannot be known."""
        self.counters.requests += 1
        try:
            return self.version_of(await obstore.head_async(store, key), key)
        except STORE_FAILURES:
            return ""

    def _relative(self, meta: Any, prefix: str) -> ObjectInfo:
        path: str = meta["path"]
        return ObjectInfo(key=path[len(prefix) :], size=meta["size"], version=self.version_of(meta, path))

    def url_of(self, key: str) -> str:
        return shown(f"s3://{self.bucket}/{key}")

    def version_of(self, meta: Any, key: str) -> str:
        """The ETag. Raises `SourceUnreachable` where there is none."""
        etag: str | None = meta["e_tag"]
        if not etag:
            raise SourceUnreachable(
                f"{self.url_of(key)}: {shown(self.endpoint)} does not answer as S3 does: it gives no ETag; "
                "check AWS_ENDPOINT_URL"
            )
        return etag.removeprefix("W/")


async def _whole(result: "obstore.GetResult") -> AsyncIterator[Any]:
    """The body at once: an eighth less of a fill's time on a processor than in chunks."""
    yield await result.bytes_async()


def _is_below(path: str, prefix: str, keep: Callable[[str], bool]) -> bool:
    return path.startswith(prefix) and keep(path[len(prefix) :])


def check_addressable(key: str, url_of: Callable[[str], str]) -> None:
    if key.startswith("/") or key.endswith("/") or any(part in ("", ".", "..") for part in key.split("/")):
        raise BadObject(f"{url_of(key)}: a name with empty, '.' or '..' segments cannot be read; rename the object")
