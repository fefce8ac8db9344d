"""MosaicML Streaming from MDS shards: its StreamingDataset, and its map-style LocalDataset without the streaming.

Samples are `bytes` (its `ndarray` encoding was slower), joined and viewed as one tensor by a `collate_fn`. Its modules
for vision and text import torchvision and transformers when the package is imported; where those are not installed,
empty stand-ins with the imported names take their place, which no code here calls.
"""

import sys
from collections.abc import Iterable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import DataLoader

from benchmarks.peers.program import BATCH, SEQUENCE, SHARD_BYTES, Epoch, Variant, rows_of, serve

_IMPORTED_UNUSED = {
    "torchvision.datasets": "VisionDataset",
    "torchvision.transforms.functional": "to_tensor",
    "transformers.feature_extraction_utils": "BatchFeature",
    "transformers.models.auto.tokenization_auto": "AutoTokenizer",
    "transformers.tokenization_utils_base": "BatchEncoding",
}


def _imported() -> Any:
    """The package, imported without torchvision and transformers where they are absent."""
    absent = {name.partition(".")[0] for name in _IMPORTED_UNUSED if find_spec(name.partition(".")[0]) is None}
    for name, attribute in _IMPORTED_UNUSED.items():
        if name.partition(".")[0] in absent:
            parts = name.split(".")
            for depth in range(1, len(parts) + 1):
                sys.modules.setdefault(".".join(parts[:depth]), ModuleType(".".join(parts[:depth])))
            setattr(sys.modules[name], attribute, type(attribute, (), {}))
    return import_module("streaming")


streaming = _imported()


def _write(tokens: Path, directory: Path) -> None:
    with streaming.MDSWriter(out=str(directory), columns={"tokens": "bytes"}, size_limit=SHARD_BYTES) as writer:
        for row in rows_of(tokens):
            writer.write({"tokens": row.tobytes()})


def _joined(samples: list[dict[str, bytes]]) -> torch.Tensor:
    joined = bytearray(b"".join([sample["tokens"] for sample in samples]))
    return torch.frombuffer(joined, dtype=torch.int32).reshape(-1, SEQUENCE)


def _read(dataset: Any, shuffle: bool | None, directory: Path) -> Epoch:
    made: Iterable[Any] = DataLoader(dataset(directory), BATCH, shuffle=shuffle, collate_fn=_joined)
    return lambda _: made


def _streaming(directory: Path) -> Any:
    return streaming.StreamingDataset(local=str(directory), batch_size=BATCH, shuffle=True)


def _local(directory: Path) -> Any:
    return streaming.LocalDataset(str(directory))


VARIANTS = {
    "streaming": Variant(_write, partial(_read, _streaming, None)),
    "local": Variant(_write, partial(_read, _local, True)),
}

if __name__ == "__main__":
    serve(VARIANTS, ["mosaicml-streaming", "torch", "numpy"])
