"""Parquet as it is found: odd files, other writers, damage."""

import datetime
import decimal
import io
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay_core.errors import BadObject, ColumnNotFound
from forebay_core.formats import Parquet
from forebay_core.formats.arrow_layout import ArrowLocaliser
from forebay_core.formats.base import ByteRange
from forebay_core.formats.parquet import ParquetDecoder
from tests.contracts.formats import Stored, begin_fill, columns_of, cut, localised, pieces, readers

KEY = "train/part-0.parquet"


def _stored(table: pa.Table, key: str = KEY, **options: Any) -> Stored:
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return Stored(key, file.getvalue())


def _rows(kind: Parquet, stored: Stored, names: list[str] | None = None) -> dict[str, list[Any]]:
    """All rows of an object by column, as plain Python values."""
    columns = columns_of(cut(kind, stored), names)
    found: dict[str, list[Any]] = {name: [] for name in columns}
    for reader in readers(kind, stored, names):
        for name, column in columns.items():
            if column.dtype is None:
                values = reader.values(name, np.arange(reader.rows))
                found[name] += [v.tolist() if isinstance(v, np.ndarray) else v for v in values]
            else:
                out = np.empty((reader.rows, *column.shape), column.dtype)
                reader.take(name, np.arange(reader.rows), out)
                found[name] += out.tolist()
    return found


def _mixed(rows: int) -> pa.Table:
    return pa.table(
        {
            "i8": pa.array([i % 100 for i in range(rows)], pa.int8()),
            "u64": pa.array([2**63 + i for i in range(rows)], pa.uint64()),
            "f16": pa.array(np.arange(rows, dtype=np.float16)),
            "f64": pa.array([i / 3 for i in range(rows)]),
            "flag": pa.array([i % 2 == 0 for i in range(rows)]),
            "word": pa.array([f"word {i % 5}" for i in range(rows)]),
            "kind": pa.array([f"kind {i % 3}" for i in range(rows)]).dictionary_encode(),
            "numbers": pa.array([list(range(i % 4)) for i in range(rows)], pa.list_(pa.int32())),
            "bools": pa.array([[True, False][: i % 3] for i in range(rows)], pa.list_(pa.bool_())),
            "words": pa.array([["a", None][: i % 3] for i in range(rows)], pa.list_(pa.string())),
            "nested": pa.array([{"a": i, "b": [{"c": str(i)}]} for i in range(rows)]),
            "when": pa.array([datetime.datetime(2024, 1, 1, microsecond=i) for i in range(rows)], pa.timestamp("us")),
            "price": pa.array([decimal.Decimal(i) / 4 for i in range(rows)], pa.decimal128(12, 2)),
            "matrix": pa.array([[[i, 1, 2], [3, 4, i]] for i in range(rows)], pa.list_(pa.list_(pa.int16(), 3), 2)),
        }
    )


WRITERS: dict[str, dict[str, Any]] = {
    "version 1 snappy": {"version": "1.0", "compression": "snappy", "data_page_version": "1.0"},
    "version 2 pages zstd": {"version": "2.6", "compression": "zstd", "data_page_version": "2.0"},
    "gzip without statistics": {"compression": "gzip", "write_statistics": False},
    "no dictionaries": {"use_dictionary": False, "compression": "none"},
    "no arrow schema": {"store_schema": False},
    "page checksums and an index": {"write_page_checksum": True, "write_page_index": True},
    "small pages": {"data_page_size": 64, "dictionary_pagesize_limit": 64},
    "lz4": {"compression": "lz4"},
}


@pytest.mark.parametrize("options", WRITERS.values(), ids=WRITERS.keys())
@pytest.mark.parametrize("rows", [1, 2, 257])
def test_files_of_other_writers_give_what_pyarrow_gives(options: dict[str, Any], rows: int) -> None:
    table = _mixed(rows)
    if options.get("version") == "1.0" or options.get("store_schema") is False:
        table = table.drop_columns(["u64", "matrix", "kind"])
    stored = _stored(table, row_group_size=50, **options)
    assert _rows(Parquet(piece_bytes=3000), stored) == pq.read_table(io.BytesIO(stored.data)).to_pydict()


def test_a_wide_file_is_prepared_for_a_fill_in_a_moment() -> None:
    columns = [f"column_{i}" for i in range(2000)]
    stored = _stored(pa.table({name: np.arange(2, dtype=np.float32) for name in columns}))
    [piece] = pieces(stored, cut(Parquet(), stored))
    prepared = stored.drive(Parquet().prepare(stored.info))
    start = time.process_time()
    localiser = Parquet().localise(piece, columns, lambda chunk: None, prepared)
    assert time.process_time() - start < 0.5
    assert localiser.ranges


