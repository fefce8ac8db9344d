"""Cleaning a root: what goes, what stays whatever is asked, and what an interrupted run leaves to the next."""

from collections.abc import Callable

import pytest

from forebay_core.checkpoints.collecting import store_now
from forebay_core.checkpoints.documents import State
from forebay_core.checkpoints.names import METADATA, Attempt
from forebay_core.checkpoints.protocol import (
    Delete,
    Put,
    PutIfAbsent,
    Removed,
    Request,
    Retention,
    Undecided,
    abandon,
    claim,
    collect,
    list_checkpoints,
    quarantine,
    read_decision,
    retire,
)
from forebay_core.errors import AccessDenied, SourceUnreachable
from tests.core.checkpoints.attempts import attempt_of, committed, keys_of, upload
from tests.support.model_store import ModelStore, run

NONE = Retention()


@pytest.fixture
def store() -> ModelStore:
    return ModelStore()


def states(store: ModelStore) -> dict[int, State | None]:
    return {each.attempt.step: each.state for each in run(list_checkpoints(history=True), store)}


def state(store: ModelStore, attempt: Attempt) -> State | None:
    decision = run(read_decision(attempt), store)
    return None if decision is None else decision.state


def dies_at(number: int) -> Callable[[Request], None]:
    """The writes from that number on fail: the cleaner is as good as dead."""
    written: list[Request] = []

    def meddle(request: Request) -> None:
        if isinstance(request, Put | PutIfAbsent | Delete):
            written.append(request)
            if len(written) > number:
                raise SourceUnreachable("gone")

    return meddle


# -- retention -----------------------------------------------------------------------------------------------------


def test_what_the_retention_does_not_keep_is_retired_and_then_deleted(store: ModelStore) -> None:
    """CASES 43"""
    attempts = [committed(store, 1, step) for step in (100, 200, 300, 400)]
    size = sum(len(store.objects[key]) for key in keys_of(store, attempts[1]))
    removed = run(collect(Retention(2, keep_every_steps=100_000)), store)
    assert [(each.attempt.step, each.state, each.objects) for each in removed] == [
        (100, State.RETIRED, 4),
        (200, State.RETIRED, 4),
    ]
    assert removed[1].size_bytes == size
    assert [bool(keys_of(store, each)) for each in attempts] == [False, False, True, True]
    assert states(store) == {
        100: State.RETIRED,
        200: State.RETIRED,
        300: State.COMMITTED,
        400: State.COMMITTED,
    }
    assert run(collect(Retention(2)), store) == ()


def test_an_attempt_is_retired_before_any_of_its_objects_is_deleted(store: ModelStore) -> None:
    """CASES 38"""
    attempts = [committed(store, 1, step) for step in (100, 200, 300)]
    store.requests.clear()
    run(collect(Retention(1)), store)
    writes = [request for request in store.requests if isinstance(request, Put | Delete)]
    assert isinstance(writes[0], Put)
    assert writes[0].key == attempts[0].decision
    assert isinstance(writes[1], Delete)
    assert writes[1].keys == (attempts[0].key(METADATA),)


def test_only_committed_attempts_count_for_the_retention(store: ModelStore) -> None:
    """CASES 43"""
    good = [committed(store, 1, step) for step in (100, 200, 300)]
    bad = committed(store, 1, 400)
    run(quarantine(bad, "damaged"), store)
    given_up, open_one = attempt_of(1, 500), attempt_of(1, 600)
    for attempt in (given_up, open_one):
        upload(store, attempt, [1], 2)
    run(abandon(given_up, "too old"), store)
    removed = run(collect(Retention(1)), store)
    assert [each.attempt for each in removed] == [given_up, good[0]]
    assert all(keys_of(store, each) for each in (good[1], good[2], bad, open_one))


def test_a_committed_attempt_that_lost_objects_does_not_push_out_good_ones(store: ModelStore) -> None:
    """CASES 43 and 46"""
    good = [committed(store, 1, step) for step in (100, 200)]
    for step in (300, 400):
        for key in keys_of(store, committed(store, 1, step)):
            del store.objects[key]
    assert run(collect(Retention(1)), store) == ()
    assert all(state(store, each) is State.COMMITTED for each in good)


