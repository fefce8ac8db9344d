"""Checks on a CUDA device what tests without one cannot: pinned staging, the order of streams, random states.

    python -m benchmarks.gpu_check --json

Stages a state of 10 GB (parameters and AdamW's moments) from one device as a checkpointer does, beside a plain copy to
pinned memory; steps the optimizer right behind each save, and compares what was staged with what was there before; puts
the device's random state back. Exit status 1 where a check fails; without a device it says so and ends with 0.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from forebay.checkpoint import randomness
from forebay.checkpoint.holdings import Collected
from forebay.checkpoint.staging import Staged, Stager
from forebay.checkpoint.state import TrainingState

WIDTH = 4096
_LAYER_BYTES = 3 * 4 * (WIDTH * WIDTH + WIDTH)


class Job:
    """Linear layers on a device, with an optimizer that has stepped."""

    def __init__(self, device: torch.device, size_bytes: int) -> None:
        layers = max(1, round(size_bytes / _LAYER_BYTES))
        self.device = device
        self.model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, device=device) for _ in range(layers)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, 1e-3)
        self.optimizer.step()
        self._state = TrainingState({"model": self.model}, {"optimizer": self.optimizer})

    def collected(self) -> Collected:
        return self._state.collect()[0]

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def measured(job: Job, repeats: int) -> tuple[dict[str, float], list[str]]:
    """Numbers, and what is wrong."""
    stager = Stager(0, 1, lambda value: [value])
    first, blocked, staged_seconds, wrong = 0.0, [], [], set()
    for repeat in range(repeats + 1):
        before = {entry.key: _beginning(entry.tensor) for entry in job.collected().entries}
        job.synchronize()
        began = time.perf_counter()
        staging = stager.start(job.collected())
        staging.guard()
        job_blocked = time.perf_counter() - began
        job.optimizer.step()
        staged = staging.done.result()
        seconds = time.perf_counter() - began
        wrong |= set(_faults(staged, before, is_pinned=job.device.type == "cuda"))
        stager.release()
        if repeat == 0:
            first = seconds
        else:
            blocked.append(job_blocked)
            staged_seconds.append(seconds)
    size = staged.size_bytes
    copied = _plain_copy_seconds(job, repeats)
    numbers = {
        "state_gigabytes": size / 1e9,
        "first_stage_seconds": first,
        "stage_seconds": median(staged_seconds),
        "stage_gigabytes_per_second": size / 1e9 / median(staged_seconds),
        "blocked_on_the_host_seconds": median(blocked),
        "plain_copy_seconds": median(copied),
        "stage_vs_plain_copy": median(staged_seconds) / median(copied),
    }
    return numbers, sorted(wrong)


def random_state_faults(device: torch.device) -> list[str]:
    """Empty where a restored state draws the same numbers."""
    torch.rand(3, device=device)
    states = json.loads(json.dumps(randomness.encoded(randomness.capture())))
    drawn = torch.rand(1000, device=device)
    randomness.restore(states)
    return [] if torch.equal(torch.rand(1000, device=device), drawn) else ["the random state was not put back"]


def _beginning(tensor: Tensor) -> Tensor:
    return tensor.detach().flatten()[:64].clone().cpu()


def _faults(staged: Staged, before: Mapping[str, Tensor], *, is_pinned: bool) -> list[str]:
    if before.keys() != {tensor.key for tensor in staged.tensors}:
        return [f"{len(staged.tensors)} of {len(before)} tensors were staged"]
    found = []
    for tensor in staged.tensors:
        part = tensor.parts[min(tensor.parts)]
        if not torch.equal(_beginning(part), before[tensor.key]):
            found.append(f"{tensor.key.rpartition('.')[2]}: a later step is in the copy")
        if is_pinned and tensor.size and not part.is_pinned():
            found.append("the memory is not pinned")
    return found


def _plain_copy_seconds(job: Job, repeats: int) -> list[float]:
    sources = [entry.tensor for entry in job.collected().entries]
    places = [torch.empty(each.shape, dtype=each.dtype, pin_memory=each.is_cuda) for each in sources]
    seconds = []
    for _ in range(repeats):
        job.synchronize()
        began = time.perf_counter()
        with torch.no_grad():
            torch._foreach_copy_(places, sources, non_blocking=True)
        job.synchronize()
        seconds.append(time.perf_counter() - began)
    return seconds


def check(device: torch.device, megabytes: int, repeats: int) -> tuple[Mapping[str, Any], list[str]]:
    """All of it on one device."""
    numbers, wrong = measured(Job(device, megabytes * 10**6), repeats)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "host"
    return {"device": name, "torch": torch.__version__, **numbers}, wrong + random_state_faults(device)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--megabytes", type=int, default=10_000, help="of the state")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print(json.dumps({"device": None}) if options.json else "there is no CUDA device here: nothing is checked")
        return 0
    numbers, wrong = check(torch.device("cuda", torch.cuda.current_device()), options.megabytes, options.repeats)
    report = {**numbers, "wrong": wrong}
    print(json.dumps(report) if options.json else "\n".join(f"{name}: {value}" for name, value in report.items()))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
