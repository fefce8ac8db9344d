"""A small training job under a checkpointer, as tests run it on each rank of a real group.

The model has what is easily got wrong: dropout and noise (random states), BatchNorm (buffers that differ per rank),
tied weights, a parameter that no loss depends on, and a width that does not divide by the number of ranks.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pyarrow.compute  # noqa: F401 - takes a second, before ranks are forked
import torch
import torch.distributed as dist
from torch import nn

import forebay
from forebay.checkpoint.checkpointer import Checkpointer
from forebay.checkpoint.handle import Point
from forebay.checkpoint.restoring import Restored
from forebay.digest import SampleDigest

SEED = 7
WIDTH = 5


class Net(nn.Module):
    """Tied: the two middle layers share their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.middle = nn.Linear(WIDTH, WIDTH)
        self.again = nn.Linear(WIDTH, WIDTH)
        self.again.weight = self.middle.weight
        self.last = nn.Linear(WIDTH, 1)
        self.unused = nn.Parameter(torch.ones(WIDTH))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        noisy = torch.stack([values, values * values, torch.randn_like(values)], 1)
        hidden = nn.functional.dropout(torch.relu(self.norm(self.first(noisy))), 0.3, self.training)
        result: torch.Tensor = self.last(torch.relu(self.again(torch.tanh(self.middle(hidden)))))
        return result


@dataclass(frozen=True)
class Job:
    """One start. addresses: the daemon of each rank. wrap: "plain", "ddp" or "fsdp".

    steps: of the optimizer, to be made by this start. saves: the steps at which it saves. accumulate: batches per step.
    amid: a step that is saved late, when the first batch of the next one has been through the model.
    restore: arguments of `restore`, None for none. options: of the checkpointer. wait: until which point at the end.
    """

    root: str
    data: str
    addresses: Sequence[str]
    steps: int
    saves: Sequence[int] = ()
    wrap: str = "ddp"
    accumulate: int = 1
    amid: int | None = None
    batch_size: int | None = None
    restore: dict[str, Any] | None = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    wait: Point = "durable"


@dataclass
class Ran:
    """What one rank saw. losses, samples: by step."""

    restored: Restored | None
    generation: int | None
    losses: dict[int, str] = field(default_factory=dict)
    samples: dict[int, list[int]] = field(default_factory=dict)
    seconds: list[tuple[float | None, float | None, float | None, float]] = field(default_factory=list)
    digest: SampleDigest | None = None


def run(rank: int, job: Job) -> Ran:
    """The job of one rank, in a group that is there already."""
    torch.manual_seed(SEED + rank)
    with closing(loader_of(job, rank)) as loader:
        model, optimizer = model_of(job)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)
        with Checkpointer(
            job.root,
            model=model,
            optimizer=optimizer,
            loader=loader,
            objects={"scheduler": scheduler},
            address=job.addresses[rank],
            timeout_seconds=60,
            **job.options,
        ) as checkpointer:
            restored = checkpointer.restore(**job.restore) if job.restore is not None else None
            ran = Ran(restored, checkpointer.generation)
            begin = restored.step + 1 if restored else 0
            train(job, ran, range(begin, begin + job.steps), model, optimizer, scheduler, loader, checkpointer)
            ran.generation = checkpointer.generation
            ran.digest = loader.sample_digest
        return ran


def train(
    job: Job,
    ran: Ran,
    steps: range,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    loader: forebay.DataLoader,
    checkpointer: Checkpointer,
) -> None:
    batches = iter(loader)
    handles = []
    for step in steps:
        optimizer.zero_grad()
        losses, samples = [], []
        for _ in range(job.accumulate):
            batch = next(batches)
            loss = (model(batch["value"]).squeeze(1) - 0.1 * batch["value"]).square().mean() / job.accumulate
            loss.backward()
            losses.append(loss.detach())
            samples += batch[forebay.SAMPLE_ID].tolist()
            if job.amid == step - 1 and len(losses) == 1:
                handles.append(checkpointer.save(step - 1, force=True))
        optimizer.step()
        scheduler.step()
        ran.losses[step], ran.samples[step] = float(sum(losses)).hex(), samples
        handle = checkpointer.save(step, force=step in job.saves)
        handles.append(handle)
    for handle in filter(None, handles):
        handle.wait(job.wait, timeout=60)
        ran.seconds.append(
            (handle.staged_seconds, handle.local_seconds, handle.durable_seconds, handle.blocked_seconds)
        )


def loader_of(job: Job, rank: int) -> forebay.DataLoader:
    dataset = forebay.StreamingDataset(
        job.data, columns=["value"], seed=SEED, extras=(forebay.SAMPLE_ID,), address=job.addresses[rank]
    )
    batch = {"batch_size": job.batch_size} if job.batch_size else {"batch_size": None, "global_batch_size": 12}
    return forebay.DataLoader(dataset, **batch, report_to=None)


def model_of(job: Job) -> tuple[nn.Module, torch.optim.Optimizer]:
    generator = torch.random.fork_rng(devices=[])
    with generator:
        torch.manual_seed(SEED)
        model: nn.Module = Net()
    if job.wrap == "ddp":
        model = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    elif job.wrap == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return model, torch.optim.AdamW(model.parameters(), lr=0.05)


def alone(job: Job) -> Ran:
    """In this process, without a group."""
    return run(0, job)


def assert_same(ran: Ran, reference: Ran) -> None:
    """What it saw is what the reference saw in the same steps, to the bit."""
    for step in ran.losses:
        assert ran.samples[step] == reference.samples[step]
        assert ran.losses[step] == reference.losses[step], f"step {step}"
