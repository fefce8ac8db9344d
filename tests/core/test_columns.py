"""What each type of column becomes in a batch."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from forebay_core.formats.columns import column_of, plain, plain_schema

F32 = pa.float32()


@pytest.mark.parametrize(
    ("kind", "dtype", "shape"),
    [
        (pa.int8(), np.int8, ()),
        (pa.uint64(), np.uint64, ()),
        (pa.float16(), np.float16, ()),
        (pa.float64(), np.float64, ()),
        (pa.bool_(), np.bool_, ()),
        (pa.list_(F32, 4), np.float32, (4,)),
        (pa.list_(pa.list_(pa.bool_(), 3), 2), np.bool_, (2, 3)),
        (pa.fixed_shape_tensor(F32, (5, 6)), np.float32, (5, 6)),
        (pa.dictionary(pa.int8(), pa.int64()), np.int64, ()),
    ],
    ids=str,
)
def test_numbers_of_a_fixed_width_become_arrays(kind: Any, dtype: Any, shape: tuple[int, ...]) -> None:
    column = column_of(pa.field("c", kind))
    assert (column.name, column.dtype, column.shape) == ("c", np.dtype(dtype), shape)


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_binary(),
        pa.binary(16),
        pa.dictionary(pa.int32(), pa.string()),
        pa.list_(F32),
        pa.list_(pa.string(), 2),
        pa.list_(pa.list_(F32), 2),
        pa.list_(F32, 0),
        pa.timestamp("us"),
        pa.date32(),
        pa.decimal128(10, 2),
        pa.struct([("a", F32)]),
        pa.map_(pa.string(), F32),
        pa.null(),
    ],
    ids=str,
)
def test_everything_else_becomes_a_list(kind: Any) -> None:
    column = column_of(pa.field("c", kind))
    assert (column.dtype, column.shape) == (None, ())


def test_a_plain_type_has_no_encoding_at_any_depth() -> None:
    text = pa.dictionary(pa.int8(), pa.string())
    kind = pa.struct(
        [
            ("l", pa.list_(text)),
            ("f", pa.list_(text, 2)),
            ("g", pa.large_list(pa.string_view())),
            ("m", pa.map_(pa.string(), text)),
            ("u", pa.uuid()),
            ("r", pa.run_end_encoded(pa.int16(), pa.binary_view())),
        ]
    )
    s = pa.string()
    assert plain(kind) == pa.struct(
        [
            ("l", pa.list_(s)),
            ("f", pa.list_(s, 2)),
            ("g", pa.large_list(s)),
            ("m", pa.map_(s, s)),
            ("u", pa.binary(16)),
            ("r", pa.binary()),
        ]
    )


def test_schemas_are_compared_without_metadata_and_nullability() -> None:
    one = pa.schema([pa.field("a", F32, nullable=False, metadata={"PARQUET:field_id": "1"})], metadata={"pandas": "{}"})
    other = pa.schema([pa.field("a", F32)])
    assert plain_schema(one).equals(plain_schema(other), check_metadata=True)
