"""Who may decide what on an attempt: commit, abandon, retire, quarantine, sweep.

An attempt has one decision, an object of its own. Put-if-absent chooses the first (`committed`, `abandoned`, or
`quarantined` for one that was found damaged before anybody committed it). Afterwards `committed` alone may become
`retired` or `quarantined`, by plain overwriting: whichever of these is written last, no reader takes the attempt.
A decision is never deleted, and objects are deleted only below a decision that no reader takes. So `committed` means
that every object is there, and who finds one missing reads the decision again: `retired` means "list again", a
decision that is still `committed` means damage.

Every procedure may be dropped between two requests and repeated; each says what holds when it ends.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from forebay_core.checkpoints.documents import Decision, RankManifest, State, digest_of
from forebay_core.checkpoints.names import METADATA, Attempt, parse_file, parse_rank, rank_manifest
from forebay_core.checkpoints.once import put_once
from forebay_core.checkpoints.requests import Delete, Get, GetMany, List, Listed, Procedure, Put
from forebay_core.errors import CheckpointDamaged, CheckpointError, ForebayError

#: Their objects are nobody's any more.
SWEPT_STATES = frozenset({State.ABANDONED, State.RETIRED})


@dataclass(frozen=True, slots=True)
class Swept:
    """What was deleted of an attempt."""

    objects: int
    size_bytes: int


def read_decision(attempt: Attempt) -> Procedure[Decision | None]:
    """None: nothing is decided. `CheckpointDamaged` where the object is no decision on this attempt."""
    body: bytes | None = yield Get(attempt.decision)
    return None if body is None else decision_of(attempt, body)


def decision_of(attempt: Attempt, body: bytes) -> Decision:
    """The decision in the bytes that lie at the attempt's key."""
    try:
        decision = Decision.decode(body)
    except CheckpointError as error:
        raise type(error)(f"{attempt.decision}: {error}") from error
    if decision.attempt != attempt:
        raise CheckpointDamaged(f"{attempt.decision} holds the decision on {decision.attempt.name}")
    return decision


def manifest_of(attempt: Attempt, rank: int, body: bytes) -> RankManifest:
    """The manifest in the bytes that lie at the rank's key."""
    key = attempt.key(rank_manifest(rank))
    try:
        manifest = RankManifest.decode(body)
    except CheckpointError as error:
        raise type(error)(f"{key}: {error}") from error
    if manifest.attempt != attempt or manifest.rank != rank:
        raise CheckpointDamaged(f"{key} is the manifest of rank {manifest.rank} of {manifest.attempt.name}")
    return manifest


def durable_ranks(attempt: Attempt) -> Procedure[frozenset[int]]:
    """The ranks whose manifests are at the destination, that is all that they name too."""
    listed: tuple[Listed, ...] = yield List(f"{attempt.directory}/ranks/")
    files = (parse_file(each.key) for each in listed)
    ranks = (parse_rank(found[1]) for found in files if found is not None and found[0] == attempt)
    return frozenset(rank for rank in ranks if rank is not None)


def commit(attempt: Attempt, world_size: int | None = None, *, conditional: bool = True) -> Procedure[Decision | None]:
    """What holds now; None while manifests of ranks are missing.

    world_size: None takes what the manifests say.
    Raises `CheckpointDamaged` for an attempt that can never be whole: its manifests contradict each other, or name
    what is not there.
    """
    held = yield from read_decision(attempt)
    if held is not None:
        return held
    bodies = yield from _manifest_bodies(attempt)
    if not bodies:
        return None
    manifests = {rank: manifest_of(attempt, rank, body) for rank, body in bodies.items()}
    size = checked_world_size(manifests.values(), world_size)
    if len(bodies) < size:
        return None
    listed: tuple[Listed, ...] = yield List(f"{attempt.directory}/")
    if fault := missing(manifests.values(), listed):
        held = yield from read_decision(attempt)
        if held is not None:
            return held
        raise CheckpointDamaged(f"{attempt.name}: {fault}")
    digest = digest_of([bodies[rank] for rank in range(size)])
    return (yield from _decide(Decision(attempt, State.COMMITTED, size, digest), conditional=conditional))


def checked_world_size(manifests: Iterable[RankManifest], expected: int | None = None) -> int:
    """The one world size of manifests of an attempt; `CheckpointDamaged` where they do not agree."""
    sizes = sorted({each.world_size for each in manifests} | ({expected} if expected is not None else set()))
    if len(sizes) != 1:
        raise CheckpointDamaged(f"the manifests of one attempt are of different world sizes: {sizes}")
    return sizes[0]


