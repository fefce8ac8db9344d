"""A bucket of S3, or of what speaks its protocol, through obstore.

Settings are those that obstore reads from the environment, and nothing else: `~/.aws` is not read. obstore makes no
retries here, limits the wait for a connection and for the next bytes, and not the length of a request.

The invariant: the bytes of a range are handed on only where the answer carries the version that was asked for, also
where a server ignores If-Match.
"""

import re
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore import exceptions as obstore_errors
from obstore.store import S3Store

from forebay_core.errors import AccessDenied, BadObject, ConfigurationError, ObjectChanged, SourceUnreachable
from forebay_core.formats.base import Buffer, ByteRange, ObjectInfo
from forebay_server.sources.failures import ShortBody, is_transient, shown
from forebay_server.sources.remote import ConnectionOptions, RemoteCounters, RemoteStore

#: As many as a page of S3 holds, so that a batch is a request.
_PAGE = 1000
_BUCKET = re.compile(r"[A-Za-z0-9._-]{1,255}")
#: obstore's limit on a whole request, which cannot be left out.
_NO_LIMIT = timedelta(days=30)

_STORE_SETTINGS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_TOKEN",
    "AWS_SKIP_SIGNATURE",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
    "AWS_REQUEST_PAYER",
    "AWS_S3_EXPRESS",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_STS_ENDPOINT",
    "AWS_METADATA_ENDPOINT",
    "AWS_IMDSV1_FALLBACK",
    "AWS_SSE_CUSTOMER_KEY_BASE64",
    "AWS_UNSIGNED_PAYLOAD",
)
_CLIENT_SETTINGS = (
    "AWS_ALLOW_HTTP",
    "AWS_ALLOW_INVALID_CERTIFICATES",
    "AWS_PROXY_URL",
    "AWS_PROXY_EXCLUDES",
    "AWS_PROXY_CA_CERTIFICATE",
    "AWS_USER_AGENT",
    "AWS_RANDOMIZE_ADDRESSES",
    "AWS_POOL_IDLE_TIMEOUT",
    "AWS_POOL_MAX_IDLE_PER_HOST",
    "AWS_HTTP1_ONLY",
    "AWS_HTTP2_ONLY",
)
#: Any of these is a source of credentials, or says that none are needed.
_CREDENTIAL_SIGNS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SKIP_SIGNATURE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_METADATA_ENDPOINT",
)


class S3(RemoteStore):
    """One bucket. Raises `ConfigurationError` or `AccessDenied` for settings that cannot work, before any request."""

    scheme = "s3"
    account = ""

    def __init__(
        self, bucket: str, environment: Mapping[str, str], counters: RemoteCounters, options: ConnectionOptions
    ) -> None:
        _check_bucket(bucket)
        self.bucket = bucket
        self.counters = counters
        given = _endpoint_setting(environment)
        _check_credentials(bucket, environment, has_endpoint=bool(given))
        self.endpoint = given or f"https://s3.{_region(environment)}.amazonaws.com"
        self._store = _store(bucket, environment, options)

    async def list(
        self, directory: str, keep: Callable[[str], bool], *, after: str | None = None
    ) -> AsyncIterator[list[ObjectInfo]]:
        prefix = f"{directory}/" if directory else ""
        offset = None if after is None else prefix + after
        self.counters.requests += 1
        async for page in obstore.list(self._store, prefix or None, offset=offset, chunk_size=_PAGE):
            self.counters.requests += len(page) == _PAGE
            yield [self._relative(meta, prefix) for meta in page if _is_below(meta["path"], prefix, keep)]

    async def head(self, key: str) -> ObjectInfo:
        _check_addressable(key, self._url(key))
        self.counters.requests += 1
        try:
            meta = await obstore.head_async(self._store, key)
        except (obstore_errors.BaseError, FileNotFoundError) as error:
            await self._explain(key, error)
            raise
        return ObjectInfo(key=key, size=meta["size"], version=self._version(meta, key))

    async def _explain(self, key: str, error: Exception) -> None:
        """Raises the failure of a GET in place of a HEAD's, whose answer has no body to say what was wrong."""
        if is_transient(error) or "Server returned" not in str(error):
            return
        self.counters.requests += 1
        await obstore.get_async(self._store, key, options={"range": (0, 1)})

    async def read(self, key: str, wanted: ByteRange, version: str) -> Buffer:
        _check_addressable(key, self._url(key))
        self.counters.requests += 1
        result = await obstore.get_async(
            self._store, key, options={"range": (wanted.start, wanted.stop), "if_match": version}
        )
        if self._version(result.meta, key) != version:
            raise ObjectChanged(
                f"{self._url(key)} is not the object that the manifest names any more; open the dataset again"
            )
        data = memoryview(await result.bytes_async())
        self.counters.bytes += len(data)
        if len(data) != wanted.length:
            raise ShortBody(f"{len(data)} of {wanted.length} bytes at {wanted.start}")
        return data

    def _relative(self, meta: Any, prefix: str) -> ObjectInfo:
        path: str = meta["path"]
        return ObjectInfo(key=path[len(prefix) :], size=meta["size"], version=self._version(meta, path))

    def _url(self, key: str) -> str:
        return shown(f"s3://{self.bucket}/{key}")

    def _version(self, meta: Any, key: str) -> str:
        etag: str | None = meta["e_tag"]
        if not etag:
            raise SourceUnreachable(
                f"{self._url(key)}: {shown(self.endpoint)} does not answer as S3 does: it gives no ETag; "
                "check AWS_ENDPOINT_URL"
            )
        return etag.removeprefix("W/")


