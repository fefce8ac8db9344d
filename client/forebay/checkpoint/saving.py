"""Writes a staged copy, in the thread that saves: with torch's `save` where it is laid out anew, else as the last time.

torch plans over all ranks, and gathers what each has written where. Both follow from what the ranks agreed that they
own: as long as that holds, a save needs neither, and only writes the same items again.
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import SavePlanner, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult

from forebay.checkpoint.data_files import DataFile, write_data_files
from forebay.checkpoint.metadata import encode_metadata
from forebay.checkpoint.staging import Staged, StagedTensor
from forebay.checkpoint.unwrapping import unwrapped
from forebay.checkpoint.writer import FILE_BYTES, THREADS, Expected, NvmeStagingWriter
from forebay_core.checkpoints.documents import FileRecord
from forebay_core.errors import CheckpointError


class StagedPlanner(DefaultSavePlanner):
    """Plans the parts of staged tensors; everything else is torch's own."""

    def lookup_object(self, index: MetadataIndex) -> torch.Tensor:
        found: _Planned = self.state_dict[index.fqn]
        assert index.offset is not None
        return found.staged.parts[tuple(index.offset)]


class Layout:
    """What goes where, as long as nothing but values changes. `data_files`, `places`: of this rank."""

    def __init__(
        self,
        staged: Staged,
        data_files: Sequence[DataFile],
        places: Sequence[WriteResult],
        metadata: Metadata,
    ) -> None:
        self._staged = weakref.ref(staged)
        self.data_files, self.places = data_files, places
        self._metadata = metadata

    @cached_property
    def metadata(self) -> bytes:
        """The content of `.metadata`, the same on every rank."""
        return encode_metadata(self._metadata)

    def is_of(self, staged: Staged) -> bool:
        return self._staged() is staged


@dataclass(frozen=True, slots=True)
class Written:
    """files: of this rank."""

    files: tuple[FileRecord, ...]
    layout: Layout


class Saving:
    """The saves of a run, one at a time. `group`: of all ranks, for this alone (T6); None: one process."""

    def __init__(
        self, group: dist.ProcessGroup | None, *, max_file_bytes: int = FILE_BYTES, threads: int = THREADS
    ) -> None:
        self._group = group
        self._max_file_bytes = max_file_bytes
        self._threads = threads
        self._layout: Layout | None = None

    def knows(self, staged: Staged) -> bool:
        """This rank can write it with `write_again`."""
        return self._layout is not None and self._layout.is_of(staged)

    def write(self, staged: Staged, directory: Path) -> Written:
        """Writes the files of this rank, and on rank 0 `.metadata`, the last of them; all ranks together.

        Raises the same on all ranks, a `ForebayError` where one is at the bottom of it. An error leaves files there.
        """
        self._layout = None
        writer = NvmeStagingWriter(
            directory,
            with_manifests=False,
            expected=Expected(staged.agreement.wholes, staged.agreement.aliases),
            max_file_bytes=self._max_file_bytes,
            threads=self._threads,
        )
        try:
            metadata = self._save(_nested(staged), writer)
        except CheckpointException as error:
            raise unwrapped(error) from error
        self._layout = Layout(staged, writer.data_files, writer.results, metadata)
        return Written(writer.written, self._layout)

    def write_again(self, staged: Staged, directory: Path) -> Written:
        """Writes the files that `write` would, but `.metadata`, where all ranks know the layout; each for itself."""
        layout = self._layout
        assert layout is not None
        assert layout.is_of(staged)
        parts = {(tensor.key, at): part for tensor in staged.tensors for at, part in tensor.parts.items()}
        directory.mkdir(parents=True, exist_ok=True)

        def resolve(item: WriteItem) -> torch.Tensor:
            assert item.index.offset is not None
            return parts[item.index.fqn, tuple(item.index.offset)]

        files, places = write_data_files(directory, layout.data_files, resolve, threads=self._threads)
        if places != layout.places:
            self._layout = None
            raise CheckpointError(
                f"tensors of the same sizes took another room in {directory} than at the save before; the next save "
                f"is laid out anew"
            )
        return Written(files, layout)

    def _save(self, state: dict[str, Any], writer: NvmeStagingWriter) -> Metadata:
        planner = StagedPlanner()
        if self._group is not None:
            saved: Metadata = save(state, storage_writer=writer, planner=planner, process_group=self._group)
            return saved
        return save_alone(state, writer, planner)


def save_alone(state: dict[str, Any], writer: NvmeStagingWriter, planner: SavePlanner) -> Metadata:
    """What torch's `save` does, for one process, and without its warning that there is no process group."""
    planner.set_up_planner(state, writer.storage_meta(), True)
    writer.set_up_storage_writer(True, rank=0, use_collectives=True)
    plan = writer.prepare_local_plan(planner.create_local_plan())
    plans, metadata = planner.create_global_plan([plan])
    (plan,) = writer.prepare_global_plan(plans)
    written = writer.write_data(planner.finish_plan(plan), planner)
    written.wait()
    writer.finish(metadata, [written.value()])
    return metadata


class _Planned:
    """A staged tensor in the state that is given to torch, which asks it what it would write."""

    def __init__(self, staged: StagedTensor) -> None:
        self.staged = staged

    def __create_write_items__(self, key: str, _: Any) -> list[WriteItem]:
        return [
            WriteItem(
                MetadataIndex(key, offsets),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    ChunkStorageMetadata(torch.Size(offsets), part.shape),
                    TensorProperties(dtype=part.dtype),
                    self.staged.size,
                ),
            )
            for offsets, part in self.staged.parts.items()
        ]


def _nested(staged: Staged) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for tensor in staged.tensors:
        inner = state
        for key in tensor.path[:-1]:
            inner = inner.setdefault(key, {})
        inner[tensor.path[-1]] = _Planned(tensor)
    return state
