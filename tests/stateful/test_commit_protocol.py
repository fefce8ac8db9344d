"""The commit protocol under every order of steps, kills and failures that hypothesis can think of.

And the protocols that look right and are not, above all the bare marker: upload everything, put a marker, and clean
what has none. The same machine must find out each of them.
"""

import random

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from forebay_core.checkpoints.collecting import Plan, Undecided, plan_of
from forebay_core.checkpoints.deciding import abandon, decision_of, quarantine, retire, sweep
from forebay_core.checkpoints.documents import Decision, State, digest_of
from forebay_core.checkpoints.listing import list_checkpoints
from forebay_core.checkpoints.names import Attempt, rank_manifest
from forebay_core.checkpoints.once import put_once
from forebay_core.checkpoints.requests import Delete, Get, GetMany, List, Listed, Procedure, Put
from forebay_core.checkpoints.retention import Retention, to_retire
from tests.stateful.commit_world import NODES, Fate, Rules, Violation, World

picks = st.integers(0, 11)
nodes = st.integers(0, NODES - 1)
placements = st.sampled_from([((0,), ()), ((), (0,)), ((0,), (1,)), ((1,), (0, 2))])
FATES = [Fate.ANSWERED] * 27 + [Fate.FAILED, Fate.LOST, Fate.LATE, Fate.LATE]


class Checkpoints(RuleBasedStateMachine):
    protocol = Rules()

    def __init__(self) -> None:
        super().__init__()
        self.world = World(type(self).protocol)

    @initialize(seed=st.integers(0, 2**32 - 1))
    def begin(self, seed: int) -> None:
        self.schedule = random.Random(seed)  # a draw for each request would be most of the time
        self.world.start_job()
        self.go_on(3, calm=True)

    @rule(requests=st.integers(1, 60), calm=st.booleans())
    def go_on(self, requests: int, calm: bool) -> None:
        """Requests are answered, or are not: a few of one process, then of another, while the rest stand still."""
        for _ in range(requests):
            pick = -1 if self.schedule.random() < 0.7 else self.schedule.randrange(12)
            self.world.advance(pick, Fate.ANSWERED if calm else self.schedule.choice(FATES))
            if self.schedule.random() < 0.05:
                self.world.arrive(self.schedule.randrange(12))

    @rule(jobs=st.integers(0, 2), again=st.booleans(), pick=picks)
    def start(self, jobs: int, again: bool, pick: int) -> None:
        for _ in range(jobs):
            self.world.start_job()
        if again:
            self.world.claim_again(pick)
        self.go_on(8, calm=False)

    @rule(pick=picks, step=st.integers(1, 4), ranks=placements, sealed=st.sampled_from([NODES, NODES, NODES, 1]))
    def save(self, pick: int, step: int, ranks: tuple[tuple[int, ...], ...], sealed: int) -> None:
        self.world.save(pick, step, ranks=ranks, sealed=sealed)
        self.work(pick)

    @rule(pick=picks)
    def work(self, pick: int) -> None:
        for node in range(NODES):
            self.world.work(node, pick)
        if self.schedule.random() < 0.3:
            self.world.restore()
        self.go_on(20, calm=False)

    @rule(
        keep_last=st.sampled_from([2, 1, 0]),
        every=st.sampled_from([0, 0, 2]),
        age=st.sampled_from([1, 5, 0]),
        any_generation=st.booleans(),
    )
    def clean(self, keep_last: int, every: int, age: int, any_generation: bool) -> None:
        self.world.clean(Retention(keep_last, every), Undecided(age, any_generation))
        self.go_on(10, calm=False)

    @rule(mishap=st.sampled_from(["kill", "kill", "loss", "given up", "damage"]), node=nodes, pick=picks)
    def suffer(self, mishap: str, node: int, pick: int) -> None:
        match mishap:
            case "kill":
                self.world.crash(node)
            case "loss":
                self.world.lose(node)
            case "given up":
                self.world.decide(pick, abandon)
            case "damage":
                self.world.decide(pick, quarantine)

    @rule()
    def restore(self) -> None:
        self.world.restore()
        self.go_on(10, calm=False)

    def teardown(self) -> None:
        self.world.settle()


