"""Writing the local layout "arrow-1": one piece as an uncompressed Arrow IPC file that is read by views alone.

What holds in such a file, whatever the object looked like:

* exactly the wanted columns, in the wanted order, in plain types (no extensions, no views);
* a boolean, alone or in lists of a fixed size, takes one byte;
* under a null of a fixed-width float column, and under its null items, lies NaN;
* only text in a column of its own may be dictionary-encoded, and only where the file is one record batch.

`arrow_reader` is the other side. Runs on a worker thread of the daemon; holds one batch in memory.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types

from forebay_core.arrow_arrays import dtype_of
from forebay_core.formats.base import Buffer, ByteRange, Decoder, Sink
from forebay_core.formats.columns import is_text, plain

#: The layout's name, by which others know that it is this one.
NAME = "arrow-1"
#: A dictionary with more than this share of the rows saves nothing, and costs a look-up.
_WORTHWHILE_DICTIONARY = 0.5


def whole(table: pa.Table) -> list[pa.RecordBatch]:
    """A table in memory as the batches of a local file: one, unless a column is too large for its offsets."""
    columns = [_encoded(column) for column in table.columns]
    local = pa.table(columns, names=table.column_names).combine_chunks()
    return [_rebuilt(batch) for batch in local.to_batches()]


def one_of_many(batch: pa.RecordBatch) -> pa.RecordBatch:
    """One of several batches of a local file: nothing stays dictionary-encoded."""
    columns = [array.cast(_local_type(array.type)) for array in map(_storage, batch.columns)]
    return _rebuilt(pa.record_batch(columns, names=batch.schema.names))


def write(batches: Iterable[pa.RecordBatch], sink: Sink) -> None:
    """Writes the batches, all of one schema and at least one, as one file into the sink."""
    batches = iter(batches)
    first = next(batches)
    with pa.ipc.new_file(_SinkFile(sink), first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)


class ArrowLocaliser:
    """Writes the batches of a decoder as one local file."""

    def __init__(self, decoder: Decoder, sink: Sink) -> None:
        self._decoder, self._sink = decoder, sink
        self.ranges: Sequence[ByteRange] = decoder.ranges
        self.memory_bytes = decoder.memory_bytes

    def write(self, chunk: Buffer) -> None:
        self._decoder.write(chunk)

    def finish(self) -> None:
        write(self._decoder.batches(), self._sink)


def _encoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column in local types, text still dictionary-encoded where that is worth it."""
    if not (types.is_dictionary(column.type) and is_text(column.type.value_type)):
        column = _storage(column)
        return column.cast(_local_type(column.type))
    column = column.cast(pa.dictionary(pa.int32(), column.type.value_type)).unify_dictionaries()
    distinct = len(column.chunk(0).dictionary) if column.num_chunks else 0
    return column.cast(column.type.value_type) if distinct > len(column) * _WORTHWHILE_DICTIONARY else column


def _storage(array: Any) -> Any:
    return array.cast(array.type.storage_type) if isinstance(array.type, pa.BaseExtensionType) else array


def _local_type(kind: pa.DataType) -> pa.DataType:
    kind = plain(kind)
    if types.is_boolean(kind):
        return pa.uint8()
    if types.is_fixed_size_list(kind):
        return pa.list_(_local_type(kind.value_type), kind.list_size)
    return kind


def _rebuilt(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [_with_nan(array) for array in batch.columns]
    return pa.record_batch(columns, names=batch.schema.names)


def _with_nan(array: pa.Array) -> pa.Array:
    """The array with NaN under its nulls where it is of floats, or of fixed lists of floats."""
    leaf = array.type
    while types.is_fixed_size_list(leaf):
        leaf = leaf.value_type
    return _filled(array, np.zeros(len(array), bool)) if types.is_floating(leaf) and _has_nulls(array) else array


def _has_nulls(array: pa.Array) -> bool:
    return bool(array.null_count) or (types.is_fixed_size_list(array.type) and _has_nulls(_items(array)))


def _items(array: pa.Array) -> pa.Array:
    """All items of an array of fixed lists, also those under a null."""
    size = array.type.list_size
    return array.values.slice(array.offset * size, len(array) * size)


def _filled(array: pa.Array, hidden: npt.NDArray[np.bool_]) -> pa.Array:
    """`hidden`: bool [len(array)], the items that lie under a null further out."""
    null = array.is_null().to_numpy(zero_copy_only=False)
    if types.is_fixed_size_list(array.type):
        size = array.type.list_size
        items = _filled(_items(array), np.repeat(hidden | null, size))
        return pa.FixedSizeListArray.from_arrays(items, type=array.type, mask=pa.array(null))
    everything = np.frombuffer(array.buffers()[1], dtype_of(array.type))
    values = everything[array.offset : array.offset + len(array)].copy()
    values[hidden | null] = np.nan
    return pa.array(values, array.type, mask=null)


class _SinkFile:
    """A sink as the file that pyarrow writes to."""

    closed = False

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._position = 0

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        content = bytes(data)  # its memory is Arrow's, for the time of this call
        self._sink(content)
        self._position += len(content)
        return len(content)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True