def _is_below(path: str, prefix: str, keep: Callable[[str], bool]) -> bool:
    return path.startswith(prefix) and keep(path[len(prefix) :])


def _check_addressable(key: str, url: str) -> None:
    if key.startswith("/") or key.endswith("/") or any(part in ("", ".", "..") for part in key.split("/")):
        raise BadObject(f"{url}: a name with empty, '.' or '..' segments cannot be read; rename the object")


def _check_bucket(bucket: str) -> None:
    """Refuses what would change the URL of a request, or end in a panic of obstore's Rust runtime."""
    if not _BUCKET.fullmatch(bucket):
        raise ConfigurationError(
            f"{shown(bucket)!r} is not the name of a bucket: letters, digits, '.', '-' and '_' are"
        )


def _endpoint_setting(environment: Mapping[str, str]) -> str:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        if endpoint := environment.get(name):
            _check_endpoint(name, endpoint)
            return endpoint.rstrip("/")
    return ""


def _check_endpoint(name: str, endpoint: str) -> None:
    """Refuses what obstore would answer with a panic of its Rust runtime."""
    try:
        parts = urlsplit(endpoint)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable or any(character.isspace() for character in endpoint):
        raise ConfigurationError(f"{name}={shown(endpoint)!r} is not a URL such as https://host:port")


def _region(environment: Mapping[str, str]) -> str:
    return environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"


def _check_credentials(bucket: str, environment: Mapping[str, str], *, has_endpoint: bool) -> None:
    """Refuses what would only end in a search for a metadata service; a machine's role serves AWS itself alone."""
    if any(environment.get(name) for name in _CREDENTIAL_SIGNS):
        return
    if has_endpoint or environment.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        raise AccessDenied(
            f"s3://{bucket}: no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (~/.aws is not read), or "
            "AWS_SKIP_SIGNATURE=true for anonymous reading"
        )


def _store(bucket: str, environment: Mapping[str, str], options: ConnectionOptions) -> S3Store:
    for name in (*_STORE_SETTINGS, *_CLIENT_SETTINGS):
        if not environment.get(name, "").isprintable():
            raise ConfigurationError(
                f"s3://{bucket}: {name} holds a line break or another control character; remove it"
            )
    settings: Any = {name: environment[name] for name in _STORE_SETTINGS if environment.get(name)}
    settings.setdefault("AWS_REGION", _region(environment))
    client: Any = {
        name.removeprefix("AWS_").lower(): environment[name] for name in _CLIENT_SETTINGS if environment.get(name)
    }
    client["connect_timeout"] = timedelta(seconds=options.connect_timeout_seconds)
    client["read_timeout"] = timedelta(seconds=options.stall_timeout_seconds)
    client["timeout"] = _NO_LIMIT
    try:
        return S3Store(bucket, config=settings, client_options=client, retry_config={"max_retries": 0})
    except (obstore_errors.BaseError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(f"s3://{bucket}: {shown(reason)}; check the AWS_ settings") from error
