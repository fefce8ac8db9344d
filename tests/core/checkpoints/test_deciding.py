"""One decision per attempt, whoever decides, fails or is killed in between."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from forebay_core.checkpoints.documents import Decision, State
from forebay_core.checkpoints.names import METADATA, rank_manifest
from forebay_core.checkpoints.protocol import (
    Delete,
    Procedure,
    Put,
    PutIfAbsent,
    Request,
    abandon,
    commit,
    durable_ranks,
    quarantine,
    read_decision,
    retire,
    sweep,
)
from forebay_core.errors import CheckpointDamaged, CheckpointError, SourceUnreachable
from tests.core.checkpoints.attempts import attempt_of, committed, keys_of, manifest_of, upload
from tests.support.model_store import ModelStore, run

A = attempt_of(1, 100)
WRITES = (Put, PutIfAbsent)


@pytest.fixture
def store() -> ModelStore:
    return ModelStore()


def state(store: ModelStore) -> State | None:
    decision = run(read_decision(A), store)
    return None if decision is None else decision.state


def fails(store: ModelStore, kinds: tuple[type[Request], ...], *, applied: bool) -> Callable[[Request], None]:
    """The first request of these kinds fails, before or after it was applied."""
    failed: list[Request] = []

    def meddle(request: Request) -> None:
        if isinstance(request, kinds) and not failed:
            failed.append(request)
            if applied:
                store.answer(request)
            raise SourceUnreachable("the answer was lost")

    return meddle


def before_write(store: ModelStore, *procedures: Procedure[Any]) -> Callable[[Request], None]:
    """Others run to their ends just before the first write."""
    waiting = list(procedures)

    def meddle(request: Request) -> None:
        if isinstance(request, WRITES):
            while waiting:
                run(waiting.pop(0), store)

    return meddle


# -- commit --------------------------------------------------------------------------------------------------------


def test_an_attempt_is_committed_when_the_last_manifest_is_there_and_not_before(store: ModelStore) -> None:
    """CASES 38"""
    for rank in (2, 1):
        assert run(commit(A, 3), store) is None
        upload(store, A, [rank], 3)
    assert run(commit(A, 3), store) is None
    assert run(durable_ranks(A), store) == {1, 2}
    upload(store, A, [0], 3)
    decision = run(commit(A, 3), store)
    assert decision is not None
    assert (decision.state, decision.world_size) == (State.COMMITTED, 3)
    assert store.objects[A.decision] == decision.encode()


def test_the_world_size_of_an_attempt_is_learned_from_its_manifests(store: ModelStore) -> None:
    upload(store, A, [1], 2)
    assert run(commit(A), store) is None
    upload(store, A, [0], 2)
    decision = run(commit(A), store)
    assert decision is not None
    assert decision.world_size == 2


def test_two_committers_write_the_same_decision_and_both_hear_that_it_is_committed(store: ModelStore) -> None:
    upload(store, A, [0, 1], 2)
    first = run(commit(A, 2), store, before_write(store, commit(A, 2)))
    assert first is not None
    assert first.state is State.COMMITTED
    assert sum(isinstance(request, PutIfAbsent) for request in store.requests) == 2


@pytest.mark.parametrize("conditional", [True, False])
def test_a_commit_whose_answer_was_lost_finds_its_own_success(store: ModelStore, conditional: bool) -> None:
    upload(store, A, [0], 1)
    decision = run(commit(A, 1, conditional=conditional), store, fails(store, WRITES, applied=True))
    assert decision is not None
    assert decision.state is State.COMMITTED


@pytest.mark.parametrize("conditional", [True, False])
def test_a_commit_that_failed_raises_what_failed_and_can_be_repeated(store: ModelStore, conditional: bool) -> None:
    upload(store, A, [0], 1)
    with pytest.raises(SourceUnreachable, match="the answer was lost"):
        run(commit(A, 1, conditional=conditional), store, fails(store, WRITES, applied=False))
    assert state(store) is None
    assert run(commit(A, 1, conditional=conditional), store)
    assert state(store) is State.COMMITTED


def test_a_store_that_denies_and_does_not_find_is_not_believed() -> None:
    class Denying(ModelStore):
        def answer(self, request: Request) -> object:
            return False if isinstance(request, PutIfAbsent) else super().answer(request)

    denying = Denying()
    upload(denying, A, [0], 1)
    with pytest.raises(SourceUnreachable, match=r"commits/g000001-s000000100-0{12}\.json"):
        run(commit(A, 1), denying)


def test_manifests_that_contradict_each_other_are_damage_and_never_committed(store: ModelStore) -> None:
    upload(store, A, [0], 2)
    upload(store, A, [1], 3)
    with pytest.raises(CheckpointDamaged, match=r"\[2, 3\]"):
        run(commit(A), store)
    upload(store, A, [0], 3)
    with pytest.raises(CheckpointDamaged, match=r"\[3, 4\]"):
        run(commit(A, 4), store)


def test_a_manifest_of_another_attempt_or_rank_is_damage(store: ModelStore) -> None:
    """CASES 45"""
    other = attempt_of(1, 100, nonce=7)
    for body in (manifest_of(other, 0, 1).encode(), manifest_of(A, 1, 2).encode(), b"", b"[1]", b"{}"):
        upload(store, A, [0], 1)
        store.put(A.key(rank_manifest(0)), body)
        with pytest.raises(CheckpointDamaged, match=r"ranks/00000\.json"):
            run(commit(A), store)
    assert state(store) is None


@pytest.mark.parametrize("fault", ["gone", "cut"])
def test_what_a_manifest_promises_and_is_not_there_is_damage(store: ModelStore, fault: str) -> None:
    """CASES 38"""
    upload(store, A, [0, 1], 2)
    key = A.key("__1_0.distcp")
    if fault == "gone":
        del store.objects[key]
    else:
        store.put(key, store.objects[key][:-1])
    with pytest.raises(CheckpointDamaged, match=r"__1_0\.distcp of 16 bytes"):
        run(commit(A, 2), store)
    assert state(store) is None


def test_a_commit_that_meets_the_deletion_of_its_objects_says_abandoned_and_not_damaged(store: ModelStore) -> None:
    upload(store, A, [0], 1)

    def meddle(request: Request) -> None:
        if getattr(request, "prefix", "") == f"{A.directory}/" and state(store) is None:
            run(abandon(A, "given up"), store)
            run(sweep(A), store)

    decision = run(commit(A, 1), store, meddle)
    assert decision is not None
    assert decision.state is State.ABANDONED


def test_objects_of_others_beside_an_attempt_do_not_hinder_its_commit(store: ModelStore) -> None:
    upload(store, A, [0], 1)
    for name in ("README", "ranks/notes.txt", "ranks/00001.json/more"):
        store.put(f"{A.directory}/{name}", b"")
    assert run(commit(A, 1), store)


# -- abandon, quarantine, retire -----------------------------------------------------------------------------------


def test_who_is_first_decides_between_commit_and_abandon(store: ModelStore) -> None:
    upload(store, A, [0], 1)
    decision = run(commit(A, 1), store, before_write(store, abandon(A, "too old")))
    assert decision == Decision(A, State.ABANDONED, reason="too old")
    other = ModelStore()
    upload(other, A, [0], 1)
    assert run(abandon(A, "too old"), other, before_write(other, commit(A, 1))).state is State.COMMITTED


def test_an_abandoned_attempt_is_never_committed_whatever_is_uploaded_afterwards(store: ModelStore) -> None:
    run(abandon(A, "superseded"), store)
    upload(store, A, [0], 1)
    decision = run(commit(A, 1), store)
    assert decision is not None
    assert decision.state is State.ABANDONED


def test_abandoning_twice_keeps_the_first_reason(store: ModelStore) -> None:
    run(abandon(A, "first"), store)
    assert run(abandon(A, "second"), store).reason == "first"
    assert run(abandon(A, "third", conditional=False), store).reason == "first"


@pytest.mark.parametrize("wanted", [State.RETIRED, State.QUARANTINED])
@pytest.mark.parametrize("applied", [True, False])
def test_a_committed_attempt_leaves_that_state_also_when_the_answer_is_lost(
    store: ModelStore, wanted: State, applied: bool
) -> None:
    committed(store, 1, 100)
    change = retire if wanted is State.RETIRED else quarantine
    lost = fails(store, (Put,), applied=applied)
    if not applied:
        with pytest.raises(SourceUnreachable):
            run(change(A, "because"), store, lost)
        assert state(store) is State.COMMITTED
    decision = run(change(A, "because"), store, lost)
    assert (decision.state, decision.reason, decision.world_size) == (wanted, "because", 1)
    assert decision.manifests.startswith("sha256:")
    assert store.objects[A.decision] == decision.encode()


def test_damage_found_before_anybody_committed_prevents_the_commit(store: ModelStore) -> None:
    """CASES 46"""
    upload(store, A, [0], 1)
    assert run(quarantine(A, "rank 0's tensors differ"), store).state is State.QUARANTINED
    decision = run(commit(A, 1), store)
    assert decision is not None
    assert decision.state is State.QUARANTINED


def test_damage_found_in_the_moment_of_the_commit_quarantines_the_committed_one(store: ModelStore) -> None:
    """CASES 46"""
    upload(store, A, [0], 1)
    decision = run(quarantine(A, "a bit flipped"), store, before_write(store, commit(A, 1)))
    assert decision.state is State.QUARANTINED
    assert decision.manifests.startswith("sha256:")
    assert state(store) is State.QUARANTINED


def test_what_is_not_committed_is_not_retired(store: ModelStore) -> None:
    with pytest.raises(CheckpointError, match="not committed"):
        run(retire(A), store)
    run(abandon(A, "given up"), store)
    assert run(retire(A), store).state is State.ABANDONED
    assert run(quarantine(A, "damaged"), store).state is State.ABANDONED


@pytest.mark.parametrize("body", [b"", b"committed", b'{"version":1}', Decision(A, State.ABANDONED).encode()])
def test_an_object_that_is_no_decision_on_the_attempt_is_damage_and_is_kept(store: ModelStore, body: bytes) -> None:
    other = attempt_of(2, 100)
    upload(store, other, [0], 1)
    store.put(other.decision, body)
    procedures: list[Procedure[Any]] = [
        commit(other, 1),
        abandon(other, ""),
        retire(other),
        quarantine(other, ""),
        sweep(other),
    ]
    for procedure in procedures:
        with pytest.raises(CheckpointDamaged, match=r"commits/g000002-s000000100-0{12}\.json"):
            run(procedure, store)
    assert store.objects[other.decision] == body
    assert len(keys_of(store, other)) == 4


# -- sweep ---------------------------------------------------------------------------------------------------------


def test_objects_are_deleted_only_below_a_decision_that_no_reader_takes(store: ModelStore) -> None:
    """CASES 43"""
    upload(store, A, [0], 1)
    with pytest.raises(CheckpointError, match="not decided"):
        run(sweep(A), store)
    run(commit(A, 1), store)
    with pytest.raises(CheckpointError, match="is committed"):
        run(sweep(A), store)
    run(quarantine(A, "damaged"), store)
    with pytest.raises(CheckpointError, match="is quarantined"):
        run(sweep(A), store)
    assert len(keys_of(store, A)) == 4
    assert run(sweep(A, quarantined=True), store).objects == 4
    assert keys_of(store, A) == set()
    assert state(store) is State.QUARANTINED


def test_plain_readers_lose_the_metadata_first_and_manifests_go_before_what_they_promise(store: ModelStore) -> None:
    """CASES 38"""
    committed(store, 1, 100, world_size=2)
    size = sum(len(store.objects[key]) for key in keys_of(store, A))
    run(retire(A), store)
    swept = run(sweep(A), store)
    assert (swept.objects, swept.size_bytes) == (7, size)
    metadata, manifests, rest = (request.keys for request in store.requests if isinstance(request, Delete))
    assert metadata == (A.key(METADATA),)
    assert set(manifests) == {A.key(rank_manifest(rank)) for rank in (0, 1)}
    assert len(rest) == 4
    assert state(store) is State.RETIRED


def test_what_forebay_did_not_write_is_not_deleted(store: ModelStore) -> None:
    committed(store, 1, 100)
    foreign = {
        f"{A.directory}/README.md",
        f"{A.directory}/ranks/x.json",
        f"{A.directory}/__0_0.distcp.bak",
        f"{A.directory}-copy/__0_0.distcp",
    }
    for key in foreign:
        store.put(key, b"mine")
    run(retire(A), store)
    assert run(sweep(A), store).objects == 4
    assert foreign <= store.objects.keys()
    assert run(sweep(A), store).objects == 0


def test_an_interrupted_deletion_is_finished_by_repeating_it(store: ModelStore) -> None:
    committed(store, 1, 100)
    run(retire(A), store)
    with pytest.raises(SourceUnreachable):
        run(sweep(A), store, fails(store, (Delete,), applied=True))
    assert 0 < len(keys_of(store, A)) < 4
    run(sweep(A), store)
    assert keys_of(store, A) == set()


@pytest.mark.parametrize("answered", range(8))
def test_procedures_dropped_between_any_two_requests_can_be_repeated(store: ModelStore, answered: int) -> None:
    """CASES 45"""
    upload(store, A, [0, 1], 2)
    steps: list[Callable[[], Procedure[Any]]] = [partial(commit, A, 2), partial(retire, A), partial(sweep, A)]
    for begin in steps:
        dropped = begin()
        with suppress(StopIteration):
            answer: object = None
            for _ in range(answered):
                answer = store.answer(dropped.send(answer))
        dropped.close()
        run(begin(), store)
    assert state(store) is State.RETIRED
    assert keys_of(store, A) == set()