def settled(examples: int, *, phases: tuple[Phase, ...] = (Phase.generate,)) -> settings:
    """The same schedules at each run; a failure of the protocol itself is shrunk before it is shown."""
    return settings(
        max_examples=examples,
        stateful_step_count=50,
        deadline=None,
        derandomize=True,
        database=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )


def test_the_protocol_holds_under_every_schedule() -> None:
    """CASES 38, 43 and 45"""
    run_state_machine_as_test(Checkpoints, settings=settled(200, phases=(Phase.generate, Phase.shrink)))


# -- protocols that look right -------------------------------------------------------------------------------------


def put_marker(attempt: Attempt, world_size: int) -> Procedure[Decision | None]:
    """All are there: a plain put says so. No cleaner is asked, and none is told."""
    keys = tuple(attempt.key(rank_manifest(rank)) for rank in range(world_size))
    manifests: tuple[bytes | None, ...] = yield GetMany(keys)
    bodies = [each for each in manifests if each is not None]
    if len(bodies) < world_size:
        return None
    decision = Decision(attempt, State.COMMITTED, world_size, digest_of(bodies))
    yield Put(attempt.decision, decision.encode())
    return decision


def commit_own(attempt: Attempt, world_size: int) -> Procedure[Decision | None]:
    """The daemon is done with its own ranks, and takes that for the whole."""
    manifest: bytes | None = yield Get(attempt.key(rank_manifest(0)))
    body = b"" if manifest is None else manifest
    wanted = Decision(attempt, State.COMMITTED, world_size, digest_of([body]))
    return decision_of(attempt, (yield from put_once(attempt.decision, wanted.encode())))


def delete_objects(attempt: Attempt) -> Procedure[None]:
    listed: tuple[Listed, ...] = yield List(f"{attempt.directory}/")
    yield Delete(tuple(each.key for each in listed))


def planned(retention: Retention, undecided: Undecided) -> Procedure[Plan]:
    found = yield from list_checkpoints()
    return plan_of(found, retention, undecided, newest_generation=100, now_unix_seconds=1e9)


def delete_what_has_no_marker(retention: Retention, undecided: Undecided) -> Procedure[None]:
    plan = yield from planned(Retention(), undecided)
    for each in plan.settle:
        yield from delete_objects(each.attempt)


def delete_before_it_is_retired(retention: Retention, undecided: Undecided) -> Procedure[None]:
    plan = yield from planned(retention, Undecided())
    for each in plan.retire:
        yield from delete_objects(each.attempt)
        yield from retire(each.attempt)


def count_what_is_not_committed(retention: Retention, undecided: Undecided) -> Procedure[None]:
    found = yield from list_checkpoints()
    old = to_retire([each.attempt for each in found if each.objects], retention.keep_last)
    for each in found:
        if each.is_committed and each.attempt in old:
            yield from retire(each.attempt)
            yield from sweep(each.attempt)


MUTANTS = {
    "the bare marker": (
        Rules(put_marker, delete_what_has_no_marker, ends_well=False, decides=False),
        "is committed without its objects",
    ),
    "commits what rank 0 sees": (Rules(commit=commit_own, ends_well=False), "is committed without its objects"),
    "deletes before it decides": (
        Rules(collect=delete_before_it_is_retired, ends_well=False),
        "is committed without its objects",
    ),
    "counts what is not committed": (
        Rules(collect=count_what_is_not_committed, ends_well=False),
        "of the newest two was retired",
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_same_schedules_find_what_is_wrong_with_other_protocols(mutant: str) -> None:
    """CASES 38 and 43"""
    rules, fault = MUTANTS[mutant]
    machine = type("Mutant", (Checkpoints,), {"protocol": rules})
    with pytest.raises(Violation, match=fault):
        run_state_machine_as_test(machine, settings=settled(1000))