@pytest.mark.parametrize("written", range(8))
def test_a_run_that_was_killed_anywhere_is_finished_by_the_next(store: ModelStore, written: int) -> None:
    """CASES 43 and 45"""
    for step in (100, 200, 300, 400):
        committed(store, 1, step)
    with pytest.raises(SourceUnreachable):
        run(collect(Retention(2)), store, dies_at(written))
    run(collect(Retention(2)), store)
    assert states(store)[100] == states(store)[200] == State.RETIRED
    assert {key for key in store.objects if key.startswith("attempts/")} == {
        key for step in (300, 400) for key in keys_of(store, attempt_of(1, step))
    }


def test_two_cleaners_at_once_delete_what_one_would(store: ModelStore) -> None:
    for step in (100, 200, 300, 400):
        committed(store, 1, step)
    others = [collect(Retention(2)), collect(Retention(3))]

    def meddle(request: Request) -> None:
        if isinstance(request, Put) and others:
            run(others.pop(), store)

    run(collect(Retention(2)), store, meddle)
    assert [each.attempt.step for each in run(list_checkpoints(), store)] == [400, 300]


def test_a_checkpoint_that_is_quarantined_in_the_moment_of_its_retirement_is_kept_and_others_go_on(
    store: ModelStore,
) -> None:
    """CASES 46"""
    attempts = [committed(store, 1, step) for step in (100, 200, 300, 400)]
    late = quarantine(attempts[0], "damaged")
    answer = store.answer(late.send(None))
    overwriting = late.send(answer)

    def meddle(request: Request) -> None:
        if isinstance(request, Put) and request.key == attempts[1].decision:
            return
        if state(store, attempts[0]) is State.RETIRED:
            store.answer(overwriting)

    removed = run(collect(Retention(2)), store, meddle)
    assert [each.attempt for each in removed] == [attempts[1]]
    assert state(store, attempts[0]) is State.QUARANTINED
    assert len(keys_of(store, attempts[0])) == 4


def test_what_is_uploaded_after_the_deletion_goes_with_the_next_run(store: ModelStore) -> None:
    """CASES 45"""
    attempt = attempt_of(1, 100)
    run(abandon(attempt, "superseded"), store)
    upload(store, attempt, [0], 1)
    removed = run(collect(NONE), store)
    assert [(each.attempt, each.state, each.objects) for each in removed] == [(attempt, State.ABANDONED, 4)]
    assert keys_of(store, attempt) == set()


def test_quarantined_checkpoints_are_deleted_only_if_that_is_asked_for(store: ModelStore) -> None:
    """CASES 46"""
    attempt = committed(store, 1, 100)
    run(quarantine(attempt, "damaged"), store)
    assert run(collect(Retention(1), Undecided(1, any_generation=True)), store) == ()
    removed = run(collect(NONE, quarantined=True), store)
    assert [(each.attempt, each.state) for each in removed] == [(attempt, State.QUARANTINED)]
    assert keys_of(store, attempt) == set()


# -- what nobody finishes ------------------------------------------------------------------------------------------


def test_an_unfinished_attempt_of_an_earlier_start_is_given_up_when_it_is_old(store: ModelStore) -> None:
    attempt = attempt_of(1, 100)
    for token in ("a", "b"):
        run(claim(token), store)
    upload(store, attempt, [0], 2)
    store.now += 50
    assert run(collect(NONE, Undecided(100)), store) == ()
    store.now += 100
    removed = run(collect(NONE, Undecided(100)), store)
    assert [(each.attempt, each.state) for each in removed] == [(attempt, State.ABANDONED)]
    assert state(store, attempt) is State.ABANDONED
    assert keys_of(store, attempt) == set()


def test_an_unfinished_attempt_of_the_newest_start_is_given_up_only_if_that_is_asked_for(store: ModelStore) -> None:
    run(claim("a"), store)
    upload(store, attempt_of(1, 100), [0], 2)
    store.now += 1000
    assert run(collect(NONE, Undecided(100)), store) == ()
    assert len(run(collect(NONE, Undecided(100, any_generation=True)), store)) == 1


