"""SIGKILL at every step of a piece's life: nothing that looks whole and is not, and nothing left over."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from forebay_server.disk.cache_disk import CacheDisk
from tests.server import dying_daemon
from tests.server.daemons import client, daemon, token_spec
from tests.server.scripted import claimed, rig

PIECE = 20 << 20
SAMPLES, LENGTH = 2 * PIECE // 4096, 1024
FLAGS = ("--read-in-place", "never", "--scrub-bytes-per-second", "0")
#: Room for one piece, so that the second pushes the first out.
SMALL = ("--capacity", str(PIECE * 3 // 2))
#: Pieces that are there all the same.
LEFT = {
    "one piece is there and the next has its sidecar": 1,
    "a piece is about to be evicted": 1,
    "a synced piece is about to be marked": 1,
    dying_daemon.BEFORE_THE_INDEX: 1,
}
WITH_EVICTION = {"a piece is about to be evicted", "an evicted piece has lost its data"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pieces, each of several parts."""
    directory = tmp_path_factory.mktemp("source")
    np.arange(SAMPLES * LENGTH, dtype=np.int32).tofile(directory / "a.bin")
    return directory


def flags_of(step: str) -> tuple[str, ...]:
    if step in WITH_EVICTION:
        return (*FLAGS, *SMALL)
    return (*FLAGS, "--sync-seconds", "0.05") if "marked" in step else FLAGS


@pytest.mark.parametrize("step", [*dying_daemon.STEPS, dying_daemon.BEFORE_THE_INDEX])
def test_a_daemon_that_is_killed_leaves_only_whole_pieces_and_its_successor_tidies_up(
    home: Path, source: Path, step: str
) -> None:
    """CASES 20, 26 and 32."""
    cache = home / "cache-d"
    with claimed(cache):
        pass  # so that the daemon writes nothing but pieces
    program = [str(Path(dying_daemon.__file__)), step]
    with daemon(home, *flags_of(step), program=program) as running, client(running.socket) as caller:
        session = caller.session(caller.open([str(source)], token_spec(LENGTH, PIECE)).dataset_id)
        caller.acquire(session, [0])
        if step in WITH_EVICTION or "next" in step:
            caller.release(session, [0])
            try:
                caller.acquire(session, [1])
            except Exception:
                assert running.process.returncode is not None
        assert running.process.wait(30) == -9
    whole = (source / "a.bin").read_bytes()
    asyncio.run(check_successor(cache, [whole[:PIECE], whole[PIECE:]], LEFT.get(step, 0)))


async def check_successor(cache: Path, contents: list[bytes], left: int) -> None:
    async with rig(cache) as successor:
        entries = successor.cache.entries()
        assert len(entries) == left
        for entry in entries:
            assert successor.cache.find(entry.key) == entry
            assert successor.disk.path(entry.key).read_bytes() in contents
        assert list((cache / "tmp").iterdir()) == []
        assert names(successor.disk) == {name for entry in entries for name in (entry.key, f"{entry.key}.json")}
        assert successor.cache.ledger.used_bytes == sum(entry.blocks for entry in entries)
    async with rig(cache, reconcile=False) as third:
        assert sorted(third.cache.keys()) == sorted(entry.key for entry in entries), "the index has caught up"


def names(disk: CacheDisk) -> set[str]:
    return {path.name for path in (disk.root / "pieces").glob("*/*")}
