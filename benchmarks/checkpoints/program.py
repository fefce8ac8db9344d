"""What each of the ranks runs: `torchrun ... -m benchmarks.checkpoints.program SETTINGS.json RESULTS.json`.

A turn of a way: the ranks meet, save, wait until weights may change, meet again, as in the collectives of a step, do a
fixed load, and wait until the save is done. Without the second meeting the first rank's load would hold up the copies
of those that share its cores. Its numbers are of the slowest rank, for which a job waits. All ways take turns; the
first round is not counted. Before each turn what the one before has left in the page cache is synced, and as much
memory as a save takes is at hand. `stolen_seconds` is what the machine's host has withheld of its cores while ranks
were blocked: who waits for others gives a core up, and gets it back late where it is wanted elsewhere.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

from benchmarks.checkpoints.job import Job
from benchmarks.checkpoints.saves import Copy, DcpAsync, Nothing, Ours, Save, TorchSave, kept_stager
from benchmarks.free_memory import touch

OURS, NOTHING, COPY = "forebay", "no save", "plain copy of the owned bytes"
DISK, SYNCED, STORE = "torch.save to the local disk", "torch.save to the local disk, synced", "torch.save to the store"
DCP, DCP_KEPT = "dcp.async_save, default", "dcp.async_save, reused stager"


@dataclass(frozen=True)
class Settings:
    """wrap: "ddp" or "fsdp". products: of matrices in a turn's load. growth_saves: that many saves of ours alone.

    daemon_process: id of the daemon at `address`. cold_address: of one that has nothing staged, for restores.
    """

    wrap: str
    size_bytes: int
    repeats: int
    products: int
    directory: str
    root: str
    store: str
    address: str
    daemon_process: int | None = None
    cold_address: str = ""
    growth_saves: int = 0

    @classmethod
    def read(cls, path: Path) -> "Settings":
        return cls(**json.loads(path.read_text()))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))


def main(settings_path: str, results_path: str) -> None:
    settings = Settings.read(Path(settings_path))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    job = Job(settings.wrap, settings.size_bytes)
    results = {"growth": [_growth(job, settings)]} if settings.growth_saves else _turns(job, settings)
    if dist.get_rank() == 0:
        Path(results_path).write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def _turns(job: Job, settings: Settings) -> Mapping[str, list[Mapping[str, float]]]:
    directory = Path(settings.directory)
    ways: dict[str, Save] = {
        NOTHING: Nothing(),
        OURS: Ours(job, settings.root, settings.address, settings.daemon_process),
        DCP: DcpAsync(job, directory),
        DCP_KEPT: DcpAsync(job, directory, kept_stager()),
        DISK: TorchSave(job, directory),
        SYNCED: TorchSave(job, directory, syncs=True),
        STORE: TorchSave(job, directory, store=settings.store),
        COPY: Copy(job),
    }
    results: dict[str, list[Mapping[str, float]]] = {name: [] for name in ways}
    for repeat in range(settings.repeats + 1):
        for name, way in ways.items():
            numbers = _turn(job, way, repeat + 1, settings)
            if repeat:
                results[name].append(numbers)
            if dist.get_rank() == 0:
                print(f"  {settings.wrap}, repeat {repeat} of {settings.repeats}: {name} {numbers}", file=sys.stderr)
    for way in ways.values():
        way.close()
    return results


def _turn(job: Job, way: Save, step: int, settings: Settings) -> Mapping[str, float]:
    os.sync()
    if dist.get_rank() == 0:
        touch(Path(settings.directory), settings.size_bytes)
    dist.barrier()
    began, stolen = time.perf_counter(), psutil.cpu_times().steal
    way.save(step)
    way.wait_staged()
    blocked = time.perf_counter() - began
    dist.barrier()
    stolen = psutil.cpu_times().steal - stolen
    job.step(settings.products)
    way.finish()
    dist.barrier()
    total = time.perf_counter() - began
    way.tidy()
    return {
        "blocked_seconds": _slowest(blocked),
        "total_seconds": _slowest(total),
        "stolen_seconds": _slowest(stolen),
    }


def _growth(job: Job, settings: Settings) -> Mapping[str, float]:
    """Memory of all ranks together, after a tenth of the saves and after all."""
    ours = Ours(job, settings.root, settings.address)
    sizes = []
    for number in range(settings.growth_saves):
        ours.save(number + 1)
        job.step(0)
        ours.tidy()
        sizes.append(_sum(_resident_bytes()))
    ours.close()
    early = sizes[settings.growth_saves // 10]
    return {"early_megabytes": early / 1e6, "late_megabytes": sizes[-1] / 1e6, "growth": sizes[-1] / early}


def _resident_bytes() -> float:
    return float(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _slowest(seconds: float) -> float:
    return _reduced(seconds, dist.ReduceOp.MAX)


def _sum(number: float) -> float:
    return _reduced(number, dist.ReduceOp.SUM)


def _reduced(number: float, how: "dist.ReduceOp.RedOpType") -> float:
    tensor = torch.tensor(number, dtype=torch.float64)
    dist.all_reduce(tensor, how)
    return float(tensor)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
