"""Token files: sizes, headers and byte orders."""

import io
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from forebay_core.errors import BadObject, ColumnNotFound, ConfigurationError
from forebay_core.formats import Tokens
from forebay_core.formats.base import ByteRange, ObjectInfo
from tests.contracts.formats import Stored, columns_of, cut, pieces, readers


def _npy(array: Any, key: str = "x.npy", **options: Any) -> Stored:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, **options)
    return Stored(key, file.getvalue())


def _all(kind: Tokens, stored: Stored) -> list[Any]:
    rows: list[Any] = []
    for reader in readers(kind, stored):
        column = columns_of(cut(kind, stored))["tokens"]
        out = np.empty((reader.rows, *column.shape), column.dtype)
        reader.take("tokens", np.arange(reader.rows), out)
        assert all((reader.sample(i, ["tokens"])["tokens"] == out[i]).all() for i in range(reader.rows))
        rows += out.tolist()
    return rows


def test_tokens_that_fill_no_sample_are_dropped_and_counted() -> None:
    made = cut(Tokens(4, "int32"), Stored("x.bin", np.arange(11, dtype=np.int32).tobytes()))
    assert (made.pieces[0].rows, made.pieces[0].stop, made.dropped) == (2, 32, 3)


@pytest.mark.parametrize("size", [0, 2])
def test_a_file_too_short_for_a_sample_has_no_pieces(size: int) -> None:
    made = cut(Tokens(2, "uint16"), Stored("x.bin", b"\0" * size))
    assert (len(made.pieces), made.dropped) == (0, size // 2)
    assert made.schema == pa.schema([("tokens", pa.list_(pa.uint16(), 2))])


def test_a_piece_holds_whole_samples_and_at_least_one() -> None:
    stored = Stored("x.bin", np.arange(40, dtype=np.uint16).tobytes())
    assert [piece.rows for piece in cut(Tokens(4, "uint16", piece_bytes=31), stored).pieces] == [3, 3, 3, 1]
    assert [piece.rows for piece in cut(Tokens(4, "uint16", piece_bytes=1), stored).pieces] == [1] * 10


def test_a_size_that_is_no_whole_number_of_tokens_is_refused() -> None:
    with pytest.raises(BadObject, match=r"'x\.bin' has 7 bytes, no whole number of uint16 tokens"):
        cut(Tokens(2, "uint16"), Stored("x.bin", b"\0" * 7))


@pytest.mark.parametrize("dtype", [">u2", ">i8", "<u4", "|u1"])
def test_tokens_of_any_byte_order_come_out_in_this_machines(dtype: str) -> None:
    tokens = np.arange(100, 112).astype(dtype)
    expected = np.arange(100, 112).reshape(4, 3).tolist()
    assert _all(Tokens(3, dtype), Stored("x.bin", tokens.tobytes())) == expected
    assert _all(Tokens(3, dtype), _npy(tokens)) == expected
    assert columns_of(cut(Tokens(3, dtype), _npy(tokens)))["tokens"].dtype == np.dtype(dtype).newbyteorder("=")


def test_a_two_dimensional_npy_has_its_rows_as_samples() -> None:
    array = np.arange(30, dtype=np.int64).reshape(6, 5)
    assert _all(Tokens(5), _npy(array)) == array.tolist()
    assert _all(Tokens(5), _npy(np.empty((0, 5), np.int64))) == []


def test_a_long_npy_header_is_read_to_its_end() -> None:
    stored = _npy(np.arange(8, dtype=np.uint16))
    start = 2 * 4096
    body = stored.data[128:]
    text = b"{'descr': '<u2', 'fortran_order': False, 'shape': (8,), }".ljust(start - 11) + b"\n"
    long = Stored("x.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + body)
    assert _all(Tokens(4), long) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert ByteRange(0, start) in long.asked


GOOD = np.arange(12, dtype=np.uint16)


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (Stored("x.npy", b""), "not a .npy file"),
        (Stored("x.npy", b"\x93NUMPY\x01"), "not a .npy file"),
        (Stored("x.npy", b"<html>503</html>" * 20), "not a .npy file"),
        (Stored("x.npy", _npy(GOOD).data[:-2]), "its header says 152: is it truncated"),
        (Stored("x.npy", _npy(GOOD).data + b"\0\0"), "has 154 bytes, its header says 152"),
        (_npy(np.asfortranarray(np.arange(12, dtype=np.uint16).reshape(3, 4))), "Fortran order"),
        (_npy(np.array([1, "a"], dtype=object)), "not whole numbers"),
        (_npy(np.arange(12.0)), "not whole numbers"),
        (_npy(np.arange(12, dtype=np.uint16).reshape(4, 3)), r"shape \(4, 3\)"),
        (_npy(np.uint16(1)), r"shape \(\)"),
        (_npy(GOOD.astype(">u2")), r"give Tokens\(dtype='>u2'\)"),
    ],
    ids=["empty", "short", "html", "truncated", "longer", "fortran", "object", "float", "rows", "scalar", "endian"],
)
def test_an_npy_file_that_holds_no_samples_is_refused_by_name(stored: Stored, message: str) -> None:
    with pytest.raises(BadObject, match=rf"'x\.npy'.*{message}"):
        cut(Tokens(4), stored)


def test_a_dtype_that_contradicts_the_file_is_refused() -> None:
    with pytest.raises(BadObject, match="<u2 tokens, not int32"):
        cut(Tokens(4, "int32"), _npy(GOOD))


def test_a_flat_file_without_a_dtype_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match=r"'x\.bin'.*Tokens\(dtype=…\)"):
        cut(Tokens(4), Stored("x.bin", b"\0" * 8))


@pytest.mark.parametrize("dtype", ["float32", "no such", "U4", object()])
def test_a_dtype_that_is_no_integer_is_refused_when_it_is_given(dtype: Any) -> None:
    with pytest.raises(ConfigurationError, match="integer type"):
        Tokens(4, dtype)


@pytest.mark.parametrize("length", [0, -1, True, 2.0])
def test_a_sequence_length_that_cannot_be_is_refused(length: Any) -> None:
    with pytest.raises(ConfigurationError, match="sequence_length"):
        Tokens(length, "uint16")


def test_a_dtype_is_the_same_however_it_is_spelt() -> None:
    native = np.dtype(np.uint16).str
    assert Tokens(4, "uint16") == Tokens(4, native) == Tokens(4, np.uint16)  # type: ignore[arg-type]
    assert Tokens(4, ">u2").spec()["dtype"] == ">u2"


def test_a_token_file_has_only_the_column_tokens() -> None:
    stored = Stored("x.bin", GOOD.tobytes())
    made = cut(Tokens(4, "uint16"), stored)
    [piece] = pieces(stored, made)
    with pytest.raises(ColumnNotFound, match="'label'"):
        Tokens(4, "uint16").open(memoryview(stored.data), piece, {"label": columns_of(made)["tokens"]})


def test_a_file_of_any_size_is_cut_by_arithmetic() -> None:
    size = 256 * 10**9
    kind = Tokens(64, "uint32", piece_bytes=size // 100_000)
    info = ObjectInfo("big.bin", size, "v")
    start = time.process_time()
    with pytest.raises(StopIteration) as done:
        next(kind.prepare(info))
    made = kind.cut(info, done.value.value)
    assert time.process_time() - start < 1
    assert len(made.pieces) == 100_000
    assert made.pieces[99_999].stop == size
