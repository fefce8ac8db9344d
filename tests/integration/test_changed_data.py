"""What changes at the remote place, and what a transfer damages: named by both versions, read as a whole or not at all.

Over a real daemon and a real store.
"""

import hashlib
import os
import secrets
from pathlib import Path

import pytest

from tests.server.daemons import client, daemon, read, token_spec
from tests.support.faults import Rule, Script
from tests.support.processes import eventually
from tests.support.proxy import CountingProxy, Fault
from tests.support.seaweedfs import Bucket, SeaweedFS

SIZE = 4 * 4096


def etag(body: bytes) -> str:
    return f'"{hashlib.md5(body).hexdigest()}"'


@pytest.mark.parametrize("size", [SIZE, SIZE - 4096], ids=["of the same size", "shorter"])
def test_an_object_that_was_overwritten_is_named_with_both_versions(
    home: Path, bucket: Bucket, s3: SeaweedFS, size: int
) -> None:
    """CASES 27."""
    old, new = secrets.token_bytes(SIZE), secrets.token_bytes(size)
    bucket.put("data/a.bin", old)
    with daemon(home, env={**os.environ, **s3.environment()}) as running, client(running.socket) as caller:
        session = caller.session(caller.open([bucket.uri("data")], token_spec()).dataset_id)
        assert read(running.cache, caller.acquire(session, [0])[0]) == old[:4096]
        bucket.put("data/a.bin", new)
        lease = caller.acquire(session, [3])[0]
        with pytest.raises(RuntimeError) as caught:
            read(running.cache, lease)
    said = str(caught.value).replace("\\", "")
    assert "ObjectChanged" in said
    assert f"was version {etag(old)}, it is {etag(new)} now" in said


def test_with_leave_the_present_version_is_read_and_no_piece_is_of_two(
    home: Path, bucket: Bucket, s3: SeaweedFS
) -> None:
    """CASES 27."""
    old, new = secrets.token_bytes(SIZE), secrets.token_bytes(SIZE)
    bucket.put("data/a.bin", old)
    environment = {**os.environ, **s3.environment()}
    with daemon(home, "--allow-changed", env=environment) as running, client(running.socket) as caller:
        session = caller.session(caller.open([bucket.uri("data")], token_spec()).dataset_id)
        assert read(running.cache, caller.acquire(session, [0])[0]) == old[:4096]
        bucket.put("data/a.bin", new)
        pieces = [read(running.cache, lease) for lease in caller.acquire(session, range(4))]
        assert pieces == [old[:4096], *(new[start : start + 4096] for start in range(4096, SIZE, 4096))]
        log = running.process.output()
        assert log.count("--allow-changed") == 1, "once for each object"
        assert f"is read at version {etag(new)}, not {etag(old)}" in log
        anew = caller.session(caller.open([bucket.uri("data")], token_spec()).dataset_id)
        pieces = [read(running.cache, lease) for lease in caller.acquire(anew, range(4))]
        assert b"".join(pieces) == new, "another version is another dataset, and its pieces have other keys"


def test_bytes_that_are_damaged_on_the_way_are_fetched_again_where_the_etag_shows_it(
    home: Path, bucket: Bucket, s3: SeaweedFS, counting_proxy: CountingProxy
) -> None:
    """CASES 26 and 37."""
    body = secrets.token_bytes(4096)
    bucket.put("data/a.bin", body)
    script = Script(Rule(Fault(corrupt_at=2000), method="GET", key=r"\.bin$", range="bytes=0-", times=1))
    counting_proxy.fault = script
    environment = {**os.environ, **s3.environment(endpoint=counting_proxy.endpoint)}
    with daemon(home, env=environment) as running, client(running.socket) as caller:
        session = caller.session(caller.open([bucket.uri("data")], token_spec()).dataset_id)
        assert read(running.cache, caller.acquire(session, [0])[0]) == body
        assert script.struck == 1
        eventually(lambda: caller.status().fills_running == 0, 20, "the fill to end")
        assert "not those of its ETag" in running.process.output()
