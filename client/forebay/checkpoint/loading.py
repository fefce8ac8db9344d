"""Loads tensors of a checkpoint in place with torch's `load`, which reshards them; errors are the same on all ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load

from forebay.checkpoint.reader import CheckpointReader, Stored
from forebay.checkpoint.unwrapping import unwrapped
from forebay_core.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Target:
    """A tensor that is to be overwritten with what the checkpoint has under its path."""

    path: tuple[str, ...]
    tensor: Tensor

    @property
    def key(self) -> str:
        return ".".join(self.path)


def check_names(targets: Sequence[Target], stored: Mapping[str, Stored], names: set[str], roots: set[str]) -> None:
    """Raises `CheckpointError` unless the checkpoint has all targets, and nothing else below the roots.

    names: further names of targets.
    """
    missing = [target.key for target in targets if target.key not in stored]
    ours = names | {target.key for target in targets}
    surplus = [key for key, found in stored.items() if key not in ours and found.path[0] in roots]
    if missing or surplus:
        faults = [f"it has no {_some(missing)}"] * bool(missing) + [f"the job has no {_some(surplus)}"] * bool(surplus)
        raise CheckpointError(f"the checkpoint is of another model or optimizer: {'; '.join(faults)}")


def check_sizes(targets: Sequence[Target], stored: Mapping[str, Stored]) -> None:
    """Raises `CheckpointError` for a tensor of another size."""
    for target in targets:
        if stored[target.key].size != target.tensor.shape:
            raise CheckpointError(
                f"{target.key} has the size {list(target.tensor.shape)}, "
                f"and {list(stored[target.key].size)} in the checkpoint"
            )


def load_into(targets: Sequence[Target], reader: CheckpointReader, group: dist.ProcessGroup | None) -> None:
    """Overwrites the targets, each rank its part. group: of all ranks that load; None: one process.

    Raises `CheckpointDamaged`, the same on all ranks. What only one of them may find wrong is checked before.
    """
    state: dict[str, Any] = {target.key: target.tensor for target in targets}
    if group is None:
        _load_alone(state, reader)
        return
    try:
        load(state, storage_reader=reader, process_group=group)
    except CheckpointException as error:
        raise unwrapped(error) from error


def _load_alone(state: dict[str, Any], reader: CheckpointReader) -> None:
    """What torch's `load` does, for one process, and without its warning that there is no process group."""
    planner = DefaultLoadPlanner()
    metadata = reader.read_metadata()
    planner.set_up_planner(state, metadata, True)
    reader.set_up_storage_reader(metadata, True, rank=0, use_collectives=True)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    (plan,) = reader.prepare_global_plan(planner.create_global_plan([plan]))
    reader.read_data(planner.finish_plan(plan), planner).wait()


def _some(keys: list[str]) -> str:
    shown = ", ".join(keys[:3])
    return shown if len(keys) <= 3 else f"{shown} and {len(keys) - 3} more"
