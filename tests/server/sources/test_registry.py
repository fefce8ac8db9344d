"""Stores: which one a URL means, names of every kind, versions, and settings that cannot work."""

import asyncio
import os
import shutil
import time
import unicodedata
from pathlib import Path

import pytest

from forebay_core.errors import (
    AccessDenied,
    BadObject,
    ConfigurationError,
    ForebayError,
    ObjectChanged,
    SourceNotFound,
    UnknownScheme,
)
from forebay_core.formats.base import ByteRange, ObjectInfo
from forebay_core.locations import Location, parse
from forebay_server.sources.registry import Stores
from forebay_server.sources.remote import ConnectionOptions, Received, RemoteCounters, RemoteStore, Target
from forebay_server.sources.retries import RetryPolicy, attempt
from tests.support.seaweedfs import Bucket

ONCE = RetryPolicy(attempts=1, give_up_seconds=1)
#: Names of CASES 18 that any store must take.
ODD_NAMES = [
    "a b",
    "a%20b",
    "a%",
    "a+b",
    "a#b",
    "a#1",
    "a?b",
    "a&b=c;d",
    "a.b.c",
    "~a",
    "'a'",
    "a*[b]",
    unicodedata.normalize("NFC", "é"),
    unicodedata.normalize("NFD", "é"),
    "日本",
    "x" * 255,
    "year=2024/a%2Fb",
    "one/same",
    "two/same",
]
#: Names that only a file system has.
LOCAL_NAMES = ["a\nb", "a\tb", "a\\b", "\x7f"]


async def listed(store: RemoteStore, directory: str) -> list[ObjectInfo]:
    found = [obj async for batch in store.list(directory, lambda _: True) for obj in batch]
    return sorted(found, key=lambda obj: obj.key.encode())


async def check_every_name(stores: Stores, root: str, names: list[str]) -> None:
    """Each name is listed as itself, and found and read under itself; each content is the name."""
    base = stores.target(root)
    found = {obj.key: obj for obj in await listed(base.store, base.key)}
    assert sorted(found) == sorted(names)
    for name in names:
        target = stores.target(root, name)
        head = await target.store.head(target.key)
        received: Received = []
        await target.store.read(target.key, ByteRange(0, head.size), head.version, received)
        assert b"".join(received) == name.encode()
        assert (head.size, head.version) == (found[name].size, found[name].version)
        assert target.url == f"{root}/{name}"


def write_names(directory: Path, names: list[str]) -> None:
    for name in names:
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(name.encode())


def failure_of_listing(target: Target) -> ForebayError:
    async def everything() -> list[ObjectInfo]:
        return await listed(target.store, target.key)

    with pytest.raises(ForebayError) as caught:
        asyncio.run(attempt(target.store, target.url, ONCE, everything))
    return caught.value


def test_odd_names_in_a_bucket_are_listed_and_read_as_they_are(bucket: Bucket) -> None:
    for name in ODD_NAMES:
        bucket.put(f"odd dir%/{name}", name.encode())
    stores = Stores(bucket.server.environment(), RemoteCounters())
    asyncio.run(check_every_name(stores, bucket.uri("odd dir%"), ODD_NAMES))


def test_odd_names_in_a_directory_are_listed_and_read_as_they_are(tmp_path: Path) -> None:
    directory = tmp_path / "odd dir%"
    directory.mkdir()
    write_names(directory, ODD_NAMES + LOCAL_NAMES)
    stores = Stores({}, RemoteCounters())
    asyncio.run(check_every_name(stores, f"file://{directory}", ODD_NAMES + LOCAL_NAMES))


def test_a_prefix_is_a_directory_and_not_the_beginning_of_a_name(bucket: Bucket, tmp_path: Path) -> None:
    for name in ("train/a", "training/b", "train-c"):
        bucket.put(name, b"x")
    store = Stores(bucket.server.environment(), RemoteCounters()).open(parse(bucket.uri()))
    assert [obj.key for obj in asyncio.run(listed(store, "train"))] == ["a"]
    assert [obj.key for obj in asyncio.run(listed(store, "tra"))] == []
    assert [obj.key for obj in asyncio.run(listed(store, ""))] == ["train-c", "train/a", "training/b"]


def test_a_listing_goes_on_behind_a_key(bucket: Bucket) -> None:
    names = [f"s/{number:04}" for number in range(12)]
    for name in names:
        bucket.put(name, b"x")
    store = Stores(bucket.server.environment(), RemoteCounters()).open(parse(bucket.uri()))

    async def rest() -> list[str]:
        return [obj.key async for page in store.list("s", lambda _: True, after="0009") for obj in page]

    assert asyncio.run(rest()) == ["0010", "0011"]


