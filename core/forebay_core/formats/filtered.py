"""Rows of another format that match a filter; the others are in no piece, no cache and no order.

A fill fetches the wanted columns and the filter's, and writes the wanted ones of the matching rows as Arrow IPC. The
count of a piece's rows, when a manifest is built, fetches the filter's columns alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from forebay_core.errors import BadObject, ConfigurationError
from forebay_core.formats import arrow_layout
from forebay_core.formats.arrow_reader import ArrowReader
from forebay_core.formats.base import (
    Buffer,
    ByteRange,
    Column,
    Counted,
    Decoder,
    Format,
    Localiser,
    ObjectInfo,
    Piece,
    Prepared,
    Sink,
)
from forebay_core.formats.derived import Derived, found_field, place_of
from forebay_core.formats.predicate import Predicate

ROWS, MATCHING = "rows", "matching_rows"
#: Matching rows are there once as they were chosen, and once more while they are brought into the local layout.
_CHOSEN_COPIES = 2


@dataclass(frozen=True)
class Filtered(Derived):
    """Rows of `base` for which `where` holds; see `forebay_core.formats.predicate` for its form."""

    base: Format | None
    where: Predicate

    name: ClassVar[str] = "filtered"
    layout: ClassVar[str] = "filtered-1"
    extensions: ClassVar[tuple[str, ...]] = ()
    as_is: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "where", Predicate.parse(self.where))

    def spec(self) -> dict[str, Any]:
        return self._spec(None if self.base is None else self.base.spec())

    def identity(self) -> dict[str, Any]:
        return self._spec(self.over.identity())

    def _spec(self, base: dict[str, Any] | None) -> dict[str, Any]:
        return {"name": self.name, "cut": "filtered-1", "base": base, "where": self.where.spec()}

    def derived_schema(self, obj: ObjectInfo, schema: pa.Schema) -> pa.Schema:
        for name in self.where.columns:
            found_field(obj, schema, name, "where=")
        try:
            self.where.check(schema)
        except ConfigurationError as error:
            raise ConfigurationError(f"{obj.key!r} cannot be filtered: {error}") from error
        return schema

    def decode(self, piece: Piece, columns: Sequence[str], prepared: Prepared) -> "FilteredDecoder":
        read = list(dict.fromkeys([*columns, *self.where.columns]))
        return FilteredDecoder(
            self.base_decoder(piece, read, prepared), self.where, columns, self.base_schema(prepared)
        )

    def localise(self, piece: Piece, columns: Sequence[str], sink: Sink, prepared: Prepared) -> Localiser:
        return arrow_layout.ArrowLocaliser(_Exactly(self.decode(piece, columns, prepared), piece), sink)

    def count(self, piece: Piece, prepared: Prepared) -> "FilteredCounter":
        decoder = self.base_decoder(piece, self.where.columns, prepared)
        return FilteredCounter(decoder, self.where, self.base_schema(prepared), piece.cut.decoded_bytes)

    def open(self, buffer: memoryview, piece: Piece, columns: Mapping[str, Column]) -> ArrowReader:
        return ArrowReader(buffer, piece, columns)

    def why_empty(self, counts: Mapping[str, int]) -> str:
        return f"none of their {counts.get(ROWS, 0)} rows matches {self.where}"


class FilteredDecoder:
    """The matching rows of what another decoder gives, in these columns."""

    def __init__(self, decoder: Decoder, where: Predicate, columns: Sequence[str], schema: pa.Schema) -> None:
        self._decoder, self._where, self._columns = decoder, where, list(columns)
        self.ranges: Sequence[ByteRange] = decoder.ranges
        self.batch_bytes = decoder.batch_bytes
        self.memory_bytes = decoder.memory_bytes + _CHOSEN_COPIES * decoder.batch_bytes
        self._schema = schema
        self._rows = self._matching = 0

    def write(self, chunk: Buffer) -> None:
        self._decoder.write(chunk)

    def batches(self) -> Iterator[pa.RecordBatch]:
        chosen = self._chosen()
        first, second = next(chosen, None), next(chosen, None)
        if first is None:
            return
        if second is None:
            yield from arrow_layout.whole(pa.Table.from_batches([first]))
            return
        for batch in (first, second):
            yield arrow_layout.one_of_many(batch)
        del first, second
        for batch in chosen:
            yield arrow_layout.one_of_many(batch)

    def counts(self) -> Mapping[str, int]:
        return {ROWS: self._rows, MATCHING: self._matching}

    def _chosen(self) -> Iterator[pa.RecordBatch]:
        """The matching rows of each batch that has some."""
        for batch in self._decoder.batches():
            mask = self._where.mask(batch, self._schema)
            matching = mask.true_count
            self._rows += batch.num_rows
            self._matching += matching
            if matching:
                wanted = batch.select(self._columns)
                yield wanted if matching == batch.num_rows else wanted.filter(mask)


class FilteredCounter:
    """Counts the matching rows of a piece."""

    def __init__(self, decoder: Decoder, where: Predicate, schema: pa.Schema, decoded_bytes: int) -> None:
        self._decoder, self._where, self._decoded_bytes = decoder, where, decoded_bytes
        self.ranges: Sequence[ByteRange] = decoder.ranges
        self.memory_bytes = decoder.memory_bytes
        self._is_stopped = False
        self._schema = schema
        self._rows = self._matching = 0

    def write(self, chunk: Buffer) -> None:
        self._decoder.write(chunk)

    def finish(self) -> None:
        for batch in self._decoder.batches():
            if self._is_stopped:
                return
            self._rows += batch.num_rows
            self._matching += self._where.mask(batch, self._schema).true_count

    def counted(self) -> Counted:
        """The bytes are the matching rows' share of those of all rows."""
        share = -(-self._decoded_bytes * self._matching // max(1, self._rows))
        return Counted(self._matching, share, {ROWS: self._rows, MATCHING: self._matching})

    def stop(self) -> None:
        self._is_stopped = True


class _Exactly:
    """A decoder whose rows must be as many as the manifest says."""

    def __init__(self, decoder: Decoder, piece: Piece) -> None:
        self._decoder, self._piece = decoder, piece
        self.ranges, self.memory_bytes, self.batch_bytes = decoder.ranges, decoder.memory_bytes, decoder.batch_bytes
        self.write, self.counts = decoder.write, decoder.counts

    def batches(self) -> Iterator[pa.RecordBatch]:
        rows = 0
        for batch in self._decoder.batches():
            rows += batch.num_rows
            yield batch
        if rows != self._piece.cut.rows:
            stated = self._piece.cut.rows
            raise BadObject(f"{place_of(self._piece)} has {rows} rows that match, not {stated}: index the data anew")
