"""Credentials that change while a run reads: renewed before they expire, or taken anew when they are refused.

The services that give them are real servers on this machine; the store checks every signature, and the proxy before it
refuses the key that has expired, as S3 would.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forebay_core.errors import AccessDenied, ForebayError
from forebay_core.formats.base import ByteRange
from forebay_server.sources.credentials import Provider
from forebay_server.sources.registry import Stores
from forebay_server.sources.remote import Received, RemoteCounters, Target
from forebay_server.sources.retries import OPENING, attempt
from tests.server.daemons import client, daemon, read, token_spec
from tests.support.proxy import CountingProxy, Fault, Request
from tests.support.s3 import REGION, Identity
from tests.support.seaweedfs import Bucket
from tests.support.token_services import WEB_TOKEN, TokenServices

if TYPE_CHECKING:
    from obstore.store import S3Credential

EXPIRED = b'<?xml version="1.0"?><Error><Code>ExpiredToken</Code><Message>no</Message></Error>'


def refusing(*access_keys: str) -> Callable[[Request], Fault | None]:
    """A fault: what these keys signed is answered as expired."""
    return lambda request: Fault(status=400, body=EXPIRED) if request.access_key in access_keys else None


@pytest.fixture
def first(bucket: Bucket) -> Identity:
    return bucket.server.identities["admin"]


@pytest.fixture
def second(bucket: Bucket) -> Identity:
    return bucket.server.identities["reader"]


@pytest.fixture
def services(first: Identity) -> Iterator[TokenServices]:
    with TokenServices(first) as started:
        yield started


@pytest.fixture
def base(counting_proxy: CountingProxy) -> dict[str, str]:
    """An environment without credentials."""
    return {"AWS_ENDPOINT_URL": counting_proxy.endpoint, "AWS_ALLOW_HTTP": "true", "AWS_REGION": REGION}


def profile_file(directory: Path, identity: Identity) -> dict[str, str]:
    """Writes a profile's keys; gives what names the file."""
    path = directory / "credentials"
    keys = f"aws_access_key_id = {identity.access_key}\naws_secret_access_key = {identity.secret_key}\n"
    path.write_text(f"[train]\n{keys}")
    return {"AWS_SHARED_CREDENTIALS_FILE": str(path), "AWS_CONFIG_FILE": str(directory / "no"), "AWS_PROFILE": "train"}


async def head(target: Target) -> int:
    info = await attempt(target.store, target.url, OPENING, lambda: target.store.head(target.key))
    return info.size


async def whole(target: Target) -> bytes:
    async def act() -> bytes:
        info = await target.store.head(target.key)
        received: Received = []
        await target.store.read(target.key, ByteRange(0, info.size), info.version, received)
        return b"".join(received)

    return await attempt(target.store, target.url, OPENING, act)


@pytest.mark.parametrize("kind", ["machine", "container", "web identity"])
def test_credentials_of_a_role_are_renewed_before_they_expire(
    bucket: Bucket,
    base: dict[str, str],
    counting_proxy: CountingProxy,
    first: Identity,
    second: Identity,
    tmp_path: Path,
    kind: str,
) -> None:
    """CASES 36: credentials expire in mid-run. Those of two minutes are asked for anew before each request."""
    bucket.put("a", b"data")
    token = tmp_path / "token"
    token.write_text(WEB_TOKEN)
    with TokenServices(first, tls_directory=tmp_path if kind == "web identity" else None) as services:
        settings = {
            "machine": {"AWS_METADATA_ENDPOINT": services.url},
            "container": {
                "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{services.url}/container",
                "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token),
            },
            "web identity": {
                "AWS_WEB_IDENTITY_TOKEN_FILE": str(token),
                "AWS_ROLE_ARN": "arn:aws:iam::1:role/train",
                "AWS_ENDPOINT_URL_STS": services.url,
                "AWS_ALLOW_INVALID_CERTIFICATES": "true",
            },
        }
        target = Stores(base | settings[kind], RemoteCounters()).target(bucket.uri(), "a")

        async def run() -> None:
            assert await whole(target) == b"data"
            services.identity = second
            async with asyncio.timeout(20):  # obstore asks at most ten times a second
                while counting_proxy.exchanges[-1].request.access_key != second.access_key:
                    assert await whole(target) == b"data"

        asyncio.run(run())
    assert target.store.counters.retries == 0


