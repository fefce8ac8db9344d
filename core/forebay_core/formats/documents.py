"""The token ids of documents: of lists of ids, of text as its bytes, of text by a tokenizer.

A column is taken in runs of rows, so that what is made of it in memory stays small whatever a batch holds; only a
document that is larger than a run's bound makes a larger one. Runs on a worker thread of the daemon.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from forebay_core.arrow_arrays import as_numpy, dtype_of
from forebay_core.errors import BadObject, ConfigurationError, one_line
from forebay_core.formats.base import Rows
from forebay_core.formats.columns import is_list, plain
from forebay_core.formats.packing import BYTES, Packing

#: Token ids of some documents end to end, and how many each of them has.
Ids: TypeAlias = tuple[npt.NDArray[Any], Rows]
_RUN = 1 << 20
#: Of a run while it is turned into sequences: measured with a tokenizer, which takes most, 24 to 39 MiB.
RUN_MEMORY_BYTES = 64 << 20


class Documents:
    """Reads the documents of a column of one type. Raises `ConfigurationError` where it holds no documents."""

    def __init__(self, packing: Packing, kind: pa.DataType, where: str) -> None:
        self._where = where
        self._ids = _reader(packing, plain(kind), where)

    def runs(self, column: pa.Array) -> Iterator[Ids]:
        """The ids of all documents but the nulls, in order. Raises `BadObject`."""
        column = column.drop_null()
        sizes = _sizes(column)
        ends = np.cumsum(sizes)
        start = 0
        while start < len(column):
            begun = int(ends[start] - sizes[start])
            stop = max(start + 1, int(np.searchsorted(ends, begun + _RUN, side="right")))
            stop = min(stop, start + _RUN)
            run = column.slice(start, stop - start)
            try:
                yield self._ids(run.dictionary_decode() if types.is_dictionary(run.type) else run)
            except UnicodeDecodeError as error:
                raise BadObject(f"{self._where} has a document that is not UTF-8 ({error}): mend it") from error
            start = stop


def _reader(packing: Packing, kind: pa.DataType, where: str) -> Callable[[pa.Array], Ids]:
    is_text = types.is_string(kind) or types.is_large_string(kind)
    is_ids = (is_list(kind) or types.is_fixed_size_list(kind)) and types.is_integer(kind.value_type)
    if packing.tokenizer is None and is_ids:
        return lambda column: _listed(column, where)
    if packing.tokenizer == BYTES and is_text:
        return _bytes
    if packing.file is not None and is_text:
        return _tokenized(packing.file.load(), packing.special_tokens, where)
    wanted = "lists of whole numbers" if packing.tokenizer is None else "text"
    remedy = (
        "text needs Packing(tokenizer=…)" if is_text else "token ids need no tokenizer" if is_ids else "choose another"
    )
    raise ConfigurationError(f"{where} holds {kind}, but documents to be packed must be {wanted}: {remedy}")


def _sizes(column: pa.Array) -> Rows:
    """Of each document, none of them null: its ids, or bytes."""
    if types.is_dictionary(column.type):
        indices = column.indices.cast(pa.int64())
        return _sizes(column.dictionary)[as_numpy(indices, np.int64)] if len(column) else np.empty(0, np.int64)
    if types.is_fixed_size_list(column.type):
        return np.full(len(column), column.type.list_size, np.int64)
    measure = pc.list_value_length if is_list(column.type) else pc.binary_length
    return as_numpy(measure(column).cast(pa.int64()), np.int64)


def _listed(column: pa.Array, where: str) -> Ids:
    values = column.flatten()
    if values.null_count:
        raise BadObject(f"{where} has a document with a null among its token ids: mend it in the data")
    return as_numpy(values, dtype_of(values.type)), _sizes(column)


def _bytes(column: pa.Array) -> Ids:
    sizes = _sizes(column)
    width = np.int64 if types.is_large_string(column.type) else np.int32
    _, offsets, data = column.buffers()
    if not len(column) or data is None:
        return np.empty(0, np.uint8), sizes
    bounds = np.frombuffer(offsets, width)[column.offset : column.offset + len(column) + 1]
    return np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]], sizes


def _tokenized(tokenizer: Any, special_tokens: bool, where: str) -> Callable[[pa.Array], Ids]:
    def ids(column: pa.Array) -> Ids:
        texts = column.to_pylist()
        try:
            encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=special_tokens)
        except Exception as error:  # the library raises nothing more exact
            raise BadObject(f"{where} has a document that cannot be tokenized ({one_line(error)})") from error
        found = [one.ids for one in encoded]
        sizes = np.fromiter(map(len, found), np.int64, len(found))
        return np.fromiter(chain.from_iterable(found), np.int64, int(sizes.sum())), sizes

    return ids
