"""How many pieces are there when a trainer first asks for them, where the remote keeps up.

A real loader reads an epoch from an empty cache at a given share of the speed at which this daemon fills here. It asks
for pieces some steps before it needs them, so a piece counts as late here earlier than it would hold a trainer up. The
first part of the epoch is left out: nobody can fetch ahead of the first batch.
"""

import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.daemon import daemon
from benchmarks.node.fills import Remote
from forebay import DataLoader, OrderOptions, StreamingDataset, Tokens

SEQUENCE, BATCH, PIECE_BYTES = 2048, 32, 4 << 20
LEFT_OUT = 0.25
#: Of a lane's samples that are mixed: a few pieces, so that an epoch needs new ones from its first to its last step.
ORDER = OrderOptions(lanes=4, window=2 * PIECE_BYTES // (4 * SEQUENCE))


def turn(remote: Remote, directory: Path, megabytes_per_second: float, capacity_bytes: int) -> Mapping[str, float]:
    """One epoch of a new daemon with a cache of that size."""
    with daemon(directory, "--capacity", str(capacity_bytes)) as node:
        tokens = Tokens(sequence_length=SEQUENCE, dtype="int32", piece_bytes=PIECE_BYTES)
        url = remote.bucket.uri(remote.key)
        data = StreamingDataset(url, format=tokens, order=ORDER, address=node.address)
        loader = DataLoader(data, BATCH, report_to=None)
        step_seconds = BATCH * SEQUENCE * 4 / 1e6 / megabytes_per_second
        began, late_by, before = time.perf_counter(), 0.0, None
        for step, _ in enumerate(loader):
            if before is None and step >= LEFT_OUT * len(loader):
                before = node.status()
            due = began + (step + 1) * step_seconds
            late_by = max(late_by, time.perf_counter() - due)
            time.sleep(max(0.0, due - time.perf_counter()))
        after = node.status()
        loader.close()
    assert before is not None
    hits, misses = after.counters.hits - before.counters.hits, after.counters.misses - before.counters.misses
    return {
        "in_time_fraction": hits / (hits + misses),
        "pieces": hits + misses,
        "megabytes_per_second": megabytes_per_second,
        "latest_step_seconds": late_by,
    }