def test_what_a_localiser_will_hold_in_memory_is_said_before_it_holds_anything() -> None:
    stored = _stored(_mixed(500), row_group_size=120)
    [piece] = pieces(stored, cut(Parquet(), stored))
    footer = pq.read_metadata(io.BytesIO(stored.data))
    sizes = [
        ParquetDecoder(footer, piece, names, whole_bytes=whole_bytes, batch_bytes=1).memory_bytes
        for names, whole_bytes in ((["i8"], 1 << 30), (["i8", "word"], 1 << 30), (["i8", "word"], 0))
    ]
    assert sizes[0] > 2 * 500
    assert sizes[0] < sizes[1] > sizes[2], "in batches it holds no more than a batch"


@pytest.mark.parametrize("whole_bytes", [0, 1 << 30], ids=["in batches", "whole"])
def test_a_piece_too_large_for_memory_is_written_in_batches_and_reads_the_same(whole_bytes: int) -> None:
    table = _mixed(500)
    stored = _stored(table, row_group_size=120)
    made = cut(Parquet(), stored)
    [piece] = pieces(stored, made)
    footer = pq.read_metadata(io.BytesIO(stored.data))
    local = bytearray()
    names = table.column_names
    decoder = ParquetDecoder(footer, piece, names, whole_bytes=whole_bytes, batch_bytes=4000)
    localiser = ArrowLocaliser(decoder, local.extend)
    stored.push(localiser)
    batches = pa.ipc.open_file(bytes(local)).num_record_batches
    assert batches > 5 if whole_bytes == 0 else batches == 1

    reader = Parquet().open(memoryview(bytes(local)), piece, columns_of(made))
    rows = np.random.default_rng(3).permutation(500)
    out = np.empty((500, 2, 3), np.int16)
    reader.take("matrix", rows, out)
    assert out.tolist() == [table["matrix"][row].as_py() for row in rows.tolist()]
    for name in ("word", "kind", "nested", "price"):
        assert reader.values(name, rows) == [table[name][row].as_py() for row in rows.tolist()]
        assert reader.sample(499, [name]) == {name: table[name][499].as_py()}


def test_row_groups_are_packed_in_order_while_the_piece_has_room() -> None:
    stored = _stored(pa.table({"id": range(1000)}), row_group_size=100, compression="none", use_dictionary=False)
    footer = pq.read_metadata(io.BytesIO(stored.data))
    one = footer.row_group(0).total_byte_size
    assert [c.units for c in cut(Parquet(piece_bytes=3 * one + 5), stored).pieces] == [3, 3, 3, 1]
    assert [c.rows for c in cut(Parquet(piece_bytes=3 * one + 5), stored).pieces] == [300, 300, 300, 100]
    assert [c.units for c in cut(Parquet(piece_bytes=1), stored).pieces] == [1] * 10
    assert [c.decoded_bytes for c in cut(Parquet(), stored).pieces] == [
        sum(footer.row_group(i).total_byte_size for i in range(10))
    ]


def test_the_cut_is_the_same_whatever_columns_are_chosen() -> None:
    stored = _stored(_mixed(300), row_group_size=50)
    kind = Parquet(piece_bytes=3000)
    some = [reader.rows for reader in readers(kind, stored, ["i8"])]
    assert some == [piece.rows for piece in cut(kind, stored).pieces]
    assert len(some) > 1


def test_only_the_bytes_of_the_wanted_columns_are_fetched() -> None:
    rng = np.random.default_rng(0)
    wide = {f"c{i}": rng.integers(0, 1 << 62, 40_000) for i in range(4)}
    stored = _stored(pa.table(wide), compression="none", use_dictionary=False)
    made = cut(Parquet(piece_bytes=1 << 30), stored)
    [piece] = pieces(stored, made)
    localiser = begin_fill(Parquet(), stored, piece, ["c3", "c0"], lambda chunk: None)
    assert len(localiser.ranges) == 2
    assert sum(wanted.length for wanted in localiser.ranges) < 0.52 * len(stored.data)


def test_columns_come_in_the_wanted_order_and_no_others_are_stored() -> None:
    stored = _stored(_mixed(10))
    [piece] = pieces(stored, cut(Parquet(), stored))
    local = pa.ipc.open_file(localised(Parquet(), stored, piece, ["word", "i8"]))
    assert local.schema.names == ["word", "i8"]


def test_a_column_that_the_file_lacks_is_not_found_and_the_shard_is_named() -> None:
    stored = _stored(_mixed(10))
    [piece] = pieces(stored, cut(Parquet(), stored))
    with pytest.raises(ColumnNotFound, match=r"train/part-0\.parquet.*'nowhere'.*word"):
        begin_fill(Parquet(), stored, piece, ["i8", "nowhere"], lambda chunk: None)


