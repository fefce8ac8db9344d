"""Generations: every start gets its own number, once, and fences those before it."""

from collections.abc import Callable

import pytest

from forebay_core.checkpoints.claiming import numbers_of
from forebay_core.checkpoints.documents import Generation
from forebay_core.checkpoints.names import generation_key
from forebay_core.checkpoints.protocol import Listed, Put, PutIfAbsent, Request, check_fenced, claim, newest_generation
from forebay_core.errors import AccessDenied, CheckpointError, CheckpointFenced, SourceUnreachable
from tests.core.checkpoints.attempts import attempt_of
from tests.support.model_store import ModelStore, run

PARENT = attempt_of(1, 100)


@pytest.fixture
def store() -> ModelStore:
    return ModelStore()


def at_write(*acts: Callable[[], object]) -> Callable[[Request], None]:
    """One act before each write, until there are none."""
    waiting = list(acts)

    def meddle(request: Request) -> None:
        if isinstance(request, Put | PutIfAbsent) and waiting:
            waiting.pop(0)()

    return meddle


def test_each_start_of_a_job_claims_the_next_number_and_names_its_parent(store: ModelStore) -> None:
    assert run(newest_generation(), store) == 0
    assert run(claim("a"), store) == Generation(1, "a")
    assert run(claim("b", PARENT, {"world_size": 4}), store) == Generation(2, "b", PARENT, {"world_size": 4})
    assert run(newest_generation(), store) == 2
    assert Generation.decode(store.objects[generation_key(2)]).parent == PARENT


@pytest.mark.parametrize("conditional", [True, False])
def test_a_claim_that_is_repeated_is_the_same_claim_also_after_others(store: ModelStore, conditional: bool) -> None:
    """CASES 45"""
    for token in ("mine", "b", "c"):
        run(claim(token, conditional=conditional), store)
    assert run(claim("mine", PARENT), store).number == 1
    assert run(newest_generation(), store) == 3


@pytest.mark.parametrize("conditional", [True, False])
def test_a_claim_whose_answer_was_lost_is_found_again(store: ModelStore, conditional: bool) -> None:
    def lose() -> None:
        store.answer(PutIfAbsent(generation_key(1), Generation(1, "mine").encode()))
        raise SourceUnreachable("the answer was lost")

    assert run(claim("mine", conditional=conditional), store, at_write(lose)).number == 1
    assert run(newest_generation(), store) == 1


def test_a_claim_that_failed_raises_what_failed(store: ModelStore) -> None:
    def refuse() -> None:
        raise AccessDenied("no permission to write")

    with pytest.raises(AccessDenied, match="no permission"):
        run(claim("mine"), store, at_write(refuse))
    assert store.objects == {}


def test_two_starts_at_once_get_two_numbers(store: ModelStore) -> None:
    """CASES 45"""
    mine = run(claim("mine"), store, at_write(lambda: run(claim("b"), store), lambda: run(claim("c"), store)))
    assert mine.number == 3
    assert {Generation.decode(body).token for body in store.objects.values()} == {"mine", "b", "c"}


def test_a_number_is_taken_also_where_its_document_cannot_be_read(store: ModelStore) -> None:
    store.put(generation_key(1), b"")
    store.put(generation_key(2), b'{"version": 2}')
    assert run(claim("mine"), store).number == 3


def test_objects_of_others_among_the_generations_are_no_numbers(store: ModelStore) -> None:
    for key in (
        "generations/latest.json",
        "generations/g9.json",
        "generations/x/g000009.json",
        "generations/000009.json",
    ):
        store.put(key, b"")
    assert run(newest_generation(), store) == 0
    assert numbers_of([Listed(generation_key(n), 0, 0) for n in (3, 10, 7)]) == (10, 7, 3)


def test_an_older_start_is_fenced_by_a_newer_one_and_hears_what_to_do(store: ModelStore) -> None:
    """CASES 45"""
    mine = run(claim("mine"), store).number
    run(check_fenced(mine), store)
    run(claim("other"), store)
    with pytest.raises(CheckpointFenced, match=r"generation 2 .* while generation 1 runs.*end this one"):
        run(check_fenced(mine), store)
    run(check_fenced(2), store)


def test_when_all_numbers_are_used_it_says_so(store: ModelStore) -> None:
    store.put(generation_key(999_999), Generation(999_999, "last").encode())
    with pytest.raises(CheckpointError, match="choose another root"):
        run(claim("mine"), store)
    assert run(claim("last"), store).number == 999_999
