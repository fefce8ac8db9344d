"""The ranks of a job and their daemons, as one rank knows them once a checkpointer has opened its root."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from torch import nn
from torch.optim import Optimizer

from forebay.checkpoint.calling import Calls
from forebay.checkpoint.group import Groups
from forebay.topology import Topology
from forebay_core.errors import ConfigurationError


@dataclass(frozen=True)
class Site:
    """node_ranks: those whose daemon stages where this rank's does, ascending. node_leaders: of every node, the lowest.

    outlives: the daemon goes on when the job's processes are gone, whatever ends them.
    """

    calls: Calls
    groups: Groups
    node_ranks: tuple[int, ...]
    node_leaders: tuple[int, ...]
    outlives: bool
    newest_generation: int

    @classmethod
    def open(cls, calls: Calls, groups: Groups) -> Self:
        """Called by all ranks; raises the same on all, where the root cannot be used by one."""
        opened = groups.control.together(calls.open)
        if len(roots := {each.root for each in opened}) > 1:
            raise ConfigurationError(f"the ranks have different roots: {', '.join(sorted(roots))}")
        nodes: dict[str, list[int]] = {}
        for rank, each in enumerate(opened):
            nodes.setdefault(each.node_id, []).append(rank)
        return cls(
            calls,
            groups,
            tuple(nodes[opened[groups.control.rank].node_id]),
            tuple(sorted(min(ranks) for ranks in nodes.values())),
            not any(each.embedded for each in opened),
            max(each.newest_generation for each in opened),
        )

    @property
    def leads(self) -> bool:
        """Whether this rank speaks for its node."""
        return self.groups.control.rank == self.node_ranks[0]


def named_modules(model: Any) -> dict[str, nn.Module]:
    """One model, a sequence of them or a mapping, by name. `ConfigurationError` for anything else."""
    return _named(model, "model", nn.Module)


def named_optimizers(optimizer: Any) -> dict[str, Optimizer]:
    """One optimizer, a sequence, a mapping, or none at all."""
    return {} if optimizer is None else _named(optimizer, "optimizer", Optimizer)


def data_topology(loader: Any, rank: int, world_size: int) -> Topology:
    """Which of the ranks that read different samples this one is, as far as the loader says."""
    found = getattr(loader, "topology", None)
    return found if isinstance(found, Topology) else Topology(rank, world_size)


def _named(given: Any, name: str, kind: type[Any]) -> dict[str, Any]:
    if isinstance(given, kind):
        return {name: given}
    if isinstance(given, Mapping):
        found = dict(given)
    elif isinstance(given, list | tuple):
        found = {f"{name}{number}": each for number, each in enumerate(given)}
    else:
        found = {name: given}
    for key, each in found.items():
        if not isinstance(each, kind):
            where = name if found.keys() == {name} else f"{name}[{key!r}]"
            raise ConfigurationError(
                f"{where}= is wrong: a {type(each).__name__} is no {kind.__name__}: give one, or a list or dict of them"
            )
    return found
