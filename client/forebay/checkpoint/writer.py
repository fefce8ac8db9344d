"""`NvmeStagingWriter`: plain files of torch's distributed checkpoints in a local directory, with a checksum per item.

The files are what torch's own writer would write, and its own reader reads them. Different is that they are split at
a size, that an error in one of the writing threads is an error of the save (T1), that a directory with anything of a
checkpoint in it is refused (T4), that nothing is synced here (T8; the daemon does, before an upload counts), and that
the checksum (CRC-32C) and the size of every item are taken while it is written (T5).

Called by torch's `save`, on the thread that saves.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
)
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from forebay.checkpoint.data_files import DataFile, data_files_of, write_data_files
from forebay.checkpoint.manifests import ALONE, write_manifest
from forebay.checkpoint.metadata import encode_metadata, write_metadata
from forebay_core.checkpoints.documents import FileRecord
from forebay_core.checkpoints.names import METADATA
from forebay_core.errors import CheckpointError, ConfigurationError

FILE_BYTES = 256 << 20
THREADS = 2


@dataclass(frozen=True, slots=True)
class Expected:
    """What a save must have written in the end: the size of each tensor, and paths of further names for some."""

    wholes: Mapping[str, tuple[int, ...]]
    aliases: Mapping[tuple[str, ...], str]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a rank's files go, as the coordinator tells it; travels in the plan."""

    rank: int
    world_size: int


class NvmeStagingWriter(FileSystemWriter):
    """Writes a distributed checkpoint to a directory, as `dcp.save(state, storage_writer=NvmeStagingWriter(path))`.

    max_file_bytes: files are split at this; an item that is larger has a file of its own.
    threads: that write files at once.
    with_manifests: each rank also writes `ranks/<rank>.json`, by which `CheckpointReader` verifies.
    expected: checked at the end, on the coordinator.

    Raises `CheckpointError` for a directory that holds a checkpoint, or a part of one; `StagingFull` on a full disk.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_file_bytes: int = FILE_BYTES,
        threads: int = THREADS,
        with_manifests: bool = True,
        expected: Expected | None = None,
    ) -> None:
        if max_file_bytes < 1 or threads < 1:
            raise ConfigurationError(f"max_file_bytes={max_file_bytes}, threads={threads}: give at least 1 of each")
        super().__init__(path, sync_files=False, overwrite=False)
        self._max_file_bytes = max_file_bytes
        self._threads = threads
        self._with_manifests = with_manifests
        self._expected = expected
        self._place = _Place(0, 1)
        self.written: tuple[FileRecord, ...] = ()
        """The files of this rank, once `dcp.save` is back; on the coordinator `.metadata` is the last of them."""
        self.data_files: tuple[DataFile, ...] = ()
        """What is in the files of tensors, and `results` where in them."""
        self.results: tuple[WriteResult, ...] = ()

    @property
    def _directory(self) -> Path:
        return Path(self.path)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)
        if not self.use_collectives:
            raise ConfigurationError("use_collectives=False writes no checkpoint that is whole: leave it out")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        self._directory.mkdir(parents=True, exist_ok=True)
        if self._with_manifests:
            for name in sorted(entry.name for entry in self._directory.iterdir()):
                if name in (METADATA, "ranks") or name.endswith(".distcp"):
                    raise CheckpointError(f"{self._directory} has {name} of an earlier save in it: give an empty one")
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return [replace(plan, storage_data=_Place(rank, len(plans))) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        self._place = plan.storage_data
        self.data_files = data_files_of(plan.items, self._place.rank, self._max_file_bytes)
        self.written, self.results = write_data_files(
            self._directory, self.data_files, planner.resolve_data, threads=self._threads
        )
        if self._with_manifests and self._place.rank != 0:
            self._write_manifest()
        answer: Future[list[WriteResult]] = Future()
        answer.set_result(list(self.results))
        return answer

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        stored = {result.index: result.storage_data for of_rank in results for result in of_rank}
        metadata.version = "1.0.0"
        metadata.storage_meta = self.storage_meta()
        metadata.storage_data = stored
        check_covered(metadata, {} if self._expected is None else self._expected.wholes)
        if self._expected is not None:
            name_aliases(metadata, self._expected.aliases)
        self.written += (write_metadata(self._directory, encode_metadata(metadata)),)
        if self._with_manifests:
            self._write_manifest()

    def storage_meta(self) -> StorageMeta:
        """Nothing of this machine: the same on every node."""
        return StorageMeta()

    def _write_manifest(self) -> None:
        write_manifest(self._directory, ALONE, self._place.rank, self._place.world_size, files=self.written)


def check_covered(metadata: Metadata, wholes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises `CheckpointError` where an element of a tensor is written nowhere (T1)."""
    for key, whole in wholes.items():
        if key not in metadata.state_dict_metadata:
            raise CheckpointError(f"no rank wrote {key}, of size {list(whole)}")
    for key, stored in metadata.state_dict_metadata.items():
        if isinstance(stored, BytesStorageMetadata):
            places = [MetadataIndex(key)]
        else:
            places = [MetadataIndex(key, chunk.offsets) for chunk in stored.chunks]
            covered = sum(math.prod(chunk.sizes) for chunk in stored.chunks)
            if covered != math.prod(stored.size) or tuple(stored.size) != wholes.get(key, tuple(stored.size)):
                raise CheckpointError(f"{covered} elements of {key} were written, of size {list(stored.size)}")
        if any(place not in metadata.storage_data for place in places):
            raise CheckpointError(f"a part of {key} was planned and not written")


def name_aliases(metadata: Metadata, aliases: Mapping[tuple[str, ...], str]) -> None:
    """Lets a tied weight be found under each of its names, although it is written once."""
    for path, key in aliases.items():
        alias = ".".join(path)
        stored = metadata.state_dict_metadata[key]
        metadata.state_dict_metadata[alias] = stored
        metadata.planner_data[alias] = path
        for chunk in getattr(stored, "chunks", ()):
            place = metadata.storage_data[MetadataIndex(key, chunk.offsets)]
            metadata.storage_data[MetadataIndex(alias, chunk.offsets)] = place
