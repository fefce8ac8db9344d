"""Formats with a row filter: which rows, which bytes are fetched, and what is said of them."""

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay_core.errors import BadObject, ColumnNotFound, ConfigurationError
from forebay_core.formats import Filtered, Format, Parquet, Tokens, compose, from_spec, resolve
from forebay_core.formats.arrow_layout import ArrowLocaliser
from forebay_core.formats.base import Piece, Prepared
from forebay_core.formats.filtered import FilteredDecoder
from forebay_core.formats.parquet import ParquetDecoder
from forebay_core.formats.predicate import Predicate
from tests.contracts.formats import Stored, begin_fill, columns_of, cut, localised, pieces, readers

ROWS = 400
PARQUET = Parquet(piece_bytes=1)


class WithoutBatches(Parquet):
    """Is read by way of its local layout."""

    def decode(self, piece: Piece, columns: Sequence[str], prepared: Prepared) -> None:  # type: ignore[override]
        return None


class WithoutArrow(WithoutBatches):
    """Is read by way of its rows."""

    layout: ClassVar[str] = "of another kind"


def filtered(where: Any, base: Format = PARQUET) -> Format:
    made = compose(base, where=where)
    assert made is not None
    return made


def table() -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "lang": pa.array([("en", "de", "fr", None)[i % 4] for i in range(ROWS)]).dictionary_encode(),
            "score": pa.array([None if i % 9 == 0 else i / ROWS for i in range(ROWS)], pa.float32()),
            "ok": pa.array([None if i % 7 == 0 else i % 2 == 0 for i in range(ROWS)]),
            "text": pa.array([f"text {i % 5}" for i in range(ROWS)]),
            "vector": pa.FixedSizeListArray.from_arrays(
                pa.FixedSizeListArray.from_arrays(pa.array([i % 5 == 0 for i in range(ROWS * 6)]), 3), 2
            ),
            "blob": pa.array([b"x" * 1000 for _ in range(ROWS)]),
        }
    )


def stored(**options: Any) -> Stored:
    file = io.BytesIO()
    pq.write_table(table(), file, row_group_size=40, **{"compression": "none", "use_dictionary": ["text"], **options})
    return Stored("a/part-0.parquet", file.getvalue())


def ids(kind: Format, names: tuple[str, ...] = ("id",)) -> list[int]:
    found: list[int] = []
    for reader in readers(kind, stored(), names):
        out = np.empty(reader.rows, np.int64)
        reader.take("id", np.arange(reader.rows), out)
        found += out.tolist()
    return found


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ([("lang", "==", "en")], lambda row: row["lang"] == "en"),
        ([("lang", "!=", "en")], lambda row: row["lang"] not in ("en", None)),
        ([("lang", "not in", ["en", "de"])], lambda row: row["lang"] == "fr"),
        ([("ok", "==", True), ("score", ">", 0.5)], lambda row: bool(row["ok"]) and (row["score"] or 0) > 0.5),
        ([[("id", "<", 3)], [("id", ">", 397)]], lambda row: row["id"] < 3 or row["id"] > 397),
        ([("id", ">=", 0)], lambda row: True),
    ],
    ids=["text", "nulls do not differ", "not in", "and", "or, with pieces of no match", "all"],
)
def test_the_rows_that_match_are_read_in_their_order(where: Any, holds: Any) -> None:
    expected = [row["id"] for row in table().to_pylist() if holds(row)]
    assert ids(filtered(where)) == expected
    assert [piece.rows for piece in cut(filtered(where), stored()).pieces if piece.rows < 1] == []


def test_a_base_without_arrow_batches_is_filtered_by_way_of_its_local_layout() -> None:
    where = [[("ok", "==", True), ("score", ">", 0.5)], [("lang", "not in", ["en", "de"]), ("id", "<", 90)]]
    expected = ids(filtered(where))
    assert 0 < len(expected) < ROWS
    assert ids(filtered(where, WithoutBatches(piece_bytes=1))) == expected


