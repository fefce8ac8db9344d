"""Which share of each step this process reads: its rank and the world size of the data-parallel group.

Found at the first iteration, never in a constructor, so that a loader may be made before `init_process_group`:
what is given explicitly, else `torch.distributed` where it is initialised, else the environment that torchrun sets,
else one process alone. Replicas (tensor, pipeline, context parallel) read the same samples: the group is the
data-parallel one.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forebay_core.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Topology:
    """Rank `rank` of `world_size`."""

    rank: int
    world_size: int

    def __post_init__(self) -> None:
        for name, number in (("rank", self.rank), ("world_size", self.world_size)):
            if not isinstance(number, int) or isinstance(number, bool):
                raise ConfigurationError(f"{name}={number!r}: give a whole number")
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ConfigurationError(
                f"rank {self.rank} of world size {self.world_size} does not exist: ranks are 0 to world_size - 1"
            )


@dataclass(frozen=True)
class Ranks:
    """Where the topology comes from: one of these, else `torch.distributed`, else the environment.

    rank, world_size: numbers, both or none.
    device_mesh: a `DeviceMesh` of the data-parallel dimensions alone, such as `mesh["dp"]` or `mesh["dp", "fsdp"]`;
        ranks that differ only in other dimensions (tensor, pipeline, context) read the same samples.
    process_group: the data-parallel `ProcessGroup`.

    Raises `ConfigurationError` where several are given, or what is given is none.
    """

    rank: int | None = None
    world_size: int | None = None
    device_mesh: Any = None
    process_group: Any = None

    def __post_init__(self) -> None:
        if (self.rank is None) != (self.world_size is None):
            raise ConfigurationError(
                "rank= and world_size= go together: give both, or neither to take them from torchrun"
            )
        given = [name for name in ("rank", "device_mesh", "process_group") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigurationError(f"{'=, '.join(given)}= each say which rank this is: give one of them")
        if self.device_mesh is not None and not hasattr(self.device_mesh, "get_coordinate"):
            raise ConfigurationError(f"device_mesh={self.device_mesh!r} is no DeviceMesh: give mesh['dp'] or so")
        if self.rank is not None and self.world_size is not None:
            Topology(self.rank, self.world_size)

    def resolve(self, environment: Mapping[str, str]) -> Topology:
        """The topology of this process; `ConfigurationError` where what is found is not one."""
        if self.rank is not None and self.world_size is not None:
            return Topology(self.rank, self.world_size)
        if self.device_mesh is not None:
            return _of_mesh(self.device_mesh)
        if self.process_group is not None:
            return _of_group(self.process_group)
        return _of_default_group() or _from_environment(environment) or Topology(0, 1)


def nodes(here: Topology, environment: Mapping[str, str]) -> int | None:
    """On how many nodes the ranks of the data-parallel group run; None where no torchrun says."""
    try:
        per_node, processes = int(environment["LOCAL_WORLD_SIZE"]), int(environment["WORLD_SIZE"])
    except (KeyError, ValueError):
        return None
    return min(here.world_size, -(-processes // per_node)) if 0 < per_node <= processes else None


def _of_mesh(mesh: Any) -> Topology:
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ConfigurationError(f"this process is not in {mesh}: give the data-parallel mesh that it belongs to")
    rank = 0
    for place, size in zip(coordinate, mesh.shape, strict=True):
        rank = rank * size + place
    return Topology(rank, mesh.size())


def _of_group(group: Any) -> Topology:
    import torch.distributed

    rank = torch.distributed.get_rank(group)
    if rank < 0:
        raise ConfigurationError("this process is not in process_group=: give the data-parallel group it belongs to")
    return Topology(rank, torch.distributed.get_world_size(group))


def _of_default_group() -> Topology | None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return Topology(distributed.get_rank(), distributed.get_world_size())


def _from_environment(environment: Mapping[str, str]) -> Topology | None:
    rank, world_size = environment.get("RANK"), environment.get("WORLD_SIZE")
    if rank is None or world_size is None:
        return None
    try:
        return Topology(int(rank), int(world_size))
    except ValueError as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(
            f"RANK={rank!r} and WORLD_SIZE={world_size!r} in the environment are not whole numbers"
        ) from None
