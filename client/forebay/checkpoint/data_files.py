"""The files that hold a rank's tensors, `__<rank>_<number>.distcp`: some items each, written by a few threads.

Leans on a private part of torch: `_StorageInfo`, which torch's reader unpickles. Called on the thread that saves.
"""

import errno
import io
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from forebay.checkpoint import frames
from forebay.checkpoint.checksummed import ChecksummedFile
from forebay_core.checkpoints.documents import FileRecord
from forebay_core.errors import CheckpointError, StagingFull

#: What is larger passes it by.
_BUFFER_BYTES = 64 << 10
_FULL = {errno.ENOSPC, errno.EDQUOT}

#: The content of an item: a tensor, or bytes that somebody else has made.
Resolve = Callable[[WriteItem], torch.Tensor | io.BytesIO]


@dataclass(frozen=True, slots=True)
class DataFile:
    """The items of one, in their order."""

    name: str
    items: tuple[WriteItem, ...]


def data_files_of(items: Sequence[WriteItem], rank: int, max_file_bytes: int) -> tuple[DataFile, ...]:
    """Files whose items' sizes add up to at most that; a larger item is alone."""
    found: list[list[WriteItem]] = []
    room = 0
    for item in items:
        size_bytes = _size_bytes(item)
        if not found or size_bytes > room:
            found.append([])
            room = max_file_bytes
        found[-1].append(item)
        room -= size_bytes
    return tuple(DataFile(f"__{rank}_{number}.distcp", tuple(of_file)) for number, of_file in enumerate(found))


def write_data_files(
    directory: Path, files: Sequence[DataFile], resolve: Resolve, *, threads: int
) -> tuple[tuple[FileRecord, ...], tuple[WriteResult, ...]]:
    """The files, and where in them each item is. `StagingFull`, `CheckpointError`: then some files are left."""
    with ThreadPoolExecutor(threads, "forebay-write") as pool:
        done = [pool.submit(_write, directory, file, resolve) for file in files]
    written = [each.result() for each in done]
    return tuple(record for record, _ in written), tuple(result for _, of_file in written for result in of_file)


def _write(directory: Path, data_file: DataFile, resolve: Resolve) -> tuple[FileRecord, list[WriteResult]]:
    place = directory / data_file.name
    with (
        writing_to(place),
        place.open("xb", buffering=_BUFFER_BYTES) as under,
        ChecksummedFile(under) as file,
    ):
        results = [_write_item(file, data_file.name, item, resolve(item)) for item in data_file.items]
        return file.record(data_file.name), results


@contextmanager
def writing_to(place: Path) -> Iterator[None]:
    """`OSError` is `StagingFull`, or `CheckpointError`, that names the place."""
    try:
        yield
    except OSError as error:
        kind = StagingFull if error.errno in _FULL else CheckpointError
        raise kind(f"{place} cannot be written: {error.strerror or error}") from error


def _write_item(file: ChecksummedFile, name: str, item: WriteItem, content: torch.Tensor | io.BytesIO) -> WriteResult:
    if isinstance(content, torch.Tensor):
        frames.save(content, cast(IO[bytes], file))
    else:
        file.write(content.getbuffer())
    offset, size_bytes = file.end_item()
    return WriteResult(item.index, size_bytes, _StorageInfo(name, offset, size_bytes))


def _size_bytes(item: WriteItem) -> int:
    if item.tensor_data is None:
        return 0
    return math.prod(tuple(item.tensor_data.chunk.sizes)) * item.tensor_data.properties.dtype.itemsize
