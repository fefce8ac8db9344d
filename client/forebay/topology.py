"""Which share of each step this process reads: its rank and the world size of the data-parallel group.

Found at the first iteration, never in a constructor, so that a loader may be made before `init_process_group`:
numbers given explicitly, else `torch.distributed` where it is initialised, else the environment that torchrun sets,
else one process alone.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from forebay_core.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Topology:
    """Rank `rank` of `world_size`."""

    rank: int
    world_size: int

    def __post_init__(self) -> None:
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ConfigurationError(
                f"rank {self.rank} of world size {self.world_size} does not exist: ranks are 0 to world_size - 1"
            )


def resolve(rank: int | None, world_size: int | None, environment: Mapping[str, str]) -> Topology:
    """The topology of this process; `ConfigurationError` where what is given is not one."""
    if (rank is None) != (world_size is None):
        raise ConfigurationError("rank= and world_size= go together: give both, or neither to take them from torchrun")
    if rank is not None and world_size is not None:
        return Topology(rank, world_size)
    return _from_process_group() or _from_environment(environment) or Topology(0, 1)


def _from_process_group() -> Topology | None:
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
