"""What every format must do: its pieces, localised and read, give the rows that another reader sees in the object."""

import io
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay_core.errors import BadObject, ColumnNotFound, ConfigurationError
from forebay_core.formats import Filtered, Packed, Packing, Parquet, Tokens, from_spec
from forebay_core.formats.base import Format, PieceReader
from forebay_core.formats.predicate import Predicate
from tests.contracts.formats import Stored, begin_fill, columns_of, cut, localised, pieces, readers

ROWS = 1000
Expected = dict[str, list[Any]]


@dataclass(frozen=True)
class Case:
    """An object of `ROWS` rows in several pieces, and its rows by column as lists of plain values."""

    format: Format
    stored: Callable[[], Stored]
    expected: Callable[[], Expected]


def _table() -> pa.Table:
    vectors = np.arange(ROWS * 4, dtype=np.float32).reshape(ROWS, 4)
    return pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "vector": pa.FixedSizeListArray.from_arrays(vectors.ravel(), 4),
            "flag": pa.array([i % 3 == 0 for i in range(ROWS)]),
            "text": pa.array([f"row {i} – ü" for i in range(ROWS)]),
            "blob": pa.array([bytes([i % 256]) * (i % 7) for i in range(ROWS)]),
        }
    )


def _parquet() -> Stored:
    file = io.BytesIO()
    pq.write_table(_table(), file, row_group_size=90, compression="zstd")
    return Stored("a/part-0.parquet", file.getvalue())


def _tokens() -> np.ndarray[Any, Any]:
    return np.arange(ROWS * 16, dtype=np.uint16)


def _bin() -> Stored:
    return Stored("a/tokens.bin", _tokens().tobytes() + b"\1\0" * 5)


def _npy(version: tuple[int, int]) -> Callable[[], Stored]:
    def stored() -> Stored:
        file = io.BytesIO()
        np.lib.format.write_array(file, _tokens(), version=version)
        return Stored("a/tokens.npy", file.getvalue())

    return stored


def _two_in_three() -> pa.Table:
    """A table of which the rows to be kept are those of `_table`."""
    table = _table()
    places = np.repeat(np.arange(ROWS), 1 + np.arange(ROWS) % 2)
    is_first = np.append(True, np.diff(places) > 0)
    return table.take(places).append_column("keep", pa.array(np.where(is_first, "yes", "no").tolist()))


def _with_rows_to_be_left_out() -> Stored:
    file = io.BytesIO()
    pq.write_table(_two_in_three(), file, row_group_size=90, compression="zstd")
    return Stored("a/part-0.parquet", file.getvalue())


def _kept() -> Expected:
    return {**_table().to_pydict(), "keep": ["yes"] * ROWS}


def _documents() -> Stored:
    """Row groups of 100 sequences, and four tokens that fill none."""
    file, tokens = io.BytesIO(), _tokens().tolist()
    documents: list[list[int]] = []
    for start in range(0, len(tokens), 1600):
        group = tokens[start : start + 1600] + [7] * 4
        documents += [group[i * 100 : (i + 1) * 100] for i in range(17)]
    pq.write_table(pa.table({"ids": pa.array(documents, pa.list_(pa.int32()))}), file, row_group_size=17)
    return Stored("a/documents.parquet", file.getvalue())


def _sequences() -> Expected:
    return {"tokens": _tokens().reshape(ROWS, 16).tolist()}


CASES = {
    "parquet": Case(Parquet(piece_bytes=20_000), _parquet, lambda: _table().to_pydict()),
    "tokens.bin": Case(Tokens(16, "uint16", piece_bytes=5_000), _bin, _sequences),
    "tokens.npy": Case(Tokens(16, piece_bytes=5_000), _npy((1, 0)), _sequences),
    "filtered parquet": Case(
        Filtered(Parquet(piece_bytes=20_000), Predicate.parse([("keep", "==", "yes")])),
        _with_rows_to_be_left_out,
        _kept,
    ),
    "packed parquet": Case(Packed(Parquet(piece_bytes=1), Packing(16, "ids")), _documents, _sequences),
    "packed tokens": Case(Packed(Tokens(10, "uint16", piece_bytes=3200), Packing(16, "tokens")), _bin, _sequences),
    "tokens.npy version 2": Case(Tokens(16, piece_bytes=5_000), _npy((2, 0)), _sequences),
}


