"""`.metadata`: written with the same bytes on every node, read without running code.

torch pickles it. Who unpickles a file that others could write runs what they like (T9), so that here only the few
classes that describe a checkpoint are let through. `dcp.save` gives every rank the same object but not the same
pickle (rank 0's own shares strings that a copy does not), so that it is pickled until that changes nothing more.
"""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import torch
from torch.distributed.checkpoint.metadata import Metadata

from forebay_core.checkpoints.documents import FileRecord, Item
from forebay_core.checkpoints.names import METADATA
from forebay_core.errors import CheckpointDamaged

_ROUNDS = 6
_ALLOWED = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"},
    "collections": {"OrderedDict"},
}


def encode_metadata(metadata: Metadata) -> bytes:
    """The pickle of it, equal on all ranks that got it from the same save."""
    content = pickle.dumps(metadata)
    for _ in range(_ROUNDS):
        again = pickle.dumps(decode_metadata(content))
        if again == content:
            return content
        content = again
    raise AssertionError("pickling .metadata does not settle")


def decode_metadata(content: bytes) -> Metadata:
    """Raises `CheckpointDamaged` for what is no metadata of a checkpoint, or would run code."""
    try:
        found = _Unpickler(io.BytesIO(content)).load()
    except CheckpointDamaged:
        raise
    except Exception as error:
        raise CheckpointDamaged(f".metadata cannot be read ({type(error).__name__}: {error})") from error
    if not isinstance(found, Metadata) or not isinstance(found.state_dict_metadata, dict):
        raise CheckpointDamaged(f".metadata holds a {type(found).__name__}, and not what describes a checkpoint")
    return found


def write_metadata(directory: Path, content: bytes) -> FileRecord:
    """Writes `.metadata` there, under another name first. Called on one rank of each node (T17)."""
    place, written = directory / METADATA, directory / f"{METADATA}.part"
    written.write_bytes(content)
    written.rename(place)
    return record_of(METADATA, content)


def record_of(name: str, content: bytes) -> FileRecord:
    """The record of a file that is one item."""
    return FileRecord(name, len(content), (Item(0, len(content), google_crc32c.value(content)),))


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name in _ALLOWED.get(module, ()) or (module == "torch" and isinstance(_plain(name), torch.dtype)):
            found: Callable[..., Any] = super().find_class(module, name)
            return found
        raise CheckpointDamaged(
            f".metadata names {module}.{name}, which describes no checkpoint: it may have been tampered with, "
            f"and is not loaded"
        )


def _plain(name: str) -> Any:
    return vars(torch).get(name)
