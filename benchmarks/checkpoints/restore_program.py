"""What each of the ranks of `bench_restore` runs, with the same arguments as `program`.

Saves once, with a checkpointer and with torch. Then three ways take turns: a new checkpointer with the daemon that has
the files staged, one with another daemon that has nothing (its files are gone after each turn), and torch's own `load`
of local files. A turn is from nothing but model and optimizer to both restored on the slowest rank.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import forebay
from benchmarks.checkpoints.job import Job
from benchmarks.checkpoints.program import Settings

STAGED, DURABLE, PLAIN = "forebay, staged", "forebay, from the store", "dcp.load of local files"


def main(settings_path: str, results_path: str) -> None:
    settings = Settings.read(Path(settings_path))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    job = Job(settings.wrap, settings.size_bytes)
    plain = Path(settings.directory) / f"plain-{settings.wrap}"
    with _checkpointer(job, settings, settings.address) as checkpointer:
        handle = checkpointer.save(1, force=True)
        assert handle is not None
        handle.wait("durable")
    dcp.save(_state(job), checkpoint_id=plain)
    ways: Mapping[str, Callable[[], None]] = {
        STAGED: lambda: _restore(job, settings, settings.address, "local"),
        DURABLE: lambda: _restore(job, settings, settings.cold_address, "durable"),
        PLAIN: lambda: _load(job, plain),
    }
    results: dict[str, list[Mapping[str, float]]] = {name: [] for name in ways}
    for repeat in range(settings.repeats + 1):
        for name, way in ways.items():
            seconds = _turn(way)
            if repeat:
                results[name].append({"seconds": seconds})
            if dist.get_rank() == 0:
                print(
                    f"  {settings.wrap}, repeat {repeat} of {settings.repeats}: {name} {seconds:.3f}", file=sys.stderr
                )
    if dist.get_rank() == 0:
        Path(results_path).write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def _turn(way: Callable[[], None]) -> float:
    dist.barrier()
    began = time.perf_counter()
    way()
    dist.barrier()
    return time.perf_counter() - began


def _checkpointer(job: Job, settings: Settings, address: str) -> forebay.Checkpointer:
    return forebay.Checkpointer(
        settings.root, model=job.model, optimizer=job.optimizer, address=address, report_to=None
    )


def _restore(job: Job, settings: Settings, address: str, source: str) -> None:
    with _checkpointer(job, settings, address) as checkpointer:
        restored = checkpointer.restore()
    assert restored is not None
    assert restored.source == source, f"read from {restored.source}"


def _state(job: Job) -> dict[str, object]:
    model, optimizer = get_state_dict(job.model, job.optimizer)
    return {"model": model, "optimizer": optimizer}


def _load(job: Job, directory: Path) -> None:
    state = _state(job)
    dcp.load(state, checkpoint_id=directory)
    set_state_dict(
        job.model,
        job.optimizer,
        model_state_dict=state["model"],  # type: ignore[arg-type]
        optim_state_dict=state["optimizer"],  # type: ignore[arg-type]
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
