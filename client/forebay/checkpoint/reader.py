"""`CheckpointReader`: reads what `NvmeStagingWriter` wrote, and lets nothing through that is not what was written.

Every item that is read is compared with its checksum in the ranks' manifests (T5); a file that no manifest names is
refused, wherever its name leads (T16); `.metadata` and values are read without running code (T9). Any number of ranks
may read: torch reshards. Files come from a directory, or one by one from who has them. Called by torch's `load`.
"""

import io
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from forebay.checkpoint import frames
from forebay.checkpoint.manifests import read_manifests
from forebay.checkpoint.metadata import decode_metadata
from forebay_core.checkpoints.documents import FileRecord, Item, RankManifest
from forebay_core.checkpoints.names import METADATA
from forebay_core.checksums import crc32c
from forebay_core.errors import CheckpointDamaged, CheckpointError, CheckpointNotFound


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of the checkpoint: the path in the nested state, and what it is."""

    path: tuple[str, ...]
    size: torch.Size
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class _Kind:
    """Of a stored part of a tensor."""

    dtype: torch.dtype
    size: torch.Size


class CheckpointReader(FileSystemReader):
    """Reads a checkpoint, as `dcp.load(state, storage_reader=CheckpointReader(path))`.

    path: a directory with all of its files.
    fetch: gives a local file for a name such as `.metadata` or `__0_0.distcp`, in place of the directory; `path` is
        then what messages call the checkpoint.
    manifests: of all ranks, if they are known already.

    Raises `CheckpointNotFound`, and `CheckpointDamaged` that names file and item.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fetch: Callable[[str], Path] | None = None,
        manifests: Sequence[RankManifest] | None = None,
    ) -> None:
        super().__init__(path)
        self._where = os.fspath(path)
        self._fetch = fetch or _from(Path(path))
        self._manifests = manifests
        self._files: dict[str, FileRecord] | None = None
        self._metadata: Metadata | None = None
        self._kinds: dict[MetadataIndex, _Kind] = {}
        self._memory = bytearray()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Called by torch before each load; with an id where the load was given one, which is a directory then."""
        super().reset(checkpoint_id)
        self._metadata = None
        if checkpoint_id is not None:
            self._where = os.fspath(checkpoint_id)
            self._fetch, self._manifests, self._files = _from(Path(checkpoint_id)), None, None

    @property
    def files(self) -> dict[str, FileRecord]:
        """What the manifests name, by name."""
        if self._files is None:
            manifests = self._manifests or read_manifests(self._fetch, self._where)
            self._files = {file.name: file for manifest in manifests for file in manifest.files}
        return self._files

    def read_file(self, name: str) -> bytes:
        """All of a small file, verified."""
        record = self._record(name)
        with self._open(name) as file:
            return b"".join(bytes(self._item(file, name, item)) for item in record.items)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        if self._metadata is None:
            self._metadata = decode_metadata(self.read_file(METADATA))
            self._metadata.storage_meta = StorageMeta(load_id=self.load_id)
            self._kinds = _kinds_of(self._metadata)
        return self._metadata

    def described(self) -> dict[str, Stored]:
        """The tensors that the checkpoint has, by key."""
        metadata = self.read_metadata()
        paths = metadata.planner_data or {}
        return {
            key: Stored(tuple(str(part) for part in paths.get(key, (key,))), each.size, each.properties.dtype)
            for key, each in metadata.state_dict_metadata.items()
            if isinstance(each, TensorStorageMetadata)
        }

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        per_file: dict[str, list[ReadItem]] = defaultdict(list)
        for wanted in plan.items:
            per_file[self._stored(wanted).relative_path].append(wanted)
        try:
            for name, wanted_items in per_file.items():
                self._read_items(name, wanted_items, planner)
        finally:
            self._memory = bytearray()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read_items(self, name: str, wanted_items: list[ReadItem], planner: LoadPlanner) -> None:
        items = {(item.offset, item.size_bytes): item for item in self._record(name).items}
        by_item: dict[tuple[int, int], list[ReadItem]] = defaultdict(list)
        for wanted in wanted_items:
            stored = self._stored(wanted)
            by_item[stored.offset, stored.length].append(wanted)
        with self._open(name) as file:
            self._reserve(
                max((size_bytes for offset, size_bytes in by_item if (offset, size_bytes) in items), default=0)
            )
            for place, of_item in sorted(by_item.items()):
                if place not in items:
                    raise CheckpointDamaged(
                        f"{self._where}: .metadata says that {of_item[0].storage_index.fqn} is {place[1]} bytes at "
                        f"{place[0]} of {name}, the rank that wrote the file says otherwise"
                    )
                content = self._item(file, name, items[place])
                self._hand_over(content, of_item, planner)

    def _hand_over(self, content: memoryview, wanted_items: Sequence[ReadItem], planner: LoadPlanner) -> None:
        value = self._value(content, wanted_items[0].storage_index)
        for wanted in wanted_items:
            if wanted.type == LoadItemType.BYTE_IO:
                planner.load_bytes(wanted, io.BytesIO(content))
                continue
            target = planner.resolve_tensor(wanted).detach()
            try:
                part = narrow_tensor_by_index(value, wanted.storage_offsets, wanted.lengths)
            except (RuntimeError, TypeError) as error:
                raise CheckpointDamaged(
                    f"{self._where}: {wanted.storage_index.fqn} is not as .metadata describes it ({error})"
                ) from error
            target.copy_(part)
            planner.commit_tensor(wanted, target)

    def _value(self, content: memoryview, index: MetadataIndex) -> Any:
        """Runs no code; what passes here may be unpickled by torch in any way.

        A plain tensor as the writer leaves it lies in `content`, without a copy.
        """
        kind = self._kinds.get(index)
        if kind is not None and (tensor := frames.view(content, kind.dtype, kind.size)) is not None:
            return tensor
        try:
            return torch.load(pa.BufferReader(pa.py_buffer(content)), map_location="cpu", weights_only=True)
        except Exception as error:
            raise CheckpointError(
                f"{self._where}: {index.fqn} holds more than tensors and plain values, which is not loaded because it "
                f"can run code ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
            ) from error

    def _stored(self, wanted: ReadItem) -> Any:
        return self.storage_data[wanted.storage_index]

    def _record(self, name: str) -> FileRecord:
        if name not in self.files:
            raise CheckpointDamaged(f"{self._where}: {name!r} is named in .metadata, and is no file of any rank")
        return self.files[name]

    def _open(self, name: str) -> io.BufferedReader:
        path, record = self._fetch(name), self._record(name)
        file = path.open("rb")
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes != record.size_bytes:
            file.close()
            raise CheckpointDamaged(
                f"{self._where}: {name} has {size_bytes} bytes, {record.size_bytes} were written: it was cut or changed"
            )
        return file

    def _reserve(self, size_bytes: int) -> None:
        """Memory for items of that size, whose pages are there from then on."""
        if len(self._memory) < size_bytes:
            self._memory = bytearray(size_bytes)

    def _item(self, file: io.BufferedReader, name: str, item: Item) -> memoryview:
        """Its bytes, until the next item is read: the memory is used again, which has its pages already."""
        self._reserve(item.size_bytes)
        file.seek(item.offset)
        content = memoryview(self._memory)[: item.size_bytes]
        content = content[: file.readinto(content)]
        found = crc32c(content)
        if found != item.crc32c:
            raise CheckpointDamaged(
                f"{self._where}: {name} is damaged at {item.offset} (item of {item.size_bytes} bytes): CRC-32C "
                f"{found:08x} was read, {item.crc32c:08x} was written"
            )
        return content


def _kinds_of(metadata: Metadata) -> dict[MetadataIndex, _Kind]:
    return {
        MetadataIndex(key, chunk.offsets): _Kind(each.properties.dtype, chunk.sizes)
        for key, each in metadata.state_dict_metadata.items()
        if isinstance(each, TensorStorageMetadata)
        for chunk in each.chunks
    }


def _from(directory: Path) -> Callable[[str], Path]:
    def fetch(name: str) -> Path:
        if not (directory / name).is_file():
            raise CheckpointNotFound(
                f"{directory} has no {name}: it holds no checkpoint that forebay wrote, or only a part of one; "
                f"read what other writers wrote with torch's FileSystemReader"
            )
        return directory / name

    return fetch
