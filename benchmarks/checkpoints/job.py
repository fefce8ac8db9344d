"""The job whose state is saved: a transformer under DDP or FSDP2, with AdamW, that has stepped once.

1 GB in all are 12 layers of the width of GPT-2's smallest, 85 million parameters in 144 tensors. Two thirds of the
state are the optimizer's, as with every Adam. `step` is a fixed load: products of matrices of its
own, and an optimizer step on the gradients that are there. Collectives of the training itself are left out: gloo's
would drown what is measured.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

WIDTH, HEADS, HIDDEN = 768, 12, 3072
_LOAD_WIDTH = 768


def layer() -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, batch_first=True)


def state_bytes(module: nn.Module) -> int:
    """Of the parameters and AdamW's two moments."""
    return sum(3 * parameter.nbytes for parameter in module.parameters())


class Job:
    """On one rank. `wrap`: "ddp" or "fsdp"; `size_bytes`: of the whole state."""

    def __init__(self, wrap: str, size_bytes: int) -> None:
        torch.manual_seed(0)
        layers = [layer() for _ in range(max(1, round(size_bytes / state_bytes(layer()))))]
        self.model: Any = nn.Sequential(*layers)
        if wrap == "fsdp":
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            for each in layers:
                fully_shard(each, mesh=mesh)
            fully_shard(self.model, mesh=mesh)
        else:
            self.model = DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        self.is_sharded = wrap == "fsdp"
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self._load = torch.rand(_LOAD_WIDTH, _LOAD_WIDTH)
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, 1e-3)
        self.optimizer.step()

    def step(self, products: int) -> None:
        """One optimizer step, then the load that stands for the forward and backward of the next."""
        self.optimizer.step()
        for _ in range(products):
            self._load = torch.mm(self._load, self._load).clamp_(0, 1)

    def tensors(self) -> list[torch.Tensor]:
        """Of parameters and moments what is on this rank."""
        found = []
        for parameter in self.model.parameters():
            state = self.optimizer.state[parameter]
            found += [_local(each) for each in (parameter.detach(), state["exp_avg"], state["exp_avg_sq"])]
        return found


def _local(tensor: Any) -> torch.Tensor:
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local
