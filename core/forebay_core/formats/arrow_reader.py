"""Reading the local layout "arrow-1": rows of a piece over its mapped file, without a copy until they are taken.

A fixed-width column is a numpy view of the mapping, made once; a batch is one `np.take` into the caller's array. Where
a row has no value: floats give NaN; whole numbers and booleans cannot say it, so taking such a row raises `BadObject`;
`values` and `sample` give None. Nulls are only looked for in columns that have some.

Made and called in a trainer's workers, by any number of threads.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types

from forebay_core.arrow_arrays import as_numpy, dtype_of, numbers
from forebay_core.errors import BadObject, ColumnNotFound
from forebay_core.formats.base import Column, Piece, PieceReader, Rows
from forebay_core.formats.columns import is_list, is_number, is_text

_Array = npt.NDArray[Any]
_Mask = npt.NDArray[np.bool_]


class ArrowReader(PieceReader):
    """Rows of one piece in the layout "arrow-1". Every row given must lie in [0, rows)."""

    def __init__(self, buffer: memoryview, piece: Piece, columns: Mapping[str, Column]) -> None:
        self._piece = piece
        batches = read_batches(buffer, piece)
        lengths = np.array([batch.num_rows for batch in batches], dtype=np.int64)
        self._starts = np.cumsum(lengths) - lengths
        self.rows = int(lengths.sum())
        if self.rows != piece.cut.rows:
            raise BadObject(f"{_where(piece)} has {self.rows} rows, its manifest says {piece.cut.rows}: index it anew")
        self._fixed: dict[str, list[_Fixed]] = {}
        self._loose: dict[str, list[pa.Array]] = {}
        for name, column in columns.items():
            arrays = [_array(batch, name, piece) for batch in batches]
            if column.dtype is None:
                self._loose[name] = arrays
            else:
                self._fixed[name] = [_Fixed(array, column, piece) for array in arrays]

    def take(self, name: str, rows: Rows, out: npt.NDArray[Any]) -> None:
        parts = self._parts(self._fixed, name)
        if len(parts) == 1:
            with self._naming(name, 0):
                parts[0].take(rows, out)
            return
        for batch, places, local in self._by_batch(rows):
            taken = np.empty((len(local), *out.shape[1:]), out.dtype)
            with self._naming(name, batch):
                parts[batch].take(local, taken)
            out[places] = taken

    def values(self, name: str, rows: Rows) -> list[Any]:
        parts = self._parts(self._loose, name)
        if len(parts) == 1:
            with self._naming(name, 0):
                return _values(parts[0], rows)
        result: list[Any] = [None] * len(rows)
        for batch, places, local in self._by_batch(rows):
            with self._naming(name, batch):
                for place, value in zip(places, _values(parts[batch], local), strict=True):
                    result[place] = value
        return result

    def sample(self, row: int, names: Sequence[str]) -> dict[str, Any]:
        batch = int(np.searchsorted(self._starts, row, side="right")) - 1
        local = row - int(self._starts[batch])
        sample: dict[str, Any] = {}
        for name in names:
            with self._naming(name, batch):
                if name in self._fixed:
                    sample[name] = self._fixed[name][batch].sample(local)
                else:
                    sample[name] = _values(self._parts(self._loose, name)[batch], np.array([local]))[0]
        return sample

    def _by_batch(self, rows: Rows) -> Iterator[tuple[int, Rows, Rows]]:
        """For each batch that holds some of the rows: its index, their places in `rows`, their rows in the batch."""
        batch_of = np.searchsorted(self._starts, rows, side="right") - 1
        # Without return_index NumPy 2.4 hashes, which takes up to fifty times as long.
        for batch in np.unique(batch_of, return_index=True)[0]:
            places = np.flatnonzero(batch_of == batch)
            yield int(batch), places, rows[places] - self._starts[batch]

    def _parts(self, columns: "dict[str, list[_Part]]", name: str) -> "list[_Part]":
        try:
            return columns[name]
        except KeyError:
            raise ColumnNotFound(f"{_where(self._piece)} was opened without such a column {name!r}") from None

    @contextmanager
    def _naming(self, name: str, batch: int) -> Iterator[None]:
        try:
            yield
        except _NullRow as null:
            row = int(self._starts[batch]) + null.row
            raise BadObject(
                f"{_where(self._piece)} has a null in column {name!r} at row {row} of the piece, which an array of "
                f"whole numbers or booleans cannot hold: fill it in the data, or leave the column out with columns="
            ) from None
        except _Unreadable as error:
            raise BadObject(
                f"{_where(self._piece)} has a value in column {name!r} that cannot be read ({error}): "
                f"mend it in the data, or leave the column out with columns="
            ) from error


class _NullRow(Exception):
    """A row of a batch that has no value where one must be."""

    def __init__(self, row: int) -> None:
        self.row = row


class _Unreadable(Exception):
    """A value that Python cannot hold, such as text that is not UTF-8."""


class _Fixed:
    """A fixed-width column of one batch."""

    def __init__(self, array: pa.Array, column: Column, piece: Piece) -> None:
        assert column.dtype is not None
        levels = [array]
        while types.is_fixed_size_list(levels[-1].type):
            levels.append(levels[-1].values)
        leaf = levels[-1]
        wanted = np.dtype(np.uint8) if column.dtype == np.bool_ else column.dtype
        shape = (len(array), *column.shape)
        if not is_number(leaf.type) or dtype_of(leaf.type) != wanted or len(leaf) != math.prod(shape):
            raise BadObject(f"{_where(piece)} holds column {column.name!r} as {array.type}, not as its manifest says")
        data = leaf.buffers()[1] if len(leaf) else b""
        self._view: _Array = np.frombuffer(data, column.dtype, len(leaf)).reshape(shape)
        self._levels = levels
        self._has_null = any(level.null_count for level in levels)
        self._needs_value = self._has_null and column.dtype.kind != "f"

    def take(self, rows: Rows, out: _Array) -> None:
        if self._needs_value:
            nulls = self._nulls[rows]
            if nulls.any():
                raise _NullRow(int(rows[nulls.argmax()]))
        np.take(self._view, rows, axis=0, out=out, mode="clip")

    def sample(self, row: int) -> Any:
        if self._has_null:
            if not self._levels[0][row].is_valid:
                return None
            if self._needs_value and self._nulls[row]:
                raise _NullRow(row)
        value = self._view[row]
        return value.copy() if isinstance(value, np.ndarray) else value

    @cached_property
    def _nulls(self) -> _Mask:
        """Bool [rows]: rows that are null or have a null item."""
        nulls = np.zeros(len(self._view), bool)
        for level in self._levels:
            if level.null_count:
                nulls |= _is_null(level).reshape(len(nulls), -1).any(axis=1)
        return nulls


_Part = Any


def _values(array: pa.Array, rows: Rows) -> list[Any]:
    if is_list(array.type) and is_number(array.type.value_type):
        return [_numbers(array, row) for row in rows.tolist()]
    taken = array.take(numbers(rows))
    if types.is_dictionary(taken.type):
        taken = taken.dictionary_decode()
    try:
        return list(taken.to_pylist())
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise _Unreadable("not UTF-8" if is_text(taken.type) else str(error)) from error


def _numbers(array: pa.Array, row: int) -> _Array | None:
    values = array[row].values
    if values is None:
        return None
    if values.null_count and not types.is_floating(values.type):
        raise _NullRow(row)
    if values.null_count or types.is_boolean(values.type):
        numbers: _Array = values.to_numpy(zero_copy_only=False)
        return numbers if numbers.flags.writeable else numbers.copy()
    return as_numpy(values, dtype_of(values.type)).copy()


def _is_null(array: pa.Array) -> _Mask:
    mask: _Mask = array.is_null().to_numpy(zero_copy_only=False)
    return mask


def read_batches(buffer: memoryview, piece: Piece) -> list[pa.RecordBatch]:
    """The batches of a mapped local file, without a copy. Raises `BadObject` where it is damaged."""
    try:
        file = pa.ipc.open_file(pa.py_buffer(buffer))
        return [file.get_batch(index) for index in range(file.num_record_batches)]
    except (pa.ArrowException, OSError) as error:
        raise BadObject(f"{_where(piece)} has a damaged local file ({error})") from error


def _array(batch: pa.RecordBatch, name: str, piece: Piece) -> pa.Array:
    index = batch.schema.get_field_index(name)
    if index < 0:
        raise ColumnNotFound(f"{_where(piece)} has no column {name!r}")
    return batch.column(index)


def _where(piece: Piece) -> str:
    return f"shard {piece.object.key!r} (piece {piece.index})"
