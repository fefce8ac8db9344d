"""How long a daemon takes to serve, and how much memory it holds, on a cache of very many pieces.

It counts from the start of the process to its announcement that it answers calls; the memory is that of the process
once it knows all pieces.
"""

import time
from collections.abc import Mapping
from pathlib import Path

from tests.server.daemons import client, daemon
from tests.support.processes import eventually


def turn(home: Path, cache: Path, pieces: int) -> Mapping[str, float]:
    """One start on the cache, and its end."""
    began = time.perf_counter()
    with daemon(home, "--cache-dir", str(cache), "--capacity", "100GiB") as node, client(node.socket) as asked:
        serving = time.perf_counter() - began

        def knows_all() -> bool:
            return sum(disk.pieces for disk in asked.status().disks) == pieces

        eventually(knows_all, 120, f"{pieces} pieces to be known")
        known = time.perf_counter() - began
        resident = _kilobytes(node.process.pid, "VmRSS") / 1e3
        peak = _kilobytes(node.process.pid, "VmHWM") / 1e3
    return {
        "restart_seconds": serving,
        "all_known_seconds": known,
        "megabytes": resident,
        "peak_megabytes": peak,
    }


def _kilobytes(process_id: int, name: str) -> float:
    text = Path(f"/proc/{process_id}/status").read_text()
    return float(next(line for line in text.splitlines() if line.startswith(f"{name}:")).split()[1])
