"""How the columns of a schema come out of a batch: decided by the schema alone, so that every batch looks the same.

Numbers and booleans, alone or in lists of a fixed size, become arrays; everything else becomes a list with one Python
value or array a row. Where a row has no value, see `arrow_reader`. Pure; called by whoever opens a manifest.
"""

import math

import pyarrow as pa
from pyarrow import types

from forebay_core.arrow_arrays import dtype_of
from forebay_core.formats.base import Column


def is_number(kind: pa.DataType) -> bool:
    """True for what one numpy scalar holds: integers, floats, booleans."""
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def is_text(kind: pa.DataType) -> bool:
    """True for strings and bytes of any length."""
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def is_list(kind: pa.DataType) -> bool:
    """True for lists of any length."""
    return bool(types.is_list(kind) or types.is_large_list(kind))


def plain(kind: pa.DataType) -> pa.DataType:
    """The type without its encoding: dictionaries as their values, extensions as their storage, views as plain text.

    Shards that hold the same values in different encodings have the same plain type.
    """
    if isinstance(kind, pa.FixedShapeTensorType):
        return _tensor(kind.value_type, list(kind.shape))
    if isinstance(kind, pa.BaseExtensionType):
        return plain(kind.storage_type)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return plain(kind.value_type)
    if types.is_string_view(kind):
        return pa.string()
    if types.is_binary_view(kind):
        return pa.binary()
    return _plain_nested(kind)


def _plain_nested(kind: pa.DataType) -> pa.DataType:
    if types.is_fixed_size_list(kind):
        return pa.list_(_plain_field(kind.value_field), kind.list_size)
    if types.is_list(kind):
        return pa.list_(_plain_field(kind.value_field))
    if types.is_large_list(kind):
        return pa.large_list(_plain_field(kind.value_field))
    if types.is_struct(kind):
        return pa.struct([_plain_field(kind.field(i)) for i in range(kind.num_fields)])
    if types.is_map(kind):
        return pa.map_(_plain_field(kind.key_field), _plain_field(kind.item_field))
    return kind


def _plain_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, plain(field.type), field.nullable)


def _tensor(value: pa.DataType, shape: list[int]) -> pa.DataType:
    for size in reversed(shape):
        value = pa.list_(value, size)
    return value


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema in plain types, all nullable, without metadata: what the shards of a dataset are compared by."""
    return pa.schema([pa.field(field.name, plain(field.type)) for field in schema])


def column_of(field: pa.Field) -> Column:
    """How the column of this field comes out of a batch."""
    kind = plain(field.type)
    shape: list[int] = []
    while types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    if is_number(kind) and math.prod(shape) > 0:
        return Column(field.name, dtype_of(kind), tuple(shape))
    return Column(field.name, None)
