"""Objects with names and sizes that are nearly one another's: each is cached as itself."""

import asyncio
import json
import secrets
import unicodedata
from pathlib import Path

from forebay_server.node import Node
from tests.server.daemons import token_spec
from tests.server.test_sessions import node
from tests.support.seaweedfs import Bucket, SeaweedFS

BYTES = 64
NAMES = ["a b", "a+b", "a%20b", "A b", "a%2Fb", "x/a b", "x%2Fa b", "a b#1", "a b?v=1"]
NAMES += [unicodedata.normalize(form, "é") for form in ("NFC", "NFD")]


async def contents(made: Node, *urls: str) -> dict[str, bytes]:
    """The cached bytes of each object below the URLs, by its key."""
    opened = await made.open_dataset(list(urls), json.dumps(token_spec(piece_bytes=BYTES)))
    session = made.open_session(opened.dataset_id, (), label="test", process_id=1)
    found = {}
    for piece in range(opened.manifest.pieces):
        (lease,) = await made.sessions.acquire(session, [piece])
        key = session.view.key(piece)
        if key in made.fills.running:
            await made.fills.running[key].task
        (disk,) = made.pool.disks
        found[opened.manifest.piece(piece).object.key] = (disk.root / lease.path).read_bytes()
    return found


def test_no_two_objects_share_an_entry_and_one_object_has_one(home: Path, s3: SeaweedFS, bucket: Bucket) -> None:
    """CASES 34."""
    other = Bucket(f"test-{secrets.token_hex(6)}", s3)
    s3.create_bucket(other.name)
    expected = {of.name: {f"{name}.bin": secrets.token_bytes(BYTES) for name in NAMES} for of in (bucket, other)}
    for of in (bucket, other):
        for name, data in expected[of.name].items():
            of.put(f"data/{name}", data)
    (home / "data/x").mkdir(parents=True)
    local = {f"{name}.bin": secrets.token_bytes(BYTES) for name in NAMES}
    for name, data in local.items():
        (home / "data" / name).write_bytes(data)

    async def run() -> None:
        async with node(home, environment=s3.environment()) as (made, _):
            for of in (bucket, other):
                assert await contents(made, of.uri("data")) == expected[of.name]
            assert await contents(made, str(home / "data")) == local
            fills = made.fills.counters.fills
            assert fills == 3 * len(NAMES)
            one = f"{NAMES[0]}.bin"
            assert await contents(made, bucket.uri(f"data/{one}")) == {one: expected[bucket.name][one]}
            assert await contents(made, bucket.uri("data/*.bin"))
            assert made.fills.counters.fills == fills, "the same object under another URL was fetched again"
            bucket.put(f"data/{one}", b"\0" * BYTES)
            assert (await contents(made, bucket.uri("data")))[one] == b"\0" * BYTES

    asyncio.run(run())
    s3.delete_bucket(other.name)