def test_long_lived_credentials_of_a_role_that_are_revoked_are_asked_for_again_once(
    bucket: Bucket, base: dict[str, str], counting_proxy: CountingProxy, services: TokenServices, second: Identity
) -> None:
    bucket.put("a", b"data")
    services.life_seconds = 6 * 3600
    revoked = services.credentials()["AccessKeyId"]
    target = Stores(base | {"AWS_METADATA_ENDPOINT": services.url}, RemoteCounters()).target(bucket.uri(), "a")

    async def run() -> None:
        assert await whole(target) == b"data"
        asked = len(services.requests)
        services.identity, counting_proxy.fault = second, refusing(revoked)
        results = await asyncio.gather(*(whole(target) for _ in range(8)))
        assert set(results) == {b"data"}
        assert len(services.requests) == asked + 3  # a token, the role's name, its keys

    asyncio.run(run())


def test_a_profile_that_is_rewritten_is_read_again_when_its_old_keys_are_refused(
    bucket: Bucket,
    base: dict[str, str],
    counting_proxy: CountingProxy,
    first: Identity,
    second: Identity,
    tmp_path: Path,
) -> None:
    for name in ("a", "b"):
        bucket.put(name, b"data")
    stores = Stores(base | profile_file(tmp_path, first), RemoteCounters())
    target = stores.target(bucket.uri(), "a")

    async def run() -> None:
        assert await whole(target) == b"data"
        profile_file(tmp_path, second)
        counting_proxy.fault = refusing(first.access_key)
        listed = [obj.key async for page in target.store.list("", lambda _: True) for obj in page]
        assert listed == ["a", "b"]
        assert await whole(target) == b"data"

    asyncio.run(run())
    assert stores.counters.retries == 1
    assert stores.counters.requests == len(counting_proxy.exchanges)


@pytest.mark.parametrize("action", ["head", "read", "list"])
def test_credentials_that_stay_refused_are_an_error_after_one_more_request_and_no_storm(
    bucket: Bucket, base: dict[str, str], counting_proxy: CountingProxy, first: Identity, tmp_path: Path, action: str
) -> None:
    counting_proxy.fault = refusing(first.access_key)
    target = Stores(base | profile_file(tmp_path, first), RemoteCounters()).target(bucket.uri(), "a")

    async def act() -> object:
        if action == "list":
            return [page async for page in target.store.list("", lambda _: True)]
        if action == "head":
            return await target.store.head(target.key)
        received: Received = []
        await target.store.read(target.key, ByteRange(0, 1), "v", received)
        return received

    for _ in range(3):
        with pytest.raises(AccessDenied, match="expired; renew or correct profile 'train'"):
            asyncio.run(attempt(target.store, target.url, OPENING, act))
    assert target.store.counters.retries == 1


def test_keys_of_the_environment_are_not_asked_for_again(bucket: Bucket, counting_proxy: CountingProxy) -> None:
    environment = bucket.server.environment(endpoint=counting_proxy.endpoint)
    counting_proxy.fault = refusing(environment["AWS_ACCESS_KEY_ID"])
    target = Stores(environment, RemoteCounters()).target(bucket.uri(), "a")
    with pytest.raises(AccessDenied, match="expired; set new ones in the daemon's environment"):
        asyncio.run(head(target))
    assert target.store.counters.retries == 0


PROGRAM = """
import json, pathlib, sys
given = json.loads(pathlib.Path(sys.argv[1]).read_text())
with open(sys.argv[1] + ".runs", "a") as runs:
    runs.write("x")
print(json.dumps(given))
"""


def program_file(directory: Path, answer: dict[str, object]) -> dict[str, str]:
    """A profile with a program that prints `answer`; gives what names it."""
    (directory / "answer").write_text(json.dumps(answer))
    (directory / "program.py").write_text(PROGRAM)
    command = f"{sys.executable} '{directory}/program.py' '{directory}/answer'"
    (directory / "config").write_text(f"[profile sso]\ncredential_process = {command}\n")
    return {
        "AWS_CONFIG_FILE": f"{directory}/config",
        "AWS_SHARED_CREDENTIALS_FILE": f"{directory}/no",
        "AWS_PROFILE": "sso",
    }


def answer_of(identity: Identity, **more: object) -> dict[str, object]:
    return {"Version": 1, "AccessKeyId": identity.access_key, "SecretAccessKey": identity.secret_key, **more}


