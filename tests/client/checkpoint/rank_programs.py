"""What the ranks of the tests do: small models under DDP, FSDP2 and HSDP, saved and loaded as the checkpointer does."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from forebay.checkpoint.group import Group
from forebay.checkpoint.manifests import ALONE, write_manifest
from forebay.checkpoint.metadata import write_metadata
from forebay.checkpoint.reader import CheckpointReader
from forebay.checkpoint.saving import Saving, Written
from forebay.checkpoint.staging import Staged, Stager
from forebay.checkpoint.state import TrainingState
from forebay_core.checkpoints.names import METADATA
from forebay_core.errors import CheckpointDamaged, CheckpointError, CheckpointNotFound

PIECE_BYTES = 1024


class Net(nn.Module):
    """A dimension of 10, which divides by neither 3 nor 4; tied weights, buffers, a parameter without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(10, 10, bias=False)
        self.body = nn.Linear(10, 30)
        self.norm = nn.BatchNorm1d(30)
        self.out = nn.Linear(30, 10)
        self.head = nn.Linear(10, 10, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.tensor([1.5]))
        self.unused = nn.Parameter(torch.ones(7))
        self.frozen = nn.Parameter(torch.full((5,), 3.0), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.out(torch.relu(self.norm(self.body(self.embed(x)))))) * self.scale  # type: ignore[no-any-return]


def gather(group: dist.ProcessGroup | None) -> Callable[[Any], list[Any]]:
    def gathered(value: Any) -> list[Any]:
        if group is None:
            return [value]
        found: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(found, value, group=group)
        return found

    return gathered


