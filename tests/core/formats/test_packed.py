"""Packed sequences against packing as it is defined, over documents of every kind."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_core.errors import BadObject, ColumnNotFound, ConfigurationError
from forebay_core.formats import Filtered, Format, Packed, Packing, Parquet, Tokens, compose, from_spec
from forebay_core.formats.documents import Documents
from forebay_core.formats.packed import Packer
from tests.contracts.formats import Stored, begin_fill, columns_of, cut, localised, pieces, readers
from tests.support.packing import packed, write_tokenizer

GROUP = 20
PARQUET = Parquet(piece_bytes=1)
WORDS = [f"w{i}" for i in range(50)]


def documents(count: int = 100, seed: int = 3) -> list[list[int] | None]:
    """Some empty, some null, some longer than several sequences."""
    rng = np.random.default_rng(seed)
    lengths = rng.choice([0, 1, 3, 8, 21, 70], count)
    return [None if i % 11 == 5 else rng.integers(2, 50, n).tolist() for i, n in enumerate(lengths)]


def stored(column: pa.Array, **columns: Any) -> Stored:
    file = io.BytesIO()
    pq.write_table(pa.table({"ids": column, **columns}), file, row_group_size=GROUP)
    return Stored("a/docs.parquet", file.getvalue())


def sequences(kind: Format, source: Stored) -> list[list[list[int]]]:
    """By piece, read as a loader reads them."""
    found = []
    for reader in readers(kind, source):
        made = cut(kind, source)
        (column,) = columns_of(made).values()
        assert column.dtype is not None
        out: npt.NDArray[Any] = np.empty((reader.rows, *column.shape), column.dtype)
        reader.take("tokens", np.arange(reader.rows), out)
        found.append(out.tolist())
    return found


def by_group(docs: Sequence[Any], length: int, **options: Any) -> list[list[list[int]]]:
    """Brute force: by piece, those without a sequence left out."""
    groups = [packed(docs[start : start + GROUP], length, **options) for start in range(0, len(docs), GROUP)]
    return [group for group in groups if group]


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.list_(pa.uint8()), pa.list_(pa.uint64())],
    ids=str,
)
@pytest.mark.parametrize("options", [{}, {"separator": 1}, {"separator": 0, "pad": 9}], ids=str)
def test_documents_are_joined_per_piece_and_cut_into_sequences(kind: pa.DataType, options: dict[str, Any]) -> None:
    docs = documents()
    pad = {"remainder": "pad"} if "pad" in options else {}
    made = Packed(PARQUET, Packing(16, "ids", **options, **pad))  # type: ignore[arg-type]
    assert sequences(made, stored(pa.array(docs, kind))) == by_group(docs, 16, **options)


@settings(max_examples=60)
@given(
    st.lists(st.none() | st.lists(st.integers(-5, 300), max_size=12), max_size=60),
    st.integers(1, 30),
    st.none() | st.integers(0, 9),
    st.booleans(),
)
def test_any_documents_give_what_brute_force_gives_and_every_token_is_accounted_for(
    docs: list[list[int] | None], length: int, separator: int | None, is_padded: bool
) -> None:
    packing = Packing(length, "ids", separator=separator, remainder="pad" if is_padded else "drop", pad=7)
    kind, source = Packed(PARQUET, packing), stored(pa.array(docs, pa.list_(pa.int16())))
    expected = by_group(docs, length, separator=separator, pad=7 if is_padded else None)
    assert sequences(kind, source) == expected
    counts = cut(kind, source).counts
    if not docs:
        assert counts == {}
        return
    joined = [token for doc in docs if doc for token in [*doc, *([] if separator is None else [separator])]]
    rows = sum(map(len, expected))
    assert counts["documents"] == sum(bool(doc) for doc in docs)
    assert counts["tokens"] == len(joined)
    assert counts["tokens"] - counts["dropped_tokens"] + counts["padded_tokens"] == rows * length
    assert (counts["padded_tokens"] if not is_padded else counts["dropped_tokens"]) == 0


def test_lists_of_a_fixed_size_and_slices_and_chunks_are_documents_too() -> None:
    docs = np.arange(600).reshape(200, 3).tolist()
    kind = Packed(PARQUET, Packing(7, "ids", separator=0))
    assert sequences(kind, stored(pa.array(docs, pa.list_(pa.int16(), 3)))) == by_group(docs, 7, separator=0)


def test_text_is_packed_as_its_bytes() -> None:
    texts = [None if i % 9 == 4 else "grüße " * (i % 5) for i in range(100)]
    expected = by_group([text and list(text.encode()) for text in texts], 16, separator=256)
    packing = Packing(16, "ids", "bytes", separator=256)
    for column in (pa.array(texts), pa.array(texts, pa.large_string()), pa.array(texts).dictionary_encode()):
        assert sequences(Packed(PARQUET, packing), stored(column)) == expected


def test_text_is_tokenized_whole_whatever_truncation_and_padding_the_file_asks_for(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "t.json", WORDS)
    docs = documents()
    texts = [doc if doc is None else " ".join(f"w{i - 2}" for i in doc) for doc in docs]
    kind = Packed(PARQUET, Packing(16, "ids", tmp_path / "t.json", separator=1))
    assert sequences(kind, stored(pa.array(texts))) == by_group(docs, 16, separator=1)
    special = Packed(PARQUET, Packing(16, "ids", tmp_path / "t.json", special_tokens=True))
    begun = [doc if doc is None else [1, *doc] for doc in docs]
    assert sequences(special, stored(pa.array(texts))) == by_group(begun, 16)


def test_a_column_larger_than_what_is_taken_at_once_is_packed_the_same() -> None:
    texts = ["a" * 700_000, "b" * 1_500_000, "", "c" * 10, "d" * 600_000]
    kind = Packed(Parquet(), Packing(1000, "ids", "bytes", separator=0))
    (found,) = sequences(kind, stored(pa.array(texts)))
    assert found == packed([list(text.encode()) for text in texts], 1000, separator=0)


def test_a_column_is_taken_in_runs_of_bounded_size_whatever_a_batch_holds() -> None:
    packing = Packing(1000, "ids", "bytes")
    for column in (pa.array(["x" * 300_000] * 9), pa.array(["x" * 300_000] * 9).dictionary_encode()):
        runs = [sizes.tolist() for _, sizes in Documents(packing, column.type, "here").runs(column)]
        assert runs == [[300_000] * 3] * 3
    longer = pa.array(["", "x" * 5_000_000, "y"])
    assert [sizes.tolist() for _, sizes in Documents(packing, longer.type, "here").runs(longer)] == [
        [0],
        [5_000_000],
        [1],
    ]


def test_filtered_rows_are_packed_after_the_filter() -> None:
    docs = documents()
    lang = [("en", "de", None)[i % 3] for i in range(len(docs))]
    kind = compose(PARQUET, where=[("lang", "==", "en")], packing=Packing(16, "ids", separator=1))
    assert kind is not None
    source = stored(pa.array(docs, pa.list_(pa.int32())), lang=pa.array(lang))
    kept = [
        [doc for doc, one in zip(docs[s : s + GROUP], lang[s : s + GROUP], strict=True) if one == "en"]
        for s in range(0, 100, GROUP)
    ]
    assert sequences(kind, source) == [found for group in kept if (found := packed(group, 16, separator=1))]
    counts = cut(kind, source).counts
    assert (counts["rows"], counts["matching_rows"]) == (100, lang.count("en"))
    assert counts["documents"] == sum(bool(doc) for group in kept for doc in group)
    assert from_spec(kind.spec()) == kind


def test_a_format_without_arrow_batches_of_its_own_is_packed_by_way_of_its_rows() -> None:
    tokens = np.arange(1000, dtype=np.int16)
    kind = Packed(Tokens(10, "int16", piece_bytes=400), Packing(16, "tokens", separator=-1))
    rows = tokens.reshape(5, 20, 10).tolist()
    assert sequences(kind, Stored("a.bin", tokens.tobytes())) == [packed(group, 16, separator=-1) for group in rows]


def test_the_local_file_is_the_sequences_end_to_end_and_the_manifest_states_its_size() -> None:
    for dtype in ("int32", "int64"):
        kind = Packed(PARQUET, Packing(16, "ids", dtype=dtype))
        source = stored(pa.array(documents(), pa.list_(pa.int32())))
        made = cut(kind, source)
        assert kind.rows_lie_end_to_end()
        assert made.schema == pa.schema([("tokens", pa.list_(pa.from_numpy_dtype(np.dtype(dtype)), 16))])
        for piece, expected in zip(pieces(source, made), sequences(kind, source), strict=True):
            local = localised(kind, source, piece, ["tokens"])
            assert np.frombuffer(local, dtype).reshape(-1, 16).tolist() == expected
            assert len(local) == piece.cut.decoded_bytes == piece.cut.rows * 16 * np.dtype(dtype).itemsize


def test_pieces_without_a_whole_sequence_are_left_out_and_their_tokens_counted() -> None:
    docs: list[list[int]] = [[]] * GROUP + [[1, 2, 3]] + [[]] * (GROUP - 1) + [[4] * 50]
    source = stored(pa.array(docs, pa.list_(pa.int32())))
    made = cut(Packed(PARQUET, Packing(16, "ids")), source)
    assert [(piece.rows, piece.first_unit) for piece in made.pieces] == [(3, 2)]
    assert made.counts == {"documents": 2, "tokens": 53, "dropped_tokens": 5, "padded_tokens": 0}
    padded = cut(Packed(PARQUET, Packing(16, "ids", remainder="pad")), source)
    assert [(piece.rows, piece.first_unit) for piece in padded.pieces] == [(1, 1), (4, 2)]
    assert padded.counts == {"documents": 2, "tokens": 53, "dropped_tokens": 0, "padded_tokens": 27}


def test_counting_reads_the_documents_alone_and_says_what_memory_it_takes() -> None:
    source = stored(pa.array(documents(), pa.list_(pa.int32())), blob=pa.array([bytes(5000)] * 100))
    kind = Packed(PARQUET, Packing(16, "ids"))
    prepared = source.drive(kind.prepare(source.info))
    counter = kind.count(pieces(source, kind.cut(source.info, prepared))[0], prepared)
    group = pq.read_metadata(io.BytesIO(source.data)).row_group(0)
    assert sum(part.length for part in counter.ranges) == group.column(0).total_compressed_size
    assert counter.memory_bytes > 1 << 20


@pytest.mark.parametrize(
    ("ids", "dtype", "worst"),
    [([1, 2**31], "int32", 2**31), ([-(2**31) - 1], "int32", -(2**31) - 1), ([2**64 - 1], "int64", 2**64 - 1)],
)
def test_ids_that_the_tokens_type_cannot_hold_are_an_error_that_names_them(
    ids: list[int], dtype: Any, worst: int
) -> None:
    kind = pa.uint64() if max(ids) >= 2**63 else pa.int64()
    source = stored(pa.array([[5], ids], pa.list_(kind)))
    with pytest.raises(BadObject, match=rf"column 'ids' of 'a/docs\.parquet' \(piece 0\) has the token id {worst}"):
        cut(Packed(PARQUET, Packing(1, "ids", dtype=dtype)), source)


def test_a_null_among_the_ids_and_text_that_is_not_utf8_are_errors_that_name_the_piece(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "t.json", WORDS)
    with pytest.raises(
        BadObject, match=r"'a/docs\.parquet' \(piece 0\) has a document with a null among its token ids"
    ):
        cut(Packed(PARQUET, Packing(1, "ids")), stored(pa.array([[1, None]], pa.list_(pa.int32()))))
    broken = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff\xfe"]).buffers())
    with pytest.raises(BadObject, match=r"'a/docs\.parquet' \(piece 0\) has a document that is not UTF-8"):
        cut(Packed(PARQUET, Packing(1, "ids", tmp_path / "t.json")), stored(broken))


@pytest.mark.parametrize(
    ("column", "tokenizer", "message"),
    [
        (pa.array(["a"]), None, r"must be lists of whole numbers: text needs Packing\(tokenizer=…\)"),
        (pa.array([[1]]), "bytes", "must be text: token ids need no tokenizer"),
        (pa.array([[1.5]]), None, "must be lists of whole numbers"),
        (pa.array([[[1]]]), None, "must be lists of whole numbers"),
        (pa.array([1]), None, "must be lists of whole numbers"),
        (pa.array([b"a"]), "bytes", "must be text"),
    ],
)
def test_a_column_that_holds_no_documents_is_refused_with_the_shard_before_it_is_read(
    column: pa.Array, tokenizer: str | None, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"column 'ids' of 'a/docs\.parquet' holds .*{message}"):
        cut(Packed(PARQUET, Packing(1, "ids", tokenizer)), stored(column))
    with pytest.raises(
        ColumnNotFound, match=r"'a/docs\.parquet' has no column 'text', which Packing\(column=…\) names"
    ):
        cut(Packed(PARQUET, Packing(1, "text", tokenizer)), stored(column))


def test_a_piece_that_packs_into_another_number_of_sequences_is_refused() -> None:
    source = stored(pa.array(documents(), pa.list_(pa.int32())))
    piece = pieces(source, cut(Packed(PARQUET, Packing(16, "ids")), source))[0]
    with pytest.raises(BadObject, match="when it was indexed: is the tokenizers library another one"):
        localised(Packed(PARQUET, Packing(8, "ids")), source, piece, ["tokens"])


def test_sequences_have_the_one_column_tokens() -> None:
    source = stored(pa.array(documents(), pa.list_(pa.int32())))
    kind = Packed(PARQUET, Packing(16, "ids"))
    piece = pieces(source, cut(kind, source))[0]
    with pytest.raises(ColumnNotFound, match="no column 'ids', only 'tokens'"):
        begin_fill(kind, source, piece, ["ids"], lambda _: None)


def test_what_is_kept_in_the_cache_depends_on_every_option_and_not_on_the_tokenizers_place(tmp_path: Path) -> None:
    for name in "ab":
        write_tokenizer(tmp_path / name / "t.json", WORDS)
    write_tokenizer(tmp_path / "c" / "t.json", WORDS[1:])
    options: list[dict[str, Any]] = [
        {},
        {"separator": 1},
        {"remainder": "pad"},
        {"pad": 1},
        {"dtype": "int64"},
        {"tokenizer": "bytes"},
        {"tokenizer": tmp_path / "a" / "t.json"},
        {"tokenizer": tmp_path / "c" / "t.json"},
        {"tokenizer": tmp_path / "c" / "t.json", "special_tokens": True},
    ]
    kinds = [Packed(PARQUET, Packing(16, "ids", **one)) for one in options]
    kinds += [Packed(PARQUET, Packing(17, "ids")), Packed(PARQUET, Packing(16, "text"))]
    assert len({kind.local_layout() for kind in kinds}) == len(kinds)
    copied = Packed(PARQUET, Packing(16, "ids", tmp_path / "b" / "t.json"))
    assert copied.local_layout() == kinds[6].local_layout()
    assert copied.identity() == kinds[6].identity()
    assert all(from_spec(kind.spec()) == kind for kind in kinds)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base": {"name": "packed", "base": None, "packing": {}}}, "cannot lie over"),
        ({"base": 3}, "cannot lie over"),
        ({"packing": None}, "not a JSON object"),
        ({"packing": {"column": "ids"}}, "does not take these options"),
        ({"cut": 2}, "index the data anew"),
        ({"where": []}, "takes 'packing'"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        from_spec({**Packed(PARQUET, Packing(16, "ids")).spec(), **change})


def test_what_is_no_packing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"give forebay\.Packing"):
        compose(PARQUET, packing=16)  # type: ignore[arg-type]
    assert compose(None) is None
    assert isinstance(compose(PARQUET, where=[("a", "==", 1)]), Filtered)


@pytest.mark.parametrize(
    "rows", [{"packing": Packing(16, "ids")}, {"where": [("n", ">=", 0)]}], ids=["packed", "filtered"]
)
def test_a_count_that_is_stopped_ends_before_it_has_counted(rows: dict[str, Any]) -> None:
    kind = compose(PARQUET, **rows)
    assert kind is not None
    source = stored(pa.array(documents(), pa.list_(pa.int32())), n=range(100))
    prepared = source.drive(kind.prepare(source.info))
    counter = kind.count(pieces(source, kind.cut(source.info, prepared))[0], prepared)
    counter.stop()
    source.push(counter)
    assert counter.counted().rows == 0


def test_a_packer_keeps_no_more_than_what_fills_no_sequence() -> None:
    emitted: list[npt.NDArray[Any]] = []
    packer = Packer(Packing(1000, "ids"), emitted.append, "here")
    for _ in range(50):
        packer.add(np.arange(30), np.array([30]))
        assert packer.tokens - sum(map(len, emitted)) < 1000
    packer.finish()
    assert (packer.rows, packer.dropped) == (1, 500)