def test_a_credential_process_is_run_once_for_many_requests_and_again_when_its_keys_are_refused(
    bucket: Bucket,
    base: dict[str, str],
    counting_proxy: CountingProxy,
    first: Identity,
    second: Identity,
    tmp_path: Path,
) -> None:
    bucket.put("a", b"data")
    settings = program_file(tmp_path, answer_of(first, Expiration="2099-01-01T00:00:00Z"))
    target = Stores(base | settings, RemoteCounters()).target(bucket.uri(), "a")

    async def run() -> None:
        for _ in range(5):
            assert await whole(target) == b"data"
        assert (tmp_path / "answer.runs").read_text() == "x"
        program_file(tmp_path, answer_of(second))
        counting_proxy.fault = refusing(first.access_key)
        assert await whole(target) == b"data"
        assert (tmp_path / "answer.runs").read_text() == "xx"

    asyncio.run(run())


START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("life", "loaded_at_seconds"),
    [
        (None, [0, 300, 600]),  # a file without a time of expiry
        (timedelta(minutes=3), [0, 120, 240, 360, 480, 600]),  # a minute before they expire
        (timedelta(seconds=20), list(range(0, 601, 10))),  # those that expire at once, no more often than that
    ],
)
def test_a_provider_that_is_asked_before_each_request_loads_no_more_often_than_it_must(
    life: timedelta | None, loaded_at_seconds: list[int]
) -> None:
    now, loads = START, []

    def load() -> "S3Credential":
        loads.append(int((now - START).total_seconds()))
        return {"access_key_id": "k", "secret_access_key": "s", "expires_at": now + life if life else None}

    provider = Provider(load, clock=lambda: now)
    for second in range(601):
        now = START + timedelta(seconds=second)
        given = provider()["expires_at"]
        assert given is not None, "obstore would never ask again"
        assert given > now
    assert loads == loaded_at_seconds


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            {"Version": 2, "AccessKeyId": "k", "SecretAccessKey": "hunter2-and-more"},
            "printed no credentials of Version 1",
        ),
        ({"Version": 1}, "printed no credentials of Version 1"),
    ],
)
def test_a_credential_process_that_gives_none_is_said_without_what_it_printed(
    bucket: Bucket, base: dict[str, str], tmp_path: Path, answer: dict[str, object], said: str
) -> None:
    target = Stores(base | program_file(tmp_path, answer), RemoteCounters()).target(bucket.uri(), "a")
    with pytest.raises(AccessDenied, match=said) as caught:
        asyncio.run(head(target))
    assert "hunter2" not in str(caught.value)


def test_a_credential_process_that_fails_is_named_with_its_status(
    bucket: Bucket, base: dict[str, str], tmp_path: Path
) -> None:
    settings = program_file(tmp_path, {})
    (tmp_path / "answer").unlink()
    target = Stores(base | settings, RemoteCounters()).target(bucket.uri(), "a")
    with pytest.raises(ForebayError, match=r"credential_process of profile 'sso' ended with status 1") as caught:
        asyncio.run(head(target))
    assert isinstance(caught.value, AccessDenied)


def test_a_daemon_reads_on_without_an_error_while_its_credentials_are_exchanged(
    bucket: Bucket,
    base: dict[str, str],
    counting_proxy: CountingProxy,
    services: TokenServices,
    first: Identity,
    second: Identity,
    home: Path,
) -> None:
    """CASES 36: a run whose machine role gets new keys in the middle, the old ones refused from then on."""
    shard = bytes(range(256)) * 64
    for number in range(8):
        bucket.put(f"train/{number}.bin", shard)
    services.life_seconds = 6 * 3600
    environment = {**os.environ, **base, "AWS_METADATA_ENDPOINT": services.url}
    with daemon(home, "--prefetch-fills", "0", env=environment) as node, client(node.socket) as calls:
        opened = calls.open([bucket.uri("train")], token_spec(piece_bytes=len(shard)))
        session = calls.session(opened.dataset_id)
        before = [read(node.cache, lease) for lease in calls.acquire(session, range(4))]
        services.identity, counting_proxy.fault = second, refusing(first.access_key)
        after = [read(node.cache, lease) for lease in calls.acquire(session, range(4, 8))]
        assert before + after == [shard] * 8
        assert calls.status().counters.fill_failures == 0
    assert first.secret_key not in node.process.output()
    assert second.secret_key not in node.process.output()
