"""What people are told when a store does not give what was asked for: each cause its own error, on one line."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forebay_core.errors import (
    AccessDenied,
    BadObject,
    ConfigurationError,
    ForebayError,
    ObjectChanged,
    SourceNotFound,
    SourceUnreachable,
)
from forebay_core.formats.base import ByteRange, ObjectInfo
from forebay_server.sources.failures import classify, is_transient, naming, shown
from forebay_server.sources.registry import Stores
from forebay_server.sources.remote import ConnectionOptions, RemoteCounters
from forebay_server.sources.retries import OPENING, RetryPolicy, attempt
from tests.support.proxy import CountingProxy, Fault, Request
from tests.support.seaweedfs import Bucket, SeaweedFS

FIRST_BYTE = ByteRange(0, 1)
ONCE = RetryPolicy(attempts=1, give_up_seconds=1)


def stores(environment: dict[str, str], *, stall_seconds: float = 10) -> Stores:
    return Stores(environment, RemoteCounters(), ConnectionOptions(stall_timeout_seconds=stall_seconds))


def answer(status: int, body: bytes = b"") -> Callable[[Request], Fault]:
    return lambda _: Fault(status=status, body=body)


def error_body(code: str) -> bytes:
    return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>no</Message></Error>'.encode()


def failure(opened: Stores, url: str, action: str, policy: RetryPolicy = OPENING) -> ForebayError:
    """The error of one action on the object at a URL."""
    target = opened.target(url)

    async def act() -> object:
        if action == "list":
            return [batch async for batch in target.store.list(target.key, lambda _: True)]
        if action == "head":
            return await target.store.head(target.key)
        await target.store.read(target.key, FIRST_BYTE, '"no-such-version"', [])
        return None

    with pytest.raises(ForebayError) as caught:
        asyncio.run(attempt(target.store, url, policy, act))
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    return caught.value


@contextmanager
def scripted_port(reply: bytes) -> Iterator[str]:
    """A port whose listener answers every request with these bytes; with none it stays silent."""
    listener = socket.create_server(("127.0.0.1", 0))
    connections: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(connection)
            connection.recv(65536)
            if reply:
                connection.sendall(reply)
                connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in connections:
            connection.close()
        thread.join(10)


@pytest.mark.parametrize("action", ["list", "head"])
def test_a_missing_bucket_is_named(s3: SeaweedFS, action: str) -> None:
    error = failure(stores(s3.environment()), "s3://no-such-bucket/train", action)
    assert isinstance(error, SourceNotFound)
    assert "no bucket 'no-such-bucket'" in str(error)
    assert "AWS_ENDPOINT_URL" in str(error)


@pytest.mark.parametrize("action", ["head", "read"])
def test_a_missing_object_is_told_from_a_missing_bucket(bucket: Bucket, action: str) -> None:
    error = failure(stores(bucket.server.environment()), bucket.uri("absent.parquet"), action)
    assert isinstance(error, SourceNotFound)
    assert str(error) == f"{bucket.uri('absent.parquet')}: no such object; check the name"


@pytest.mark.parametrize("action", ["list", "head", "read"])
@pytest.mark.parametrize("setting", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_a_wrong_key_and_a_wrong_secret_are_told_apart(bucket: Bucket, action: str, setting: str) -> None:
    bucket.put("a.parquet", b"data")
    environment = bucket.server.environment() | {setting: "Wr0ng-But-Private"}
    error = failure(stores(environment), bucket.uri("a.parquet"), action)
    assert isinstance(error, AccessDenied)
    assert f"check the daemon's {setting}" in str(error)
    assert "Wr0ng" not in str(error)
    assert environment["AWS_SECRET_ACCESS_KEY"] not in str(error)


@pytest.mark.parametrize("action", ["list", "head", "read"])
def test_a_right_key_without_the_right_is_denied(bucket: Bucket, counting_proxy: CountingProxy, action: str) -> None:
    counting_proxy.fault = answer(403, error_body("AccessDenied"))
    environment = bucket.server.environment(endpoint=counting_proxy.endpoint)
    error = failure(stores(environment), bucket.uri("a.parquet"), action)
    assert isinstance(error, AccessDenied)
    assert "policy" in str(error)


def test_expired_credentials_are_called_expired(bucket: Bucket, counting_proxy: CountingProxy) -> None:
    counting_proxy.fault = answer(400, error_body("ExpiredToken"))
    environment = bucket.server.environment(endpoint=counting_proxy.endpoint)
    error = failure(stores(environment), bucket.uri("a.parquet"), "head")
    assert isinstance(error, AccessDenied)
    assert "expired" in str(error)


def test_a_metadata_service_that_gives_no_credentials_is_named_and_not_waited_for() -> None:
    refusal = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"
    for reply in (refusal, b""):
        with scripted_port(reply) as address:
            begun = time.monotonic()
            opened = stores({"AWS_METADATA_ENDPOINT": f"http://{address}"}, stall_seconds=0.5)
            error = failure(opened, "s3://bucket/a.parquet", "list")
        assert time.monotonic() - begun < 6
        assert isinstance(error, AccessDenied)
        assert "no credentials: 127.0.0.1, asked for those of this machine's role," in str(error)
        assert "in the environment of the daemon" in str(error)


@pytest.mark.parametrize("action", ["list", "head", "read"])
@pytest.mark.parametrize("status", [301, 400])
def test_a_wrong_region_names_the_region(
    bucket: Bucket, counting_proxy: CountingProxy, action: str, status: int
) -> None:
    counting_proxy.fault = answer(status, error_body("AuthorizationHeaderMalformed"))
    environment = bucket.server.environment(endpoint=counting_proxy.endpoint)
    error = failure(stores(environment), bucket.uri("a.parquet"), action)
    assert isinstance(error, ConfigurationError)
    assert "AWS_REGION" in str(error)


@pytest.mark.parametrize("action", ["list", "head", "read"])
def test_a_refused_connection_fails_within_seconds_after_few_attempts(action: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    environment = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ALLOW_HTTP": "true"}
    opened = stores(environment | {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"})
    begun = time.monotonic()
    error = failure(opened, "s3://bucket/a.parquet", action)
    assert time.monotonic() - begun < 5
    assert isinstance(error, SourceUnreachable)
    assert f"127.0.0.1:{port}: connection refused" in str(error)
    assert 1 <= opened.counters.retries <= 3


def test_words_in_a_key_are_not_taken_for_the_cause_of_a_failure() -> None:
    environment = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ALLOW_HTTP": "true"}
    opened = stores(environment | {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"})
    error = failure(opened, "s3://bucket/certificate Parse( BadScheme UnexpectedRange dns error", "head")
    assert isinstance(error, SourceUnreachable)
    assert "connection refused" in str(error)
    assert opened.counters.retries > 0


def test_a_name_that_does_not_resolve_says_so() -> None:
    environment = {"AWS_ENDPOINT_URL": "http://no-such-host.invalid", "AWS_ALLOW_HTTP": "true"}
    opened = stores(environment | {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"})
    error = failure(opened, "s3://bucket/a.parquet", "head", ONCE)
    assert isinstance(error, SourceUnreachable)
    assert "no-such-host.invalid: its name cannot be resolved" in str(error)


def test_a_silent_port_is_given_up_after_the_stall_timeout() -> None:
    with scripted_port(b"") as address:
        environment = {"AWS_ENDPOINT_URL": f"http://{address}", "AWS_ALLOW_HTTP": "true"}
        environment |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        error = failure(stores(environment, stall_seconds=0.5), "s3://bucket/a.parquet", "head", ONCE)
    assert isinstance(error, SourceUnreachable)
    assert "does not answer in time" in str(error)


def test_https_to_a_port_without_tls_names_the_scheme(s3: SeaweedFS) -> None:
    endpoint = s3.endpoint.replace("http:", "https:")
    opened = stores(s3.environment(endpoint=endpoint))
    error = failure(opened, "s3://bucket/a.parquet", "head")
    assert isinstance(error, SourceUnreachable)
    assert "does not speak TLS" in str(error)
    assert opened.counters.retries == 0


def test_http_to_a_port_with_tls_names_the_scheme() -> None:
    tls_alert = b"\x15\x03\x01\x00\x02\x02\x46"
    with scripted_port(tls_alert) as address:
        environment = {"AWS_ENDPOINT_URL": f"http://{address}", "AWS_ALLOW_HTTP": "true"}
        environment |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        error = failure(stores(environment), "s3://bucket/a.parquet", "head")
    assert isinstance(error, SourceUnreachable)
    assert "does not speak HTTP" in str(error)


def test_plain_http_without_leave_names_the_setting(s3: SeaweedFS) -> None:
    environment = s3.environment()
    del environment["AWS_ALLOW_HTTP"]
    error = failure(stores(environment), "s3://bucket/a.parquet", "head")
    assert isinstance(error, ConfigurationError)
    assert "AWS_ALLOW_HTTP=true" in str(error)


@pytest.mark.parametrize("action", ["list", "head", "read"])
def test_a_store_that_keeps_failing_is_unreachable_after_the_attempts(
    bucket: Bucket, counting_proxy: CountingProxy, action: str
) -> None:
    counting_proxy.fault = answer(500, error_body("InternalError"))
    opened = stores(bucket.server.environment(endpoint=counting_proxy.endpoint))
    error = failure(opened, bucket.uri("a.parquet"), action)
    assert isinstance(error, SourceUnreachable)
    assert "keeps answering 500" in str(error)
    assert opened.counters.retries == OPENING.attempts - 1
    assert opened.counters.answers == {"500": OPENING.attempts}


@pytest.mark.parametrize(("action", "status"), [("list", 429), ("read", 503)])
def test_a_store_that_keeps_throttling_is_unreachable_after_the_time_that_it_is_given(
    bucket: Bucket, counting_proxy: CountingProxy, action: str, status: int
) -> None:
    counting_proxy.fault = answer(status, error_body("SlowDown"))
    opened = stores(bucket.server.environment(endpoint=counting_proxy.endpoint))
    policy = RetryPolicy(attempts=1, give_up_seconds=0.4)
    error = failure(opened, bucket.uri("a.parquet"), action, policy)
    assert isinstance(error, SourceUnreachable)
    assert f"keeps answering {status}" in str(error)
    assert opened.counters.throttles == opened.counters.retries + 1
    assert 1 <= opened.counters.retries <= 4, "a pause comes before each, and they double"
    assert opened.counters.requests == len(counting_proxy.exchanges)


@pytest.mark.parametrize("action", ["head", "read"])
def test_a_login_page_with_status_200_is_not_taken_for_an_object(
    bucket: Bucket, counting_proxy: CountingProxy, action: str
) -> None:
    counting_proxy.fault = answer(200, b"<html>please log in</html>")
    error = failure(stores(bucket.server.environment(endpoint=counting_proxy.endpoint)), bucket.uri("a"), action)
    assert isinstance(error, SourceUnreachable)
    assert "does not answer as S3 does" in str(error)
    assert "AWS_ENDPOINT_URL" in str(error)


def test_another_version_is_an_object_that_changed(bucket: Bucket) -> None:
    bucket.put("a.parquet", b"data")
    error = failure(stores(bucket.server.environment()), bucket.uri("a.parquet"), "read")
    assert isinstance(error, ObjectChanged)
    assert bucket.uri("a.parquet") in str(error)


def test_a_range_behind_the_end_is_an_object_that_changed(bucket: Bucket) -> None:
    bucket.put("a.parquet", b"data")
    target = stores(bucket.server.environment()).target(bucket.uri("a.parquet"))

    async def read_behind_the_end() -> None:
        info: ObjectInfo = await target.store.head(target.key)
        beyond = ByteRange(100, 200)
        await attempt(target.store, target.url, ONCE, lambda: target.store.read(target.key, beyond, info.version, []))

    with pytest.raises(ObjectChanged, match="shorter"):
        asyncio.run(read_behind_the_end())


def test_a_body_that_always_ends_early_is_unreachable(bucket: Bucket, counting_proxy: CountingProxy) -> None:
    bucket.put("a.parquet", b"data" * 1000)
    counting_proxy.fault = lambda request: Fault(cut_after_bytes=10) if request.method == "GET" else None
    target = stores(bucket.server.environment(endpoint=counting_proxy.endpoint)).target(bucket.uri("a.parquet"))

    async def read() -> None:
        info = await target.store.head(target.key)
        whole = ByteRange(0, info.size)
        await attempt(target.store, target.url, OPENING, lambda: target.store.read(target.key, whole, info.version, []))

    with pytest.raises(SourceUnreachable, match="connection broke"):
        asyncio.run(read())
    assert len(counting_proxy.gets("a.parquet")) == OPENING.attempts


def test_a_local_file_that_may_not_be_read_is_denied_and_one_that_is_missing_not_found(tmp_path: Path) -> None:
    absent = classify(FileNotFoundError(2, "No such file"), url=f"file://{tmp_path}/a", endpoint="")
    assert isinstance(absent, SourceNotFound)
    denied = classify(PermissionError(13, "Permission denied"), url=f"file://{tmp_path}/a", endpoint="")
    assert isinstance(denied, AccessDenied)
    broken = classify(OSError(5, "Input/output error"), url=f"file://{tmp_path}/a", endpoint="")
    assert isinstance(broken, SourceUnreachable)
    assert "Input/output error" in str(broken)


def test_typed_errors_pass_unchanged_and_unknown_ones_stay_on_one_line() -> None:
    known = BadObject("it is broken")
    assert classify(known, url="s3://b/k", endpoint=None) is known
    unknown = classify(RuntimeError("first line\nsecond line"), url="s3://b/k", endpoint=None)
    assert isinstance(unknown, SourceUnreachable)
    assert "second" not in str(unknown)


def test_a_name_with_a_line_break_is_quoted_on_one_line(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/a\nb.parquet"
    assert str(classify(FileNotFoundError(2, "no"), url=url, endpoint="")) == (
        f"file://{tmp_path}/a\\nb.parquet: no such file or directory; check the path"
    )


def test_a_password_in_an_endpoint_is_never_shown() -> None:
    assert shown("cannot reach http://user:secret@host:1/b, s3://u@h") == "cannot reach http://host:1/b, s3://h"
    assert shown("file:///data@v1/a@b.parquet") == "file:///data@v1/a@b.parquet"


@pytest.mark.parametrize("error", [ValueError("x"), FileNotFoundError("x"), ObjectChanged("x")])
def test_what_another_attempt_cannot_change_is_not_transient(error: Exception) -> None:
    assert not is_transient(error)


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("'train/a b.parquet' has 3 bytes, too few", "s3://b/x/train/a b.parquet has 3 bytes, too few"),
        ("nothing of its key\nat all", "s3://b/x/train/a b.parquet: nothing of its key at all"),
        ("s3://b/x/train/a b.parquet: no such object", "s3://b/x/train/a b.parquet: no such object"),
    ],
)
def test_what_is_said_of_a_key_is_said_of_its_url_once(said: str, named: str) -> None:
    error = naming(BadObject(said), key="train/a b.parquet", url="s3://b/x/train/a b.parquet")
    assert type(error) is BadObject
    assert str(error) == named
