"""The local layout "arrow-1", written and read without a format around it."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from forebay_core.errors import BadObject
from forebay_core.formats import arrow_layout
from forebay_core.formats.arrow_reader import ArrowReader
from forebay_core.formats.base import Column, Cut, ObjectInfo, Piece
from forebay_core.formats.columns import column_of


def _piece(rows: int) -> Piece:
    return Piece(3, ObjectInfo("s/x.arrow", 1, "v"), Cut(rows, 0, 1, 0, 1, 1))


def _local(*batches: pa.RecordBatch) -> bytes:
    local = bytearray()
    arrow_layout.write(batches, local.extend)
    return bytes(local)


def _reader(local: bytes, rows: int, columns: dict[str, Column]) -> ArrowReader:
    return ArrowReader(memoryview(local), _piece(rows), columns)


def _columns(table: pa.Table) -> dict[str, Column]:
    return {field.name: column_of(field) for field in table.schema}


VECTORS = pa.array([[1.0, None], None, [3.0, 4.0]], pa.list_(pa.float32(), 2))


@pytest.mark.parametrize("offset", [0, 1])
def test_under_null_floats_lies_nan_and_a_sample_is_still_none(offset: int) -> None:
    garbage = pa.FixedSizeListArray.from_arrays(
        pa.array([9.0, 9.0, 1.0, None, 7.0, 7.0, 3.0, 4.0], pa.float32()), 2, mask=pa.array([False, False, True, False])
    )
    table = pa.table({"v": garbage.slice(offset)})
    for batches in (arrow_layout.whole(table), [arrow_layout.one_of_many(b) for b in table.to_batches()]):
        reader = _reader(_local(*batches), 4 - offset, _columns(table))
        out = np.empty((3, 2), np.float32)
        reader.take("v", np.arange(3) + 1 - offset, out)
        np.testing.assert_array_equal(out, np.array([[1, np.nan], [np.nan] * 2, [3, 4]], np.float32))
        assert reader.sample(2 - offset, ["v"]) == {"v": None}
        assert np.isnan(reader.sample(1 - offset, ["v"])["v"][1])


def test_a_null_list_of_whole_numbers_cannot_be_taken_but_is_none_in_a_sample() -> None:
    table = pa.table({"v": pa.array([[1, 2], None], pa.list_(pa.int32(), 2))})
    reader = _reader(_local(*arrow_layout.whole(table)), 2, _columns(table))
    assert reader.sample(1, ["v"]) == {"v": None}
    with pytest.raises(BadObject, match=r"s/x\.arrow.*piece 3.*'v' at row 1"):
        reader.take("v", np.array([1]), np.empty((1, 2), np.int32))


def test_a_null_item_of_whole_numbers_is_an_error_in_a_sample_too() -> None:
    table = pa.table({"v": pa.array([[1, None]], pa.list_(pa.int32(), 2))})
    with pytest.raises(BadObject, match="'v' at row 0"):
        _reader(_local(*arrow_layout.whole(table)), 1, _columns(table)).sample(0, ["v"])


def test_rows_of_several_batches_are_found_in_theirs() -> None:
    table = pa.table({"x": range(100), "s": [str(i) for i in range(100)]})
    batches = [arrow_layout.one_of_many(batch) for batch in table.to_batches(max_chunksize=7)]
    reader = _reader(_local(*batches), 100, _columns(table))
    rows = np.random.default_rng(0).integers(0, 100, 300)
    out = np.empty(300, np.int64)
    reader.take("x", rows, out)
    assert (out == rows).all()
    assert reader.values("s", rows) == [str(row) for row in rows]
    assert reader.sample(99, ["x", "s"]) == {"x": 99, "s": "99"}


def test_a_null_in_a_later_batch_is_named_by_its_row_of_the_piece() -> None:
    table = pa.table({"x": pa.array([None if i == 33 else i for i in range(50)])})
    batches = [arrow_layout.one_of_many(batch) for batch in table.to_batches(max_chunksize=10)]
    with pytest.raises(BadObject, match="'x' at row 33"):
        _reader(_local(*batches), 50, _columns(table)).take("x", np.arange(50), np.empty(50, np.int64))


def test_numbers_are_read_where_the_file_lies_without_a_copy() -> None:
    table = pa.table({"x": np.arange(100_000)})
    local = bytearray(_local(*arrow_layout.whole(table)))
    reader = _reader(local, 100_000, _columns(table))  # type: ignore[arg-type]
    at = local.index(np.arange(4000, 4004).tobytes())
    local[at : at + 8] = (77).to_bytes(8, "little")
    assert reader.sample(4000, ["x"]) == {"x": 77}


def test_text_under_several_dictionaries_becomes_one() -> None:
    chunks = [pa.array(["a", "b"] * 8).dictionary_encode(), pa.array(["c", "a", None] * 8).dictionary_encode()]
    table = pa.table({"s": pa.chunked_array(chunks)})
    [batch] = arrow_layout.whole(table)
    assert pa.types.is_dictionary(batch.schema.field("s").type)
    reader = _reader(_local(batch), 40, _columns(table))
    assert reader.values("s", np.array([0, 16, 17, 18])) == ["a", "c", "a", None]


@pytest.mark.parametrize(
    ("column", "said"),
    [(Column("x", np.dtype(np.int32)), "int64"), (Column("x", np.dtype(np.int64), (2,)), "int64")],
    ids=["dtype", "shape"],
)
def test_a_column_that_is_not_as_the_manifest_says_is_refused(column: Column, said: str) -> None:
    local = _local(*arrow_layout.whole(pa.table({"x": range(10)})))
    with pytest.raises(BadObject, match=f"'x' as {said}"):
        _reader(local, 10, {"x": column})


def test_a_local_file_of_other_rows_is_refused() -> None:
    table = pa.table({"x": range(10)})
    with pytest.raises(BadObject, match="10 rows, its manifest says 11"):
        _reader(_local(*arrow_layout.whole(table)), 11, _columns(table))


def test_text_that_is_not_utf8_is_an_error_that_names_the_column() -> None:
    text = pa.array([b"good", b"b\xff\xfed"]).view(pa.string())
    table = pa.table({"s": text, "n": pa.array([{"x": 1}, {"x": 2}])})
    reader = _reader(_local(*arrow_layout.whole(table)), 2, _columns(table))
    assert reader.values("s", np.array([0])) == ["good"]
    with pytest.raises(BadObject, match=r"s/x\.arrow.*'s'.*not UTF-8"):
        reader.values("s", np.array([0, 1]))


def test_arrays_in_values_belong_to_the_caller() -> None:
    table = pa.table({"l": pa.array([[1, 2], [3]], pa.list_(pa.int32())), "b": pa.array([[True], [False, True]])})
    reader = _reader(_local(*arrow_layout.whole(table)), 2, _columns(table))
    values: list[Any] = reader.values("l", np.arange(2)) + reader.values("b", np.arange(2))
    for value in values:
        value[...] = 0
    assert [v.tolist() for v in reader.values("l", np.arange(2))] == [[1, 2], [3]]
    assert [v.dtype for v in values] == [np.int32, np.int32, np.bool_, np.bool_]
