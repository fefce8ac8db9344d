"""What there is below a root: seen at one moment, however much happens while it is read."""

from collections.abc import Callable

import pytest

from forebay_core.checkpoints.documents import State
from forebay_core.checkpoints.names import METADATA, rank_manifest
from forebay_core.checkpoints.protocol import (
    Found,
    Get,
    GetMany,
    List,
    Request,
    abandon,
    commit,
    list_checkpoints,
    quarantine,
    retire,
    sweep,
)
from tests.core.checkpoints.attempts import attempt_of, committed, keys_of, manifest_of, upload
from tests.support.model_store import ModelStore, run

A = attempt_of(1, 100)


@pytest.fixture
def store() -> ModelStore:
    return ModelStore()


def only(store: ModelStore, with_manifests: bool = True, meddle: Callable[[Request], None] = lambda r: None) -> Found:
    (found,) = run(list_checkpoints(with_manifests), store, meddle)
    return found


def before(store: ModelStore, number: int, act: Callable[[], object]) -> Callable[[Request], None]:
    """The act comes just before the request of that number, counted from 0."""
    seen: list[Request] = []

    def meddle(request: Request) -> None:
        seen.append(request)
        if len(seen) == number + 1:
            act()

    return meddle


def test_a_root_without_anything_has_no_checkpoints(store: ModelStore) -> None:
    assert run(list_checkpoints(True, history=True), store) == ()


def test_checkpoints_are_listed_newest_first_by_generation_and_step_with_what_was_decided(store: ModelStore) -> None:
    """CASES 45"""
    rewound = committed(store, 2, 100)
    first, other = committed(store, 1, 100), committed(store, 1, 300, world_size=2)
    given_up = attempt_of(1, 200)
    upload(store, given_up, [1], 2)
    run(abandon(given_up, "too old"), store)
    found = run(list_checkpoints(), store)
    assert [each.attempt for each in found] == [rewound, other, given_up, first]
    assert [each.state for each in found] == [State.COMMITTED, State.COMMITTED, State.ABANDONED, State.COMMITTED]
    assert [each.world_size for each in found] == [1, 2, 0, 1]
    assert [each.is_committed for each in found] == [True, True, False, True]
    assert found[1].durable_ranks == {0, 1}
    assert found[1].objects == 7
    assert found[1].size_bytes == sum(len(store.objects[key]) for key in keys_of(store, other))
    assert found[1].modified_unix_seconds == max(store.times[key] for key in keys_of(store, other))
    assert found[1].decided_unix_seconds == store.times[other.decision]
    assert found[2].decision is not None
    assert found[2].decision.reason == "too old"


@pytest.mark.parametrize("with_manifests", [True, False])
def test_of_an_unfinished_attempt_the_ranks_that_are_there_and_the_world_size_are_known(
    store: ModelStore, with_manifests: bool
) -> None:
    upload(store, A, [1, 2], 4)
    found = only(store, with_manifests)
    assert (found.state, found.is_undecided, found.fault) == (None, True, "")
    assert found.durable_ranks == {1, 2}
    assert found.world_size == 4
    assert len(found.manifests) == (2 if with_manifests else 0)


def test_manifests_are_read_only_where_they_are_asked_for(store: ModelStore) -> None:
    committed(store, 1, 100, world_size=2)
    store.requests.clear()
    assert only(store, with_manifests=False).manifests == ()
    assert not any(
        "ranks/" in key for request in store.requests if isinstance(request, GetMany) for key in request.keys
    )
    store.requests.clear()
    assert only(store).manifests == (manifest_of(A, 0, 2), manifest_of(A, 1, 2))


@pytest.mark.parametrize(
    ("file", "body", "fault"),
    [
        (METADATA, None, r".metadata of 8 bytes is not there"),
        ("__1_0.distcp", b"cut", r"__1_0.distcp of 16 bytes has 3 bytes"),
        (rank_manifest(1), None, "manifests of its ranks are gone"),
        (rank_manifest(1), b"{}", "ranks/00001.json: not a rank's manifest"),
        (rank_manifest(1), manifest_of(A, 1, 3).encode(), "[2, 3]"),
        (rank_manifest(1), manifest_of(A, 1, 2).encode() + b"\n", "not those that were committed"),
    ],
)
def test_a_committed_checkpoint_that_lost_something_is_damaged_and_says_what(
    store: ModelStore, file: str, body: bytes | None, fault: str
) -> None:
    """CASES 46"""
    committed(store, 1, 100, world_size=2)
    store.objects.pop(A.key(file))
    if body is not None:
        store.put(A.key(file), body)
    found = only(store)
    assert fault in found.fault
    assert (found.state, found.is_committed) == (State.COMMITTED, False)


