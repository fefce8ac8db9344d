"""What the daemon refuses to be responsible for: anything that is not wholly there, or leads elsewhere."""

import asyncio
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay_core.checkpoints.documents import RankManifest
from forebay_core.checkpoints.names import METADATA, Attempt, rank_data, rank_manifest
from forebay_core.errors import CheckpointError
from tests.server.checkpoints.desks import attempt, record, rig, write

DATA = "__0_0.distcp"
#: How a directory is spoilt, and what the refusal says.
Spoil = Callable[[Path, Attempt], object]


def replaced(directory: Path, name: str, how: Callable[[Path], None]) -> None:
    (directory / name).unlink()
    how(directory / name)


def as_link(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def linked_directory(directory: Path, name: str) -> None:
    elsewhere = directory.parent.parent / "elsewhere"
    (directory / name).rename(elsewhere)
    (directory / name).symlink_to(elsewhere)


def manifest_of(other: RankManifest, directory: Path) -> None:
    (directory / rank_manifest(0)).write_bytes(other.encode())


def hard_link(directory: Path) -> None:
    (directory / DATA).rename(directory.parent / "other")
    (directory / DATA).hardlink_to(directory.parent / "other")


SPOILT: dict[str, tuple[Spoil, str]] = {
    "a manifest is missing": (lambda d, a: (d / rank_manifest(0)).unlink(), "has no ranks/00000.json"),
    "a manifest is no manifest": (lambda d, a: (d / rank_manifest(0)).write_bytes(b"{}"), "not a rank's"),
    "a manifest is of another attempt": (
        lambda d, a: manifest_of(RankManifest(attempt(7), 0, 1, ()), d),
        "is of rank 0 of 1 in g000001-s000000007",
    ),
    "a manifest is of another rank": (
        lambda d, a: manifest_of(RankManifest(a, 1, 2, ()), d),
        "is of rank 1 of 2",
    ),
    "a manifest is far too long": (
        lambda d, a: os.truncate(d / rank_manifest(0), 65 << 20),
        "which no such file has",
    ),
    "a file is missing": (lambda d, a: (d / DATA).unlink(), "cannot be read"),
    "a file is shorter": (lambda d, a: os.truncate(d / DATA, 7), "has 7 bytes, its manifest says 3000"),
    "a file is longer": (lambda d, a: os.truncate(d / DATA, 3001), "has 3001 bytes"),
    "a file is a symbolic link": (lambda d, a: replaced(d, DATA, as_link), "cannot be read"),
    "a file is a pipe": (lambda d, a: replaced(d, DATA, os.mkfifo), "is no plain file"),
    "a file is a directory": (lambda d, a: replaced(d, DATA, Path.mkdir), "is no plain file"),
    "a file has a second name": (lambda d, a: hard_link(d), "has 2 names"),
    "the ranks' directory is a symbolic link": (lambda d, a: linked_directory(d, "ranks"), "cannot be sealed"),
    "the data's directory is a symbolic link": (lambda d, a: linked_directory(d, "data"), "cannot be sealed"),
    "a name that no file has": (lambda d, a: (d / "run.sh").touch(), "'run.sh', which is no file of a checkpoint"),
    "a file that nobody names": (lambda d, a: (d / "__5_0.distcp").touch(), "which no manifest names"),
    "a hidden file": (lambda d, a: (d / "data" / ".x").touch(), "'data/.x'"),
    "a manifest of a rank elsewhere": (lambda d, a: (d / rank_manifest(3)).touch(), "which no manifest names"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_what_is_not_wholly_there_is_refused_in_words_and_may_be_put_right(home: Path, what: str) -> None:
    spoil, says = SPOILT[what]

    async def run() -> None:
        async with rig(home) as node:
            this = attempt(1)
            directory = await node.stage(this)
            await asyncio.to_thread(spoil, directory, this)
            with pytest.raises(CheckpointError) as caught:
                await node.seal(this)
            assert says in str(caught.value)
            assert "\n" not in str(caught.value)
            assert node.desk.statuses() == []
            await node.desk.drop(node.root.url, this)
            assert not directory.exists()
            again = await node.stage(this)
            await asyncio.to_thread(write, again, this, (0,), 1)
            await node.seal(this)
            await node.durable(this)

    asyncio.run(run())
    assert (home / "staging-a" / "disk-id").exists()


def test_two_ranks_that_name_one_file_are_refused(home: Path) -> None:
    async def run() -> None:
        async with rig(home, ranks=(0, 1), world_size=2) as node:
            this = attempt(1)
            directory = await node.stage(this)
            content = (directory / DATA).read_bytes()
            manifest = RankManifest(this, 1, 2, (record(DATA, content),))
            (directory / "__1_0.distcp").unlink()
            (directory / rank_data(1)).unlink()
            (directory / rank_manifest(1)).write_bytes(manifest.encode())
            with pytest.raises(CheckpointError, match="named by the manifests of two ranks"):
                await node.seal(this)

    asyncio.run(run())


def test_a_refused_seal_leaves_the_directory_as_it_was_for_the_ranks_to_complete(home: Path) -> None:
    async def run() -> None:
        async with rig(home) as node:
            this = attempt(1)
            directory = await node.stage(this)
            (directory / "run.sh").touch()
            mode = directory.stat().st_mode
            with pytest.raises(CheckpointError):
                await node.seal(this)
            assert directory.stat().st_mode == mode
            (directory / "run.sh").unlink()
            await node.seal(this)
            await node.durable(this)

    asyncio.run(run())


def test_once_sealed_nobody_can_exchange_a_file(home: Path) -> None:
    async def run() -> None:
        async with rig(home) as node:
            node.root.hold()
            this = attempt(1)
            directory = await node.stage(this)
            await node.seal(this)
            for each in (directory, directory / "ranks", directory / "data"):
                assert stat.S_IMODE(each.stat().st_mode) & 0o222 == 0
            node.root.release()
            await node.durable(this)

    asyncio.run(run())


def test_metadata_that_every_node_has_is_uploaded_by_the_node_of_rank_zero_only(home: Path) -> None:
    async def run() -> None:
        async with (
            rig(home, name="a", ranks=(0,), world_size=2) as first,
            rig(home, name="b", ranks=(1,), world_size=2) as second,
        ):
            this = attempt(1)
            await second.save(this)
            await first.save(this)
            await second.durable(this)
            assert this.key(METADATA) not in second.root.written()
            assert this.key(METADATA) in first.root.written()

    asyncio.run(run())
