"""Token files: flat `.bin` and `.npy`, read where they lie or copied as they are.

A sample is `sequence_length` tokens, a row of the one column "tokens"; samples do not overlap, and tokens at the end of
a file that fill no sample are dropped (`ObjectCut.dropped` says how many). Pieces are ranges of the file, so that one
file of any size is cut by arithmetic.
"""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay_core.errors import BadObject, ColumnNotFound, ConfigurationError
from forebay_core.formats.base import (
    Buffer,
    ByteRange,
    Column,
    Cuts,
    Format,
    Localiser,
    ObjectCut,
    ObjectInfo,
    Piece,
    PieceReader,
    Prepared,
    Rows,
    Sink,
    Steps,
)
from forebay_core.formats.options import positive

COLUMN = "tokens"
_NPY = ".npy"
_HEADER_BYTES = 4096
#: What a `_TokenArray` takes in memory.
_ARRAY_BYTES = 200


@dataclass(frozen=True)
class Tokens(Format):
    """Token files, with the extensions .bin and .npy.

    `sequence_length`: tokens in a sample. `dtype`: of a token, an integer type such as "uint16" or ">u4"; a `.npy` file
    carries its own, which must be the same where both are given. `piece_bytes`: bytes of a piece at the most, unless
    one sample is larger; the default is as long as one request of a fill, see `Parquet`.
    """

    sequence_length: int
    dtype: str | None = None
    piece_bytes: int = 8 << 20

    name: ClassVar[str] = "tokens"
    layout: ClassVar[str] = "raw-1"
    extensions: ClassVar[tuple[str, ...]] = (".bin", _NPY)
    as_is: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive("Tokens(sequence_length=…)", self.sequence_length)
        positive("Tokens(piece_bytes=…)", self.piece_bytes)
        if self.dtype is not None:
            object.__setattr__(self, "dtype", _canonical(self.dtype))

    def spec(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "cut": "tokens-1",
            "sequence_length": self.sequence_length,
            "dtype": self.dtype,
            "piece_bytes": self.piece_bytes,
        }

    def prepare(self, obj: ObjectInfo) -> Steps[Prepared]:
        array = (yield from _npy(obj, self)) if obj.key.lower().endswith(_NPY) else _flat(obj, self)
        return Prepared(array, _ARRAY_BYTES)

    def cut(self, obj: ObjectInfo, prepared: Prepared) -> ObjectCut:
        array: _TokenArray = prepared.facts
        samples, dropped = divmod(array.tokens, self.sequence_length)
        token = pa.from_numpy_dtype(array.dtype.newbyteorder("="))
        schema = pa.schema([pa.field(COLUMN, pa.list_(token, self.sequence_length))])
        sample_bytes = self.sequence_length * array.dtype.itemsize
        return ObjectCut(_pieces(samples, sample_bytes, array.start, self.piece_bytes), schema, dropped)

    def localise(self, piece: Piece, columns: Sequence[str], sink: Sink, prepared: Prepared) -> Localiser:
        return _Copy(piece, sink)

    def open(self, buffer: memoryview, piece: Piece, columns: Mapping[str, Column]) -> "TokenReader":
        return TokenReader(buffer, piece, columns, self.dtype)

    def rows_lie_end_to_end(self) -> bool:
        return self.dtype is None or np.dtype(self.dtype).isnative


class TokenReader(PieceReader):
    """Sequences of one piece that lie end to end in the local file. Every row given must lie in [0, rows)."""

    def __init__(self, buffer: memoryview, piece: Piece, columns: Mapping[str, Column], dtype: str | None) -> None:
        for name in columns:
            _only_tokens(name)
        column = columns[COLUMN]
        token = np.dtype(dtype or column.dtype)
        expected = piece.cut.rows * math.prod(column.shape) * token.itemsize
        if len(buffer) != expected:
            raise BadObject(f"{piece.object.key!r} (piece {piece.index}) has {len(buffer)} bytes here, not {expected}")
        self.rows = piece.cut.rows
        self._native = column.dtype
        self._view: npt.NDArray[Any] = np.frombuffer(buffer, token).reshape(self.rows, *column.shape)

    def take(self, name: str, rows: Rows, out: npt.NDArray[Any]) -> None:
        _only_tokens(name)
        if self._view.dtype.isnative:
            np.take(self._view, rows, axis=0, out=out, mode="clip")
        else:
            out[...] = self._view[rows]

    def values(self, name: str, rows: Rows) -> list[Any]:
        raise ColumnNotFound(f"a token file has no column {name!r} of loose values: take its column {COLUMN!r}")

    def sample(self, row: int, names: Sequence[str]) -> dict[str, Any]:
        for name in names:
            _only_tokens(name)
        return {name: self._view[row].astype(self._native) for name in names}