def test_a_committed_checkpoint_of_which_everything_is_gone_is_not_passed_over(store: ModelStore) -> None:
    """CASES 46"""
    old, new = committed(store, 1, 100), committed(store, 1, 200)
    for key in keys_of(store, new):
        del store.objects[key]
    found = run(list_checkpoints(), store)
    assert [(each.attempt, each.is_committed) for each in found] == [(new, False), (old, True)]
    assert "gone" in found[0].fault


def test_decisions_on_what_was_retired_long_ago_are_not_read_again(store: ModelStore) -> None:
    for step in range(1, 21):
        attempt = committed(store, 1, step)
        if step <= 18:
            run(retire(attempt), store)
            run(sweep(attempt), store)
    store.requests.clear()
    assert [each.attempt.step for each in run(list_checkpoints(), store)] == [20, 19]
    read = [key for request in store.requests if isinstance(request, GetMany) for key in request.keys]
    assert len(read) == 2
    whole = run(list_checkpoints(history=True), store)
    assert [each.state for each in whole] == [State.COMMITTED] * 2 + [State.RETIRED] * 18


def test_where_no_checkpoint_is_left_all_decisions_are_read(store: ModelStore) -> None:
    attempts = [committed(store, 1, step) for step in (1, 2, 3)]
    for attempt in attempts:
        for key in keys_of(store, attempt):
            del store.objects[key]
    found = run(list_checkpoints(), store)
    assert [each.attempt for each in found] == attempts[::-1]
    assert all(each.fault for each in found)


@pytest.mark.parametrize("body", [b"", b'{"version": 2}'])
def test_a_decision_that_cannot_be_read_is_a_fault_of_its_attempt_alone(store: ModelStore, body: bytes) -> None:
    committed(store, 1, 50)
    committed(store, 1, 100)
    store.put(A.decision, body)
    bad, good = run(list_checkpoints(True), store)
    assert A.decision in bad.fault
    assert (bad.decision, bad.is_undecided) == (None, False)
    assert good.is_committed


def test_objects_of_others_in_the_root_are_not_seen(store: ModelStore) -> None:
    committed(store, 1, 100)
    alone = only(store)
    for key in ("attempts/README", "attempts/g1/x", "commits/latest", f"{A.directory}/notes.txt", "model.pt"):
        store.put(key, b"mine")
    assert only(store) == alone


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("with_manifests", [True, False])
def test_a_checkpoint_that_is_retired_while_it_is_listed_is_never_called_damaged(
    store: ModelStore, number: int, with_manifests: bool
) -> None:
    """CASES 43"""
    committed(store, 1, 100, world_size=2)

    def take_away() -> None:
        run(retire(A), store)
        run(sweep(A), store)

    for found in run(list_checkpoints(with_manifests), store, before(store, number, take_away)):
        assert found.fault == ""
        assert found.state in {State.COMMITTED, State.RETIRED}


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("ranks", [[], [1], [1, 0]])
def test_a_checkpoint_that_is_finished_while_it_is_listed_is_never_called_damaged(
    store: ModelStore, number: int, ranks: list[int]
) -> None:
    """CASES 38"""
    upload(store, A, ranks, 2)

    def finish() -> None:
        upload(store, A, [rank for rank in (1, 0) if rank not in ranks], 2)
        run(commit(A, 2), store)

    for found in run(list_checkpoints(True), store, before(store, number, finish)):
        assert found.fault == ""
        assert found.state in {None, State.COMMITTED}


def test_an_attempt_that_is_abandoned_and_deleted_while_it_is_listed_is_abandoned(store: ModelStore) -> None:
    upload(store, A, [0], 2)

    def give_up() -> None:
        run(abandon(A, "too old"), store)
        run(sweep(A), store)

    found = only(store, True, before(store, 2, give_up))
    assert (found.state, found.fault) == (State.ABANDONED, "")


def test_a_decision_that_breaks_while_manifests_are_read_does_not_end_the_listing(store: ModelStore) -> None:
    committed(store, 1, 100)

    def meddle(request: Request) -> None:
        if isinstance(request, Get):
            store.put(A.decision, b"")

    store.put(A.key(rank_manifest(0)), b"")
    assert A.decision in only(store, True, meddle).fault


def test_listings_ask_for_folders(store: ModelStore) -> None:
    run(list_checkpoints(), store)
    assert [request for request in store.requests if isinstance(request, List)] == [List("commits/"), List("attempts/")]


def test_a_quarantined_checkpoint_is_listed_with_its_reason_and_not_read(store: ModelStore) -> None:
    """CASES 46"""
    committed(store, 1, 100)
    run(quarantine(A, "rank 0: a checksum differs"), store)
    del store.objects[A.key(METADATA)]
    found = only(store)
    assert (found.state, found.fault, found.manifests) == (State.QUARANTINED, "", ())
    assert found.decision is not None
    assert found.decision.reason == "rank 0: a checksum differs"
