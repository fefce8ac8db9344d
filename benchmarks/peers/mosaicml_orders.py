"""The orders that MosaicML's shuffling algorithms give, as its StreamingDataset asks for them.

`python -m benchmarks.peers.mosaicml_orders SPEC`: SPEC is a JSON file of `{"shard_rows": […], "batch": B, "orders":
{name: {"algorithm": …, "block": …}}, "directory": …}`. Writes `NAME.npy` there, the sample
ids as one worker of one rank reads them, and prints the version. One node: the canonical nodes are 1, or 64 for py1s
and py2s, and the block is 4,000,000 samples over those, at least 2^18, as where the dataset's arguments are left out.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import benchmarks.peers.mosaicml  # noqa: F401 - imports the package


def order_of(
    shard_rows: Sequence[int], batch: int, *, algorithm: str, block: int | None = None, epoch: int = 0
) -> npt.NDArray[np.int64]:
    """Sample ids of an epoch in the order in which they are read."""
    shuffle, partition = import_module("streaming.base.shuffle"), import_module("streaming.base.partition")
    canonical_nodes = 64 if algorithm in ("py1s", "py2s") else 1
    block = block or max(4_000_000 // canonical_nodes, 1 << 18)
    shuffled = shuffle.get_shuffle(algorithm, np.array(shard_rows), canonical_nodes, 9176, epoch, block)
    places = partition.get_partitions("relaxed", sum(shard_rows), canonical_nodes, 1, 1, 1, batch).reshape(-1)
    ids: npt.NDArray[np.int64] = shuffled[places[places >= 0]]
    return ids


def write_orders(spec: Mapping[str, Any]) -> None:
    """What the program does."""
    for name, options in spec["orders"].items():
        ids = order_of(spec["shard_rows"], spec["batch"], **options)
        np.save(Path(spec["directory"]) / f"{name}.npy", ids)


if __name__ == "__main__":
    write_orders(json.loads(Path(sys.argv[1]).read_text()))
    print(metadata.version("mosaicml-streaming"))
