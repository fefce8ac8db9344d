"""LitData: its plain chunks of one array a sample, and its TokensLoader, which maps the chunks.

Both from `litdata.optimize`, with arrays as items (as tensors both were slower), through its `StreamingDataLoader` in
process, with a `collate_fn` that stacks the arrays (the default one was slower). A local directory is read in place by
memory map, which LitData turns on by itself.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import litdata
import numpy as np
import numpy.typing as npt
import torch

from benchmarks.peers.program import BATCH, SEQUENCE, SHARD_BYTES, Epoch, Variant, rows_of, serve

_ROWS_OF_A_TASK = 1024


def _rows(task: tuple[str, int]) -> Iterator[npt.NDArray[np.int32]]:
    tokens, start = task
    for row in rows_of(tokens)[start : start + _ROWS_OF_A_TASK]:
        yield np.array(row)


def _write(loader: Any, tokens: Path, directory: Path) -> None:
    tasks = [(str(tokens), start) for start in range(0, len(rows_of(tokens)), _ROWS_OF_A_TASK)]
    litdata.optimize(
        fn=_rows,
        inputs=tasks,
        output_dir=str(directory),
        chunk_bytes=SHARD_BYTES,
        num_workers=1,
        item_loader=None if loader is None else loader(),
    )


def _stacked(samples: list[npt.NDArray[np.int32]]) -> torch.Tensor:
    return torch.from_numpy(np.stack(samples))


def _read(loader: Any, directory: Path) -> Epoch:
    dataset = litdata.StreamingDataset(
        str(directory),
        item_loader=None if loader is None else loader(block_size=SEQUENCE),
        shuffle=True,
        drop_last=False,
    )
    made: Iterable[Any] = litdata.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=0, collate_fn=_stacked)
    return lambda _: made


VARIANTS = {
    "plain": Variant(partial(_write, None), partial(_read, None)),
    "tokens": Variant(partial(_write, litdata.TokensLoader), partial(_read, litdata.TokensLoader)),
}

if __name__ == "__main__":
    serve(VARIANTS, ["litdata", "torch", "numpy"])