class Trainer:
    """A rank with a model, an optimizer, and what saves them."""

    def __init__(self, kind: str, *, seed: int = 0, make: Callable[[], nn.Module] = Net) -> None:
        torch.manual_seed(seed)
        self.model: nn.Module = make()
        world_size = dist.get_world_size() if dist.is_initialized() else 1
        if kind == "ddp":
            self.model = DistributedDataParallel(self.model, find_unused_parameters=True)
        elif kind in ("fsdp", "hsdp"):
            shape = (world_size,) if kind == "fsdp" else (2, world_size // 2)
            mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
            for part in self.model.children():
                if isinstance(part, nn.Linear) and part.bias is not None:
                    fully_shard(part, mesh=mesh)
            fully_shard(self.model, mesh=mesh)
        decay = [each for each in self.model.parameters() if each.dim() > 1]
        rest = [each for each in self.model.parameters() if each.dim() <= 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=1e-2
        )
        self.group = dist.new_group(backend="gloo") if dist.is_initialized() else None
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world_size = world_size
        self.state = TrainingState({"model": self.model}, {"optimizer": self.optimizer})
        self.stager = Stager(self.rank, world_size, gather(self.group), piece_bytes=PIECE_BYTES)
        self.saving = Saving(self.group, max_file_bytes=4096)
        self.writes_again = False

    def step(self, seed: int) -> float:
        generator = torch.Generator().manual_seed(seed * 100 + self.rank)
        loss = self.model(torch.randn(8, 10, generator=generator)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def save(self, directory: Path) -> dict[str, Any]:
        """As the checkpointer does: staged, written, then the manifest; returns the settings."""
        collected, settings = self.state.collect()
        staging = self.stager.start(collected)
        staging.guard(60)
        written = self._write(staging.done.result(60), directory)
        self.stager.release()
        if self.rank != 0:
            place = directory / f"node{self.rank}"
            place.mkdir()
            write_metadata(place, written.layout.metadata)
            assert (place / METADATA).read_bytes() == (directory / METADATA).read_bytes()
        write_manifest(directory, ALONE, self.rank, self.world_size, files=written.files)
        if self.group is not None:
            dist.barrier(self.group)
        return settings

    def _write(self, staged: Staged, directory: Path) -> Written:
        group = Group(self.group, 60)
        self.writes_again = all(group.gather(self.saving.knows(staged)))
        if not self.writes_again:
            return self.saving.write(staged, directory)
        done: list[Written] = []

        def write() -> None:
            written = self.saving.write_again(staged, directory)
            metadata = (write_metadata(directory, written.layout.metadata),) if self.rank == 0 else ()
            done.append(replace(written, files=(*written.files, *metadata)))

        group.together(write)
        return done[0]

    def restore(self, directory: Path, settings: dict[str, Any]) -> None:
        self.state.restore(CheckpointReader(directory), settings, Group(self.group, 60))

    def whole(self) -> dict[str, Any]:
        """Every tensor of model and optimizer, gathered, by name."""
        collected, settings = self.state.collect()
        found: dict[str, Any] = {}
        for entry in collected.entries:
            tensor = entry.tensor.detach()
            found[entry.key] = (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).clone()
        return {"tensors": found, "settings": settings}


def train_and_save(rank: int, kind: str, directory: Path, steps: int) -> dict[str, Any]:
    trainer = Trainer(kind)
    for step in range(steps):
        trainer.step(step)
    settings = trainer.save(directory)
    return {**trainer.whole(), "saved": settings}


def reshape(rank: int, kind: str, before: Path, settings: dict[str, Any], after: Path) -> dict[str, Any]:
    """Restores, trains a step, and saves: what was restored, and what was saved."""
    trainer = Trainer(kind, seed=99)
    trainer.restore(before, settings)
    restored = trainer.whole()
    trainer.step(7)
    saved = trainer.save(after)
    return {"restored": restored, "saved": {**trainer.whole(), "saved": saved}}


def restore_where_rank_one_fails(rank: int, kind: str, directory: Path, settings: dict[str, Any]) -> str:
    """How it fails on this rank, when rank 1 alone meets a fault; and then the ranks can still restore."""
    trainer = Trainer(kind, seed=99)

    def fetch(name: str) -> Path:
        if rank == 1 and name == METADATA:
            raise CheckpointNotFound("its node is gone")
        return directory / name

    try:
        trainer.state.restore(CheckpointReader("a", fetch=fetch), settings, Group(trainer.group, 60))
    except CheckpointNotFound as error:
        trainer.restore(directory, settings)
        return str(error)
    return ""


def restore_damaged(rank: int, kind: str, directory: Path, settings: dict[str, Any]) -> str:
    try:
        Trainer(kind, seed=99).restore(directory, settings)
    except CheckpointDamaged as error:
        return str(error)
    return ""


def save_again_and_again(rank: int, kind: str, directory: Path) -> list[Any]:
    """Steps and saves by turns, the optimizer's state coming up in between, and two saves that fail on rank 2.

    One of these is laid out anew, the other as the one before.
    """
    trainer = Trainer(kind)
    wanted, failures, again = [], [], []
    for number in range(6):
        place = directory / str(number)
        if number in (1, 4):
            if rank == 2:
                place.mkdir(parents=True)
                (place / "__2_0.distcp").touch()
            dist.barrier(trainer.group)
            try:
                trainer.save(place)
            except CheckpointError as error:
                failures.append(str(error))
                trainer.stager.release()
            again.append(trainer.writes_again)
            continue
        settings = trainer.save(place)
        again.append(trainer.writes_again)
        wanted.append((number, settings, trainer.whole()))
        trainer.step(number)
    return [failures, again, wanted if rank == 0 else None]


def save_before_and_after_a_change_of_type(rank: int, directory: Path) -> None:
    trainer = Trainer("plain", make=lambda: nn.Linear(4, 4))
    trainer.save(directory / "before")
    trainer.model.to(torch.bfloat16)
    trainer.save(directory / "after")


class Stages(nn.Module):
    """A pipeline stage: other parameters on each pair of ranks, two names for one of them."""

    def __init__(self) -> None:
        super().__init__()
        stage = nn.ModuleDict({"first": nn.Linear(6, 6), "tied": nn.Linear(6, 6, bias=False)})
        stage["tied"].weight = stage["first"].weight
        self.add_module(f"stage{dist.get_rank() // 2}", stage)
        self.common = nn.Linear(3, 3)


def save_stages(rank: int, directory: Path) -> dict[str, Any]:
    torch.manual_seed(rank // 2)
    trainer = Trainer("plain", make=Stages)
    nn.init.ones_(trainer.model.common.weight)  # type: ignore[union-attr, arg-type]
    nn.init.ones_(trainer.model.common.bias)  # type: ignore[union-attr, arg-type]
    trainer.save(directory)
    return trainer.whole()


def save_where_rank_two_differs(rank: int, directory: Path) -> str:
    trainer = Trainer("ddp")
    trainer.step(0)
    if rank == 2:
        with torch.no_grad():
            next(iter(trainer.optimizer.state.values()))["exp_avg"][0] += 1e-6
    collected, _ = trainer.state.collect()
    try:
        trainer.stager.start(collected).guard(60)
    except CheckpointError as error:
        return str(error)
    return ""


def restore(rank: int, kind: str, directory: Path, settings: dict[str, Any]) -> dict[str, Any]:
    trainer = Trainer(kind, seed=99)
    trainer.restore(directory, settings)
    return trainer.whole()
