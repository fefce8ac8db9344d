"""Parquet files: cut along row groups, localised as Arrow IPC of the wanted columns.

Everything is known from the footer: a piece is a run of row groups, packed while the footer's uncompressed size of all
columns allows. A fill fetches only the byte ranges of the wanted columns, and decodes them once for the whole node.

All but `open` runs in the daemon, the `Decoder` on one worker thread at a time. No thread pool of pyarrow's is used:
the daemon decides how many pieces are decoded at once.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from forebay_core.errors import BadObject, ColumnNotFound
from forebay_core.formats import arrow_layout
from forebay_core.formats.arrow_reader import ArrowReader
from forebay_core.formats.base import (
    Buffer,
    ByteRange,
    Column,
    Cut,
    Cuts,
    Format,
    Localiser,
    ObjectCut,
    ObjectInfo,
    Piece,
    Prepared,
    Sink,
    Steps,
)
from forebay_core.formats.columns import is_text, plain, plain_schema
from forebay_core.formats.options import positive
from forebay_core.formats.ranges import RangeFile, coalesce

_SUFFIX_BYTES = 64 << 10
_TRAILER_BYTES = 8
_LEAST_BYTES = 12
_GAP_BYTES = 64 << 10
#: A piece that decodes to more than this is decoded and written in batches, so that memory stays bounded.
_WHOLE_BYTES = 256 << 20
_BATCH_BYTES = 64 << 20
#: What is decoded is there twice while it is brought into the local layout.
_DECODED_COPIES = 2
#: Of a footer that was read, in bytes of memory for one in the file: measured, from 50 to 50,000 column chunks.
_FOOTER_FACTOR = 10
#: Bytes of one decoded value, at the least: an encoding can make a column far smaller than its rows are.
_VALUE_BYTES = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8, "BYTE_ARRAY": 4}


@dataclass(frozen=True)
class Parquet(Format):
    """Parquet files, with the extensions .parquet, .parq and .pq.

    `piece_bytes`: how many bytes of row groups (uncompressed, all columns, as the footer states them) make a piece at
    the most; a single larger row group is a piece of its own. The default is as long as one request of a fill: large
    enough to fetch at full speed, and small because what a shuffle mixes at a time is a number of pieces.
    """

    piece_bytes: int = 8 << 20

    name: ClassVar[str] = "parquet"
    layout: ClassVar[str] = arrow_layout.NAME
    extensions: ClassVar[tuple[str, ...]] = (".parquet", ".parq", ".pq")
    as_is: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive("Parquet(piece_bytes=…)", self.piece_bytes)

    def spec(self) -> dict[str, Any]:
        return {"name": self.name, "cut": "parquet-1", "piece_bytes": self.piece_bytes}

    def prepare(self, obj: ObjectInfo) -> Steps[Prepared]:
        footer = yield from _footer(obj)
        return Prepared(footer, footer.serialized_size * _FOOTER_FACTOR)

    def cut(self, obj: ObjectInfo, prepared: Prepared) -> ObjectCut:
        footer: pq.FileMetaData = prepared.facts
        groups = [_Group.of(footer, index, obj) for index in range(footer.num_row_groups)]
        schema = plain_schema(_arrow_schema(footer, obj))
        if len(set(schema.names)) < len(schema):
            raise BadObject(f"{obj.key!r} has two columns of the same name ({', '.join(schema.names)}): rename one")
        return ObjectCut(Cuts.of(_pack(groups, self.piece_bytes)), schema)

    def localise(self, piece: Piece, columns: Sequence[str], sink: Sink, prepared: Prepared) -> Localiser:
        return arrow_layout.ArrowLocaliser(ParquetDecoder(prepared.facts, piece, columns), sink)

    def decode(self, piece: Piece, columns: Sequence[str], prepared: Prepared) -> "ParquetDecoder":
        return ParquetDecoder(prepared.facts, piece, columns)

    def open(self, buffer: memoryview, piece: Piece, columns: Mapping[str, Column]) -> ArrowReader:
        return ArrowReader(buffer, piece, columns)


@dataclass(frozen=True, slots=True)
class _Group:
    rows: int
    bytes: int
    start: int
    stop: int

    @classmethod
    def of(cls, footer: pq.FileMetaData, index: int, obj: ObjectInfo) -> "_Group":
        group = footer.row_group(index)
        ranges = [_range(group.column(i), obj) for i in range(group.num_columns)]
        start = min((r.start for r in ranges), default=0)
        return cls(group.num_rows, group.total_byte_size, start, max((r.stop for r in ranges), default=0))


def _pack(groups: Sequence[_Group], piece_bytes: int) -> Iterator[Cut]:
    """The cut rule "parquet-1": row groups are packed in order while their total stays within `piece_bytes`."""
    first = 0
    while first < len(groups):
        last, total = first + 1, groups[first].bytes
        while last < len(groups) and total + groups[last].bytes <= piece_bytes:
            total += groups[last].bytes
            last += 1
        run = groups[first:last]
        if rows := sum(group.rows for group in run):
            start, stop = min(group.start for group in run), max(group.stop for group in run)
            yield Cut(rows, start, stop, first, last - first, total)
        first = last


class ParquetDecoder:
    """Collects the wanted columns' bytes of one piece, and decodes them when all are there."""

    def __init__(
        self,
        footer: pq.FileMetaData,
        piece: Piece,
        columns: Sequence[str],
        *,
        whole_bytes: int = _WHOLE_BYTES,
        batch_bytes: int = _BATCH_BYTES,
    ) -> None:
        self._footer, self._piece, self._columns = footer, piece, list(columns)
        self._groups = list(range(piece.cut.first_unit, piece.cut.first_unit + piece.cut.units))
        self._whole_bytes = whole_bytes
        if self._groups[-1] >= footer.num_row_groups:
            raise BadObject(f"{_where(piece)} is not there, it has {footer.num_row_groups} row groups: index it anew")
        self._schema = _arrow_schema(footer, piece.object)
        names = self._schema.names
        if missing := set(columns).difference(names):
            name = next(name for name in columns if name in missing)
            raise ColumnNotFound(f"{_where(piece)} has no column {name!r}, it has {', '.join(names)}")
        self._chunks = _chunks(footer, self._groups, self._columns)
        chunks = [chunk for of_column in self._chunks.values() for chunk in of_column]
        self._decoded_bytes = sum(_least_decoded_bytes(chunk) for chunk in chunks)
        self.ranges: Sequence[ByteRange] = coalesce((_range(c, piece.object) for c in chunks), gap_bytes=_GAP_BYTES)
        self._expected = sum(wanted.length for wanted in self.ranges)
        self.batch_bytes = self._decoded_bytes if self._fits_whole else batch_bytes
        self.memory_bytes = self._expected + _DECODED_COPIES * self.batch_bytes
        self._bytes = bytearray()
        self._received = 0

    @property
    def _fits_whole(self) -> bool:
        return self._decoded_bytes <= self._whole_bytes

    def write(self, chunk: Buffer) -> None:
        data = memoryview(chunk).cast("B")
        stop = self._received + len(data)
        if stop > self._expected:
            raise BadObject(f"{_where(self._piece)} got more than the {self._expected} bytes that were asked for")
        if not self._bytes:
            self._bytes = bytearray(self._expected)
        self._bytes[self._received : stop] = data
        self._received = stop

    def batches(self) -> Iterator[pa.RecordBatch]:
        if self._received != self._expected:
            raise BadObject(f"{_where(self._piece)} got {self._received} bytes of {self._expected}: fetch it again")
        yield from self._whole() if self._fits_whole else self._in_batches()
        self._bytes = bytearray()

    def counts(self) -> dict[str, int]:
        return {}

    def _whole(self) -> Iterator[pa.RecordBatch]:
        dictionaries = [name for name in self._columns if self._has_dictionary(name)]
        with self._decoding():
            table = self._file(dictionaries).read_row_groups(self._groups, columns=self._columns, use_threads=False)
            batches = arrow_layout.whole(table.select(self._columns))
            self._check_rows(table.num_rows)
        yield from batches

    def _in_batches(self) -> Iterator[pa.RecordBatch]:
        size = max(1, self._piece.cut.rows * self.batch_bytes // self._decoded_bytes)
        rows = 0
        with self._decoding():
            source = self._file([]).iter_batches(size, self._groups, self._columns, use_threads=False)
        while True:
            with self._decoding():
                batch = next(source, None)
                if batch is None:
                    self._check_rows(rows)
                    return
                rows += batch.num_rows
                local = arrow_layout.one_of_many(batch.select(self._columns))
            yield local

    def _file(self, dictionaries: list[str]) -> pq.ParquetFile:
        return pq.ParquetFile(
            pa.PythonFile(RangeFile(self._piece.object.size, self.ranges, self._bytes), mode="r"),
            metadata=self._footer,
            read_dictionary=dictionaries,
            pre_buffer=False,
            page_checksum_verification=True,
        )

    def _has_dictionary(self, name: str) -> bool:
        """Whether the column is text of which the whole piece has dictionary pages."""
        return is_text(plain(self._schema.field(name).type)) and all(c.has_dictionary_page for c in self._chunks[name])

    def _check_rows(self, rows: int) -> None:
        if rows != self._piece.cut.rows:
            stated = self._piece.cut.rows
            raise BadObject(f"{_where(self._piece)} has {rows} rows, its footer says {stated}: write it anew")

    @contextmanager
    def _decoding(self) -> Iterator[None]:
        """Names the piece in whatever pyarrow says of its bytes. The sink's own errors never pass through here."""
        try:
            yield
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise BadObject(f"{_where(self._piece)} cannot be decoded ({_first_line(error)}): write it anew") from error


def _footer(obj: ObjectInfo) -> Steps[pq.FileMetaData]:
    if obj.size < _LEAST_BYTES:
        raise BadObject(f"{obj.key!r} has {obj.size} bytes, too few for a Parquet file: was it written to its end?")
    (tail,) = yield [ByteRange(max(0, obj.size - _SUFFIX_BYTES), obj.size)]
    magic, length = bytes(tail[-4:]), int.from_bytes(tail[-8:-4], "little")
    if magic == b"PARE":
        raise BadObject(f"{obj.key!r} is an encrypted Parquet file, which cannot be read: decrypt it first")
    if magic != b"PAR1":
        raise BadObject(f"{obj.key!r} does not end like a Parquet file ({magic!r}): it is truncated, or another format")
    needed = length + _TRAILER_BYTES
    if needed + len(magic) > obj.size:
        raise BadObject(f"{obj.key!r} has {obj.size} bytes, but says {length} of its footer alone: it is truncated")
    if needed > len(tail):
        (tail,) = yield [ByteRange(obj.size - needed, obj.size)]
    try:
        return pq.read_metadata(pa.BufferReader(pa.py_buffer(memoryview(tail)[-needed:])))
    except (pa.ArrowException, OSError) as error:
        raise BadObject(f"{obj.key!r} has a damaged Parquet footer ({_first_line(error)}): write it anew") from error


def _arrow_schema(footer: pq.FileMetaData, obj: ObjectInfo) -> pa.Schema:
    try:
        return footer.schema.to_arrow_schema()
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise BadObject(f"{obj.key!r} has a schema that cannot be read ({_first_line(error)})") from error


def _range(chunk: pq.ColumnChunkMetaData, obj: ObjectInfo) -> ByteRange:
    """The bytes of a column chunk: from its dictionary page, where it has one, to the end of its data pages."""
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
        start = chunk.dictionary_page_offset
    stop = start + chunk.total_compressed_size
    if not 0 <= start <= stop <= obj.size:
        raise BadObject(f"{obj.key!r} has {obj.size} bytes, but column {chunk.path_in_schema!r} at [{start}, {stop})")
    return ByteRange(start, stop)


def _least_decoded_bytes(chunk: pq.ColumnChunkMetaData) -> int:
    least: int = chunk.num_values * _VALUE_BYTES.get(chunk.physical_type, 1)
    stated: int = chunk.total_uncompressed_size
    return max(stated, least)


def _chunks(
    footer: pq.FileMetaData, groups: Sequence[int], names: Sequence[str]
) -> dict[str, list[pq.ColumnChunkMetaData]]:
    """By column, the chunks of it and of all that is nested in it, chosen as pyarrow chooses them by a name.

    One look at each leaf: a footer may have thousands.
    """
    leaves: dict[str, list[int]] = {name: [] for name in names}
    for leaf in range(footer.num_columns):
        for name in _prefixes(footer.schema.column(leaf).path):
            if name in leaves:
                leaves[name].append(leaf)
    row_groups = [footer.row_group(index) for index in groups]
    return {name: [group.column(leaf) for group in row_groups for leaf in found] for name, found in leaves.items()}


def _prefixes(path: str) -> Iterator[str]:
    """The path, and what stands before each dot in it."""
    yield path
    for place, letter in enumerate(path):
        if letter == ".":
            yield path[:place]


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _where(piece: Piece) -> str:
    first, units = piece.cut.first_unit, piece.cut.units
    return f"{piece.object.key!r} (row groups {first} to {first + units - 1})"
