"""The manifest of a dataset: every object and every piece, as arrays over one mapped file.

It fixes what a sample id means: pieces by (object key bytes, offset), then row. It is built by the daemon from the cuts
of all objects, travels as a file, and is opened by every trainer process in constant time: nothing is parsed or copied
at opening, whatever the number of pieces. Immutable, and safe for several threads.

The file is an Arrow IPC file with one row of list columns; what is not an array is JSON in the schema's metadata.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from pathlib import Path

import numpy as np
import pyarrow as pa

from forebay_core.arrow_arrays import as_numpy, numbers, texts
from forebay_core.errors import BadObject, ColumnNotFound, ConfigurationError
from forebay_core.formats import from_spec
from forebay_core.formats.base import Column, Cut, Cuts, Format, ObjectCut, ObjectInfo, Piece, Rows
from forebay_core.formats.columns import column_of
from forebay_core.formats.derived import sums
from forebay_core.mapping import MappedFile

_VERSION = 1
_FACTS = b"forebay.manifest"
_SCHEMA = b"forebay.schema"
_MODE = 0o640
#: In the order of `Cuts.table`.
_PIECE_COLUMNS = (
    "piece_rows",
    "piece_start",
    "piece_stop",
    "piece_first_unit",
    "piece_units",
    "piece_decoded_bytes",
)


class Objects:
    """The objects of a manifest, in the order of their keys' bytes."""

    def __init__(self, keys: pa.Array, sizes: Rows, versions: pa.Array) -> None:
        self._keys, self._sizes, self._versions = keys, sizes, versions

    def __len__(self) -> int:
        return len(self._sizes)

    def key(self, index: int) -> str:
        """The key relative to the root."""
        return bytes(self._keys[index].as_py()).decode("utf-8", "surrogateescape")

    def raw_keys(self) -> list[bytes]:
        """The bytes of all keys."""
        keys: list[bytes] = self._keys.to_pylist()
        return keys

    def size(self, index: int) -> int:
        """In bytes."""
        return int(self._sizes[index])

    def version(self, index: int) -> str:
        """The store's version of the object: an ETag."""
        return str(self._versions[index].as_py())

    def info(self, index: int) -> ObjectInfo:
        return ObjectInfo(self.key(index), self.size(index), self.version(index))