@pytest.mark.parametrize("conditional", [True, False])
def test_by_default_and_without_put_if_absent_no_unfinished_attempt_is_given_up(
    store: ModelStore, conditional: bool
) -> None:
    upload(store, attempt_of(1, 100), [0], 2)
    store.now += 1e6
    undecided = None if conditional else Undecided(1, any_generation=True)
    assert run(collect(NONE, undecided, conditional=conditional), store) == ()
    assert len(keys_of(store, attempt_of(1, 100))) == 4


def test_an_old_attempt_that_is_whole_is_committed_instead(store: ModelStore) -> None:
    """CASES 43"""
    attempt = attempt_of(1, 100)
    upload(store, attempt, [0, 1], 2)
    store.now += 1000
    assert run(collect(NONE, Undecided(100, any_generation=True)), store) == ()
    assert state(store, attempt) is State.COMMITTED


def test_an_old_attempt_that_can_never_be_whole_is_given_up_with_the_reason(store: ModelStore) -> None:
    attempt = attempt_of(1, 100)
    upload(store, attempt, [0], 2)
    upload(store, attempt, [1], 3)
    store.now += 1000
    assert len(run(collect(NONE, Undecided(100, any_generation=True)), store)) == 1
    decision = run(read_decision(attempt), store)
    assert decision is not None
    assert (decision.state, decision.reason) == (
        State.ABANDONED,
        "the manifests of one attempt are of different world sizes: [2, 3]",
    )


def test_an_attempt_that_is_committed_while_it_is_given_up_stays(store: ModelStore) -> None:
    """CASES 43"""
    attempt = attempt_of(1, 100)
    upload(store, attempt, [0], 2)
    store.now += 1000

    def meddle(request: Request) -> None:
        if isinstance(request, PutIfAbsent) and request.key == attempt.decision:
            committed(store, 1, 100, world_size=2)

    assert run(collect(NONE, Undecided(100, any_generation=True)), store, meddle) == ()
    assert state(store, attempt) is State.COMMITTED
    assert len(keys_of(store, attempt)) == 7


def test_the_clock_that_counts_is_that_of_the_store_and_reading_it_leaves_nothing(store: ModelStore) -> None:
    store.now = 5000.0
    assert run(store_now(), store) == 5001.0
    assert store.objects == {}


def test_without_permission_to_read_the_clock_things_only_look_younger(store: ModelStore) -> None:
    upload(store, attempt_of(1, 100), [0], 2)
    store.now += 1000

    def refuse(request: Request) -> None:
        if isinstance(request, Put):
            raise AccessDenied("no permission")

    assert run(collect(NONE, Undecided(100, any_generation=True)), store, refuse) == ()
    upload(store, attempt_of(1, 200), [0], 2)
    removed = run(collect(NONE, Undecided(100, any_generation=True)), store, refuse)
    assert [each.attempt.step for each in removed] == [100]


# -- asking first --------------------------------------------------------------------------------------------------


def test_a_dry_run_says_what_would_go_and_decides_and_deletes_nothing(store: ModelStore) -> None:
    for step in (100, 200, 300):
        committed(store, 1, step)
    upload(store, attempt_of(1, 50), [0], 2)
    again = committed(store, 1, 25)
    run(retire(again), store)
    store.now += 1000
    before = dict(store.objects)
    asked = run(collect(Retention(2), Undecided(100, any_generation=True), dry_run=True), store)
    assert store.objects == before
    assert {(each.attempt.step, each.state) for each in asked} == {
        (25, State.RETIRED),
        (100, State.RETIRED),
        (50, State.ABANDONED),
    }
    done = run(collect(Retention(2), Undecided(100, any_generation=True)), store)
    assert _sorted(done) == _sorted(asked)


def _sorted(removed: tuple[Removed, ...]) -> list[Removed]:
    return sorted(removed, key=lambda each: each.attempt)


def test_what_forebay_did_not_write_stays_whatever_is_cleaned(store: ModelStore) -> None:
    attempts = [committed(store, 1, step) for step in (100, 200, 300)]
    foreign = ["model.pt", f"{attempts[0].directory}/notes.txt", "attempts/mine/x", "commits/x.json", "generations/x"]
    for key in foreign:
        store.put(key, b"mine")
    run(collect(Retention(1), Undecided(1, any_generation=True), quarantined=True), store)
    assert all(key in store.objects for key in foreign)
