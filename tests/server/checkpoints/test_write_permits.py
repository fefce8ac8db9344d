"""Which roots of checkpoints a daemon takes: what its clients may have written, and nothing of its own."""

import asyncio
import os
import re
from pathlib import Path

import pytest

from forebay_core.errors import AccessDenied, ConfigurationError, UnknownScheme
from forebay_core.locations import Location, root_of
from forebay_server.checkpoints.destinations.permits import WritePermits
from forebay_server.sources.permits import Prefix
from tests.server.checkpoints.destinations import destinations

OTHER_GROUP = 54_321


def test_without_a_list_every_bucket_and_directory_is_a_root_but_those_of_the_daemon(tmp_path: Path) -> None:
    own = tmp_path / "cache"
    own.mkdir()
    (tmp_path / "link").symlink_to(own)
    permits = WritePermits(own=[tmp_path / "link"])
    for url in ("s3://bucket", "s3://bucket/a/b", f"{tmp_path}/cached", f"file://{tmp_path}"):
        permits.check(root_of(url))
    for url in (f"{own}", f"file://{own}/a/b", f"{tmp_path}/link/a"):
        with pytest.raises(ConfigurationError, match="which the daemon keeps itself"):
            permits.check(root_of(url))
    with pytest.raises(ConfigurationError, match="can be no root"):
        permits.check(root_of("file:///"))


def test_with_a_list_only_what_lies_below_it_is_a_root(tmp_path: Path) -> None:
    allowed = tmp_path / "runs"
    allowed.mkdir()
    (allowed / "out").symlink_to(tmp_path)
    permits = WritePermits([Prefix.parse("s3://bucket/runs"), Prefix.parse(str(allowed))], own=[allowed / "cache"])
    for url in ("s3://bucket/runs", "s3://bucket/runs/a/", f"{allowed}/a/b"):
        permits.check(root_of(url))
    for url in ("s3://bucket/runs-2", "s3://bucket", "s3://other/runs", f"{tmp_path}/runs2", f"{allowed}/out/a"):
        with pytest.raises(AccessDenied, match=re.escape("(--allow-write, FOREBAY_ALLOW_WRITE)")):
            permits.check(root_of(url))
    with pytest.raises(ConfigurationError, match="which the daemon keeps itself"):
        permits.check(root_of(f"{allowed}/cache/a"))


def test_a_shared_daemon_writes_where_every_member_of_its_group_may(home: Path) -> None:
    home.chmod(0o711)
    private, shared = home / "private", home / "shared"
    private.mkdir(mode=0o755)
    shared.mkdir()
    shared.chmod(0o1777)
    permits = WritePermits(group_id=OTHER_GROUP)
    permits.check(Location("file", "", f"{shared}/not/made/yet"))
    permits.check(Location("s3", "bucket", "runs"))
    for path in (private, private / "not/made/yet"):
        with pytest.raises(AccessDenied, match="not every member of the group 54321"):
            permits.check(Location("file", "", str(path)))
    WritePermits(group_id=os.getgid()).check(Location("file", "", str(shared)))
    private.chmod(0o775)
    WritePermits(group_id=private.stat().st_gid).check(Location("file", "", str(private)))
    shared.chmod(0o1772)  # may write, not enter
    with pytest.raises(AccessDenied, match="may write"):
        permits.check(Location("file", "", f"{shared}"))
    WritePermits([Prefix.parse(str(home))], group_id=OTHER_GROUP).check(Location("file", "", str(private)))


def test_a_root_is_one_place_by_whichever_name_and_of_a_kind_that_is_known(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "runs")

    async def run() -> None:
        opened, counters = destinations({"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"})
        same = [await opened.open(url) for url in (f"{tmp_path}/runs/", f"file://{tmp_path}/link", f"{tmp_path}/runs")]
        assert same[0] is same[1] is same[2]
        assert await opened.open("s3://bucket/runs/") is await opened.open("s3://bucket/runs")
        with pytest.raises(UnknownScheme, match=r"cannot keep checkpoints in gs:// yet$"):
            await opened.open("gs://bucket/runs")
        with pytest.raises(ConfigurationError, match="is a pattern"):
            await opened.open("s3://bucket/runs/*")
        assert counters.requests == 0

    asyncio.run(run())


def test_a_daemon_without_credentials_says_so_when_a_root_is_named() -> None:
    async def run() -> None:
        opened, _ = destinations({"AWS_EC2_METADATA_DISABLED": "true"})
        with pytest.raises(AccessDenied, match="no credentials"):
            await opened.open("s3://bucket/runs")

    asyncio.run(run())
