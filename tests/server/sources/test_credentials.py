"""Which credentials are used: the first of those that the AWS SDKs look for, or an error that says what is missing."""

import asyncio
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from forebay_core.errors import AccessDenied, ConfigurationError
from forebay_core.formats.base import ByteRange
from forebay_server.sources.registry import Stores
from forebay_server.sources.remote import RemoteCounters, RemoteStore
from forebay_server.sources.retries import OPENING, attempt
from forebay_server.sources.s3_settings import settings_of
from tests.support.proxy import CountingProxy
from tests.support.seaweedfs import Bucket

KEYS = {"AWS_ACCESS_KEY_ID": "a-key", "AWS_SECRET_ACCESS_KEY": "hunter2-secret"}
WEB = {"AWS_WEB_IDENTITY_TOKEN_FILE": "/token", "AWS_ROLE_ARN": "arn:aws:iam::1:role/r"}
CONTAINER = {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/v2/credentials"}
SECTION = "aws_access_key_id = profile-key\naws_secret_access_key = hunter2-secret\n"


def files(directory: Path, *, config: str = "", credentials: str = "", profile: str = "") -> dict[str, str]:
    """`~/.aws` of a home directory; gives the variables that lead there."""
    (directory / ".aws").mkdir(exist_ok=True)
    (directory / ".aws" / "config").write_text(config)
    (directory / ".aws" / "credentials").write_text(credentials)
    return {"HOME": str(directory)} | ({"AWS_PROFILE": profile} if profile else {})


def origin(environment: Mapping[str, str]) -> str:
    return settings_of("bucket", environment).credentials.origin


def refusal(environment: Mapping[str, str]) -> str:
    with pytest.raises((ConfigurationError, AccessDenied)) as caught:
        settings_of("bucket", environment)
    assert str(caught.value).startswith("s3://bucket: ")
    assert "hunter2" not in str(caught.value)
    return str(caught.value)


def test_the_first_source_that_is_there_is_used_in_the_order_of_the_sdks(tmp_path: Path) -> None:
    profile = files(tmp_path, credentials=f"[default]\n{SECTION}")
    ladder = [
        ({"AWS_SKIP_SIGNATURE": "true"}, "anonymous reading (AWS_SKIP_SIGNATURE)"),
        (KEYS, "AWS_ACCESS_KEY_ID"),
        (WEB, "the web identity of AWS_WEB_IDENTITY_TOKEN_FILE"),
        (profile, "profile 'default'"),
        (CONTAINER, "this container's role"),
        ({}, "this machine's role"),
    ]
    for place, (_, expected) in enumerate(ladder):
        environment: dict[str, str] = {}
        for settings, _ in ladder[place:]:
            environment |= settings
        assert origin(environment) == expected


@pytest.mark.parametrize(
    "environment",
    [{"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, {"AWS_EC2_METADATA_DISABLED": "true"}],
)
def test_without_any_source_no_metadata_service_is_looked_for(environment: dict[str, str], tmp_path: Path) -> None:
    """CASES 36: reading without credentials does not wait for a service that is not there."""
    said = refusal(environment | files(tmp_path))
    assert "no credentials: set AWS_ACCESS_KEY_ID" in said
    assert "in the environment of the daemon" in said


@contextmanager
def unanswered_port() -> Iterator[str]:
    """A port at which connections are neither accepted nor refused, as behind a firewall that drops packets."""
    with socket.socket() as listener, ExitStack() as held:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = held.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_metadata_service_behind_a_wall_is_given_up_within_seconds() -> None:
    """CASES 36: on AWS without credentials; not even a connection is made, and the way to read anonymously is said."""
    with unanswered_port() as service:
        target = Stores({"AWS_METADATA_ENDPOINT": service}, RemoteCounters()).target("s3://bucket/train")

        async def listed() -> object:
            async with asyncio.timeout(20):
                return [page async for page in target.store.list("", lambda _: True)]

        with pytest.raises(AccessDenied, match=r"gives no answer.*AWS_SKIP_SIGNATURE=true"):
            asyncio.run(attempt(target.store, target.url, OPENING, listed))
    assert target.store.counters.requests <= OPENING.attempts


def test_a_profile_is_read_from_both_files_and_its_region_and_endpoint_are_used_unless_the_environment_has_some(
    tmp_path: Path,
) -> None:
    config = "[profile train]\nregion = eu-west-1\nendpoint_url = http://127.0.0.1:7\ns3 =\n  max_queue_size = 3\n"
    environment = files(tmp_path, config=config, credentials=f"[train]\n{SECTION}", profile="train")
    settings = settings_of("bucket", environment)
    assert (settings.region, settings.endpoint) == ("eu-west-1", "http://127.0.0.1:7")
    assert settings.credentials.provider is not None
    given = settings.credentials.provider()
    assert (given["access_key_id"], given["secret_access_key"], given["token"]) == (
        "profile-key",
        "hunter2-secret",
        None,
    )
    overridden = settings_of("bucket", environment | {"AWS_REGION": "us-west-2", "AWS_ENDPOINT_URL": "http://host:1"})
    assert (overridden.region, overridden.endpoint) == ("us-west-2", "http://host:1")
    assert "hunter2" not in repr(settings)


def test_the_credentials_file_wins_over_the_config_file(tmp_path: Path) -> None:
    config = "[default]\naws_access_key_id = other\naws_secret_access_key = hunter2-other\n"
    settings = settings_of("bucket", files(tmp_path, config=config, credentials=f"[default]\n{SECTION}"))
    assert settings.credentials.provider is not None
    assert settings.credentials.provider()["access_key_id"] == "profile-key"


def test_a_profile_of_a_web_identity_is_one(tmp_path: Path) -> None:
    config = "[default]\nrole_arn = arn:aws:iam::1:role/r\nweb_identity_token_file = /token\n"
    settings = settings_of("bucket", files(tmp_path, config=config))
    assert settings.credentials.origin == "the web identity of profile 'default'"
    assert settings.credentials.settings["AWS_WEB_IDENTITY_TOKEN_FILE"] == "/token"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("[profile x]\nsso_session = s\nsso_account_id = 1\n", "profile 'x' signs in by SSO"),
        ("[profile x]\nrole_arn = arn\nsource_profile = base\n", "profile 'x' assumes a role"),
    ],
)
def test_what_is_left_to_the_aws_command_line_is_said_with_the_line_that_does_it(
    tmp_path: Path, config: str, said: str
) -> None:
    message = refusal(files(tmp_path, config=config, profile="x"))
    assert said in message
    assert "credential_process = aws configure export-credentials --profile x --format process" in message


@pytest.mark.parametrize(
    ("credentials", "profile", "said"),
    [
        ("[train]\naws_access_key_id = k\n", "train", "profile 'train' has not both"),
        ("[other]\n", "train", "there is no profile 'train' (AWS_PROFILE)"),
        ("aws_secret_access_key = hunter2\n", "train", ".aws/credentials is not of sections and lines"),
        ("[train]\nhunter2 hunter2\n = x", "train", ".aws/credentials is not of sections and lines"),
    ],
)
def test_a_profile_that_cannot_work_is_named_and_its_lines_are_not_quoted(
    tmp_path: Path, credentials: str, profile: str, said: str
) -> None:
    assert said in refusal(files(tmp_path, credentials=credentials, profile=profile))


def test_a_file_that_nobody_needs_may_be_broken(tmp_path: Path) -> None:
    assert origin(KEYS | files(tmp_path, credentials="no section\n")) == "AWS_ACCESS_KEY_ID"


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"AWS_ACCESS_KEY_ID": "k"}, "AWS_SECRET_ACCESS_KEY is not"),
        ({"AWS_SECRET_ACCESS_KEY": "hunter2-secret"}, "AWS_ACCESS_KEY_ID is not"),
        ({"AWS_WEB_IDENTITY_TOKEN_FILE": "/token"}, "AWS_ROLE_ARN is not"),
        ({"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1/c"}, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
    ],
)
def test_half_of_a_setting_is_said_and_not_passed_over(environment: dict[str, str], said: str) -> None:
    assert said in refusal(environment)


