"""WebDataset: tar shards from its ShardWriter, read by its own pipeline, which also makes the batches.

Samples are raw bytes (`.npy` with `decode()` was slower), so no decoder runs, joined and viewed as one tensor by the
`collation_fn`. Shards are shuffled, and samples within its buffer of 1000.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import webdataset

from benchmarks.peers.program import BATCH, SEQUENCE, SHARD_BYTES, Epoch, Variant, rows_of, serve


def _write(tokens: Path, directory: Path) -> None:
    pattern = str(directory / "%06d.tar")
    with webdataset.ShardWriter(pattern, maxsize=SHARD_BYTES, maxcount=2**31, verbose=0) as writer:
        for number, row in enumerate(rows_of(tokens)):
            writer.write({"__key__": f"{number:08d}", "bin": row.tobytes()})


def _joined(samples: list[dict[str, bytes]]) -> torch.Tensor:
    joined = bytearray(b"".join([sample["bin"] for sample in samples]))
    return torch.frombuffer(joined, dtype=torch.int32).reshape(-1, SEQUENCE)


def _read(directory: Path) -> Epoch:
    shards = sorted(map(str, directory.glob("*.tar")))

    def epoch(number: int) -> Iterable[Any]:
        read = webdataset.WebDataset(shards, shardshuffle=len(shards), seed=number)
        made: Iterable[Any] = read.shuffle(1000).batched(BATCH, collation_fn=_joined)
        return made

    return epoch


VARIANTS = {"tar": Variant(_write, _read)}

if __name__ == "__main__":
    serve(VARIANTS, ["webdataset", "torch", "numpy"])
