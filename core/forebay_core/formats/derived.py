"""What formats have in common whose rows are derived from those of another one, the base: filtered, packed.

Their objects are the base's objects and their pieces the base's pieces, with other rows. How many, only the content
says: the daemon counts them once, when it builds the manifest; pieces that keep no row are in no manifest. The rows
themselves are made when a piece is filled. A base is known by its contract alone: one that has no `decode` of its own
is read by way of its local layout.

All of it runs in the daemon, `Decoder`s on one worker thread at a time.
"""

import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from forebay_core.arrow_arrays import numbers
from forebay_core.errors import BadObject, ColumnNotFound, ConfigurationError
from forebay_core.formats import arrow_layout
from forebay_core.formats.arrow_reader import read_batches
from forebay_core.formats.base import (
    Buffer,
    ByteRange,
    Column,
    Counted,
    Cuts,
    Decoder,
    Format,
    ObjectCut,
    ObjectInfo,
    Piece,
    PieceReader,
    Prepared,
    Rows,
    Steps,
)
from forebay_core.formats.columns import column_of

#: Of what is kept for an object besides its pieces, and for each field of its schema.
_ENTRY_BYTES = 500
_FIELD_BYTES = 200
_BATCH_BYTES = 64 << 20
_DIGITS = 32


@dataclass(frozen=True, slots=True)
class Under:
    """The object as the base knows it."""

    prepared: Prepared
    cut: ObjectCut

    def piece(self, piece: Piece) -> Piece:
        """The base's piece that this one is derived from."""
        table = Cuts.of(self.cut.pieces).table
        place = int(np.searchsorted(table[:, 3], piece.cut.first_unit))
        wanted = (piece.cut.start, piece.cut.stop, piece.cut.first_unit, piece.cut.units)
        if place == len(table) or tuple(table[place, 1:5].tolist()) != wanted:
            raise BadObject(f"{place_of(piece)} is no piece of the object as it is cut now: index the data anew")
        return Piece(piece.index, piece.object, Cuts.of(self.cut.pieces)[place])


class Derived(Format):
    """A format over a base. `base` is None where it is to be found by the objects' extensions (`formats.resolve`)."""

    base: Format | None

    @property
    def over(self) -> Format:
        """The base, once it is known."""
        if self.base is None:
            raise ConfigurationError(f"the format under {self.name!r} is not known: give format=")
        return self.base

    def prepare(self, obj: ObjectInfo) -> Steps[Prepared]:
        prepared = yield from self.over.prepare(obj)
        cut = self.over.cut(obj, prepared)
        table = Cuts.of(cut.pieces).table
        memory = prepared.memory_bytes + table.nbytes + _ENTRY_BYTES + _FIELD_BYTES * len(cut.schema)
        return Prepared(Under(prepared, ObjectCut(Cuts(table), cut.schema, cut.dropped)), memory)

    def cut(self, obj: ObjectInfo, prepared: Prepared) -> ObjectCut:
        under: Under = prepared.facts
        schema = self.derived_schema(obj, under.cut.schema) if under.cut.pieces else under.cut.schema
        return ObjectCut(under.cut.pieces, schema, under.cut.dropped)

    @abstractmethod
    def derived_schema(self, obj: ObjectInfo, schema: pa.Schema) -> pa.Schema:
        """The schema of the rows, from the base's. Raises `ColumnNotFound`, `ConfigurationError`."""

    def must_count(self) -> bool:
        return True

    def local_layout(self) -> str:
        options = json.dumps(self.identity(), sort_keys=True, separators=(",", ":")).encode()
        return f"{self.layout}:{hashlib.sha256(options).hexdigest()[:_DIGITS]}"

    def base_schema(self, prepared: Prepared) -> pa.Schema:
        """The schema of the base's rows."""
        under: Under = prepared.facts
        return under.cut.schema

    def base_decoder(self, piece: Piece, columns: Sequence[str], prepared: Prepared) -> Decoder:
        """The base's rows of the piece."""
        under: Under = prepared.facts
        below = under.piece(piece)
        decoder = self.over.decode(below, columns, under.prepared)
        return decoder or LocalRows(self.over, below, columns, under)


