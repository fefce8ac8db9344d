"""Moves batches to a device, one batch ahead of the trainer.

`DeviceDelivery` stands between another delivery and the engine, on the trainer's thread like both. When it hands out a
batch and the next one has been read by then, it begins that one's copy before it returns: so the copy runs while the
trainer computes. It never waits for a batch to be read, so it delays none, and where the trainer's own thread reads
(a map-style dataset without workers) nothing is read before its turn. The engine learns of a batch when it is handed
out; an error met while looking ahead is raised when its batch's turn has come.

On CUDA the copies run on a stream of their own, out of pinned memory. Handing out makes the trainer's current stream
wait for the copy, and tells the allocator that this stream uses the memory. What is not a tensor but has a `to` of its
own cannot be told to the allocator so: it is copied on the trainer's stream when it is handed out.
"""

import copy
import dataclasses
import inspect
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch.utils import _pytree as pytree

from forebay.loading.chunk import Batch
from forebay.loading.delivery import Delivery
from forebay.loading.lookahead import Lookahead
from forebay.loading.waits import Reading
from forebay_core.errors import ConfigurationError

DeviceLike = str | int | torch.device
Leaf = Callable[[Any], Any]


def checked_device(device: DeviceLike) -> torch.device:
    """The device, if there is one here. Raises `ConfigurationError`."""
    try:
        if isinstance(device, bool):
            raise TypeError("a truth value is no device")
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(f"device={device!r} is no device ({reason}): give one such as 'cuda:0'") from error
    backend = getattr(torch, found.type, None)
    count = getattr(backend, "device_count", None)
    if found.type in ("cuda", "mps", "xpu") and not (backend and backend.is_available()):
        raise ConfigurationError(f"device={device!r}: torch {torch.__version__} has no {found.type} device here")
    if found.type in ("cuda", "xpu") and callable(count) and (found.index or 0) >= count():
        raise ConfigurationError(f"device={device!r}: there are {count()} {found.type} devices here, counted from 0")
    return found


class Mover(Protocol):
    """Moves the data of batches. Used on the trainer's thread."""

    def begin(self, data: Any) -> Any:
        """Begins to move; what comes back is for `finish`."""

    def finish(self, moving: Any) -> Any:
        """The moved data, for use on the trainer's current stream."""


def mover(device: torch.device) -> Mover:
    """How to move to a device."""
    return CudaMover(device) if device.type == "cuda" else PlainMover(device)


class PlainMover:
    """For devices without streams of their own: moved at once. What is on the device stays the object that it is."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def begin(self, data: Any) -> Any:
        return mapped(lambda leaf: leaf.to(self._device), data)

    def finish(self, moving: Any) -> Any:
        return moving


@dataclass
class _Moving:
    """A batch on its way to a CUDA device."""

    data: Any
    copied: torch.cuda.Event
    tensors: list[torch.Tensor] = field(default_factory=list)
    has_others: bool = False


class CudaMover:
    """Copies on a stream of its own, which is made by the process that first moves something."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None

    def begin(self, data: Any) -> _Moving:
        stream = self._side_stream()
        with torch.cuda.stream(stream):
            moving = _Moving(None, torch.cuda.Event())  # type: ignore[no-untyped-call]

            def copy(leaf: Any) -> Any:
                if not isinstance(leaf, torch.Tensor):
                    moving.has_others = True
                    return leaf
                there = leaf.to(self._device, non_blocking=True)
                if there is not leaf:
                    moving.tensors.append(there)
                return there

            moving.data = mapped(copy, data)
            moving.copied.record(stream)
        return moving

    def finish(self, moving: _Moving) -> Any:
        here = torch.cuda.current_stream(self._device)
        here.wait_event(moving.copied)
        for tensor in moving.tensors:
            tensor.record_stream(here)
        return mapped(self._other, moving.data) if moving.has_others else moving.data

    def _other(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.to(self._device, non_blocking=True) if _takes_non_blocking(leaf.to) else leaf.to(self._device)

    def _side_stream(self) -> torch.cuda.Stream:
        if self._stream is None:
            if self._device.index is None:
                self._device = torch.device("cuda", torch.cuda.current_device())
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        return self._stream


class DeviceDelivery:
    """Another delivery's batches, on a device."""

    def __init__(self, inner: Delivery, mover: Mover) -> None:
        self._inner, self._mover = inner, mover
        self._ahead: Batch | Exception | None = None

    def start(self, lookahead: Lookahead) -> None:
        self._ahead = None
        self._inner.start(lookahead)

    def next(self) -> Batch:
        batch, self._ahead = self._ahead, None
        if batch is None:
            batch = self._begun()
        if isinstance(batch, Exception):
            raise batch
        batch = batch._replace(data=self._mover.finish(batch.data))
        if self._inner.is_ready():
            try:
                self._ahead = self._begun()
            except Exception as error:
                self._ahead = error
        return batch

    def is_ready(self) -> bool:
        return self._ahead is not None or self._inner.is_ready()

    def reading(self) -> Reading:
        return self._inner.reading()

    def close(self) -> None:
        self._ahead = None
        self._inner.close()

    def _begun(self) -> Batch:
        batch = self._inner.next()
        return batch._replace(data=self._mover.begin(batch.data))


def mapped(leaf: Leaf, data: Any) -> Any:
    """`data` with `leaf` of all in it that can be moved: tensors, and objects with a `to` method.

    Looks into dicts, lists, tuples, named tuples and what else torch's pytree knows, into other mappings, and into
    dataclasses.
    """

    def each(value: Any) -> Any:
        if _is_movable(value):
            return leaf(value)
        if isinstance(value, MutableMapping):
            other = copy.copy(value)
            other.update({key: mapped(leaf, item) for key, item in value.items()})
            return other
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: mapped(leaf, getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
            return replace(value, **fields)
        return value

    return pytree.tree_map(each, data, is_leaf=_is_movable)


def _is_movable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or (not isinstance(value, type) and callable(getattr(value, "to", None)))


def _takes_non_blocking(to: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(to).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(each.name == "non_blocking" or each.kind is each.VAR_KEYWORD for each in parameters)
