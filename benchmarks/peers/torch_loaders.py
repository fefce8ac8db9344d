"""The limits of map-style loading: torch's DataLoader and torchdata's StatefulDataLoader over the mapped token file.

The dataset has `__getitems__`, so a batch is one numpy gather, and collates nothing. There is no shard, no cache and no
exact order beyond a random permutation. Runs in forebay's own environment.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.peers.program import BATCH, Epoch, Variant, rows_of, serve


class MappedTokens(Dataset[torch.Tensor]):
    """Rows of the mapped file; a batch at once."""

    def __init__(self, tokens: Path) -> None:
        self._rows = rows_of(tokens)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self._rows[index].copy())

    def __getitems__(self, indices: Sequence[int]) -> torch.Tensor:
        return torch.from_numpy(np.take(self._rows, indices, axis=0))


def as_it_is(batch: Any) -> Any:
    """Collates what is a batch already."""
    return batch


def _link(tokens: Path, directory: Path) -> None:
    (directory / "tokens.bin").symlink_to(tokens)


def _read(loader: Any, directory: Path) -> Epoch:
    dataset = MappedTokens(directory / "tokens.bin")
    made: Iterable[Any] = loader(dataset, BATCH, shuffle=True, collate_fn=as_it_is)
    return lambda _: made


VARIANTS = {
    "torch": Variant(_link, partial(_read, DataLoader)),
    "torchdata": Variant(_link, partial(_read, StatefulDataLoader)),
}

if __name__ == "__main__":
    serve(VARIANTS, ["torch", "torchdata"])
