"""Hugging Face datasets, map-style and streaming, from memory-mapped Arrow files.

Map-style: whole batches of indices from a `BatchSampler`, as arrays ("numpy" format; "torch" was slower, and so were
single rows and `__getitems__`), which torch's DataLoader turns into tensors. Streaming: `to_iterable_dataset` with its
shuffle buffer, read in batches by `iter`. The variants "by hand" ask for Arrow tables and turn the buffers of the one
column into tensors themselves: read-only, and with no help of the library. A fixed length in the features is faster for
streaming, slower for map-style.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from benchmarks.peers.program import BATCH, SEQUENCE, Epoch, Variant, rows_of, serve

_SHARDS = 8


def _rows(tokens: str) -> Iterator[dict[str, Any]]:
    for row in rows_of(tokens):
        yield {"tokens": row}


def _write(length: int, tokens: Path, directory: Path) -> None:
    features = datasets.Features({"tokens": datasets.List(datasets.Value("int32"), length=length)})
    made = datasets.Dataset.from_generator(
        _rows, features=features, cache_dir=str(directory / "cache"), gen_kwargs={"tokens": str(tokens)}
    )
    made.save_to_disk(str(directory / "data"), num_shards=_SHARDS)


def _map_style(by_hand: bool, directory: Path) -> Epoch:
    dataset = datasets.load_from_disk(str(directory / "data"))
    dataset = dataset.with_format("arrow") if by_hand else dataset.with_format("numpy", dtype=np.int32)
    batches = BatchSampler(RandomSampler(dataset), BATCH, drop_last=False)
    made = DataLoader(dataset, sampler=batches, batch_size=None, collate_fn=_from_arrow if by_hand else None)
    return lambda _: made if by_hand else (batch["tokens"] for batch in made)


def _streaming(by_hand: bool, directory: Path) -> Epoch:
    dataset = datasets.load_from_disk(str(directory / "data")).to_iterable_dataset(num_shards=_SHARDS)
    dataset = dataset.shuffle(seed=0).with_format("arrow" if by_hand else "numpy")

    def epoch(number: int) -> Iterable[Any]:
        dataset.set_epoch(number)
        return map(_from_arrow if by_hand else _from_numpy, dataset.iter(BATCH))

    return epoch


def _from_numpy(batch: Any) -> torch.Tensor:
    return torch.from_numpy(batch["tokens"])


def _from_arrow(table: Any) -> torch.Tensor:
    values = table["tokens"].combine_chunks().flatten().to_numpy(zero_copy_only=True)
    return torch.from_numpy(values.reshape(-1, SEQUENCE))


VARIANTS = {
    "map-style": Variant(partial(_write, -1), partial(_map_style, False)),
    "map-style-by-hand": Variant(partial(_write, -1), partial(_map_style, True)),
    "streaming": Variant(partial(_write, SEQUENCE), partial(_streaming, False)),
    "streaming-by-hand": Variant(partial(_write, SEQUENCE), partial(_streaming, True)),
}

if __name__ == "__main__":
    serve(VARIANTS, ["datasets", "pyarrow", "torch", "numpy"])
