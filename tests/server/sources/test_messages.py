"""CASES 36: a wrong region, a wrong endpoint, a missing permission and a missing object each say what they are.

One table of what can be wrong on the way to an object. The causes that SeaweedFS can have are real; those that only S3
itself has are answered by the proxy in S3's words.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from forebay_core.errors import (
    AccessDenied,
    ConfigurationError,
    ForebayError,
    ObjectChanged,
    SourceNotFound,
    SourceUnreachable,
)
from forebay_core.formats.base import ByteRange
from forebay_server.sources.registry import Stores
from forebay_server.sources.remote import Received, RemoteCounters
from forebay_server.sources.retries import RetryPolicy, attempt
from tests.support.proxy import CountingProxy, Fault
from tests.support.seaweedfs import Bucket, SeaweedFS

ONCE = RetryPolicy(attempts=1, give_up_seconds=1)
LIST, HEAD, READ = "list", "head", "read"


@dataclass(frozen=True)
class Row:
    """One cause: what is done, what the environment or the proxy adds to it, and what must be said."""

    cause: str
    kind: type[ForebayError]
    #: Each must be in the message.
    words: tuple[str, ...]
    actions: tuple[str, ...] = (LIST, HEAD, READ)
    bucket: str = ""
    key: str = "there.parquet"
    settings: dict[str, str] = field(default_factory=dict)
    #: The proxy's answer: a status, S3's code, and more of the body.
    status: int = 0
    code: str = ""
    more: str = ""


def scripted(cause: str, status: int, code: str, kind: type[ForebayError], *words: str, more: str = "") -> Row:
    return Row(cause, kind, words, status=status, code=code, more=more)


TABLE = [
    Row("a missing object", SourceNotFound, ("absent.parquet: no such object",), (HEAD, READ), key="absent.parquet"),
    Row("a missing bucket", SourceNotFound, ("no bucket 'not-there'", "URL"), (LIST, HEAD), bucket="not-there"),
    Row("another version", ObjectChanged, ("has changed since it was listed",), (READ,)),
    Row(
        "no right to list",
        AccessDenied,
        (
            "denies access (AccessDenied)",
            "the right to list it: that takes s3:ListBucket",
            "of AWS_ACCESS_KEY_ID",
            "policy",
        ),
        (LIST,),
        status=403,
        code="AccessDenied",
    ),
    Row(
        "no right to read",
        AccessDenied,
        ("denies access (AccessDenied)", "s3:GetObject", "policy", "AWS_REQUEST_PAYER"),
        (HEAD, READ),
        status=403,
        code="AccessDenied",
    ),
    Row(
        "no anonymous reading",
        AccessDenied,
        ("read anonymously", "set credentials in place of AWS_SKIP_SIGNATURE"),
        settings={"AWS_SKIP_SIGNATURE": "true"},
    ),
    Row("a wrong key", AccessDenied, ("does not know the access key",), settings={"AWS_ACCESS_KEY_ID": "wrong"}),
    Row(
        "a wrong secret",
        AccessDenied,
        ("check the daemon's AWS_SECRET_ACCESS_KEY",),
        settings={"AWS_SECRET_ACCESS_KEY": "wrong"},
    ),
    scripted("expired", 400, "ExpiredToken", AccessDenied, "they have expired", "AWS_SESSION_TOKEN"),
    scripted("a bad token", 400, "InvalidToken", AccessDenied, "session token is not valid", "AWS_SESSION_TOKEN"),
    scripted("a wrong clock", 403, "RequestTimeTooSkewed", AccessDenied, "this machine's clock is off", "NTP"),
    scripted("an archived object", 403, "InvalidObjectState", AccessDenied, "archived", "restore it"),
    scripted("a key that encrypts", 400, "KMS.DisabledException", AccessDenied, "key that encrypts it", "kms:Decrypt"),
    scripted(
        "a wrong region, named",
        400,
        "AuthorizationHeaderMalformed",
        ConfigurationError,
        "the bucket is in eu-west-1; set AWS_REGION=eu-west-1",
        more="<Region>eu-west-1</Region>",
    ),
    scripted(
        "a wrong region, named by the endpoint",
        400,
        "TemporaryRedirect",
        ConfigurationError,
        "the bucket is in ap-southeast-2;",
        more="<Endpoint>b.s3-ap-southeast-2.amazonaws.com</Endpoint>",
    ),
    scripted("a wrong region", 301, "PermanentRedirect", ConfigurationError, "set AWS_REGION to the bucket's"),
    scripted("too many requests", 503, "SlowDown", SourceUnreachable, "keeps answering 503", "later"),
    scripted("an odd answer", 418, "", SourceUnreachable, "answers 418", "check AWS_ENDPOINT_URL and AWS_REGION"),
    Row(
        "nobody listens",
        SourceUnreachable,
        ("connection refused", "AWS_ENDPOINT_URL"),
        settings={"AWS_ENDPOINT_URL": "http://127.0.0.1:CLOSED"},
    ),
    Row(
        "no such host",
        SourceUnreachable,
        ("its name cannot be resolved", "AWS_ENDPOINT_URL"),
        settings={"AWS_ENDPOINT_URL": "http://no-such-host.invalid"},
    ),
    Row(
        "TLS where there is none",
        SourceUnreachable,
        ("does not speak TLS", "http:// or https://"),
        settings={"AWS_ENDPOINT_URL": "https://127.0.0.1:STORE"},
    ),
    Row("no leave for plain HTTP", ConfigurationError, ("AWS_ALLOW_HTTP=true",), settings={"AWS_ALLOW_HTTP": ""}),
    Row("no S3", SourceUnreachable, ("does not answer as S3 does", "AWS_ENDPOINT_URL"), (HEAD, READ), status=200),
]


@pytest.fixture(scope="module")
def closed_port() -> Iterator[int]:
    """A port where nobody listens, held so that nobody else takes it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture
