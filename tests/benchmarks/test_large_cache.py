"""The cache that restarts are measured with is one that a daemon takes for its own."""

import asyncio
import time
from pathlib import Path

from benchmarks import large_cache
from forebay_server.operations.verification import verify_directory
from tests.server.scripted import claimed, rig


def test_it_is_whole_and_known_to_its_index(tmp_path: Path) -> None:
    assert large_cache.make(tmp_path / "c", pieces=300, piece_bytes=100) > 0

    async def run() -> None:
        async with rig(tmp_path / "c", reconcile=False) as setup:
            assert len(setup.cache) == 300
            await setup.cache.reconcile()
            assert len(setup.cache) == 300

    asyncio.run(run())
    with claimed(tmp_path / "c") as disk:
        *_, last = verify_directory(disk, repair=False, clock=time.monotonic)
    assert (last.pieces, last.bytes, last.damaged) == (300, 30_000, ())
