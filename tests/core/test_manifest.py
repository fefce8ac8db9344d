"""What a manifest fixes, and what its file survives."""

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_core.errors import BadObject, ColumnNotFound, ConfigurationError, PieceGone
from forebay_core.formats import Parquet, Tokens
from forebay_core.formats.base import Column, Cut, ObjectCut, ObjectInfo
from forebay_core.manifest import Manifest
from forebay_core.mapping import is_mapped

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
Entry = tuple[ObjectInfo, ObjectCut]


def _entry(key: str, *rows: int, schema: pa.Schema = SCHEMA, version: str = "v1", size: int = 1000) -> Entry:
    cuts = [Cut(n, 10 * i, 10 * i + 9, i, 1, 100 + n) for i, n in enumerate(rows)]
    return ObjectInfo(key, size, version), ObjectCut(cuts, schema)


def _build(*entries: Entry, root: str = "s3://b/train") -> Manifest:
    return Manifest.build(root, Parquet(), entries)


def _facts(manifest: Manifest) -> dict[str, Any]:
    return {
        "root": manifest.root,
        "format": manifest.format,
        "schema": manifest.schema,
        "partial": manifest.partial,
        "objects": [manifest.objects.info(i) for i in range(len(manifest.objects))],
        "pieces": [manifest.piece(i) for i in range(manifest.pieces)],
        "row_start": manifest.row_start.tolist(),
        "samples": manifest.samples,
        "total_bytes": manifest.total_bytes,
        "fingerprint": manifest.fingerprint,
        "version_digest": manifest.version_digest,
    }


def test_samples_are_numbered_by_key_then_piece_then_row() -> None:
    manifest = _build(_entry("b", 5), _entry("a", 3, 2), _entry("empty"), _entry("c", 1))
    assert [manifest.objects.key(i) for i in range(4)] == ["a", "b", "c", "empty"]
    assert manifest.row_start.tolist() == [0, 3, 5, 10, 11]
    assert (manifest.pieces, manifest.samples, manifest.total_bytes) == (4, 11, 411)
    piece = manifest.piece(1)
    assert (piece.index, piece.object.key, piece.cut) == (1, "a", Cut(2, 10, 19, 1, 1, 102))
    with pytest.raises(IndexError):
        manifest.piece(4)
    with pytest.raises(IndexError):
        manifest.piece(-1)


def test_keys_are_sorted_by_their_bytes() -> None:
    keys = ["a/b", "a-b", "a", "ä", "Z", "10", "9", os.fsdecode(b"\xff.parquet"), "\U0001f600", "\ufb00"]
    manifest = _build(*(_entry(key, 1) for key in keys))
    found = [manifest.objects.key(i) for i in range(len(keys))]
    assert found == sorted(keys, key=os.fsencode)


@given(st.lists(st.integers(0, 4), max_size=12))
def test_every_sample_is_located_where_counting_finds_it(rows: list[int]) -> None:
    manifest = _build(_entry("a", *rows), _entry("b", 0, 1, 0))
    expected = [(piece, row) for piece, count in enumerate([*rows, 0, 1, 0]) for row in range(count)]
    pieces, local = manifest.locate(np.arange(manifest.samples))
    assert list(zip(pieces.tolist(), local.tolist(), strict=True)) == expected


@pytest.mark.parametrize("outside", [-1, 5])
def test_a_sample_that_is_not_there_cannot_be_located(outside: int) -> None:
    with pytest.raises(IndexError, match=r"\[0, 5\)"):
        _build(_entry("a", 5)).locate(np.array([0, outside]))


def test_an_object_listed_twice_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'a' is listed twice"):
        _build(_entry("a", 1), _entry("b", 1), _entry("a", 2))


def test_a_dataset_without_samples_has_a_manifest_that_says_so() -> None:
    for manifest in (_build(), _build(_entry("a"), _entry("b"))):
        assert (manifest.pieces, manifest.samples, manifest.row_start.tolist()) == (0, 0, [0])
        pieces, rows = manifest.locate(np.array([], np.int64))
        assert len(pieces) == len(rows) == 0


def test_a_saved_manifest_is_the_same_and_private_to_user_and_group(tmp_path: Path) -> None:
    built = Manifest.build(
        "file:///data/ü",
        Tokens(4, ">u2"),
        [_entry(os.fsdecode(b"\xfe.bin"), 3, 2, version='"e-1"'), _entry("z/ü%20.bin", 1, schema=pa.schema([]))],
    )
    path = tmp_path / "manifest.arrow"
    built.save(path)
    opened = Manifest.open(path)
    assert _facts(opened) == _facts(built)
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]
    opened.save(path)
    assert _facts(Manifest.open(path)) == _facts(built)
    for array in (opened.row_start, opened.piece_rows, built.row_start, built.piece_object):
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 0


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "manifest"
    target.mkdir()
    (target / "occupied").touch()
    with pytest.raises(OSError, match="manifest"):
        _build(_entry("a", 1)).save(target)
    assert list(tmp_path.iterdir()) == [target]


def test_an_open_manifest_holds_the_lock_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "m"
    _build(_entry("a", 1)).save(path)
    opened = Manifest.open(path, inode=path.stat().st_ino, size=path.stat().st_size)
    assert is_mapped(path)
    assert opened.samples == 1
    del opened
    assert not is_mapped(path)
    with pytest.raises(PieceGone):
        Manifest.open(path, inode=1)