def test_a_base_without_anything_of_arrow_is_filtered_by_way_of_its_rows() -> None:
    where = [[("lang", "==", "en"), ("score", ">", 0.5)], [("lang", "!=", "en"), ("id", "<", 90)]]
    expected = ids(filtered(where))
    assert 0 < len(expected) < ROWS
    kind, names = filtered(where, WithoutArrow(piece_bytes=1)), ("id", "text", "vector")
    assert ids(kind) == expected
    for one, other in zip(readers(kind, stored(), names), readers(filtered(where), stored(), names), strict=True):
        rows = np.arange(one.rows)
        assert one.values("text", rows) == other.values("text", rows)
        found = [np.empty((len(rows), 2, 3), bool) for _ in range(2)]
        one.take("vector", rows, found[0])
        other.take("vector", rows, found[1])
        assert np.array_equal(found[0], found[1])


def test_columns_of_the_filter_need_not_be_among_those_wanted_and_the_others_are_not_stored() -> None:
    kind, source = filtered([("lang", "==", "de")]), stored()
    made = cut(kind, source)
    local = localised(kind, source, pieces(source, made)[0], ["text", "id"])
    assert pa.ipc.open_file(local).schema.names == ["text", "id"]


def test_counting_fetches_the_filters_columns_alone_and_a_fill_those_and_the_wanted_ones() -> None:
    kind, source = filtered([("id", "<", 100)]), stored()
    prepared = source.drive(kind.prepare(source.info))
    piece = pieces(source, kind.cut(source.info, prepared))[0]
    counted, filled = kind.count(piece, prepared), kind.localise(piece, ["score"], lambda _: None, prepared)
    wanted = pq.read_metadata(io.BytesIO(source.data)).row_group(0)
    assert sum(part.length for part in counted.ranges) == wanted.column(0).total_compressed_size
    assert 0 < counted.memory_bytes < 10_000
    assert sum(part.length for part in filled.ranges) < 3000


def test_nulls_of_the_kept_rows_stay_nulls() -> None:
    (reader, *_) = readers(filtered([("lang", "==", "en")]), stored(), ["id", "score", "text"])
    out = np.empty(reader.rows, np.float32)
    reader.take("score", np.arange(reader.rows), out)
    kept = [row for row in table().slice(0, 40).to_pylist() if row["lang"] == "en"]
    assert np.isnan(out).tolist() == [row["score"] is None for row in kept]
    assert reader.values("text", np.arange(reader.rows)) == [row["text"] for row in kept]


@pytest.mark.parametrize("whole_bytes", [0, 1 << 30], ids=["in batches", "whole"])
def test_a_piece_decoded_in_batches_gives_the_same_rows(whole_bytes: int) -> None:
    source = stored()
    (piece,) = pieces(source, cut(Parquet(), source))
    footer = pq.read_metadata(io.BytesIO(source.data))
    columns = ["id", "text", "lang", "score"]
    decoder = ParquetDecoder(footer, piece, columns, whole_bytes=whole_bytes, batch_bytes=600)
    where = Predicate.parse([("lang", "==", "fr"), ("id", ">", 100)])
    chosen = FilteredDecoder(decoder, where, ["id", "text", "score"], cut(Parquet(), source).schema)
    local = bytearray()
    source.push(ArrowLocaliser(chosen, local.extend))
    batches = pa.ipc.open_file(bytes(local)).num_record_batches
    assert batches > 3 if whole_bytes == 0 else batches == 1
    expected = [row for row in table().to_pylist() if row["lang"] == "fr" and row["id"] > 100]
    assert chosen.counts() == {"rows": ROWS, "matching_rows": len(expected)}
    kept = replace(piece, cut=replace(piece.cut, rows=len(expected)))
    reader = Parquet().open(memoryview(bytes(local)), kept, columns_of(cut(Parquet(), source), ["id", "text"]))
    assert reader.values("text", np.arange(len(expected))) == [row["text"] for row in expected]