@pytest.fixture(params=CASES.values(), ids=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    made: Case = request.param
    return made


def _read(reader: PieceReader, case: Case, stored: Stored, rows: np.ndarray[Any, Any]) -> Expected:
    result: Expected = {}
    for name, column in columns_of(cut(case.format, stored)).items():
        if column.dtype is None:
            result[name] = reader.values(name, rows)
        else:
            out = np.empty((len(rows), *column.shape), column.dtype)
            reader.take(name, rows, out)
            result[name] = out.tolist()
    return result


def test_the_pieces_give_the_rows_of_the_object_in_order(case: Case) -> None:
    stored = case.stored()
    found: Expected = {name: [] for name in case.expected()}
    for reader in readers(case.format, stored):
        for name, values in _read(reader, case, stored, np.arange(reader.rows)).items():
            found[name] += values
    assert found == case.expected()


def test_any_rows_of_a_piece_come_in_the_order_asked_for_and_repeated(case: Case) -> None:
    stored = case.stored()
    reader = next(readers(case.format, stored))
    rows = np.random.default_rng(1).integers(0, reader.rows, 200)
    found = _read(reader, case, stored, rows)
    assert found == {name: [values[row] for row in rows] for name, values in case.expected().items()}
    assert all(values == [] for values in _read(reader, case, stored, rows[:0]).values())


def test_a_sample_is_one_row_whose_arrays_are_the_callers_own(case: Case) -> None:
    stored = case.stored()
    reader = next(readers(case.format, stored))
    expected = {name: values[7] for name, values in case.expected().items()}
    sample = reader.sample(7, list(expected))
    for name, column in columns_of(cut(case.format, stored)).items():
        if column.dtype is None:
            assert sample[name] == expected[name]
        else:
            assert sample[name].dtype == column.dtype
            assert np.asarray(sample[name]).tolist() == expected[name]
        if isinstance(sample[name], np.ndarray):
            sample[name][...] = 0
    assert np.asarray(reader.sample(7, list(expected))[name]).tolist() == expected[name]


def test_the_pieces_cover_the_rows_once_and_say_where_they_lie(case: Case) -> None:
    stored = case.stored()
    made = cut(case.format, stored)
    assert len(made.pieces) > 3
    assert sum(piece.rows for piece in made.pieces) == ROWS
    assert all(0 <= piece.start < piece.stop <= len(stored.data) for piece in made.pieces)
    ends = [piece.first_unit + piece.units for piece in made.pieces]
    assert [piece.first_unit for piece in made.pieces] == [0, *ends[:-1]]
    assert all(piece.decoded_bytes > 0 for piece in made.pieces)


def test_the_cut_does_not_depend_on_anything_but_the_object_and_the_options(case: Case) -> None:
    first, second = cut(case.format, case.stored()), cut(from_spec(case.format.spec()), case.stored())
    assert list(first.pieces) == list(second.pieces)
    assert first.schema == second.schema


def test_a_fill_only_asks_for_bytes_of_its_piece_once_the_footer_is_known(case: Case) -> None:
    stored = case.stored()
    made = cut(case.format, stored)
    known = set(stored.asked)
    for piece in pieces(stored, made):
        stored.asked.clear()
        localised(case.format, stored, piece, made.schema.names)
        asked = [wanted for wanted in stored.asked if wanted not in known]
        assert all(piece.cut.start <= wanted.start and wanted.stop <= piece.cut.stop for wanted in asked)


def test_a_format_that_is_as_is_keeps_the_bytes(case: Case) -> None:
    stored = case.stored()
    for piece in pieces(stored, made := cut(case.format, stored)):
        local = localised(case.format, stored, piece, made.schema.names)
        assert (local == stored.data[piece.cut.start : piece.cut.stop]) == case.format.as_is
        assert case.format.ignores_columns() == case.format.as_is


def test_a_spec_makes_the_format_again(case: Case) -> None:
    assert from_spec(case.format.spec()) == case.format


def test_a_piece_that_is_short_of_bytes_is_refused_at_the_end(case: Case) -> None:
    stored = case.stored()
    made = cut(case.format, stored)
    piece = pieces(stored, made)[0]
    localiser = begin_fill(case.format, stored, piece, made.schema.names, lambda chunk: None)
    localiser.write(stored.fetch(localiser.ranges[0])[:-1])
    with pytest.raises(BadObject, match="a/"):
        localiser.finish()


def test_an_error_of_the_sink_is_passed_on_as_it_is(case: Case) -> None:
    class DiskFull(OSError):
        pass

    def full(chunk: object) -> None:
        raise DiskFull(28, "no space left")

    stored = case.stored()
    made = cut(case.format, stored)
    localiser = begin_fill(case.format, stored, pieces(stored, made)[0], made.schema.names, full)
    with pytest.raises(DiskFull):
        stored.push(localiser)


def test_a_local_file_that_is_cut_off_is_refused_when_it_is_opened(case: Case) -> None:
    stored = case.stored()
    made = cut(case.format, stored)
    piece = pieces(stored, made)[0]
    local = localised(case.format, stored, piece, made.schema.names)
    for stop in (0, 1, len(local) // 2, len(local) - 1):
        with pytest.raises(BadObject, match="a/"):
            case.format.open(memoryview(local[:stop]), piece, columns_of(made))


def test_a_column_that_was_not_opened_is_not_found(case: Case) -> None:
    reader = next(readers(case.format, case.stored()))
    with pytest.raises(ColumnNotFound, match="nowhere"):
        reader.take("nowhere", np.array([0]), np.empty(1))
    with pytest.raises(ColumnNotFound, match="nowhere"):
        reader.values("nowhere", np.array([0]))
    with pytest.raises(ColumnNotFound, match="nowhere"):
        reader.sample(0, ["nowhere"])


def test_options_that_cannot_work_are_refused_when_they_are_given(case: Case) -> None:
    for value in (0, -1, True, 1.5, "1"):
        with pytest.raises(ConfigurationError, match="piece_bytes"):
            from_spec({**case.format.spec(), "piece_bytes": value})


def test_threads_may_share_a_reader(case: Case) -> None:
    stored = case.stored()
    reader = next(readers(case.format, stored))
    rows = np.arange(reader.rows)
    alone = _read(reader, case, stored, rows)
    found: list[Expected] = []
    threads = [threading.Thread(target=lambda: found.append(_read(reader, case, stored, rows))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone] * 4
