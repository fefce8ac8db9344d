"""What may be read for clients: whole names, real places, and for a group nothing that its members may not read."""

import asyncio
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from forebay_core.errors import AccessDenied, ConfigurationError, UnknownScheme
from forebay_core.formats.base import ByteRange
from forebay_core.locations import Location, Source, parse
from forebay_server.sources.fetching import Fetcher
from forebay_server.sources.manifests import Manifests, OpenedDataset
from forebay_server.sources.permits import Permits, Prefix
from forebay_server.sources.registry import Stores
from forebay_server.sources.remote import RemoteCounters
from tests.support.data import write_parquet
from tests.support.proxy import CountingProxy
from tests.support.seaweedfs import Bucket

#: A group that owns nothing here.
STRANGERS = 4_000_000_000


def permits(*prefixes: str, group_id: int | None = None) -> Permits:
    return Permits([Prefix.parse(prefix) for prefix in prefixes], group_id)


def opening(rules: Permits, kept: Path, environment: dict[str, str] | None = None) -> Callable[[object], OpenedDataset]:
    """Opens datasets as a daemon with these rules does."""
    stores = Stores(environment or {}, RemoteCounters(), permits=rules)
    manifests = Manifests(lambda: [kept], stores, Fetcher(stores))
    return lambda *urls: asyncio.run(manifests.open([str(url) for url in urls], ""))


@pytest.fixture
def data(home: Path) -> Path:
    """A directory that everybody may enter, with the datasets `open`, `opened` and `closed`."""
    home.chmod(0o755)
    for name in ("open", "opened", "closed"):
        write_parquet(home / name, shards=1, rows=10)
        (home / name).chmod(0o755)
        for path in (home / name).iterdir():
            path.chmod(0o644)
    return home


@pytest.mark.parametrize(
    ("prefix", "url", "is_held"),
    [
        ("s3://a/b", "s3://a/b", True),
        ("s3://a/b", "s3://a/b/", True),
        ("s3://a/b/", "s3://a/b", True),
        ("s3://a/b", "s3://a/b/c/d", True),
        ("s3://a/b", "s3://a/bc", False),
        ("s3://a/b", "s3://a/b%2Fc", False),
        ("s3://a/b", "s3://a/", False),
        ("s3://a/b", "s3://a", False),
        ("s3://a/b", "s3://A/b", False),
        ("s3://a/b", "s3://a/B", False),
        ("s3://a/b", "/a/b", False),
        ("s3://a", "s3://a", True),
        ("s3://a", "s3://a/x", True),
        ("s3://a", "s3://ab/x", False),
        ("S3://a/b", "s3://a/b/c", True),
        ("s3://", "s3://any/thing", True),
        ("s3://", "/any/thing", False),
        ("/", "file:///any/thing", True),
        ("file://", "/any", True),
        ("/", "s3://any/thing", False),
        ("/nowhere/a", "/nowhere/a/b", True),
        ("/nowhere/a", "/nowhere/ab", False),
        ("/nowhere/a", "/nowhere/a/../b", False),
        ("file:///nowhere/a", "/nowhere//a/./b", True),
    ],
)
def test_a_prefix_holds_itself_and_what_lies_below_it_by_whole_names(prefix: str, url: str, is_held: bool) -> None:
    assert Prefix.parse(prefix).holds(parse(url)) == is_held


@pytest.mark.parametrize(
    "text", ["s3://a/*", "ftp://a", "ftp://user:secret@a", "", "s3://a/../b", "s3://user:secret@a/b", "file://host/x"]
)
def test_a_prefix_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises((ConfigurationError, UnknownScheme)) as refused:
        Prefix.parse(text)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("urls", "is_allowed"),
    [
        (["s3://a/b/x"], True),
        (["s3://a/b/*/x"], True),
        (["s3://a/b/**"], True),
        (["s3://a/b*/x"], False),
        (["s3://a/*"], False),
        (["s3://a/[b]/x"], False),
        (["s3://a/c/x", "s3://a/b/x"], True),
        (["s3://a/b/x", "s3://a/d/x"], False),
        (["s3://a/c"], True),
    ],
)
def test_every_url_of_a_source_must_be_allowed_and_a_pattern_by_what_it_may_name(
    urls: Sequence[str], is_allowed: bool
) -> None:
    rules = permits("s3://a/b", "s3://a/c")
    if is_allowed:
        rules.check_source(Source(tuple(urls)))
        return
    with pytest.raises(AccessDenied, match="--allow-read"):
        rules.check_source(Source(tuple(urls)))


def test_without_a_list_and_a_group_everything_is_allowed(data: Path) -> None:
    (data / "closed").chmod(0o700)
    assert opening(Permits(), data / "kept")(data / "closed").manifest.samples == 10


def test_a_local_dataset_is_opened_below_an_allowed_directory_and_nowhere_else(data: Path) -> None:
    open_dataset = opening(permits(str(data / "open")), data / "kept")
    assert open_dataset(data / "open").manifest.samples == 10
    for refused in ("opened", "closed", "open/../closed", ".", "op*"):
        with pytest.raises(AccessDenied, match=re.escape("(--allow-read, FOREBAY_ALLOW_READ)")):
            open_dataset(f"{data}/{refused}")