def test_the_counts_say_how_many_rows_there_are_and_how_many_match_and_bytes_are_their_share() -> None:
    made = cut(filtered([("lang", "in", ["en", "de"])]), stored())
    assert made.counts == {"rows": ROWS, "matching_rows": ROWS // 2}
    whole = cut(PARQUET, stored())
    assert [piece.decoded_bytes for piece in made.pieces] == [-(-piece.decoded_bytes // 2) for piece in whole.pieces]


def test_a_piece_with_another_number_of_rows_than_its_manifest_says_is_refused() -> None:
    kind, source = filtered([("lang", "==", "en")]), stored()
    piece = pieces(source, cut(filtered([("id", ">=", 0)]), source))[0]
    with pytest.raises(BadObject, match="10 rows that match, not 40"):
        localised(kind, source, piece, ["id"])
    nothing = filtered([("lang", "==", "xx")])
    with pytest.raises(BadObject, match="0 rows that match, not 40"):
        localised(nothing, source, piece, ["id"])


def test_a_piece_of_another_cut_is_refused() -> None:
    source = stored()
    piece = pieces(source, cut(filtered([("id", ">=", 0)], Parquet()), source))[0]
    with pytest.raises(BadObject, match="no piece of the object as it is cut now"):
        begin_fill(filtered([("id", ">=", 0)]), source, piece, ["id"], lambda _: None)


def test_a_column_that_is_not_there_or_cannot_be_compared_is_refused_with_the_shard() -> None:
    with pytest.raises(
        ColumnNotFound, match=r"'a/part-0\.parquet' has no column 'langs', which where= names: it has id"
    ):
        cut(filtered([("langs", "==", "en")]), stored())
    with pytest.raises(ConfigurationError, match=r"'a/part-0\.parquet' cannot be filtered: .*'id', '==', 'en'.*int64"):
        cut(filtered([("id", "==", "en")]), stored())
    with pytest.raises(ConfigurationError, match="list"):
        cut(filtered([("tokens", "==", 1)], Tokens(4, "uint16")), Stored("a.bin", bytes(80)))


def test_an_object_without_rows_needs_no_columns() -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"other": pa.array([], pa.int8())}), file)
    made = cut(filtered([("lang", "==", "en")]), Stored("e.parquet", file.getvalue()))
    assert list(made.pieces) == []


def test_what_is_kept_in_the_cache_and_what_a_dataset_is_depends_on_the_filter() -> None:
    kinds = [PARQUET, filtered([("id", "<", 1)]), filtered([("id", "<", 2)]), filtered([("id", "<", 1)], Parquet())]
    assert len({kind.local_layout() for kind in kinds}) == 4
    assert filtered([("id", "<", 1)]).local_layout() == kinds[1].local_layout()
    assert len({str(kind.identity()) for kind in kinds}) == 4
    assert len({hash(kind) for kind in kinds}) == 4


def test_a_base_that_is_not_given_is_found_by_the_extensions() -> None:
    made = compose(None, where=[("id", "<", 1)])
    assert made is not None
    again = from_spec(made.spec())
    assert again == made
    assert resolve(again, ["a.parquet"]) == filtered([("id", "<", 1)], Parquet())
    assert resolve(None, ["a.parquet"]) == Parquet()
    assert resolve(Parquet(7), ["a.bin"]) == Parquet(7)
    with pytest.raises(ConfigurationError, match="unknown: 'a'"):
        resolve(again, ["a"])
    with pytest.raises(ConfigurationError, match="not known"):
        Filtered(None, Predicate.parse([("id", "<", 1)])).identity()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base": {"name": "filtered", "base": None, "where": [["a", "==", 1]]}}, "cannot lie over"),
        ({"base": {"name": "packed"}}, "cannot lie over"),
        ({"base": "parquet"}, "cannot lie over"),
        ({"base": {"name": "csv"}}, "unknown format 'csv'"),
        ({"base": {"name": ["parquet"]}}, "unknown format"),
        ({"where": None}, "no row filter"),
        ({"where": [["a", "==", {}]]}, "cannot be compared"),
        ({"cut": "filtered-9"}, "not by 'filtered-9'"),
        ({"more": 1}, "takes 'where', not the options 'where', 'more'"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        from_spec({**filtered([("id", "<", 1)]).spec(), **change})
