"""What there is below a root: attempts, what was decided on them, and what of them is there.

The order of the requests makes the picture sound. Decisions are listed first, then objects, then decisions are read:
an attempt that was decided at the first moment and is `committed` at the last was whole at the one between. Attempts
that were decided after the first moment appear as undecided ones; who acts on that finds the decision.

Of a long run most decisions are on attempts that were retired long ago. Those are not read, and not listed, unless
the whole history is asked for: an attempt without objects matters only where it is newer than the newest that can be
restored, because then something was lost.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from forebay_core.checkpoints.deciding import checked_world_size, decision_of, manifest_of, missing, read_decision
from forebay_core.checkpoints.documents import Decision, RankManifest, State, digest_of
from forebay_core.checkpoints.names import (
    ATTEMPTS,
    COMMITS,
    Attempt,
    parse_decision_key,
    parse_file,
    parse_rank,
    rank_manifest,
)
from forebay_core.checkpoints.requests import GetMany, List, Listed, Procedure
from forebay_core.errors import CheckpointDamaged, CheckpointError


@dataclass(frozen=True, slots=True)
class Found:
    """An attempt, as a node or a listing sees it.

    world_size: 0 where it is not known. objects, size_bytes: of those at the destination.
    modified_unix_seconds, decided_unix_seconds: of its newest object and of its decision, by the store's clock;
    0 where there is none. fault: what is wrong with it, in words; one that has a fault cannot be restored.
    manifests: in the order of ranks, only where they were asked for.
    """

    attempt: Attempt
    decision: Decision | None = None
    world_size: int = 0
    durable_ranks: frozenset[int] = frozenset()
    objects: int = 0
    size_bytes: int = 0
    modified_unix_seconds: float = 0.0
    decided_unix_seconds: float = 0.0
    fault: str = ""
    manifests: tuple[RankManifest, ...] = ()

    @property
    def state(self) -> State | None:
        return None if self.decision is None else self.decision.state

    @property
    def is_committed(self) -> bool:
        return self.state is State.COMMITTED and not self.fault

    @property
    def was_committed(self) -> bool:
        """Until it was quarantined: what it is to be is known."""
        return self.state is State.QUARANTINED and self.world_size > 0

    @property
    def is_undecided(self) -> bool:
        """Nothing is decided on it: there is not even an object that would be its decision if it could be read."""
        return self.decision is None and not self.decided_unix_seconds


def list_checkpoints(
    with_manifests: bool = False, *, history: bool = False, quarantined: bool = False
) -> Procedure[tuple[Found, ...]]:
    """Newest first.

    with_manifests: those of committed and undecided attempts are read; committed ones are compared with what is there.
    quarantined: so are those that were committed before they were quarantined.
    history: attempts too of which nothing is left but the decision.
    """
    decided: tuple[Listed, ...] = yield List(f"{COMMITS}/")
    listed: tuple[Listed, ...] = yield List(f"{ATTEMPTS}/")
    times = {attempt: each.modified_unix_seconds for each in decided if (attempt := parse_decision_key(each.key))}
    held = _by_attempt(listed)
    found = yield from _with_decisions([_seen(each, files) for each, files in held.items()], times)
    lost = _worth_reading(found, times.keys() - held.keys(), history=history)
    found += yield from _with_decisions([Found(attempt) for attempt in lost], times)
    checked: list[Found] = []
    for each in found:
        compares = each.is_committed or (quarantined and each.was_committed)
        checked.append(
            (yield from _with_manifests(each, held.get(each.attempt, ()), every=with_manifests, compares=compares))
        )
    return tuple(sorted(checked, key=lambda each: each.attempt, reverse=True))


def _by_attempt(listed: Iterable[Listed]) -> Mapping[Attempt, list[Listed]]:
    held: defaultdict[Attempt, list[Listed]] = defaultdict(list)
    for each in listed:
        if name := parse_file(each.key):
            held[name[0]].append(each)
    return held


def _seen(attempt: Attempt, files: Iterable[Listed]) -> Found:
    files = tuple(files)
    ranks = (parse_rank(each.key.removeprefix(f"{attempt.directory}/")) for each in files)
    return Found(
        attempt,
        durable_ranks=frozenset(rank for rank in ranks if rank is not None),
        objects=len(files),
        size_bytes=sum(each.size_bytes for each in files),
        modified_unix_seconds=max(each.modified_unix_seconds for each in files),
    )


def _worth_reading(found: Iterable[Found], bare: Iterable[Attempt], *, history: bool) -> list[Attempt]:
    """Of the attempts without objects, those whose decision matters."""
    newest = max((each.attempt for each in found if each.is_committed), default=None)
    return [attempt for attempt in bare if history or newest is None or attempt > newest]


def _with_decisions(found: list[Found], times: Mapping[Attempt, float]) -> Procedure[list[Found]]:
    """With the decisions of those that had one when the decisions were listed."""
    decided = [each for each in found if each.attempt in times]
    if not decided:
        return found
    bodies: tuple[bytes | None, ...] = yield GetMany(tuple(each.attempt.decision for each in decided))
    known = {each.attempt: body for each, body in zip(decided, bodies, strict=True)}
    return [_decided(each, known.get(each.attempt), times.get(each.attempt, 0.0)) for each in found]


def _decided(found: Found, body: bytes | None, seconds: float) -> Found:
    if body is None:
        return found
    try:
        decision = decision_of(found.attempt, body)
    except CheckpointError as error:
        return replace(found, decided_unix_seconds=seconds, fault=str(error))
    lost = decision.state is State.COMMITTED and not found.durable_ranks.issuperset(range(decision.world_size))
    return replace(
        found,
        decision=decision,
        world_size=decision.world_size,
        decided_unix_seconds=seconds,
        fault="it is committed, and manifests of its ranks are gone" if lost else "",
    )


def _with_manifests(found: Found, files: Iterable[Listed], *, every: bool, compares: bool) -> Procedure[Found]:
    """With its world size, and where all are asked for, with its manifests and what is wrong with them."""
    if not found.durable_ranks or found.fault or not (found.is_undecided or (every and compares)):
        return found
    ranks = sorted(rank for rank in found.durable_ranks if found.is_undecided or rank < found.world_size)
    ranks = ranks[: None if every else 1]
    bodies: tuple[bytes | None, ...] = yield GetMany(tuple(found.attempt.key(rank_manifest(each)) for each in ranks))
    try:
        return _compared(found, dict(zip(ranks, bodies, strict=True)), files, every=every)
    except CheckpointError as error:
        return (yield from _faulty(found, str(error)))


def _faulty(found: Found, fault: str) -> Procedure[Found]:
    """With the fault, unless the attempt was decided on, or retired, while it was read."""
    try:
        decision = yield from read_decision(found.attempt)
    except CheckpointError as error:
        return replace(found, fault=str(error))
    if decision is not None and decision.state is not found.state:
        return replace(found, decision=decision)
    return replace(found, fault=fault)


def _compared(found: Found, bodies: Mapping[int, bytes | None], files: Iterable[Listed], *, every: bool) -> Found:
    there = {rank: body for rank, body in bodies.items() if body is not None}
    if len(there) < len(bodies):
        raise CheckpointDamaged("manifests of its ranks are gone")
    manifests = tuple(manifest_of(found.attempt, rank, body) for rank, body in there.items())
    size = checked_world_size(manifests, found.world_size or None)
    if found.decision is not None:
        _check_committed(found.decision, there.values(), missing(manifests, files))
    return replace(found, world_size=size, manifests=manifests if every else ())


def _check_committed(decision: Decision, manifests: Iterable[bytes], fault: str) -> None:
    if digest_of(list(manifests)) != decision.manifests:
        raise CheckpointDamaged("the manifests of its ranks are not those that were committed")
    if fault:
        raise CheckpointDamaged(fault)
