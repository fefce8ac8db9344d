"""What is looked at before the daemon takes responsibility for what ranks have written, and before it trusts it later.

Blocking; on a thread of its own.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from forebay_core.checkpoints.documents import FileRecord, RankManifest
from forebay_core.checkpoints.names import METADATA, Attempt, is_file, rank_manifest
from forebay_core.errors import CheckpointDamaged, CheckpointError
from forebay_server.checkpoints.below import content_of, directories_of, names_below, opened, size_of

#: Of a rank's manifest: a million items are some 30 MB.
MOST_MANIFEST_BYTES = 64 << 20
_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Inspected:
    """A rank's manifest as it lies there, and what it says."""

    content: bytes
    manifest: RankManifest


def inspect(directory: Path, attempt: Attempt, ranks: Sequence[int], world_size: int) -> tuple[Inspected, ...]:
    """The manifests of these ranks, in this order, with all of their files there and as long as they say.

    Raises `CheckpointError` that says what is missing, of something else, or does not belong there, and
    `CheckpointDamaged` for what is no manifest.
    """
    found = tuple(_manifest(directory, attempt, rank, world_size) for rank in ranks)
    named = [file for each in found for file in each.manifest.files]
    for file in named:
        _check_size(directory, file)
    _check_names(directory, [*(file.name for file in named), *(rank_manifest(rank) for rank in ranks)])
    return found


def verify(directory: Path, files: Iterable[FileRecord]) -> None:
    """Reads the files and compares the checksum of each item. Raises `CheckpointDamaged`, `OSError`."""
    for file in files:
        _check_size(directory, file)
        with opened(directory, file.name) as descriptor:
            if fault := _fault(descriptor, file):
                raise CheckpointDamaged(f"the staged file {file.name} {fault}")


def crc32c_faults(path: Path, file: FileRecord) -> str:
    """What is wrong with a copy of the file, in words; empty: nothing. Raises `OSError`."""
    with path.open("rb") as copy:
        return _fault(copy.fileno(), file)


def sync(directory: Path, names: Iterable[str], on_file: Callable[[str], None] = lambda _name: None) -> None:
    """Writes the files and the directories through to the disk. Raises `OSError`, `CheckpointError`."""
    for name in names:
        on_file(name)
        with opened(directory, name) as descriptor:
            os.fsync(descriptor)
    for each in directories_of(directory):
        sync_directory(each)


def sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _manifest(directory: Path, attempt: Attempt, rank: int, world_size: int) -> Inspected:
    name = rank_manifest(rank)
    try:
        content = content_of(directory, name, MOST_MANIFEST_BYTES)
    except FileNotFoundError:
        raise CheckpointError(f"{attempt.name} has no {name}: each rank writes its manifest before the seal") from None
    except OSError as error:
        raise CheckpointError(f"{name} of {attempt.name} cannot be read: {error}") from error
    manifest = RankManifest.decode(content)
    said = manifest.attempt, manifest.rank, manifest.world_size
    if said != (attempt, rank, world_size):
        raise CheckpointError(
            f"{name} of {attempt.name} is of rank {manifest.rank} of {manifest.world_size} in {manifest.attempt.name},"
            f" not of rank {rank} of {world_size}"
        )
    return Inspected(content, manifest)


def _check_size(directory: Path, file: FileRecord) -> None:
    try:
        size = size_of(directory, file.name)
    except OSError as error:
        raise CheckpointDamaged(f"the staged file {file.name} cannot be read: {error}") from error
    if size != file.size_bytes:
        raise CheckpointDamaged(f"the staged file {file.name} has {size} bytes, its manifest says {file.size_bytes}")


def _check_names(directory: Path, named: Sequence[str]) -> None:
    if len(set(named)) < len(named):
        twice = next(name for name in named if named.count(name) > 1)
        raise CheckpointError(f"{twice} is named by the manifests of two ranks")
    for name in names_below(directory):
        if name not in named and name != METADATA:
            what = "which no manifest names" if is_file(name) else "which is no file of a checkpoint"
            raise CheckpointError(f"the staging directory holds {name!r}, {what}")


def _fault(descriptor: int, file: FileRecord) -> str:
    for item in file.items:
        if _crc32c(descriptor, item.offset, item.size_bytes) != item.crc32c:
            return f"is damaged in the {item.size_bytes} bytes at {item.offset}"
    return ""


def _crc32c(descriptor: int, offset: int, size: int) -> int:
    checksum = 0
    while size > 0:
        chunk = os.pread(descriptor, min(size, _CHUNK_BYTES), offset)
        if not chunk:
            break
        checksum = google_crc32c.extend(checksum, chunk)
        offset, size = offset + len(chunk), size - len(chunk)
    return int(checksum)
