"""What is decided in the staging area, as functions of their arguments (pure): who gets room and who makes it, whose
turn an upload is, and how long to wait for what may heal."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from forebay_core.checkpoints.names import Attempt
from forebay_core.errors import AccessDenied, CheckpointError, ConfigurationError, SourceNotFound


class Phase(StrEnum):
    """Of an attempt in the staging area."""

    BEGUN = "begun"
    QUEUED = "queued"
    UPLOADING = "uploading"
    #: All that this node can bring is there; other nodes' is waited for.
    UPLOADED = "uploaded"
    DURABLE = "durable"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        return self in (Phase.DURABLE, Phase.FAILED)

    @property
    def is_sealed(self) -> bool:
        """Whole, here."""
        return self.is_pending or self is Phase.DURABLE

    @property
    def is_pending(self) -> bool:
        """Sealed, and something is left to do for it."""
        return self in (Phase.QUEUED, Phase.UPLOADING, Phase.UPLOADED)


@dataclass(frozen=True, slots=True)
class Occupant:
    """What takes room in the staging area."""

    root: str
    attempt: Attempt
    size_bytes: int
    phase: Phase
    #: Somebody restores from it.
    is_read: bool = False
    #: Has files that its destination cannot do without.
    is_needed: bool = True


@dataclass(frozen=True, slots=True)
class Space:
    """What there is: of the quota, and of the file system beyond what stays free for others."""

    quota_bytes: int
    free_bytes: int
    #: Attempts of nothing take room too.
    attempts: int = 200


def default_quota(filesystem_bytes: int, cache_bytes: int) -> int:
    """What the staging directory may hold where nobody says it: half of what its disk has beyond the capacity of the
    caches on it, so that both fit, and at least a tenth of the disk, so that a cache of all of it saves too."""
    return max((filesystem_bytes - cache_bytes) // 2, filesystem_bytes // 10)


def removable(occupants: Iterable[Occupant], newest_of: Collection[tuple[str, Attempt]] = ()) -> list[Occupant]:
    """Those that may go, first those that are missed least: failed ones, durable copies oldest first, `newest_of`
    the roots last; then what waits for other nodes and is at the destination itself."""
    there = [each for each in occupants if not each.is_read]
    failed = [each for each in there if each.phase is Phase.FAILED]
    durable = sorted((each for each in there if each.phase is Phase.DURABLE), key=_age)
    newest = [each for each in durable if (each.root, each.attempt) in newest_of]
    older = [each for each in durable if each not in newest]
    waiting = sorted((each for each in there if each.phase is Phase.UPLOADED and not each.is_needed), key=_age)
    return [*failed, *older, *newest, *waiting]


def newest_durable(occupants: Iterable[Occupant]) -> set[tuple[str, Attempt]]:
    """Of each root the newest durable attempt, as (root, attempt)."""
    newest: dict[str, Attempt] = {}
    for each in occupants:
        if each.phase is Phase.DURABLE and each.attempt > newest.get(each.root, Attempt(0, 0, "0" * 12)):
            newest[each.root] = each.attempt
    return set(newest.items())


def to_remove(size_bytes: int, occupants: Sequence[Occupant], space: Space) -> list[Occupant] | None:
    """Whose removal makes room for so many bytes: nobody's where there is enough. None: there is not enough yet.

    `space.free_bytes` must not count what others have reserved and not written.
    """
    too_many = len(occupants) + 1 - space.attempts
    missing = max(
        sum(each.size_bytes for each in occupants) + size_bytes - space.quota_bytes, size_bytes - space.free_bytes
    )
    chosen: list[Occupant] = []
    for each in removable(occupants, newest_durable(occupants)):
        if missing <= 0 and too_many <= 0:
            break
        chosen.append(each)
        missing, too_many = missing - each.size_bytes, too_many - 1
    return chosen if missing <= 0 and too_many <= 0 else None


def outdated(occupants: Sequence[Occupant]) -> list[Occupant]:
    """Durable copies that are not the newest of their root, and what failed: nobody restores from them here."""
    newest = newest_durable(occupants)
    return [
        each
        for each in removable(occupants)
        if each.phase in (Phase.FAILED, Phase.DURABLE) and (each.root, each.attempt) not in newest
    ]


def is_superseded(older: Occupant, newer: Attempt, root: str) -> bool:
    """Whether an attempt need not be uploaded any more, now that `newer` is sealed and supersedes."""
    return older.root == root and older.attempt < newer and older.phase is Phase.QUEUED and not older.is_read


def is_lost_to(begun: Occupant, root: str, newer: Attempt, *, same_ranks: bool) -> bool:
    """Whether an attempt that was begun and not sealed is given up, now that `newer` begins: a newer start of the job
    has taken over, or the same ranks, which stage one after another, went on without it."""
    if begun.root != root or begun.phase is not Phase.BEGUN or begun.attempt == newer:
        return False
    return begun.attempt.generation < newer.generation or (same_ranks and begun.attempt < newer)


def turn(waiting: Sequence[tuple[bool, float, Attempt]]) -> int:
    """The index of the one whose turn it is, of (expedited, sealed at, attempt): who is waited for, then who was sealed
    first."""
    return min(range(len(waiting)), key=lambda index: (not waiting[index][0], *waiting[index][1:]))


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait before something is tried, or looked at, again; seconds."""

    first_retry_seconds: float = 1.0
    longest_retry_seconds: float = 60.0
    #: What a person has to put right is asked for rarely.
    denied_seconds: float = 5.0
    first_poll_seconds: float = 0.1
    longest_poll_seconds: float = 5.0
    #: Without another node's getting on, after which a newer durable checkpoint ends the waiting.
    others_seconds: float = 60.0

    def before_retry(self, failures: int, error: BaseException) -> float:
        """After so many failures in a row, the last of which is `error`."""
        waits = min(self.longest_retry_seconds, self.first_retry_seconds * math.pow(2, min(failures - 1, 20)))
        if isinstance(error, (AccessDenied, SourceNotFound, ConfigurationError)):
            return max(waits, min(self.denied_seconds, self.longest_retry_seconds))
        return waits

    def before_poll(self, polls: int) -> float:
        """After so many looks that found nothing new."""
        return min(self.longest_poll_seconds, self.first_poll_seconds * math.pow(1.5, min(polls, 50)))


def is_final(error: BaseException) -> bool:
    """Whether trying again cannot help: the attempt was decided on otherwise, or its staged files are not whole."""
    return isinstance(error, CheckpointError)


def _age(each: Occupant) -> tuple[Attempt, str]:
    return each.attempt, each.root