def test_a_file_that_is_no_manifest_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "m.arrow"
    _build(_entry("a", *[1] * 50)).save(path)
    whole = path.read_bytes()
    other = pa.BufferOutputStream()
    with pa.ipc.new_file(other, SCHEMA) as writer:
        writer.write_batch(pa.record_batch([[1], ["x"]], schema=SCHEMA))
    newer = whole.replace(b'{"version": 1', b'{"version": 2')
    longer = whole.replace(b'"total_bytes"', b'"other_bytes"')
    damaged = [whole[: len(whole) * i // 9] for i in range(9)]
    for data in [*damaged, b"x" * 100, other.getvalue().to_pybytes(), newer, longer]:
        path.write_bytes(data)
        with pytest.raises(BadObject, match=r"m\.arrow.*index the data anew"):
            Manifest.open(path)


def test_the_fingerprint_is_of_the_layout_and_not_of_the_place() -> None:
    base = _build(_entry("a", 3, 2), _entry("b", 1))
    assert base.fingerprint.startswith("sha256:")
    moved = _build(_entry("b", 1, version="v2"), _entry("a", 3, 2, version="v2"), root="file:///copy")
    assert moved.fingerprint == base.fingerprint
    assert moved.version_digest != base.version_digest


@pytest.mark.parametrize(
    "entries",
    [
        [_entry("a", 3, 2), _entry("c", 1)],
        [_entry("a", 3, 2), _entry("b", 1), _entry("c")],
        [_entry("a", 3, 3), _entry("b", 1)],
        [_entry("a", 2, 3), _entry("b", 1)],
        [_entry("a", 3, 2, 1), _entry("b")],
        [_entry("a", 3), _entry("b", 2, 1)],
        [_entry("a", 3, 2, size=1001), _entry("b", 1)],
        [_entry("ab", 3, 2), _entry("", 1)],
    ],
)
def test_a_dataset_of_another_layout_has_another_fingerprint(entries: list[Entry]) -> None:
    assert _build(*entries).fingerprint != _build(_entry("a", 3, 2), _entry("b", 1)).fingerprint


def test_another_cut_has_another_fingerprint() -> None:
    entries = [_entry("a", 3)]
    assert Manifest.build("/", Parquet(), entries).fingerprint != Manifest.build("/", Parquet(1), entries).fingerprint


def test_the_fingerprint_is_the_same_in_every_version_of_forebay() -> None:
    manifest = Manifest.build("s3://b/train", Parquet(piece_bytes=32 << 20), (_entry("a", 3, 2), _entry("ü", 1)))
    assert manifest.fingerprint == "sha256:0ad5af1a7c7033fef0a9deb93e039a6e66a78eeb0472bb52148748a77dda8ec8"


OTHER_ORDER = pa.schema([("text", pa.string()), ("id", pa.int64())])
OTHER_TYPE = pa.schema([("id", pa.int32()), ("text", pa.string())])
MORE = pa.schema([("extra", pa.int8()), ("id", pa.int64()), ("text", pa.string())])


def test_another_order_of_columns_in_a_shard_is_no_difference() -> None:
    manifest = _build(_entry("a", 1), _entry("b", 1, schema=OTHER_ORDER))
    assert manifest.partial == {}
    assert list(manifest.columns()) == ["id", "text"]


def test_a_column_of_another_type_or_missing_is_partial_and_refused_by_shard() -> None:
    shards = [_entry(f"s{i}", 1, schema=s) for i, s in enumerate([SCHEMA, SCHEMA, MORE, OTHER_TYPE, MORE])]
    manifest = _build(*shards)
    assert manifest.schema.names == ["id", "text", "extra"]
    assert manifest.partial == {"id": "s3", "extra": "s0"}
    assert manifest.columns(["text"]) == {"text": Column("text", None)}
    with pytest.raises(ColumnNotFound, match="'id' is missing or of another type in 's3'"):
        manifest.columns(["text", "id"])
    with pytest.raises(ConfigurationError, match=r"'id'.*'s3'.*columns="):
        manifest.columns()


def test_shards_without_rows_say_nothing_of_the_schema() -> None:
    assert _build(_entry("a", schema=OTHER_TYPE), _entry("b", 1)).columns() == {
        "id": Column("id", np.dtype(np.int64)),
        "text": Column("text", None),
    }
    assert _build(_entry("a", schema=MORE)).schema == MORE


def test_columns_come_in_the_order_asked_for_and_a_missing_one_lists_what_there_is() -> None:
    manifest = _build(_entry("a", 1))
    assert list(manifest.columns(["text", "id"])) == ["text", "id"]
    with pytest.raises(ColumnNotFound, match="no column 'label': it has 'id', 'text'"):
        manifest.columns(["id", "label"])
    for names in ([], ["id", "id"]):
        with pytest.raises(ConfigurationError, match="columns="):
            manifest.columns(names)


@given(st.lists(st.sampled_from([SCHEMA, OTHER_ORDER, OTHER_TYPE, MORE]), min_size=1, max_size=6), st.randoms())
def test_partial_columns_are_those_that_brute_force_finds(schemas: list[pa.Schema], rng: random.Random) -> None:
    entries = [_entry(f"s{i}", 1, schema=schema) for i, schema in enumerate(schemas)]
    rng.shuffle(entries)
    types: dict[str, list[Any]] = {}
    for name in (name for schema in schemas for name in schema.names):
        types[name] = [schema.field(name).type if name in schema.names else None for schema in schemas]
    expected: dict[str, str] = {}
    for name, kinds in types.items():
        reference = next(kind for kind in kinds if kind is not None)
        if any(kind != reference for kind in kinds):
            expected[name] = f"s{next(i for i, kind in enumerate(kinds) if kind != reference)}"
    assert _build(*entries).partial == expected


def test_the_facts_in_the_file_are_plain_json(tmp_path: Path) -> None:
    path = tmp_path / "m"
    _build(_entry("a", 1)).save(path)
    metadata = pa.ipc.open_file(path).schema.metadata
    assert json.loads(metadata[b"forebay.manifest"])["format"] == Parquet().spec()
