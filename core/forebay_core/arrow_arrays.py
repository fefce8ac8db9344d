"""Arrow arrays from numpy arrays and bytes, made from their buffers.

`pyarrow.array` looks whether its argument belongs to pandas and imports pandas for that, where it is installed: most of
a second and tens of megabytes in the first call, in a daemon or a trainer that has no use for it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def numbers(values: npt.NDArray[Any]) -> pa.Array:
    """A numeric array over the memory of a numpy array, without nulls."""
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def texts(values: Sequence[bytes], kind: pa.DataType) -> pa.Array:
    """A large_binary or large_string array (its values UTF-8)."""
    offsets = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum([len(value) for value in values], out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(kind, len(values), buffers)


def as_numpy(array: pa.Array, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The values of a numeric array of that type, without a copy; what lies under a null is whatever lies there."""
    data = array.buffers()[1]
    if data is None or len(array) == 0:
        return np.empty(0, dtype)
    return np.frombuffer(data, dtype)[array.offset : array.offset + len(array)]


_NAMES = {"halffloat": "float16", "float": "float32", "double": "float64"}


def dtype_of(kind: pa.DataType) -> np.dtype[Any]:
    """The numpy type of a type of integers, floats or booleans."""
    return np.dtype(_NAMES.get(str(kind), str(kind)))
