"""Cleaning a root: what to commit, abandon, retire and delete (pure), and the procedure that does it.

It may run anywhere, several at once, and stop anywhere: each step is a decision of the protocol, and what one run
leaves the next finds. Ages are differences between times of the store's own clock.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from forebay_core.checkpoints.claiming import numbers_of
from forebay_core.checkpoints.deciding import SWEPT_STATES, abandon, commit, retire, sweep
from forebay_core.checkpoints.documents import Decision, State
from forebay_core.checkpoints.listing import Found, list_checkpoints
from forebay_core.checkpoints.names import CLOCK, GENERATIONS, Attempt
from forebay_core.checkpoints.requests import Delete, List, Listed, Procedure, Put
from forebay_core.checkpoints.retention import Retention, to_retire
from forebay_core.errors import CheckpointDamaged, CheckpointError, ForebayError


@dataclass(frozen=True, slots=True)
class Undecided:
    """When attempts without a decision are given up: nobody works on them any more, as far as can be told.

    seconds: since the newest object of the attempt was written; 0: never.
    any_generation: also those of the newest generation, which may be running. Only where somebody asks for it.
    """

    seconds: float = 0.0
    any_generation: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Attempts by what is to be done with them.

    settle: undecided and old: committed if whole after all, else abandoned and deleted.
    sweep: decided before, and objects are there still, or again.
    """

    retire: tuple[Found, ...] = ()
    settle: tuple[Found, ...] = ()
    sweep: tuple[Found, ...] = ()


@dataclass(frozen=True, slots=True)
class Removed:
    """An attempt whose objects were deleted, or with `dry_run` would be. state: the decision that allows it."""

    attempt: Attempt
    state: State
    objects: int
    size_bytes: int


def plan_of(
    found: Iterable[Found],
    retention: Retention,
    undecided: Undecided,
    *,
    newest_generation: int,
    now_unix_seconds: float,
    quarantined: bool = False,
) -> Plan:
    """What a run does. now_unix_seconds: by the store's clock; too early a time only makes things look younger."""
    found = sorted(found, key=lambda each: each.attempt)
    retired = set(
        to_retire((f.attempt for f in found if f.is_committed), retention.keep_last, retention.keep_every_steps)
    )
    swept = SWEPT_STATES | ({State.QUARANTINED} if quarantined else set())

    def is_given_up(each: Found) -> bool:
        is_old = now_unix_seconds - each.modified_unix_seconds > undecided.seconds > 0
        is_past = undecided.any_generation or each.attempt.generation < newest_generation
        return each.is_undecided and is_old and is_past

    return Plan(
        retire=tuple(each for each in found if each.attempt in retired),
        settle=tuple(each for each in found if is_given_up(each)),
        sweep=tuple(each for each in found if each.state in swept and each.objects),
    )


def collect(
    retention: Retention,
    undecided: Undecided | None = None,
    *,
    conditional: bool = True,
    quarantined: bool = False,
    dry_run: bool = False,
) -> Procedure[tuple[Removed, ...]]:
    """Applies the retention to all generations, gives up what nobody finishes, and deletes what was decided against.

    undecided: None leaves such attempts alone, as does a store without put-if-absent (`conditional=False`).
    quarantined: deletes the objects of quarantined attempts too.
    """
    undecided = undecided if undecided is not None and conditional else Undecided()
    generations: tuple[Listed, ...] = yield List(f"{GENERATIONS}/")
    found = yield from list_checkpoints()
    is_asked = undecided.seconds > 0 and any(each.is_undecided for each in found)
    seen = [each.modified_unix_seconds for each in generations] + [each.modified_unix_seconds for each in found]
    plan = plan_of(
        found,
        retention,
        undecided,
        newest_generation=max(numbers_of(generations), default=0),
        now_unix_seconds=max(seen + ([(yield from store_now())] if is_asked else []), default=0.0),
        quarantined=quarantined,
    )
    if dry_run:
        return _foreseen(plan)
    removed: list[Removed] = []
    for each in (*plan.sweep, *plan.retire, *plan.settle):
        decision = yield from _decided(each, plan, undecided)
        if decision.state in SWEPT_STATES or (quarantined and decision.state is State.QUARANTINED):
            with suppress(CheckpointError):  # quarantined in this very moment: kept for people
                swept = yield from sweep(each.attempt, quarantined=quarantined)
                removed.append(Removed(each.attempt, decision.state, swept.objects, swept.size_bytes))
    return tuple(removed)


def _decided(found: Found, plan: Plan, undecided: Undecided) -> Procedure[Decision]:
    if found in plan.retire:
        return (yield from retire(found.attempt, "not kept by the retention"))
    if found in plan.settle:
        return (yield from _settled(found.attempt, f"nothing was added to it for {undecided.seconds:.0f} s"))
    assert found.decision is not None
    return found.decision


def _settled(attempt: Attempt, reason: str) -> Procedure[Decision]:
    try:
        held = yield from commit(attempt)
    except CheckpointDamaged as error:
        held, reason = None, str(error)
    return held if held is not None else (yield from abandon(attempt, reason))


def store_now() -> Procedure[float]:
    """What the store's clock shows, by an object that is there for a moment; 0 where that fails."""
    key = f"{CLOCK}/now"
    try:
        yield Put(key, b"")
        listed: tuple[Listed, ...] = yield List(f"{CLOCK}/")
        yield Delete((key,))
    except ForebayError:
        return 0.0
    return max((each.modified_unix_seconds for each in listed if each.key == key), default=0.0)


def _foreseen(plan: Plan) -> tuple[Removed, ...]:
    states = [(each, each.state or State.ABANDONED) for each in plan.sweep]
    states += [(each, State.RETIRED) for each in plan.retire]
    states += [(each, State.ABANDONED) for each in plan.settle]
    return tuple(Removed(each.attempt, state, each.objects, each.size_bytes) for each, state in states)