class Manifest:
    """One dataset. All piece arrays are int64 [pieces] and read-only."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        """Over the one row of a manifest's file; made by `open` and `build`."""
        facts = json.loads(batch.schema.metadata[_FACTS])
        if facts["version"] != _VERSION:
            raise ValueError(f"version {facts['version']}, this is {_VERSION}")
        self._batch = batch
        #: The URL that the keys are relative to.
        self.root: str = facts["root"]
        self.format: Format = from_spec(facts["format"])
        self.schema: pa.Schema = pa.ipc.read_schema(pa.py_buffer(batch.schema.metadata[_SCHEMA]))
        #: Columns that are not in every shard with the same type, each with the first shard that differs.
        self.partial: dict[str, str] = facts["partial"]
        #: The layout digest: names, sizes, rows, the cut and the format. A copy elsewhere has the same.
        self.fingerprint: str = facts["fingerprint"]
        #: The digest of the objects' versions: changes when data is copied or touched.
        self.version_digest: str = facts["version_digest"]
        #: Uncompressed bytes of all columns, as the objects state them.
        self.total_bytes: int = facts["total_bytes"]
        #: Sums of what was found in the content, by name; see `ObjectCut.counts`.
        self.counts: dict[str, int] = facts.get("counts", {})

        self.objects = Objects(
            _values(batch, "object_key"), _numbers(batch, "object_size"), _values(batch, "object_version")
        )
        self.piece_rows, self.piece_start, self.piece_stop = (_numbers(batch, name) for name in _PIECE_COLUMNS[:3])
        self.piece_first_unit, self.piece_units = (_numbers(batch, name) for name in _PIECE_COLUMNS[3:5])
        self.piece_decoded_bytes = _numbers(batch, "piece_decoded_bytes")
        self.piece_object = _numbers(batch, "piece_object")
        #: The sample id of each piece's first row, and `samples` at the end: int64 [pieces + 1].
        self.row_start = _numbers(batch, "row_start")
        self.pieces = len(self.piece_rows)
        self.samples = int(self.row_start[-1])
        if not len(self.row_start) - 1 == self.pieces == len(self.piece_object) == len(self.piece_decoded_bytes):
            raise ValueError("its arrays differ in length")

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, inode: int | None = None, size: int | None = None) -> "Manifest":
        """Maps a saved manifest; a shared lock on the file lives as long as the manifest does.

        `inode` and `size` (bytes) are checked where given. Raises `PieceGone` where it is not the file expected and
        `BadObject` where it is no manifest.
        """
        view = MappedFile.open(path, inode=inode, size=size).view
        try:
            return cls(pa.ipc.open_file(pa.py_buffer(view)).get_batch(0))
        except (pa.ArrowException, OSError, LookupError, ValueError, TypeError) as error:
            raise BadObject(
                f"{os.fspath(path)} is no manifest that can be read ({error}): index the data anew"
            ) from error

    @classmethod
    def build(cls, root: str, format: Format, entries: Iterable[tuple[ObjectInfo, ObjectCut]]) -> "Manifest":
        """The manifest of these objects, in any order. Raises `ConfigurationError` where two have the same key."""
        ordered = sorted(((_key_bytes(info.key), info, cut) for info, cut in entries), key=itemgetter(0))
        keys = [key for key, _, _ in ordered]
        for one, next_one in pairwise(keys):
            if one == next_one:
                raise ConfigurationError(f"the object {one!r} is listed twice: name every object once")
        infos = [info for _, info, _ in ordered]
        cuts = [Cuts.of(cut.pieces).table for _, _, cut in ordered]
        table = np.concatenate([np.empty((0, 6), np.int64), *cuts])
        sizes = np.array([info.size for info in infos], dtype=np.int64)
        schema, partial = _common_schema((info.key, cut) for _, info, cut in ordered)
        arrays: dict[str, pa.Array] = {
            "object_key": texts(keys, pa.large_binary()),
            "object_size": numbers(sizes),
            "object_version": texts([info.version.encode() for info in infos], pa.large_string()),
            "piece_object": numbers(np.repeat(np.arange(len(cuts), dtype=np.int64), [len(cut) for cut in cuts])),
            "row_start": numbers(np.concatenate([[0], np.cumsum(table[:, 0])]).astype(np.int64)),
        }
        arrays |= {name: numbers(table[:, i]) for i, name in enumerate(_PIECE_COLUMNS)}
        facts = {
            "version": _VERSION,
            "root": root,
            "format": format.spec(),
            "partial": partial,
            "fingerprint": _fingerprint(format, keys, arrays),
            "version_digest": _digest([_key_bytes(info.version) for info in infos]),
            "total_bytes": int(table[:, 5].sum()),
            "counts": sums(cut.counts for _, _, cut in ordered),
        }
        metadata = {_FACTS: json.dumps(facts).encode(), _SCHEMA: schema.serialize().to_pybytes()}
        columns = [
            pa.LargeListArray.from_arrays(numbers(np.array([0, len(array)])), array) for array in arrays.values()
        ]
        return cls(pa.record_batch(columns, names=list(arrays)).replace_schema_metadata(metadata))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the manifest's file, mode 0640: there whole and durable, or not at all."""
        target = Path(path)
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
        try:
            with os.fdopen(fd, "wb") as file:
                os.fchmod(fd, _MODE)
                with pa.ipc.new_file(file, self._batch.schema) as writer:
                    writer.write_batch(self._batch)
                file.flush()
                os.fsync(fd)
            temporary.rename(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_directory(target.parent)

    def object_url(self, index: int) -> str:
        """Where the index-th object lies, as people read it."""
        return f"{self.root.rstrip('/')}/{self.objects.key(index)}"

    def piece(self, index: int) -> Piece:
        if not 0 <= index < self.pieces:
            raise IndexError(f"there is no piece {index}, only {self.pieces}")
        cut = Cut(
            int(self.piece_rows[index]),
            int(self.piece_start[index]),
            int(self.piece_stop[index]),
            int(self.piece_first_unit[index]),
            int(self.piece_units[index]),
            int(self.piece_decoded_bytes[index]),
        )
        return Piece(index, self.objects.info(int(self.piece_object[index])), cut)

    def locate(self, sample_ids: Rows) -> tuple[Rows, Rows]:
        """The piece of each sample, and its row in the piece: two int64 arrays of the shape of `sample_ids`."""
        if len(sample_ids) and not 0 <= sample_ids.min() <= sample_ids.max() < self.samples:
            raise IndexError(f"sample ids must lie in [0, {self.samples})")
        pieces = np.searchsorted(self.row_start, sample_ids, side="right") - 1
        return pieces, sample_ids - self.row_start[pieces]

    def columns(self, names: Sequence[str] | None = None) -> dict[str, Column]:
        """How these columns come out of a batch, in this order; None: all columns, in the order of the first shard.

        Raises `ColumnNotFound` for a column that is not there, or not in every shard with the same type;
        `ConfigurationError` where all are asked for and some are partial, where none is, or one is named twice.
        """
        if names is None:
            if self.partial:
                name, shard = next(iter(self.partial.items()))
                raise ConfigurationError(
                    f"column {name!r} is missing in {shard!r} or has another type there: "
                    f"choose columns that all shards have with columns="
                )
            names = self.schema.names
        elif not names or len(set(names)) < len(names):
            raise ConfigurationError(f"columns={list(names)!r} must name at least one column, and each once")
        return {name: self._column(name) for name in names}

    def _column(self, name: str) -> Column:
        if name not in self.schema.names:
            raise ColumnNotFound(
                f"the dataset has no column {name!r}: it has {', '.join(map(repr, self.schema.names))}"
            )
        if name in self.partial:
            shard = self.partial[name]
            raise ColumnNotFound(
                f"column {name!r} is missing or of another type in {shard!r}: leave it out of columns="
            )
        return column_of(self.schema.field(name))


def _common_schema(shards: Iterable[tuple[str, ObjectCut]]) -> tuple[pa.Schema, dict[str, str]]:
    """The columns of all shards, those of the first one before others, and the partial ones.

    Shards without rows say nothing, unless there are no others. The order of a shard's columns does not matter.
    """
    shards = list(shards)
    speaking = [(key, cut.schema) for key, cut in shards if cut.pieces] or [(key, cut.schema) for key, cut in shards]
    fields: dict[str, pa.Field] = {}
    partial: dict[str, str] = {}
    seen: list[pa.Schema] = []
    for key, schema in speaking:
        if any(schema.equals(known) for known in seen):
            continue
        for field in schema:
            known = fields.setdefault(field.name, field)
            if known.type != field.type:
                partial.setdefault(field.name, key)
            elif known is field and seen:
                partial.setdefault(field.name, speaking[0][0])
        for name in fields.keys() - set(schema.names):
            partial.setdefault(name, key)
        seen.append(schema)
    return pa.schema(list(fields.values())), {name: partial[name] for name in fields if name in partial}


def _fingerprint(format: Format, keys: list[bytes], arrays: Mapping[str, pa.Array]) -> str:
    spec = json.dumps(format.identity(), sort_keys=True, separators=(",", ":")).encode()
    hashed = ("object_size", "piece_object", *_PIECE_COLUMNS)
    tables = (as_numpy(arrays[name], np.int64).astype("<i8").tobytes() for name in hashed)
    return _digest([spec, _digest(keys).encode(), *tables])


def _digest(parts: Iterable[bytes]) -> str:
    """Of the parts and their lengths."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return f"sha256:{digest.hexdigest()}"


def _key_bytes(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")


def _values(batch: pa.RecordBatch, name: str) -> pa.Array:
    return batch.column(name).values


def _numbers(batch: pa.RecordBatch, name: str) -> Rows:
    values = _values(batch, name)
    numbers: Rows = np.frombuffer(values.buffers()[1] or b"", np.int64, len(values))
    numbers.flags.writeable = False
    return numbers


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