def test_a_profile_reads_a_bucket_and_its_secret_is_nowhere_in_the_store(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("a", b"data")
    keys = bucket.server.identities["admin"]
    section = f"[default]\naws_access_key_id={keys.access_key}\naws_secret_access_key={keys.secret_key}\n"
    environment = files(tmp_path, config=f"[default]\nendpoint_url = {bucket.server.endpoint}\n", credentials=section)
    stores = Stores(environment | {"AWS_ALLOW_HTTP": "true"}, RemoteCounters())
    target = stores.target(bucket.uri(), "a")
    assert asyncio.run(target.store.head("a")).size == 4
    assert keys.secret_key not in repr(target)


async def read_in_every_way(store: RemoteStore) -> None:
    info = await store.head("a")
    await store.read("a", ByteRange(0, info.size), info.version, [])
    assert [page async for page in store.list("", lambda _: True)]


def test_a_requester_who_pays_says_so_with_each_request(bucket: Bucket, counting_proxy: CountingProxy) -> None:
    bucket.put("a", b"data")
    environment = bucket.server.environment(endpoint=counting_proxy.endpoint)
    for settings, expected in (({}, set()), ({"AWS_REQUEST_PAYER": "true"}, {"requester"})):
        counting_proxy.clear()
        store = Stores(environment | settings, RemoteCounters()).target(bucket.uri(), "a").store

        asyncio.run(read_in_every_way(store))
        said = {exchange.request.headers.get("x-amz-request-payer") for exchange in counting_proxy.exchanges}
        assert said - {None} == expected
        assert len(said) == 1


def test_an_unreadable_file_says_whose_it_must_be(tmp_path: Path) -> None:
    environment = files(tmp_path, credentials=f"[train]\n{SECTION}", profile="train")
    (tmp_path / ".aws" / "credentials").write_bytes(b"[train]\n\xff\xfe")
    assert "cannot be read (it is no text)" in refusal(environment)
    if os.getuid():
        (tmp_path / ".aws" / "credentials").chmod(0)
        assert "check its owner and mode" in refusal(environment)
