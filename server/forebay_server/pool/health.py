"""How well a disk is, and what follows from what happens to it: rules alone.

::

                 a fault                    a fault, or a bad probe
    normal ───────────────────▶ unstable ───────────────────────────▶ down
       ▲  ◀───────────────────    │                                    │
       │      a good probe        │ a write is refused                 │
       │                          ▼                                    │
       └──────────────────── read-only ◀───────────────────────────────┤
       ▲      a good probe            good probes in a row, writes refused
       └───────────────────────────────────────────────────────────────┘
                              good probes in a row

What is on a disk that is down counts as gone until it is well again. One that only refuses writes (EROFS) is served
from and not filled. A full one (ENOSPC, EDQUOT) stays as well as it is: what it may hold shrinks to what it held, and
grows back. A disk that went down is left alone for a time that doubles each time. Pure: times are seconds of any clock.
"""

import errno
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, StrEnum

#: After a fault the disk is looked at this soon; one that is down or read-only this often.
_FIRST_PROBE_SECONDS = 0.2
PROBE_SECONDS = 5.0
#: A directory that could not be claimed is tried again: a disk that is mounted late, a mistake that is repaired.
CLAIM_SECONDS = 60.0
#: So many good probes in a row bring a disk back.
GOOD_PROBES = 3
#: For so long a disk that went down is not looked at, doubled each time up to the longest; forgotten after a good hour.
_REST_SECONDS, _LONGEST_REST_SECONDS, _FORGET_SECONDS = 5.0, 1800.0, 3600.0
#: A full disk keeps to what it held for so long, then may hold a part more of its capacity each interval.
_HOLD_SECONDS, _GROW_SECONDS, _GROWTH = 30.0, 10.0, 1 / 16
#: A disk is slow that takes so many times as long for a byte as the fastest.
_SLOW_FACTOR = 8.0
#: Fewer bytes say nothing of a disk's speed, and older ones count less: after so many, half.
_SPEED_BYTES = 64 << 20


class State(StrEnum):
    """In the words of `forebay status`."""

    NORMAL = "normal"
    UNSTABLE = "unstable"
    READ_ONLY = "read-only"
    DOWN = "down"


class Trouble(Enum):
    """What an error says of the disk."""

    FAULT = "fault"
    REFUSES_WRITES = "refuses writes"
    FULL = "full"


_TROUBLES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), Trouble.FULL),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), Trouble.REFUSES_WRITES),
    **dict.fromkeys((errno.EIO, errno.ENXIO, errno.ENODEV, errno.EREMOTEIO, errno.ETIMEDOUT), Trouble.FAULT),
    **dict.fromkeys((errno.EUCLEAN, errno.EBADMSG, errno.ESTALE, errno.ESHUTDOWN, errno.ENOTCONN), Trouble.FAULT),
}


def trouble_of(error: OSError) -> Trouble | None:
    """What the error says of the disk that it came from; None: nothing (a file in the way, a limit of the process)."""
    return None if error.errno is None else _TROUBLES.get(error.errno)


def in_words(error: OSError) -> str:
    """The error for people, with the name of its number."""
    return f"{error.strerror or error} ({errno.errorcode.get(error.errno or 0, 'no number')})"


@dataclass(frozen=True, slots=True)
class Health:
    """A disk at one moment."""

    state: State = State.NORMAL
    #: The last error, in words; empty while normal.
    reason: str = ""
    since: float = 0.0
    #: When to look at it; None: there is no need.
    probe_at: float | None = None
    good_probes: int = 0
    #: How often it went down lately.
    downs: int = 0

    @property
    def is_readable(self) -> bool:
        """Whether what is on it counts."""
        return self.state is not State.DOWN

    @property
    def is_writable(self) -> bool:
        """Whether it may be filled."""
        return self.state in (State.NORMAL, State.UNSTABLE)

    def failed(self, trouble: Trouble, reason: str, now: float) -> "Health":
        """After an error in use."""
        if trouble is Trouble.FULL or self.state is State.DOWN:
            return self
        if trouble is Trouble.REFUSES_WRITES:
            return self._read_only(reason, now)
        if self.state is State.NORMAL:
            return replace(self, state=State.UNSTABLE, reason=reason, since=now, probe_at=now + _FIRST_PROBE_SECONDS)
        return self._down(reason, now)

    def probed(self, trouble: Trouble | None, reason: str, now: float) -> "Health":
        """After a probe. A full disk has answered."""
        if trouble is Trouble.FAULT:
            return self._down(reason, now)
        good = self.good_probes + 1
        if self.state is State.DOWN and good < GOOD_PROBES:
            return replace(self, good_probes=good, probe_at=now + PROBE_SECONDS)
        if trouble is Trouble.REFUSES_WRITES:
            return self._read_only(reason, now)
        return Health(since=now, downs=self._downs(now))

    def admitted(self, now: float) -> "Health":
        """After an operator's word: it is looked at now, and one good probe is enough."""
        if self.state is State.NORMAL:
            return self
        return replace(self, probe_at=now, good_probes=GOOD_PROBES, downs=0)

    def _read_only(self, reason: str, now: float) -> "Health":
        since = self.since if self.state is State.READ_ONLY else now
        return Health(State.READ_ONLY, reason, since, now + PROBE_SECONDS, downs=self.downs)

    def _down(self, reason: str, now: float) -> "Health":
        since = self.since if self.state is State.DOWN else now
        downs = self._downs(now) + 1
        rest = min(_LONGEST_REST_SECONDS, _REST_SECONDS * 2 ** (downs - 1))
        return Health(State.DOWN, reason, since, now + rest, downs=downs)

    def _downs(self, now: float) -> int:
        is_forgotten = self.state is State.NORMAL and now - self.since > _FORGET_SECONDS
        return 0 if is_forgotten else min(self.downs, 32)


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a disk may hold: what was configured, less what it turned out not to have."""

    configured_bytes: int
    #: What it held when it was found full, and when that was.
    full_bytes: int | None = None
    full_at: float = 0.0

    def shrunk(self, held_bytes: int, now: float) -> "Allowance":
        """After the disk was found full while it held so much of ours."""
        return replace(self, full_bytes=max(0, min(held_bytes, self.bytes(now))), full_at=now)

    def bytes(self, now: float) -> int:
        """What it may hold at the moment."""
        if self.full_bytes is None:
            return self.configured_bytes
        intervals = max(0, int((now - self.full_at - _HOLD_SECONDS) // _GROW_SECONDS) + 1)
        grown = self.full_bytes + int(intervals * self.configured_bytes * _GROWTH)
        return min(self.configured_bytes, grown)


@dataclass(frozen=True, slots=True)
class Speed:
    """How long writing takes, over the last many bytes."""

    bytes: float = 0.0
    seconds: float = 0.0

    def after(self, count: int, seconds: float) -> "Speed":
        """So many bytes more were written in that time."""
        kept = 0.5 ** (count / _SPEED_BYTES)
        return Speed(self.bytes * kept + count, self.seconds * kept + seconds)

    @property
    def seconds_per_byte(self) -> float | None:
        """None where too little was written to say."""
        return self.seconds / self.bytes if self.bytes >= _SPEED_BYTES / 8 else None


def slow_ones(speeds: Mapping[str, Speed]) -> frozenset[str]:
    """Which of these disks are slow beside the fastest of them."""
    known = {name: each for name, speed in speeds.items() if (each := speed.seconds_per_byte) is not None}
    if not known:
        return frozenset()
    fastest = max(min(known.values()), 1e-12)
    return frozenset(name for name, each in known.items() if each > _SLOW_FACTOR * fastest)