def message(
    bucket: Bucket, s3: SeaweedFS, counting_proxy: CountingProxy, closed_port: int
) -> Callable[[Row, str], ForebayError]:
    """What is said of a row's cause when an action meets it."""
    bucket.put("there.parquet", b"data")

    def say(row: Row, action: str) -> ForebayError:
        body = f"<?xml version='1.0'?><Error><Code>{row.code}</Code><Message>no</Message>{row.more}</Error>".encode()
        fault = Fault(status=row.status, body=body) if row.status else None
        counting_proxy.fault = lambda _: fault
        settings = bucket.server.environment(endpoint=counting_proxy.endpoint) | row.settings
        port = s3.endpoint.rpartition(":")[2]
        settings = {k: v.replace("CLOSED", str(closed_port)).replace("STORE", port) for k, v in settings.items()}
        target = Stores(settings, RemoteCounters()).target(f"s3://{row.bucket or bucket.name}", row.key)

        async def act() -> object:
            if action == LIST:
                return [page async for page in target.store.list("", lambda _: True)]
            if action == HEAD:
                return await target.store.head(target.key)
            received: Received = []
            await target.store.read(target.key, ByteRange(0, 1), '"no-such-version"', received)
            return received

        with pytest.raises(ForebayError) as caught:
            asyncio.run(attempt(target.store, target.url, ONCE, act))
        assert settings["AWS_SECRET_ACCESS_KEY"] not in str(caught.value)
        return caught.value

    return say


def test_a_bucket_elsewhere_is_named_with_its_region_although_the_redirect_does_not_show_it() -> None:
    """S3 answers for a bucket of another region by a redirect to nowhere, and names the region in a header."""
    elsewhere = b"HTTP/1.1 301 Moved\r\nx-amz-bucket-region: eu-west-1\r\nContent-Length: 0\r\n\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(elsewhere)
        writer.close()

    async def run() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            settings = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ALLOW_HTTP": "true"}
            settings |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
            target = Stores(settings, RemoteCounters()).target("s3://bucket", "a.parquet")
            with pytest.raises(ConfigurationError, match=r"the bucket is in eu-west-1; set AWS_REGION=eu-west-1"):
                await attempt(target.store, target.url, ONCE, lambda: target.store.head(target.key))

    asyncio.run(run())


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.cause)
def test_each_cause_is_told_from_the_others(message: Callable[[Row, str], ForebayError], row: Row) -> None:
    """CASES 36, 37: and an error page with status 200 is no object."""
    for action in row.actions:
        error = message(row, action)
        assert type(error) is row.kind, (action, error)
        said = str(error)
        for word in row.words:
            assert word in said, action
        strangers = [other for other in TABLE if other.cause != row.cause and all(word in said for word in other.words)]
        assert not strangers, f"it could be taken for {strangers[0].cause}: {said}"
        assert "\n" not in said
        assert len(said) < 400
