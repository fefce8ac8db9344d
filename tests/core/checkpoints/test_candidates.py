"""Which checkpoint all ranks go on from, of what each node sees (CASES 38)."""

from dataclasses import replace
from typing import Any

import pytest

from forebay_core.checkpoints.documents import State
from forebay_core.checkpoints.names import Attempt
from forebay_core.checkpoints.protocol import Seen, is_whole, picture
from forebay_core.errors import CheckpointDamaged, CheckpointNotFound

NONCE = "0123456789ab"


def seen(
    generation: int,
    step: int,
    state: State | None = None,
    *,
    durable: Any = (),
    staged: Any = (),
    world_size: int = 2,
) -> Seen:
    return Seen(Attempt(generation, step, NONCE), state, world_size, frozenset(durable), frozenset(staged))


def steps(*nodes: list[Seen]) -> list[tuple[int, int]]:
    return [(each.attempt.generation, each.attempt.step) for each in picture(nodes).usable]


def test_the_newest_is_that_of_the_highest_generation_and_then_step() -> None:
    """CASES 38"""
    committed = [seen(1, 300, State.COMMITTED), seen(2, 100, State.COMMITTED), seen(2, 50, State.COMMITTED)]
    assert steps(committed) == [(2, 100), (2, 50), (1, 300)]


def test_what_some_rank_is_missing_of_is_never_chosen_however_new() -> None:
    """CASES 38"""
    partial = seen(3, 900, durable=[0], staged=[], world_size=2)
    unknown = seen(3, 950, durable=[], staged=[], world_size=0)
    found = picture([[partial, unknown, seen(1, 5, State.COMMITTED)]])
    assert [each.attempt.step for each in found.usable] == [5]
    assert [attempt.step for attempt in found.unfinished] == [950, 900]


def test_what_is_staged_on_one_node_and_on_another_or_durable_is_whole_together() -> None:
    one = [seen(1, 10, staged=[0], world_size=3)]
    other = [seen(1, 10, staged=[1], durable=[2], world_size=3)]
    chosen = picture([one, other]).choose(step=None, without=set())
    assert chosen is not None
    assert (chosen.attempt.step, chosen.is_committed, chosen.is_durable) == (10, False, False)


def test_all_at_the_destination_without_a_decision_can_be_committed() -> None:
    chosen = picture([[seen(1, 10, durable=[0, 1])]]).choose(step=None, without=set())
    assert chosen is not None
    assert (chosen.is_committed, chosen.is_durable) == (False, True)


@pytest.mark.parametrize("state", [State.ABANDONED, State.RETIRED, State.QUARANTINED])
def test_what_was_decided_against_is_not_chosen_whatever_is_there_of_it(state: State) -> None:
    assert steps([seen(1, 10, state, durable=[0, 1], staged=[0, 1])], [seen(1, 10, durable=[0, 1])]) == []


def test_a_step_that_there_is_none_of_names_those_that_there_are() -> None:
    found = picture([[seen(1, 10, State.COMMITTED), seen(2, 20, State.COMMITTED)]])
    with pytest.raises(CheckpointNotFound, match=r"step 15.*10, 20"):
        found.choose(step=15, without=set())
    chosen = found.choose(step=10, without=set())
    assert chosen is not None
    assert chosen.attempt.generation == 1


def test_nothing_but_damaged_checkpoints_is_an_error_and_no_new_beginning() -> None:
    with pytest.raises(CheckpointDamaged, match="all checkpoints here are damaged"):
        picture([[seen(1, 10, State.QUARANTINED)]]).choose(step=None, without=set())
    with pytest.raises(CheckpointDamaged):
        picture([[seen(1, 10, State.COMMITTED)]]).choose(step=None, without={Attempt(1, 10, NONCE)})


def test_what_was_decided_on_and_cannot_be_read_is_neither_chosen_nor_taken_for_nothing() -> None:
    """CASES 38 and 46: a damaged decision, or a newer forebay's, is no reason to begin anew without a word."""
    read = seen(1, 10, State.COMMITTED)
    bad = replace(seen(1, 20, durable=[0, 1], staged=[0, 1]), unreadable="it has version 2")
    found = picture([[bad, read]])
    chosen = found.choose(step=None, without=set())
    assert chosen is not None
    assert chosen.attempt == read.attempt
    assert found.passed_over(chosen.attempt) == [(bad.attempt, "it has version 2")]
    assert found.passed_over(Attempt(2, 1, NONCE)) == []
    with pytest.raises(CheckpointDamaged, match="it has version 2"):
        picture([[bad]]).choose(step=None, without=set())
    other = replace(bad, state=State.COMMITTED, unreadable="")
    assert steps([bad], [other]) == [(1, 20)], "another node could read it"


def test_an_empty_root_or_one_with_unfinished_attempts_alone_is_a_new_beginning() -> None:
    assert picture([[], []]).choose(step=None, without=set()) is None
    assert picture([[seen(1, 10, durable=[0])]]).choose(step=None, without=set()) is None


def test_a_step_saved_twice_in_one_generation_is_two_candidates() -> None:
    """CASES 45"""
    one, other = Attempt(1, 100, "0" * 12), Attempt(1, 100, "1" * 12)
    sightings = [Seen(each, State.COMMITTED, 2, frozenset()) for each in (one, other)]
    assert [each.attempt for each in picture([sightings]).usable] == [other, one]


@pytest.mark.parametrize(
    ("durable", "staged", "whole"),
    [
        ((0, 1), (), True),
        ((), (0, 1), True),
        ((1,), (0,), True),
        ((0,), (0,), False),
        ((), (), False),
        ((2,), (0,), False),
    ],
)
def test_an_undecided_one_is_usable_where_every_rank_is_staged_or_durable(
    durable: tuple[int, ...], staged: tuple[int, ...], whole: bool
) -> None:
    """CASES 38"""
    assert steps([seen(1, 10, durable=durable, staged=staged)]) == ([(1, 10)] if whole else [])


def test_a_node_that_saw_it_decided_counts_against_one_that_looked_before() -> None:
    before = [seen(1, 10, durable=[0])]
    assert steps(before, [seen(1, 10, State.COMMITTED, durable=[0, 1])]) == [(1, 10)]
    assert steps(before, [seen(1, 10, State.ABANDONED, staged=[1])]) == []


def test_whole_is_every_rank_of_the_world_and_no_other() -> None:
    assert is_whole(2, {0, 1})
    assert is_whole(1, [0])
    for size, ranks in ((2, {0}), (2, {1, 2}), (2, {0, 1, 2}), (0, set()), (10**18, {0})):
        assert not is_whole(size, ranks)
