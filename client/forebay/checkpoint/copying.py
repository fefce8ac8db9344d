"""Copies tensors to the host: at once where they are there already, on a stream of its own for each CUDA device.

A moment is an event per device. A copy begins behind the moment that it is given, which the training thread has taken
when it had queued all that the copy must see, and ends with a moment behind which the sources may change. Where nothing
is on a device, moments are empty, and a copy is complete when `copy` returns. `copy` is called by one thread at a time.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Moment = Mapping[torch.device, Any]


def has_devices() -> bool:
    """Whether any tensor may be on one. Spares a look at each of thousands."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def now(tensors: Iterable[Tensor]) -> Moment:
    """Behind all that this thread has queued on the devices of these tensors."""
    if not has_devices():
        return {}
    devices = {tensor.device for tensor in tensors if tensor.is_cuda}
    return {device: torch.cuda.current_stream(device).record_event() for device in devices}


def follow(moment: Moment) -> None:
    """What this thread queues from now on happens behind the moment. Does not block."""
    for device, event in moment.items():
        torch.cuda.current_stream(device).wait_event(event)


def wait(moment: Moment) -> None:
    """Blocks until the moment is past."""
    for event in moment.values():
        event.synchronize()


class Copier:
    """Copies and sums behind a moment, from any thread: streams and devices are a thread's own in CUDA."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, Any] = {}

    def copy(self, places: Sequence[Tensor], sources: Sequence[Tensor], behind: Moment) -> Moment:
        """Fills the places from the sources, in one call for all of a device, which lets go of the interpreter."""
        if not has_devices():
            if places:
                torch._foreach_copy_(list(places), list(sources))
            return {}
        groups: dict[torch.device | None, tuple[list[Tensor], list[Tensor]]] = {}
        for place, source in zip(places, sources, strict=True):
            of_device = groups.setdefault(source.device if source.is_cuda else None, ([], []))
            of_device[0].append(place)
            of_device[1].append(source)
        ends = {}
        for device, (into, out_of) in groups.items():
            if device is None:
                torch._foreach_copy_(into, out_of)
                continue
            with self.streaming(device, behind) as stream:
                torch._foreach_copy_(into, out_of, non_blocking=True)
                ends[device] = stream.record_event()
        return ends

    @contextmanager
    def streaming(self, device: torch.device, behind: Moment) -> Iterator[Any]:
        """What is queued in the block runs on the stream of a device, behind the moment. No stream: on the host."""
        if device.type != "cuda":
            yield None
            return
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream = self._streams[device]
        if device in behind:
            stream.wait_event(behind[device])
        with torch.cuda.stream(stream):
            yield stream