def test_no_link_leads_out_of_an_allowed_directory(data: Path) -> None:
    open_dataset = opening(permits(str(data / "open")), data / "kept")
    (data / "open/inside").symlink_to(data / "closed")
    with pytest.raises(AccessDenied):
        open_dataset(data / "open/inside")
    with pytest.raises(AccessDenied, match="leads to"):
        open_dataset(data / "open")
    (data / "open/inside").unlink()
    (data / "open/z.parquet").symlink_to(data / "closed/shard-00000.parquet")
    with pytest.raises(AccessDenied, match="leads to"):
        open_dataset(data / "open")
    (data / "open/z.parquet").unlink()
    assert open_dataset(data / "open").manifest.samples == 10


def test_an_allowed_directory_may_be_named_by_a_link_to_it(data: Path) -> None:
    (data / "link").symlink_to(data / "open")
    for named, asked in (("link", "open"), ("open", "link"), ("link", "link")):
        open_dataset = opening(permits(str(data / named)), data / "kept")
        assert open_dataset(data / asked).manifest.samples == 10


def test_a_file_that_becomes_a_link_after_it_was_listed_is_not_followed_out(data: Path) -> None:
    stores = Stores({}, RemoteCounters(), permits=permits(str(data / "open")))
    target = stores.target(f"file://{data}/open", "shard-00000.parquet")
    version = asyncio.run(target.store.head(target.key)).version
    path = data / "open/shard-00000.parquet"
    path.rename(data / "moved")
    path.symlink_to(data / "moved")
    with pytest.raises(AccessDenied, match="leads to"):
        asyncio.run(target.store.read(target.key, ByteRange(0, 4), version, []))
    with pytest.raises(AccessDenied, match="leads to"):
        asyncio.run(target.store.head(target.key))


def test_a_pipe_in_the_place_of_a_file_holds_nobody_up(data: Path) -> None:
    os.mkfifo(data / "open/y.parquet")
    stores = Stores({}, RemoteCounters())
    target = stores.target(f"file://{data}/open", "y.parquet")
    with pytest.raises(FileNotFoundError):
        asyncio.run(target.store.head(target.key))
    with pytest.raises(OSError, match="seek"):
        asyncio.run(target.store.read(target.key, ByteRange(0, 4), "v", []))


def test_a_shared_daemon_reads_what_its_group_may_read_and_nothing_else(data: Path) -> None:
    rules = permits(group_id=STRANGERS)
    file = data / "open/shard-00000.parquet"
    assert opening(rules, data / "kept")(data / "open").manifest.samples == 10
    for path, mode in ((data / "open", 0o750), (data, 0o700), (file, 0o640), (data / "open", 0o751)):
        before = path.stat().st_mode & 0o777
        path.chmod(mode)
        with pytest.raises(AccessDenied, match=re.escape("(--allow-read, FOREBAY_ALLOW_READ)")):
            opening(rules, data / f"{path.name}-{mode}")(data / "open")
        path.chmod(before)
    assert opening(rules, data / "again")(data / "open").manifest.samples == 10


def test_files_of_the_group_are_judged_by_the_bits_of_the_group(data: Path) -> None:
    own = data.stat().st_gid
    (data / "open").chmod(0o750)
    (data / "open/shard-00000.parquet").chmod(0o640)
    assert opening(permits(group_id=own), data / "kept")(data / "open").manifest.samples == 10
    (data / "open/shard-00000.parquet").chmod(0o604)
    with pytest.raises(AccessDenied, match=f"group {own}"):
        opening(permits(group_id=own), data / "other")(data / "open")


def test_what_is_allowed_by_name_is_read_for_a_group_that_may_not(data: Path) -> None:
    (data / "closed").chmod(0o700)
    assert opening(permits(str(data / "closed"), group_id=STRANGERS), data / "kept")(data / "closed").manifest.samples


def test_nothing_is_asked_of_a_bucket_that_is_not_allowed(bucket: Bucket, counting_proxy: CountingProxy) -> None:
    environment = bucket.server.environment(endpoint=counting_proxy.endpoint)
    stores = Stores(environment, RemoteCounters(), permits=permits(bucket.uri("train")))
    with pytest.raises(AccessDenied, match="--allow-read"):
        stores.target(bucket.uri("other"), "x.parquet")
    with pytest.raises(AccessDenied, match="--allow-read"):
        stores.target(bucket.uri(), "training.parquet")
    assert stores.target(bucket.uri(), "train/x.parquet").key == "train/x.parquet"
    open_dataset = opening(permits(bucket.uri("train")), Path("/nowhere"), environment)
    with pytest.raises(AccessDenied, match="--allow-read"):
        open_dataset(bucket.uri("trainer"))
    assert counting_proxy.exchanges == []


def test_a_message_shows_no_control_characters() -> None:
    with pytest.raises(AccessDenied) as refused:
        permits("s3://a/b").check(Location("s3", "a", "x\n\x1b[31m"))
    assert str(refused.value).isprintable()


def test_the_formats_of_the_reader_and_the_spec_do_not_matter(data: Path) -> None:
    stores = Stores({}, RemoteCounters(), permits=permits(str(data / "open")))
    manifests = Manifests(lambda: [data / "kept"], stores, Fetcher(stores))
    spec = json.dumps({"name": "tokens", "cut": "tokens-1", "sequence_length": 2, "dtype": "uint8", "piece_bytes": 1})
    with pytest.raises(AccessDenied):
        asyncio.run(manifests.open([str(data / "closed")], spec))