def test_repeated_text_stays_dictionary_encoded_and_unique_text_does_not() -> None:
    table = pa.table({"same": ["x" * 1000, "y" * 1000] * 500, "own": [f"{i:064d}" for i in range(1000)]})
    stored = _stored(table, row_group_size=300)
    [piece] = pieces(stored, cut(Parquet(), stored))
    local = localised(Parquet(), stored, piece, ["same", "own"])
    types = pa.ipc.open_file(local).schema.types
    assert types == [pa.dictionary(pa.int32(), pa.string()), pa.string()]
    assert len(local) < 100_000
    assert _rows(Parquet(), stored) == table.to_pydict()


def test_categories_of_any_index_width_have_one_schema_and_read_as_their_values() -> None:
    small = pa.table({"c": pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), ["a", "b"])})
    numbers = pa.table({"c": pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int16()), pa.array([7, 9]))})
    assert cut(Parquet(), _stored(small)).schema == pa.schema([("c", pa.string())])
    assert cut(Parquet(), _stored(pa.table({"c": ["a"]}))).schema == pa.schema([("c", pa.string())])
    assert _rows(Parquet(), _stored(numbers)) == {"c": [7, 9, 7]}


def test_tensors_uuids_and_views_read_as_arrays_and_plain_values() -> None:
    tensor = pa.fixed_shape_tensor(pa.float32(), (2, 3))
    storage = pa.array(np.arange(12, dtype=np.float32).reshape(2, 6).tolist(), pa.list_(pa.float32(), 6))
    table = pa.table(
        {
            "tensor": pa.ExtensionArray.from_storage(tensor, storage),
            "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16, None], pa.binary(16))),
            "view": pa.array(["a", None], pa.string_view()),
            "large": pa.array(["b", None], pa.large_string()),
        }
    )
    expected = {
        "tensor": np.arange(12.0).reshape(2, 2, 3).tolist(),
        "uuid": [b"0" * 16, None],
        "view": ["a", None],
        "large": ["b", None],
    }
    assert _rows(Parquet(), _stored(table)) == expected


def test_a_null_is_nan_in_floats_none_in_values_and_none_in_a_sample() -> None:
    table = pa.table(
        {
            "f": pa.array([1.5, None, 2.5], pa.float32()),
            "v": pa.array([[1.0, None], [2.0, 2.0], [3.0, 4.0]], pa.list_(pa.float64(), 2)),
            "s": pa.array(["a", None, "b"]),
            "l": pa.array([[1.0, None], None, []], pa.list_(pa.float32())),
            "i": pa.array([1, None, 3]),
        }
    )
    stored = _stored(table)
    [reader] = readers(Parquet(), stored)
    f, v = np.empty(3, np.float32), np.empty((3, 2))
    reader.take("f", np.arange(3), f)
    reader.take("v", np.arange(3), v)
    np.testing.assert_array_equal(f, np.array([1.5, np.nan, 2.5], np.float32))
    np.testing.assert_array_equal(v, [[1, np.nan], [2, 2], [3, 4]])
    assert reader.values("s", np.arange(3)) == ["a", None, "b"]
    lists = reader.values("l", np.arange(3))
    np.testing.assert_array_equal(lists[0], np.array([1, np.nan], np.float32))
    assert lists[0].dtype == lists[2].dtype == np.float32
    assert lists[1] is None
    assert reader.sample(1, ["f", "s", "l", "i"]) == dict.fromkeys(["f", "s", "l", "i"])


@pytest.mark.parametrize(
    ("column", "dtype", "shape"),
    [
        (pa.array([1, 2, None, 4]), np.int64, ()),
        (pa.array([True, False, None, True]), np.bool_, ()),
        (pa.array([[1, 2], [3, 4], [5, None], [5, 6]], pa.list_(pa.int8(), 2)), np.int8, (2,)),
    ],
    ids=["int", "bool", "item"],
)
def test_a_null_that_an_array_cannot_hold_is_an_error_that_names_it(column: Any, dtype: Any, shape: Any) -> None:
    [reader] = readers(Parquet(), _stored(pa.table({"label": column})))
    out = np.empty((3, *shape), dtype)
    reader.take("label", np.array([0, 3, 1]), out)
    assert out.tolist() == [column[0].as_py(), column[3].as_py(), column[1].as_py()]
    with pytest.raises(BadObject, match=r"train/part-0\.parquet.*'label' at row 2 .*columns="):
        reader.take("label", np.array([0, 2, 1]), out)