def recounted(cut: ObjectCut, counted: Sequence[Counted]) -> ObjectCut:
    """The object's cut with what was found in its pieces; those without rows are left out."""
    table = Cuts.of(cut.pieces).table.copy()
    table[:, 0] = [found.rows for found in counted]
    table[:, 5] = [found.decoded_bytes for found in counted]
    return ObjectCut(Cuts(table[table[:, 0] > 0]), cut.schema, cut.dropped, sums(found.counts for found in counted))


def sums(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The counts added up by name."""
    total: dict[str, int] = {}
    for some in counts:
        for name, count in some.items():
            total[name] = total.get(name, 0) + count
    return total


class LocalRows:
    """The `Decoder` of any format: brings the piece into its local layout in memory, and reads that."""

    def __init__(self, format: Format, piece: Piece, columns: Sequence[str], under: Under) -> None:
        self._format, self._piece = format, piece
        self._fields = [_field(under.cut.schema, name, piece) for name in columns]
        self._local = bytearray()
        self._localiser = format.localise(piece, columns, self._local.extend, under.prepared)
        self.ranges: Sequence[ByteRange] = self._localiser.ranges
        self._is_arrow = format.layout == arrow_layout.NAME
        decoded = piece.cut.decoded_bytes
        self.batch_bytes = decoded if self._is_arrow else min(decoded, _BATCH_BYTES)
        self.memory_bytes = self._localiser.memory_bytes + decoded + 2 * self.batch_bytes

    def write(self, chunk: Buffer) -> None:
        self._localiser.write(chunk)

    def batches(self) -> Iterator[pa.RecordBatch]:
        self._localiser.finish()
        if self._is_arrow:
            yield from read_batches(memoryview(self._local), self._piece)
        else:
            yield from self._gathered()

    def counts(self) -> Mapping[str, int]:
        return {}

    def _gathered(self) -> Iterator[pa.RecordBatch]:
        columns = {field.name: column_of(field) for field in self._fields}
        reader = self._format.open(memoryview(self._local), self._piece, columns)
        step = max(1, reader.rows * self.batch_bytes // max(1, self._piece.cut.decoded_bytes))
        for start in range(0, reader.rows, step):
            rows = np.arange(start, min(start + step, reader.rows), dtype=np.int64)
            arrays = [_array(reader, field, columns[field.name], rows) for field in self._fields]
            yield arrow_layout.one_of_many(pa.record_batch(arrays, names=list(columns)))


def place_of(piece: Piece) -> str:
    """The piece as messages name it."""
    return f"{piece.object.key!r} (piece {piece.index})"


def found_field(obj: ObjectInfo, schema: pa.Schema, name: str, option: str) -> pa.Field:
    """The field of a column that an option names. Raises `ColumnNotFound`."""
    if name not in schema.names:
        raise ColumnNotFound(
            f"{obj.key!r} has no column {name!r}, which {option} names: it has {', '.join(schema.names)}"
        )
    return schema.field(name)


def _field(schema: pa.Schema, name: str, piece: Piece) -> pa.Field:
    return found_field(piece.object, schema, name, "the dataset")


def _array(reader: PieceReader, field: pa.Field, column: Column, rows: Rows) -> pa.Array:
    if column.dtype is None:
        return pa.array(reader.values(field.name, rows), field.type)
    out: Any = np.empty((len(rows), *column.shape), column.dtype)
    reader.take(field.name, rows, out)
    is_bool = column.dtype == np.bool_
    array = numbers(out.reshape(-1).view(np.uint8) if is_bool else out.reshape(-1))
    for size in reversed(column.shape):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array
