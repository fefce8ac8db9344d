"""The bytes that `torch.save` makes of a plain tensor, and back, without asking torch for each of them.

Around the tensor's own bytes there are a head and a tail that follow from its type and shape; torch makes them once for
each, which rests on its writing a tensor in one piece from where it is. Only the checksums that a zip archive has are
left out, as with `torch.serialization.set_crc32_options(False)`: `torch.load` does not look at them, and every item has
a CRC-32C in the manifest of its rank. Any thread.
"""

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import IO, Any, cast

import numpy
import torch
from torch import Tensor
from torch.serialization import get_crc32_options, set_crc32_options

#: Kinds of tensors whose frames are kept, of 1.5 KB each.
_KEPT = 4096
_lock = threading.Lock()


def save(tensor: Tensor, file: IO[bytes]) -> None:
    """Writes what `torch.load` makes this tensor of. What else its storage holds is not written."""
    tensor = tensor.detach().cpu()
    frame = _frame_of(tensor.dtype, tensor.shape) if _is_plain(tensor) else None
    if frame is None:
        torch.save(_alone(tensor), file)
        return
    file.write(frame.head)
    file.write(_content(tensor))
    file.write(frame.tail)


def view(content: memoryview, dtype: torch.dtype, shape: torch.Size) -> Tensor | None:
    """The tensor over bytes that are what `save` writes of a plain one of this kind; None for any others.

    content: writable, and the tensor's as long as it is used.
    """
    size_bytes = math.prod(shape) * dtype.itemsize
    frame = _frame_of(dtype, shape) if size_bytes <= len(content) else None
    if frame is None:
        return None
    begin, end = len(frame.head), len(content) - len(frame.tail)
    if end - begin != size_bytes:
        return None
    if content[:begin] != frame.head or content[end:] != frame.tail:
        return None
    if begin == end:
        return torch.empty(shape, dtype=dtype, device="cpu")
    values = torch.frombuffer(content, dtype=torch.uint8, count=end - begin, offset=begin)
    return values.view(dtype).reshape(shape)


@dataclass(frozen=True, slots=True)
class _Frame:
    """What comes before and after the bytes of a tensor."""

    head: bytes
    tail: bytes


def _is_plain(tensor: Tensor) -> bool:
    return (
        type(tensor) is Tensor
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


def _content(tensor: Tensor) -> memoryview:
    return memoryview(cast(Any, tensor.reshape(-1).view(torch.uint8).numpy()))


def _alone(tensor: Tensor) -> Tensor:
    is_part = tensor.layout is torch.strided and tensor.untyped_storage().nbytes() != tensor.nbytes
    return tensor.clone() if is_part else tensor


@lru_cache(maxsize=_KEPT)
def _frame_of(dtype: torch.dtype, shape: torch.Size) -> _Frame | None:
    """None where torch writes tensors otherwise than is known of it."""
    sample = torch.empty(shape, dtype=dtype, device="cpu")
    written = _Recorded(sample.data_ptr(), sample.nbytes)
    with _without_crc32():
        torch.save(sample, cast(IO[bytes], written))
    if not written.is_found and sample.nbytes:
        return None
    return _Frame(bytes(written.before), bytes(written.after))


class _Recorded:
    """A file that keeps what is written to it, but for what is at this address."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self._address, self._size_bytes = address, size_bytes
        self.before, self.after = bytearray(), bytearray()
        self.is_found = False

    def write(self, content: Any) -> int:
        view = numpy.frombuffer(content, numpy.uint8)
        if view.nbytes and (view.ctypes.data, view.nbytes) == (self._address, self._size_bytes):
            self.is_found = True
        else:
            (self.after if self.is_found else self.before).extend(view.data)
        return view.nbytes

    def flush(self) -> None:
        return


@contextmanager
def _without_crc32() -> Iterator[None]:
    """From torch 2.13 on for this thread alone; before that for all of the process, so one thread at a time."""
    with _lock:
        before = get_crc32_options()
        set_crc32_options(False)
        try:
            yield
        finally:
            set_crc32_options(before)