def missing(manifests: Iterable[RankManifest], listed: Iterable[Listed]) -> str:
    """Of the files that manifests name, the first that is not listed with its size, in words; empty: all are."""
    sizes = {each.key: each.size_bytes for each in listed}
    for manifest in manifests:
        for file in manifest.files:
            found = sizes.get(manifest.attempt.key(file.name))
            if found != file.size_bytes:
                there = "is not there" if found is None else f"has {found} bytes"
                return f"{file.name} of {file.size_bytes} bytes {there}, though the manifest of its rank is there"
    return ""


def abandon(attempt: Attempt, reason: str, *, conditional: bool = True) -> Procedure[Decision]:
    """What holds now: `abandoned`, unless something was decided before. Nobody can commit it afterwards."""
    held = yield from read_decision(attempt)
    if held is not None:
        return held
    return (yield from _decide(Decision(attempt, State.ABANDONED, reason=reason), conditional=conditional))


def retire(attempt: Attempt, reason: str = "") -> Procedure[Decision]:
    """What holds now. `committed` becomes `retired`; other decisions stay. `CheckpointError` where nothing is decided.

    The objects are deleted afterwards, by `sweep`; where that is interrupted, a later `collect` goes on.
    """
    held = yield from read_decision(attempt)
    if held is None:
        raise CheckpointError(f"{attempt.name} is not committed: there is nothing to retire; it can be abandoned")
    if held.state is not State.COMMITTED:
        return held
    return (yield from _overwrite(held, State.RETIRED, reason))


def quarantine(attempt: Attempt, reason: str, *, conditional: bool = True) -> Procedure[Decision]:
    """What holds now. `committed`, or nothing, becomes `quarantined`; other decisions stay."""
    held = yield from read_decision(attempt)
    if held is None:
        wanted = Decision(attempt, State.QUARANTINED, reason=reason)
        held = yield from _decide(wanted, conditional=conditional)
    if held.state is not State.COMMITTED:
        return held
    return (yield from _overwrite(held, State.QUARANTINED, reason))


def sweep(attempt: Attempt, *, quarantined: bool = False) -> Procedure[Swept]:
    """Deletes the objects of an abandoned or retired attempt; of a quarantined one only if asked. The decision stays.

    `.metadata` goes first, so that plain readers of torch's checkpoints do not take the rest for whole, then the
    manifests, which promise that the rest is there. Objects that forebay did not write stay. Raises `CheckpointError`
    where the decision does not allow it.
    """
    held = yield from read_decision(attempt)
    allowed = SWEPT_STATES | ({State.QUARANTINED} if quarantined else set())
    if held is None or held.state not in allowed:
        state = "not decided" if held is None else held.state.value
        raise CheckpointError(f"{attempt.name} is {state}: its objects are not deleted")
    listed: tuple[Listed, ...] = yield List(f"{attempt.directory}/")
    for keys in sweeping_order(attempt, (each.key for each in listed)):
        yield Delete(keys)
    own = [each for each in listed if _is_own(attempt, each.key)]
    return Swept(len(own), sum(each.size_bytes for each in own))


def sweeping_order(attempt: Attempt, keys: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """The attempt's own keys among these, in the batches in which they are deleted, one after the other."""
    batches: dict[int, list[str]] = {0: [], 1: [], 2: []}
    for key in sorted(key for key in keys if _is_own(attempt, key)):
        file = key.removeprefix(f"{attempt.directory}/")
        batches[0 if file == METADATA else 1 if parse_rank(file) is not None else 2].append(key)
    return tuple(tuple(batch) for batch in batches.values() if batch)


def _is_own(attempt: Attempt, key: str) -> bool:
    found = parse_file(key)
    return found is not None and found[0] == attempt


def _manifest_bodies(attempt: Attempt) -> Procedure[Mapping[int, bytes]]:
    ranks = yield from durable_ranks(attempt)
    if not ranks:
        return {}
    ordered = sorted(ranks)
    bodies: tuple[bytes | None, ...] = yield GetMany(tuple(attempt.key(rank_manifest(rank)) for rank in ordered))
    return {rank: body for rank, body in zip(ordered, bodies, strict=True) if body is not None}


def _decide(decision: Decision, *, conditional: bool) -> Procedure[Decision]:
    body = yield from put_once(decision.attempt.decision, decision.encode(), conditional=conditional)
    return decision_of(decision.attempt, body)


def _overwrite(held: Decision, state: State, reason: str) -> Procedure[Decision]:
    decision = Decision(held.attempt, state, held.world_size, held.manifests, reason)
    try:
        yield Put(held.attempt.decision, decision.encode())
    except ForebayError:
        now = yield from read_decision(held.attempt)
        if now is None or now.state is State.COMMITTED:
            raise
        return now
    return decision