class _Copy:
    """Passes a piece's bytes on as they are."""

    def __init__(self, piece: Piece, sink: Sink) -> None:
        self._piece, self._sink = piece, sink
        self.ranges: Sequence[ByteRange] = [ByteRange(piece.cut.start, piece.cut.stop)]
        self.memory_bytes = 0
        self._missing = piece.cut.stop - piece.cut.start

    def write(self, chunk: Buffer) -> None:
        self._missing -= memoryview(chunk).nbytes
        self._sink(chunk)

    def finish(self) -> None:
        if self._missing:
            raise BadObject(f"{self._piece.object.key!r} (piece {self._piece.index}) is short of {self._missing} bytes")


@dataclass(frozen=True, slots=True)
class _TokenArray:
    """Where the tokens lie in an object."""

    start: int
    tokens: int
    dtype: np.dtype[Any]


def _pieces(samples: int, sample_bytes: int, start: int, piece_bytes: int) -> Cuts:
    """The cut rule "tokens-1": as many whole samples as `piece_bytes` holds, at least one."""
    each = max(1, piece_bytes // sample_bytes)
    first = np.arange(0, samples, each, dtype=np.int64)
    rows = np.minimum(each, samples - first)
    starts = start + first * sample_bytes
    decoded = rows * sample_bytes
    return Cuts(np.column_stack([rows, starts, starts + decoded, first, rows, decoded]))


def _flat(obj: ObjectInfo, options: Tokens) -> _TokenArray:
    if options.dtype is None:
        raise ConfigurationError(
            f"{obj.key!r} does not say what type its tokens have: give Tokens(dtype=…), say 'uint16'"
        )
    dtype = np.dtype(options.dtype)
    if obj.size % dtype.itemsize:
        raise BadObject(f"{obj.key!r} has {obj.size} bytes, no whole number of {dtype.name} tokens: is dtype= right?")
    return _TokenArray(0, obj.size // dtype.itemsize, dtype)


def _npy(obj: ObjectInfo, options: Tokens) -> Steps[_TokenArray]:
    head = ByteRange(0, min(obj.size, _HEADER_BYTES))
    (data,) = yield [head]
    stop = _header_stop(bytes(data[:12]))
    if head.stop < stop <= obj.size:
        (data,) = yield [ByteRange(0, stop)]
    try:
        shape, fortran, dtype, start = _parse(bytes(data))
    except (ValueError, EOFError) as error:
        raise BadObject(f"{obj.key!r} is not a .npy file that can be read ({error})") from error
    _check(obj, options, shape, fortran, dtype)
    tokens = int(np.prod(shape, dtype=object))
    stated = start + tokens * dtype.itemsize
    if stated != obj.size:
        raise BadObject(f"{obj.key!r} has {obj.size} bytes, its header says {stated}: is it truncated?")
    return _TokenArray(start, tokens, dtype)


def _header_stop(prefix: bytes) -> int:
    """Where the header ends, as its first 12 bytes say; 0 where that is not to be seen."""
    if len(prefix) < 12:
        return 0
    width = 2 if prefix[6] == 1 else 4
    return 8 + width + int.from_bytes(prefix[8 : 8 + width], "little")


def _parse(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"version {version} is for named fields, not for tokens")
    shape, fortran, dtype = read(file)
    return shape, fortran, dtype, file.tell()


def _check(obj: ObjectInfo, options: Tokens, shape: tuple[int, ...], fortran: bool, dtype: np.dtype[Any]) -> None:
    if dtype.kind not in "iu":
        raise BadObject(f"{obj.key!r} holds {dtype}, not whole numbers: tokens must be of an integer type")
    if fortran and len(shape) > 1:
        raise BadObject(f"{obj.key!r} is in Fortran order: save it with numpy.ascontiguousarray")
    if len(shape) != 1 and not (len(shape) == 2 and shape[1] == options.sequence_length):
        raise BadObject(
            f"{obj.key!r} has the shape {shape}: it must be 1-D, or 2-D with rows of {options.sequence_length} tokens"
        )
    if options.dtype is not None and dtype != np.dtype(options.dtype):
        raise BadObject(f"{obj.key!r} holds {dtype.str} tokens, not {options.dtype}: correct Tokens(dtype=…)")
    if options.dtype is None and not dtype.isnative:
        raise BadObject(f"{obj.key!r} holds tokens in another byte order: give Tokens(dtype={dtype.str!r})")


def _canonical(dtype: object) -> str:
    try:
        parsed = np.dtype(dtype)  # type: ignore[call-overload]
    except TypeError:
        parsed = None
    if parsed is None or parsed.kind not in "iu":
        raise ConfigurationError(f"Tokens(dtype={dtype!r}) is no integer type: give one such as 'uint16' or 'int32'")
    return str(parsed.name if parsed.isnative else parsed.str)


def _only_tokens(name: str) -> None:
    if name != COLUMN:
        raise ColumnNotFound(f"a token file has no column {name!r}, only {COLUMN!r}")
