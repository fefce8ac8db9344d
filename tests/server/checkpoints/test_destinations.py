"""The contract of destinations, for both kinds: what is written is there, whole, and what is not is not."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay_core.errors import CheckpointDamaged, CheckpointNotFound
from forebay_server.checkpoints.destinations.base import Destination
from tests.server.checkpoints.destinations import PART, destinations, environment_of, sealed
from tests.support.seaweedfs import Bucket

ATTEMPT = "attempts/g000000-s000000001-0123456789ab"


class Place:
    """A root of one kind, whose destination is made on the loop that uses it."""

    def __init__(self, url: str, environment: dict[str, str]) -> None:
        self.url = url
        self._environment = environment

    async def open(self) -> Destination:
        opened, _ = destinations(self._environment)
        return await opened.open(self.url)


@pytest.fixture(params=["s3", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "file":
        yield Place(f"file://{tmp_path.resolve()}/made/on/the/way", {})
    else:
        bucket: Bucket = request.getfixturevalue("bucket")
        yield Place(bucket.uri("runs/a"), environment_of(bucket))


def test_documents_are_there_once_they_are_written_and_absent_before_and_after(place: Place) -> None:
    async def run() -> None:
        kept = await place.open()
        assert kept.url == place.url
        assert await kept.get("commits/a.json") is None
        assert await kept.head("commits/a.json") is None
        assert await kept.list("commits/") == ()
        await kept.put("commits/a.json", b"one")
        await kept.put("commits/a.json", b"two, longer")
        await kept.put(f"{ATTEMPT}/ranks/00000.json", b"")
        assert await kept.get_many(["commits/a.json", "commits/b.json"]) == (b"two, longer", None)
        assert await kept.get(f"{ATTEMPT}/ranks/00000.json") == b""
        (found,) = await kept.list("commits/")
        assert found == await kept.head("commits/a.json")
        assert (found.key, found.size_bytes) == ("commits/a.json", 11)
        assert [each.key for each in await kept.list("")] == [f"{ATTEMPT}/ranks/00000.json", "commits/a.json"]
        await kept.delete(["commits/a.json", "commits/never.json"])
        assert await kept.get("commits/a.json") is None
        assert [each.key for each in await kept.list("")] == [f"{ATTEMPT}/ranks/00000.json"]

    asyncio.run(run())


def test_of_many_who_put_if_absent_at_once_one_has_written_and_all_know_it(place: Place) -> None:
    async def run() -> None:
        rivals = [await place.open() for _ in range(4)]
        assert await rivals[0].probe_put_if_absent()
        bodies = [b"%d" % number for number in range(16)]
        won = await asyncio.gather(
            *(rivals[number % 4].put_if_absent("commits/a.json", body) for number, body in enumerate(bodies))
        )
        assert won.count(True) == 1
        assert await rivals[0].get("commits/a.json") == bodies[won.index(True)]
        assert not await rivals[1].put_if_absent("commits/a.json", bodies[won.index(True)])
        assert [each.key for each in await rivals[0].list("")] == ["commits/a.json"], "no probe is left"

    asyncio.run(run())


@pytest.mark.parametrize("size", [0, 1, PART, 2 * PART + 17])
def test_a_file_arrives_whole_and_comes_back_the_same(place: Place, tmp_path: Path, size: int) -> None:
    content = random.Random(size).randbytes(size)
    local, back = tmp_path / "local", tmp_path / "back"
    record = sealed(local, content)
    sent: list[int] = []
    received: list[int] = []

    async def run() -> None:
        kept = await place.open()
        await kept.upload(local, f"{ATTEMPT}/__0_0.distcp", expected=record, progress=sent.append)
        found = await kept.head(f"{ATTEMPT}/__0_0.distcp")
        assert found is not None
        assert found.size_bytes == size
        await kept.download(f"{ATTEMPT}/__0_0.distcp", back, size_bytes=size, progress=received.append)

    asyncio.run(run())
    assert back.read_bytes() == content
    assert sent[-1] == size
    assert received[-1:] == ([size] if size else received[-1:])
    assert received == sorted(received)


@pytest.mark.parametrize("size", [1000, 2 * PART + 17])
@pytest.mark.parametrize("damage", ["flipped", "shorter", "longer", "gone"])
def test_a_staged_file_that_is_not_what_was_sealed_is_not_sent(
    place: Place, tmp_path: Path, size: int, damage: str
) -> None:
    """CASES 46."""
    local = tmp_path / "local"
    record = sealed(local, random.Random(size).randbytes(size))
    content = bytearray(local.read_bytes())
    content[size // 2] ^= 1
    changed = {"flipped": bytes(content), "shorter": bytes(content[:-1]), "longer": bytes(content + b"x")}
    if damage == "gone":
        local.unlink()
    else:
        local.write_bytes(changed[damage])

    async def run() -> None:
        kept = await place.open()
        with pytest.raises(CheckpointDamaged, match="the staged file"):
            await kept.upload(local, f"{ATTEMPT}/__0_0.distcp", expected=record)
        assert await kept.list("") == ()

    asyncio.run(run())


def test_what_is_not_there_or_of_another_size_is_not_taken_for_what_was_saved(place: Place, tmp_path: Path) -> None:
    async def run() -> None:
        kept = await place.open()
        with pytest.raises(CheckpointNotFound, match="there is no such"):
            await kept.download(f"{ATTEMPT}/objects.pt", tmp_path / "back", size_bytes=3)
        await kept.put(f"{ATTEMPT}/objects.pt", b"abcd")
        with pytest.raises(CheckpointDamaged, match="has 4 bytes, and 3 were saved"):
            await kept.download(f"{ATTEMPT}/objects.pt", tmp_path / "back", size_bytes=3)

    asyncio.run(run())
    assert not (tmp_path / "back").exists()