@pytest.mark.parametrize("key", ["a//b", "/a", "a/", "./a", "a/../b", ""])
def test_a_key_that_cannot_be_addressed_in_a_bucket_is_named_and_never_mended(bucket: Bucket, key: str) -> None:
    store = Stores(bucket.server.environment(), RemoteCounters()).open(parse(bucket.uri()))
    for act in (store.head(key), store.read(key, ByteRange(0, 1), "v", [])):
        with pytest.raises(BadObject, match="cannot be read"):
            asyncio.run(act)
    assert store.counters.requests == 0


def test_a_file_name_that_is_no_utf8_is_named(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff.parquet")).write_bytes(b"x")
    error = failure_of_listing(Stores({}, RemoteCounters()).target(f"file://{tmp_path}"))
    assert isinstance(error, BadObject)
    assert r"bad\xff.parquet" in str(error)


def test_a_directory_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    error = failure_of_listing(Stores({}, RemoteCounters()).target(f"file://{tmp_path}/absent"))
    assert isinstance(error, SourceNotFound)
    assert str(error) == f"file://{tmp_path}/absent: no such file or directory; check the path"


def test_symbolic_links_to_files_and_directories_are_followed_and_a_circle_is_entered_once(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").write_bytes(b"abc")
    (tmp_path / "data" / "link").symlink_to("a")
    (tmp_path / "data" / "circle").symlink_to(tmp_path / "data")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "b").write_bytes(b"defg")
    (tmp_path / "data" / "away").symlink_to(tmp_path / "other")
    target = Stores({}, RemoteCounters()).target(f"file://{tmp_path}/data")
    found = asyncio.run(listed(target.store, target.key))
    assert [(obj.key, obj.size) for obj in found] == [("a", 3), ("away/b", 4), ("link", 3)]


def test_a_large_directory_is_listed_whole_in_batches(tmp_path: Path) -> None:
    names = {f"{number:05}" for number in range(4100)}
    for name in names:
        (tmp_path / name).touch()
    target = Stores({}, RemoteCounters()).target(f"file://{tmp_path}")
    assert {obj.key for obj in asyncio.run(listed(target.store, target.key))} == names
    assert target.store.counters.requests == 2


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "lost.parquet").symlink_to("nowhere")
    error = failure_of_listing(Stores({}, RemoteCounters()).target(f"file://{tmp_path}"))
    assert isinstance(error, SourceNotFound)
    assert "lost.parquet" in str(error)


def test_what_is_no_regular_file_is_not_listed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").mkdir()
    target = Stores({}, RemoteCounters()).target(f"file://{tmp_path}")
    assert asyncio.run(listed(target.store, target.key)) == []
    with pytest.raises(FileNotFoundError, match="not a file"):
        asyncio.run(target.store.head(f"{tmp_path}/empty"))


