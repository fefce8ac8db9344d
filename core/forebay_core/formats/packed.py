"""Sequence packing: documents of another format joined and cut into sequences of equal length.

A piece's sequences are made of the piece's own documents, so that a row is always the same sequence, whatever was read
before it: every promise of the order holds for sequences as for any rows. The local layout is the sequences end to end
in native byte order, as token files have it, and is gathered from as fast.
"""

from collections.abc import Callable, Mapping, Sequence
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
    Counted,
    Decoder,
    Format,
    ObjectInfo,
    Piece,
    Prepared,
    Rows,
    Sink,
)
from forebay_core.formats.derived import Derived, found_field, place_of
from forebay_core.formats.documents import RUN_MEMORY_BYTES, Documents
from forebay_core.formats.packing import Packing
from forebay_core.formats.tokens import COLUMN, TokenReader

DOCUMENTS, TOKENS, DROPPED, PADDED = "documents", "tokens", "dropped_tokens", "padded_tokens"
_Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Packed(Derived):
    """The documents of `base` as sequences: one column, "tokens"."""

    base: Format | None
    packing: Packing

    name: ClassVar[str] = "packed"
    layout: ClassVar[str] = "packed-1"
    extensions: ClassVar[tuple[str, ...]] = ()
    as_is: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.packing, Packing):
            raise ConfigurationError(f"packing={self.packing!r}: give forebay.Packing(sequence_length, column, …)")

    def spec(self) -> dict[str, Any]:
        return self._spec(None if self.base is None else self.base.spec(), self.packing.spec())

    def identity(self) -> dict[str, Any]:
        return self._spec(self.over.identity(), self.packing.identity())

    def _spec(self, base: dict[str, Any] | None, packing: dict[str, Any]) -> dict[str, Any]:
        return {"name": self.name, "cut": "packed-1", "base": base, "packing": packing}

    def derived_schema(self, obj: ObjectInfo, schema: pa.Schema) -> pa.Schema:
        field = found_field(obj, schema, self.packing.column, "Packing(column=…)")
        Documents(self.packing, field.type, f"column {field.name!r} of {obj.key!r}")
        token = pa.from_numpy_dtype(self.packing.token)
        return pa.schema([pa.field(COLUMN, pa.list_(token, self.packing.sequence_length))])

    def localise(self, piece: Piece, columns: Sequence[str], sink: Sink, prepared: Prepared) -> "PackedLocaliser":
        for name in columns:
            if name != COLUMN:
                raise ColumnNotFound(f"packed sequences have no column {name!r}, only {COLUMN!r}")
        return self._localiser(piece, sink, prepared, rows=piece.cut.rows)

    def count(self, piece: Piece, prepared: Prepared) -> "PackedLocaliser":
        return self._localiser(piece, lambda _: None, prepared, rows=None)

    def _localiser(self, piece: Piece, sink: Sink, prepared: Prepared, *, rows: int | None) -> "PackedLocaliser":
        decoder = self.base_decoder(piece, [self.packing.column], prepared)
        return PackedLocaliser(decoder, self.packing, piece, sink, rows=rows)

    def open(self, buffer: memoryview, piece: Piece, columns: Mapping[str, Column]) -> TokenReader:
        return TokenReader(buffer, piece, columns, None)

    def rows_lie_end_to_end(self) -> bool:
        return True

    def why_empty(self, counts: Mapping[str, int]) -> str:
        if not counts.get(TOKENS):
            return f"column {self.packing.column!r} has no token: {self.over.why_empty(counts)}"
        return (
            f"no piece has the {self.packing.sequence_length} tokens of a sequence, all have {counts[TOKENS]}: "
            f"take a shorter sequence, larger pieces, or remainder='pad'"
        )


class Packer:
    """Joins documents, and emits whole sequences as one array after the other."""

    def __init__(self, packing: Packing, emit: Callable[[_Array], object], where: str) -> None:
        self._packing, self._emit, self._where = packing, emit, where
        self._left: _Array = np.empty(0, packing.token)
        self.rows = self.documents = self.tokens = self.dropped = self.padded = 0

    def add(self, values: _Array, sizes: Rows) -> None:
        """Takes documents: their ids end to end, and how many each has. Raises `BadObject`."""
        sizes = sizes[sizes > 0]
        self._check(values)
        joined = self._with_separators(values, sizes)
        self.documents += len(sizes)
        self.tokens += len(joined)
        self._write(np.concatenate([self._left, joined]))

    def finish(self) -> None:
        """Drops or pads what fills no sequence."""
        left = len(self._left)
        if left and self._packing.remainder == "pad":
            self.padded = self._packing.sequence_length - left
            self._write(np.concatenate([self._left, np.full(self.padded, self._packing.pad, self._packing.token)]))
        self.dropped = len(self._left)

    def counts(self) -> dict[str, int]:
        return {DOCUMENTS: self.documents, TOKENS: self.tokens, DROPPED: self.dropped, PADDED: self.padded}

    def _check(self, values: _Array) -> None:
        info = np.iinfo(self._packing.token)
        if len(values) and (values.min() < info.min or values.max() > info.max):
            worst = int(values.max() if values.max() > info.max else values.min())
            raise BadObject(
                f"{self._where} has the token id {worst}, which {info.dtype} cannot hold: "
                f"mend it in the data, or give Packing(dtype='int64')"
            )

    def _with_separators(self, values: _Array, sizes: Rows) -> _Array:
        if self._packing.separator is None:
            return values.astype(self._packing.token)
        joined: _Array = np.full(len(values) + len(sizes), self._packing.separator, self._packing.token)
        is_value = np.ones(len(joined), bool)
        is_value[np.cumsum(sizes + 1) - 1] = False
        joined[is_value] = values
        return joined

    def _write(self, tokens: _Array) -> None:
        rows, left = divmod(len(tokens), self._packing.sequence_length)
        whole = len(tokens) - left
        if rows:
            self._emit(tokens[:whole])
        self.rows += rows
        self._left = tokens[whole:].copy()


class PackedLocaliser:
    """Packs one piece into a sink, or into none to count its sequences. `rows`: what the manifest says, if any."""

    def __init__(self, decoder: Decoder, packing: Packing, piece: Piece, sink: Sink, *, rows: int | None) -> None:
        self._decoder, self._packing, self._piece, self._stated = decoder, packing, piece, rows
        self._where = f"column {packing.column!r} of {place_of(piece)}"
        self._packer = Packer(packing, lambda tokens: sink(tokens.tobytes()), self._where)
        self.ranges: Sequence[ByteRange] = decoder.ranges
        self.memory_bytes = decoder.memory_bytes + RUN_MEMORY_BYTES
        self._is_stopped = False

    def write(self, chunk: Buffer) -> None:
        self._decoder.write(chunk)

    def finish(self) -> None:
        for batch in self._decoder.batches():
            column = batch.column(self._packing.column)
            for values, sizes in Documents(self._packing, column.type, self._where).runs(column):
                if self._is_stopped:
                    return
                self._packer.add(values, sizes)
        self._packer.finish()
        if self._stated not in (None, self._packer.rows):
            raise BadObject(
                f"{place_of(self._piece)} packs into {self._packer.rows} sequences here, into {self._stated} when "
                f"it was indexed: is the tokenizers library another one? index the data anew"
            )

    def counted(self) -> Counted:
        rows = self._packer.rows
        size = rows * self._packing.sequence_length * self._packing.token.itemsize
        return Counted(rows, size, {**self._decoder.counts(), **self._packer.counts()})

    def stop(self) -> None:
        self._is_stopped = True
