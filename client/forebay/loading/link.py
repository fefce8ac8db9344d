"""Messages between the trainer and one worker process, over a Unix socket of their own.

A message is a number and a picklable value. What is large (tensors, arrays, long pickles) goes through an anonymous
file in memory (memfd), whose descriptor travels with the message and is closed as soon as the receiver has mapped it;
the tensors that come out lie in that mapping, and the memory is freed with the last of them. So nothing of it has a
name: whatever is killed, nothing is left in /dev/shm or in a temporary directory, and Docker's small /dev/shm is no
limit. Each worker has its own socket: one that is killed in the middle of a message harms no other, and the end of a
process is the end of its socket, under every start method.

A link belongs to one thread, but for `fileno`. A forked child closes all links of the process that it came from.
"""

import os
import pickle
import socket
import struct
import weakref
from collections.abc import Sequence
from io import BytesIO
from itertools import accumulate
from typing import Any

import torch

from forebay_core.mapping import map_shared

INLINE_BYTES = 4096
"""Longer messages go through memory; so the socket's buffer holds dozens and a sender does not wait for its peer."""
_HEADER = struct.Struct("<qqqqq")  # number, buffers, bytes of the pickle, bytes in all, whether in memory
_ALIGNMENT = 64
_MOST_PARTS = 512  # the kernel takes 1024 in one call

_of_this_process: "weakref.WeakSet[Link]" = weakref.WeakSet()


class Link:
    """One end. `EOFError` from any method where the other process has closed its end or is gone."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        #: True while a message is under way; it stays so where an exception, say of a signal's handler, cut one off.
        self.is_cut = False
        _of_this_process.add(self)

    def fileno(self) -> int:
        """For polling; -1 once closed."""
        return self._socket.fileno()

    def send(self, number: int, value: Any) -> None:
        """Raises what pickling raises, and has then sent nothing."""
        buffers: list[pickle.PickleBuffer] = []
        stream = BytesIO()
        _Pickler(stream, protocol=5, buffer_callback=buffers.append).dump(value)
        parts = _laid_out(stream.getbuffer(), [buffer.raw() for buffer in buffers])
        total = sum(len(part) for part in parts)
        in_memory = total > INLINE_BYTES
        header = _HEADER.pack(number, len(buffers), stream.tell(), total, in_memory)
        self.is_cut = True
        try:
            if in_memory:
                self._send_in_memory(header, parts)
            else:
                self._socket.sendall(b"".join([header, *parts]))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise EOFError from error
        self.is_cut = False

    def _send_in_memory(self, header: bytes, parts: Sequence[Any]) -> None:
        file = os.memfd_create("forebay")
        try:
            _write(file, parts)
            socket.send_fds(self._socket, [header], [file])
        finally:
            os.close(file)

    def receive(self) -> tuple[int, Any]:
        """The next message, waiting for it. Raises what unpickling raises; the message is then gone."""
        self.is_cut = True
        try:
            header, files = self._receive_header()
            number, count, pickled, total, in_memory = _HEADER.unpack(header)
            message = _mapped(files, total) if in_memory else memoryview(self._exactly(bytearray(), total))
        except ConnectionResetError as error:
            raise EOFError from error
        self.is_cut = False
        sizes = struct.unpack_from(f"<{count}q", message)
        starts = _starts([8 * count, pickled, *sizes])
        buffers = [message[start : start + size] for start, size in zip(starts[2:-1], sizes, strict=True)]
        return number, pickle.loads(message[starts[1] : starts[1] + pickled], buffers=buffers)  # noqa: S301 - from a process of our own

    def _receive_header(self) -> tuple[bytes, list[int]]:
        start, files, _, _ = socket.recv_fds(self._socket, _HEADER.size, 1)
        if not start:
            raise EOFError
        return bytes(self._exactly(bytearray(start), _HEADER.size)), files

    def _exactly(self, start: bytearray, size: int) -> bytearray:
        while len(start) < size:
            more = self._socket.recv(size - len(start))
            if not more:
                raise EOFError
            start += more
        return start

    def close(self) -> None:
        """Idempotent."""
        self._socket.close()


class _Pickler(pickle.Pickler):
    """Plain tensors leave their bytes to the message's buffers, as NumPy's arrays do."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor or not _is_plain(value):
            return NotImplemented
        order = None
        if not value.is_contiguous():
            order = sorted(range(value.dim()), key=value.stride, reverse=True)
            value = value.permute(order).contiguous()
        octets: Any = value.reshape(-1).view(torch.uint8).numpy()
        return _tensor, (pickle.PickleBuffer(octets), value.dtype, tuple(value.shape), order)


def _is_plain(value: torch.Tensor) -> bool:
    return (
        value.layout is torch.strided
        and not value.is_nested
        and value.device.type == "cpu"
        and not (value.requires_grad or value.is_conj() or value.is_neg() or value.is_quantized)
        and not value.__dict__
    )


def _tensor(octets: Any, dtype: torch.dtype, shape: tuple[int, ...], order: list[int] | None) -> torch.Tensor:
    """The tensor over these bytes; `order` says which dimension lies where in memory, None that they lie in order."""
    tensor = torch.empty(shape, dtype=dtype) if 0 in shape else torch.frombuffer(octets, dtype=dtype).view(shape)
    return tensor if order is None else tensor.permute([order.index(dimension) for dimension in range(len(order))])


def _laid_out(pickled: memoryview, buffers: Sequence[memoryview]) -> list[Any]:
    """The sizes of the buffers, the pickle and the buffers, each at a multiple of the alignment."""
    sizes = struct.pack(f"<{len(buffers)}q", *map(len, buffers))
    laid_out: list[Any] = []
    for part in (sizes, pickled, *buffers):
        laid_out += (part, bytes(-len(part) % _ALIGNMENT))
    return laid_out


def _starts(sizes: Sequence[int]) -> list[int]:
    return list(accumulate((size + -size % _ALIGNMENT for size in sizes), initial=0))


def _write(file: int, parts: Sequence[Any]) -> None:
    rest = [memoryview(part) for part in parts if len(part)]
    while rest:
        written = os.writev(file, rest[:_MOST_PARTS])
        while rest and written >= len(rest[0]):
            written -= len(rest.pop(0))
        if written:
            rest[0] = rest[0][written:]


def _mapped(files: list[int], total: int) -> memoryview:
    (file,) = files
    try:
        return map_shared(file, total)
    finally:
        os.close(file)


def _close_inherited() -> None:
    """A child that held its parent's ends would keep the workers from seeing the parent's end."""
    for link in list(_of_this_process):
        link.close()
    _of_this_process.clear()


os.register_at_fork(after_in_child=_close_inherited)