def test_a_local_version_changes_with_the_content_the_time_and_the_inode(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    store = Stores({}, RemoteCounters()).open(parse(str(path)))
    versions = [asyncio.run(store.head(str(path))).version]
    os.utime(path, ns=(1, 1))
    versions.append(asyncio.run(store.head(str(path))).version)
    path.write_bytes(b"abcd")
    os.utime(path, ns=(1, 1))
    versions.append(asyncio.run(store.head(str(path))).version)
    shutil.copy2(path, tmp_path / "b")
    (tmp_path / "b").rename(path)
    versions.append(asyncio.run(store.head(str(path))).version)
    assert len(set(versions)) == 4
    with pytest.raises(ObjectChanged, match="changed since it was listed"):
        asyncio.run(store.read(str(path), ByteRange(0, 2), versions[0], []))


def test_a_local_object_has_a_path_and_one_in_a_bucket_none(bucket: Bucket, tmp_path: Path) -> None:
    stores = Stores(bucket.server.environment(), RemoteCounters())
    local, remote = stores.target(f"file://{tmp_path}", "a"), stores.target(bucket.uri(), "a")
    assert local.store.local_path(local.key) == tmp_path / "a"
    assert remote.store.local_path(remote.key) is None


def test_a_store_says_what_is_part_of_an_objects_identity(bucket: Bucket, tmp_path: Path) -> None:
    stores = Stores(bucket.server.environment(), RemoteCounters())
    remote = stores.open(parse(bucket.uri("x")))
    assert (remote.scheme, remote.endpoint, remote.bucket) == ("s3", bucket.server.endpoint, bucket.name)
    local = stores.open(parse(str(tmp_path)))
    assert (local.scheme, local.endpoint, local.bucket) == ("file", "", "")
    assert stores.target("file:///", "a").url == "file:///a"
    assert stores.target(f"s3://{bucket.name}", "a").url == bucket.uri("a")


def test_one_store_serves_a_bucket_for_good(bucket: Bucket) -> None:
    stores = Stores(bucket.server.environment(), RemoteCounters())
    assert stores.open(parse(bucket.uri("x"))) is stores.open(parse(bucket.uri("y/z")))
    assert stores.open(parse(bucket.uri())) is not stores.open(parse("s3://another-bucket"))


@pytest.mark.parametrize("url", ["ftp://host/x", "gs://bucket/x"])
def test_an_unknown_scheme_is_refused(url: str) -> None:
    with pytest.raises(UnknownScheme, match="s3://"):
        Stores({}, RemoteCounters()).target(url)


@pytest.mark.parametrize(
    "settings", [{"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, {"AWS_EC2_METADATA_DISABLED": "true"}]
)
def test_missing_credentials_are_said_at_once_and_no_service_is_asked_for_them(settings: dict[str, str]) -> None:
    begun = time.monotonic()
    with pytest.raises(AccessDenied, match=r"AWS_ACCESS_KEY_ID.*AWS_SKIP_SIGNATURE=true"):
        Stores(settings, RemoteCounters()).target("s3://bucket/train")
    assert time.monotonic() - begun < 5


def test_anonymous_reading_asks_without_a_signature(bucket: Bucket) -> None:
    bucket.put("a", b"x")
    environment = {
        "AWS_ENDPOINT_URL": bucket.server.endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_SKIP_SIGNATURE": "true",
    }
    error = failure_of_listing(Stores(environment, RemoteCounters()).target(bucket.uri()))
    assert isinstance(error, AccessDenied)


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_SESSION_TOKEN"])
def test_a_line_break_in_a_setting_names_the_setting_and_not_its_value(name: str) -> None:
    settings = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", name: "private\n"}
    with pytest.raises(ConfigurationError, match=f"{name} holds a line break") as caught:
        Stores(settings, RemoteCounters()).target("s3://bucket/train")
    assert "private" not in str(caught.value)


@pytest.mark.parametrize("bucket", ["b#c", "b\\c", "a b", "a\nb", "b[0]", "é", "b%20c"])
def test_a_name_that_no_bucket_has_is_refused_and_no_other_bucket_is_read(bucket: str) -> None:
    settings = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    with pytest.raises(ConfigurationError, match="not the name of a bucket"):
        Stores(settings, RemoteCounters()).open(Location("s3", bucket, "x"))


@pytest.mark.parametrize("endpoint", ["127.0.0.1:8333", "ftp://host", "http://", "http://a b", "http://h:99999", "x"])
def test_an_endpoint_that_is_no_url_is_refused_with_its_setting(endpoint: str) -> None:
    settings = {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    with pytest.raises(ConfigurationError, match="AWS_ENDPOINT_URL="):
        Stores(settings, RemoteCounters()).target("s3://bucket/train")


def test_a_setting_that_obstore_refuses_is_a_configuration_error() -> None:
    settings = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "private", "AWS_ALLOW_HTTP": "perhaps"}
    with pytest.raises(ConfigurationError, match="perhaps") as caught:
        Stores(settings, RemoteCounters()).target("s3://bucket/train")
    assert "private" not in str(caught.value)


def test_the_endpoint_for_s3_alone_wins(bucket: Bucket) -> None:
    bucket.put("a", b"x")
    environment = bucket.server.environment(endpoint="http://127.0.0.1:1")
    environment["AWS_ENDPOINT_URL_S3"] = f"{bucket.server.endpoint}/"
    store = Stores(environment, RemoteCounters()).open(parse(bucket.uri()))
    assert store.endpoint == bucket.server.endpoint
    assert asyncio.run(store.head("a")).size == 1


@pytest.mark.parametrize(("connect", "stall"), [(0, 1), (1, 0), (-1, 1)])
def test_time_limits_must_be_positive(connect: float, stall: float) -> None:
    with pytest.raises(ConfigurationError):
        ConnectionOptions(connect_timeout_seconds=connect, stall_timeout_seconds=stall)
