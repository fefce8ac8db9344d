"""The ledger: parts that are written once and read in their order."""

from collections.abc import Callable

import pytest

from forebay_core.checkpoints.names import generation_key, ledger_key
from forebay_core.checkpoints.protocol import LedgerOfGeneration, Put, PutIfAbsent, Request, append, claim, read_ledger
from forebay_core.errors import CheckpointError, SourceUnreachable
from tests.support.model_store import ModelStore, run


@pytest.fixture
def store() -> ModelStore:
    return ModelStore()


def loses_the_answer(store: ModelStore) -> Callable[[Request], None]:
    def meddle(request: Request) -> None:
        if isinstance(request, Put | PutIfAbsent):
            store.answer(request)
            raise SourceUnreachable("the answer was lost")

    return meddle


def test_parts_come_back_in_the_order_of_their_numbers_below_their_generations(store: ModelStore) -> None:
    assert run(read_ledger(), store) == ()
    for token in ("a", "b"):
        run(claim(token), store)
    for part in (10, 9, 0):
        run(append(1, part, b"[%d]" % part), store)
    assert run(read_ledger(), store) == (
        LedgerOfGeneration(1, store.objects[generation_key(1)], (b"[0]", b"[9]", b"[10]")),
        LedgerOfGeneration(2, store.objects[generation_key(2)], ()),
    )


def test_the_documents_alone_are_read_without_a_request_for_each_part(store: ModelStore) -> None:
    run(claim("a"), store)
    run(append(1, 0, b"[]"), store)
    asked: list[Request] = []
    found = run(read_ledger(with_parts=False), store, asked.append)
    assert found == (LedgerOfGeneration(1, store.objects[generation_key(1)], ()),)
    assert "ledger" not in str(asked)


@pytest.mark.parametrize("conditional", [True, False])
def test_a_part_whose_answer_was_lost_is_ones_own(store: ModelStore, conditional: bool) -> None:
    run(append(1, 0, b"[]", conditional=conditional), store, loses_the_answer(store))
    run(append(1, 0, b"[]", conditional=conditional), store)
    assert store.objects[ledger_key(1, 0)] == b"[]"


@pytest.mark.parametrize("conditional", [True, False])
def test_a_part_of_another_writer_is_not_overwritten(store: ModelStore, conditional: bool) -> None:
    """CASES 45"""
    run(append(1, 0, b"[1]"), store)
    with pytest.raises(CheckpointError, match=r"ledger/g000001/000000\.json .*two processes"):
        run(append(1, 0, b"[2]", conditional=conditional), store)
    assert store.objects[ledger_key(1, 0)] == b"[1]"


def test_objects_of_others_in_the_ledger_are_no_parts(store: ModelStore) -> None:
    run(claim("a"), store)
    run(append(1, 0, b"[]"), store)
    for key in ("ledger/x", "ledger/g1/0.json", "ledger/g000001/000001.json.bak", "ledger/g000007/000000.json"):
        store.put(key, b"mine")
    assert [each.parts for each in run(read_ledger(), store)] == [(b"[]",)]