def test_a_null_number_within_a_list_is_an_error_that_names_it() -> None:
    [reader] = readers(Parquet(), _stored(pa.table({"ids": pa.array([[1], [2, None]], pa.list_(pa.int32()))})))
    assert reader.values("ids", np.array([0]))[0].tolist() == [1]
    with pytest.raises(BadObject, match="'ids' at row 1"):
        reader.values("ids", np.array([0, 1]))


def test_a_dotted_name_is_a_column_of_its_own() -> None:
    table = pa.table({"a": pa.array([{"b": 1}, {"b": 2}]), "a.b": [3, 4], "ab": [5, 6]})
    stored = _stored(table)
    assert _rows(Parquet(), stored, ["a.b"]) == {"a.b": [3, 4]}
    assert _rows(Parquet(), stored, ["ab", "a"]) == {"ab": [5, 6], "a": [{"b": 1}, {"b": 2}]}


def test_an_empty_file_has_a_schema_and_no_pieces() -> None:
    for table in (_mixed(0), pa.table({"x": pa.array([], pa.null())})):
        made = cut(Parquet(), _stored(table))
        assert len(made.pieces) == 0
        assert made.schema.names == table.column_names


def test_empty_row_groups_are_part_of_no_plan() -> None:
    file = io.BytesIO()
    with pq.ParquetWriter(file, pa.schema([("x", pa.int64())])) as writer:
        for values in ([], [1, 2], [], [3]):
            writer.write_table(pa.table({"x": pa.array(values, pa.int64())}))
    assert _rows(Parquet(piece_bytes=1), Stored(KEY, file.getvalue())) == {"x": [1, 2, 3]}


def test_a_footer_longer_than_the_suffix_is_read_exactly() -> None:
    table = pa.table({f"column {i} {'x' * 60}": [i] for i in range(800)})
    stored = _stored(table)
    made = cut(Parquet(), stored)
    assert made.schema.names == table.column_names
    size = len(stored.data)
    footer = int.from_bytes(stored.data[-8:-4], "little") + 8
    assert stored.asked == [ByteRange(size - (64 << 10), size), ByteRange(size - footer, size)]


def _flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


BROKEN: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "no bytes": (lambda data: b"", "0 bytes, too few"),
    "a few bytes": (lambda data: data[:11], "11 bytes, too few"),
    "cut off": (lambda data: data[:-5], "does not end like a Parquet file"),
    "another format": (lambda data: b"<html>503 Slow Down</html>" * 10, "does not end like a Parquet file"),
    "encrypted": (lambda data: data[:-4] + b"PARE", "encrypted"),
    "a footer longer than the file": (lambda data: data[:-8] + b"\xff\xff\xff\x7fPAR1", "truncated"),
    "the tail alone": (lambda data: data[-200:], "truncated"),
    "a garbled footer": (lambda data: data[:-1200] + b"\xff" * 1192 + data[-8:], "damaged Parquet footer"),
    "its beginning lost": (lambda data: data[2000:], "at \\["),
}


@pytest.mark.parametrize(("damage", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_an_object_that_is_no_whole_parquet_file_is_refused_by_name(
    damage: Callable[[bytes], bytes], message: str
) -> None:
    table = pa.table({f"c{i}": np.arange(5000) * i for i in range(1, 10)})
    stored = Stored(KEY, damage(_stored(table, compression="none").data))
    with pytest.raises(BadObject, match=rf"'train/part-0\.parquet'.*{message}"):
        cut(Parquet(), stored)


def test_damaged_pages_are_refused_by_name_when_they_are_decoded() -> None:
    table = pa.table({"x": np.random.default_rng(0).integers(0, 1 << 62, 1000), "s": [str(i) for i in range(1000)]})
    whole = _stored(table, compression="zstd", write_page_checksum=True)
    made = cut(Parquet(), whole)
    [piece] = pieces(whole, made)
    for at in range(piece.cut.start, piece.cut.stop, 97):
        damaged = Stored(KEY, _flip(whole.data, at))
        try:
            local = localised(Parquet(), damaged, piece, ["x", "s"])
        except BadObject as error:
            assert "train/part-0.parquet" in str(error)  # noqa: PT017 - a flip outside of what is read changes nothing
        else:
            assert local == localised(Parquet(), whole, piece, ["x", "s"])


def test_two_columns_of_one_name_are_refused() -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    with pytest.raises(BadObject, match="two columns of the same name"):
        cut(Parquet(), _stored(table))


def test_a_manifest_of_an_older_file_is_refused_by_what_the_footer_says() -> None:
    old, new = _stored(pa.table({"x": range(100)}), row_group_size=10), _stored(pa.table({"x": range(30)}))
    piece = pieces(new, cut(Parquet(), old))[0]
    with pytest.raises(BadObject, match="row groups 0 to 9"):
        begin_fill(Parquet(), new, piece, ["x"], lambda chunk: None)
