"""On which disk a piece is filled: the rule alone.

By free bytes, so that disks of different sizes fill up together. Where no disk has the room free, something has to go:
then a hash of the key decides, by the disks' capacities, so that each holds a fair sample of everything, and what its
own eviction lets go is about as dispensable as what all of them together would. A slow disk gets one fill at a time, an
unstable one none, while there are others. Pure; called once for each fill, on the event loop.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """A disk that takes fills, as the rule sees it; all in bytes on the disk."""

    #: Tells the disks apart, and stays the same for ever.
    id: str
    #: What it may hold at the moment.
    capacity_bytes: int
    #: What is neither used nor reserved, and free on the file system.
    free_bytes: int
    #: The largest piece that could ever fit.
    most_bytes: int
    #: What leases and pins keep from eviction. Asked only where nothing is free.
    held_bytes: Callable[[], int] = lambda: 0
    #: Fills that it takes at the moment.
    fills: int = 0
    is_slow: bool = False
    is_unstable: bool = False


def choose(candidates: Sequence[Candidate], key: str, size: int) -> Candidate | None:
    """The disk for a piece of about `size` bytes; None where there is no disk. One that could never take it is chosen
    only where all are like that, so that the error is of the largest."""
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    fitting = [disk for disk in candidates if disk.most_bytes >= size]
    if not fitting:
        return max(candidates, key=lambda disk: disk.most_bytes)
    fitting = _some(fitting, lambda disk: not disk.is_unstable)
    fitting = _some(fitting, lambda disk: not disk.is_slow or disk.fills == 0)
    free = [disk for disk in fitting if disk.free_bytes >= size]
    if free:
        return max(free, key=lambda disk: disk.free_bytes)
    unheld = [disk for disk in fitting if disk.capacity_bytes - disk.held_bytes() >= size]
    return max(unheld or fitting, key=lambda disk: _draw(key, disk))


def _some(disks: list[Candidate], wanted: Callable[[Candidate], bool]) -> list[Candidate]:
    """Those that are wanted, or all where none is."""
    return [disk for disk in disks if wanted(disk)] or disks


def _draw(key: str, disk: Candidate) -> float:
    """Weighted rendezvous hashing: the highest draw wins each key with a probability in proportion to its capacity."""
    digest = hashlib.blake2b(f"{disk.id} {key}".encode(), digest_size=8).digest()
    uniform = (int.from_bytes(digest, "big") + 1) / (2**64 + 1)
    return -disk.capacity_bytes / math.log(uniform)
