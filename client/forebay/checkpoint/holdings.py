"""From tensors to what a rank holds: plain tensors are held by all ranks alike, a DTensor's part by who shares it.

`Entry` is a named tensor of the training state; the path is that of the plain nested state, so that torch's own tools
rebuild it. Called by the thread that trains, before it hands over, and by the staging thread.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from forebay.checkpoint.ownership import Holding
from forebay_core.errors import CheckpointError

_PLAIN = (Tensor, torch.nn.Parameter)


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of the state, by the path of keys that leads to it. `is_buffer`: of a module, and no parameter."""

    path: tuple[str, ...]
    tensor: Tensor
    is_buffer: bool = False

    @property
    def key(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class Collected:
    """The tensors of the training state, by reference. Every rank gives them in the same order.

    aliases: paths of further names of tied weights, to the key of the entry that is the same tensor.
    """

    entries: tuple[Entry, ...]
    aliases: Mapping[tuple[str, ...], str] = field(default_factory=dict)

    def structure(self) -> list[Any]:
        """Equal for two of them where the holdings are equal; quick to make."""
        return [
            (
                entry.path,
                entry.tensor.shape,
                entry.tensor.dtype,
                (entry.tensor.device_mesh, entry.tensor.placements) if is_sharded(entry.tensor) else None,
                entry.is_buffer,
            )
            for entry in self.entries
        ] + [self.aliases]


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """In a DTensor. Asks the type first: `isinstance` is slow for what has a metaclass."""
    return type(tensor) not in _PLAIN and isinstance(tensor, DTensor)


def local_part(tensor: Tensor) -> Tensor:
    """What of it lies on this rank, without its history. Called where no gradients are recorded, which is quick."""
    if is_sharded(tensor):
        return tensor.to_local()
    return tensor.detach() if tensor.requires_grad else tensor


def holdings_of(entries: Sequence[Entry], world_size: int) -> list[Holding]:
    """What this rank holds, in the order of the entries. `CheckpointError` for what has no place."""
    return [_holding(entry, world_size) for entry in entries]


def _holding(entry: Entry, world_size: int) -> Holding:
    tensor = entry.tensor
    if not is_sharded(tensor):
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            raise CheckpointError(f"{entry.key} is {_kind(tensor)}: only dense tensors with values can be saved")
        sizes = tuple(tensor.shape)
        return Holding(
            entry.key,
            sizes,
            (0,) * len(sizes),
            sizes,
            tensor.element_size(),
            tuple(range(world_size)),
            str(tensor.dtype),
            entry.is_buffer,
        )
    (chunk,) = cast(Any, tensor).__create_chunk_list__()
    mesh = tensor.device_mesh
    return Holding(
        entry.key,
        tuple(tensor.shape),
        tuple(chunk.offsets),
        tuple(chunk.sizes),
        tensor.to_local().element_size(),
        _sharing(mesh, tuple(each.is_replicate() for each in tensor.placements)),
        f"{tensor.dtype} {tensor.placements} {_ranks(mesh)}",
        entry.is_buffer,
    )


def _kind(tensor: Tensor) -> str:
    return f"a {'meta' if tensor.is_meta else tensor.layout} tensor"


@lru_cache(maxsize=64)
def _ranks(mesh: Any) -> str:
    return str(mesh.mesh.tolist())


@lru_cache(maxsize=256)
def _sharing(mesh: Any, replicated: tuple[bool, ...]) -> tuple[int, ...]:
    """The ranks that differ from this one in replicated dimensions of the mesh alone."""
    coordinate = mesh.get_coordinate()
    at = tuple(slice(None) if alike else coordinate[dimension] for dimension, alike in enumerate(replicated))
    return tuple(sorted(int(rank) for rank in mesh.mesh[at].flatten()))
