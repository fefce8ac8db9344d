"""The eviction policies: one suite for what all of them promise, and what is particular to each."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_core.eviction import BEYOND, NOBODY, POLICIES, UNKNOWN, Policy, Residents, may_go, victims

Piece = tuple[int, float, float, bool]

_pieces = st.lists(
    st.tuples(
        st.integers(1, 20),
        st.sampled_from([NOBODY, BEYOND, UNKNOWN]) | st.integers(0, 9).map(float),
        st.integers(0, 9).map(float),
        st.booleans(),
    ),
    max_size=12,
)
_before = st.none() | st.just(BEYOND) | st.integers(0, 9).map(float)

every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=list(POLICIES))


def cached(pieces: Sequence[Piece], capacity: int = 1 << 20) -> Residents:
    return Residents(
        np.array([piece[0] for piece in pieces], np.int64),
        np.array([piece[1] for piece in pieces], np.float64),
        np.array([piece[2] for piece in pieces], np.float64),
        np.array([piece[3] for piece in pieces], np.bool_),
        capacity,
    )


def uses(*next_use: float, last: Sequence[float] | None = None) -> Residents:
    """Pieces of 10 bytes, used last at 0 or as said."""
    return cached([(10, use, (last or [0.0] * len(next_use))[i], False) for i, use in enumerate(next_use)])


def chosen(policy: str, residents: Residents, needed: int, before: float | None = None) -> list[int] | None:
    found = victims(POLICIES[policy], residents, needed, before=before)
    return None if found is None else found.tolist()


# -- what all of them promise --------------------------------------------------------------------------------------


@every_policy
@given(pieces=_pieces, needed=st.integers(0, 100), before=_before)
def test_what_goes_may_go_is_enough_and_none_of_it_is_too_much(
    policy: Policy, pieces: list[Piece], needed: int, before: float | None
) -> None:
    """CASES 29: what is held is never evicted, whatever the policy."""
    residents = cached(pieces)
    found = victims(policy, residents, needed, before=before)
    again = victims(policy, replace(residents, bytes=residents.bytes.copy()), needed, before=before)
    assert (found is None) == (again is None)
    if found is None or again is None:
        return
    assert found.tolist() == again.tolist(), "the same question has the same answer"
    assert len(set(found.tolist())) == len(found)
    assert not residents.held[found].any()
    assert all(may_go(residents.next_use[index], before) for index in found)
    freed = residents.bytes[found]
    assert freed.sum() >= needed
    assert freed[:-1].sum() < max(needed, 1), "the last one was needed"


@every_policy
@given(pieces=_pieces, needed=st.integers(1, 100), before=_before)
def test_room_is_found_where_there_is_any(
    policy: Policy, pieces: list[Piece], needed: int, before: float | None
) -> None:
    residents = cached(pieces)
    free = [size for size, next_use, _, held in pieces if not held and may_go(next_use, before)]
    found = victims(policy, residents, needed, before=before)
    assert (found is not None) == (sum(free) >= needed)


@every_policy
def test_a_prefetch_takes_the_room_of_nothing_that_is_needed_as_soon_as_itself_or_not_known_yet(
    policy: Policy,
) -> None:
    residents = uses(5.0, 7.0, 9.0, UNKNOWN, BEYOND, NOBODY)
    assert sorted(chosen(policy.name, residents, 30, before=7.0) or []) == [2, 4, 5]
    assert chosen(policy.name, residents, 40, before=7.0) is None


@every_policy
def test_what_nobody_has_said_that_he_needs_takes_only_the_room_of_what_nobody_reads(policy: Policy) -> None:
    residents = uses(1.0, 9e9, UNKNOWN, BEYOND, NOBODY)
    assert chosen(policy.name, residents, 10, before=BEYOND) == [4]
    assert chosen(policy.name, residents, 20, before=BEYOND) is None


@every_policy
def test_an_empty_cache_gives_nothing(policy: Policy) -> None:
    assert chosen(policy.name, cached([]), 1) is None
    assert chosen(policy.name, cached([]), 0) == []


@every_policy
def test_ties_go_by_place(policy: Policy) -> None:
    first = chosen(policy.name, uses(3.0, 3.0, 3.0, 3.0), 20)
    assert first in ([0, 1], [3, 2])


# -- next use ------------------------------------------------------------------------------------------------------


def test_what_nobody_needs_goes_first_the_least_recently_used_before_the_others() -> None:
    assert chosen("next-use", uses(1.0, NOBODY, NOBODY, 100.0, last=[0, 2, 1, 0]), 20) == [2, 1]


def test_then_what_lies_beyond_the_horizon_then_what_is_not_known_then_what_is_needed_furthest_away() -> None:
    residents = uses(1.0, 100.0, UNKNOWN, 200.0, BEYOND, NOBODY)
    assert chosen("next-use", residents, 60) == [5, 4, 2, 3, 1, 0]


@given(pieces=_pieces, needed=st.integers(1, 100), before=_before)
def test_next_use_lets_the_furthest_go_as_a_slow_sort_would(
    pieces: list[Piece], needed: int, before: float | None
) -> None:
    free = [i for i, (_, use, _, held) in enumerate(pieces) if not held and may_go(use, before)]
    order = sorted(free, key=lambda i: (-pieces[i][1], pieces[i][2], i))
    enough = (n for n in range(1, len(order) + 1) if sum(pieces[i][0] for i in order[:n]) >= needed)
    count = next(enough, None)
    assert chosen("next-use", cached(pieces), needed, before) == (None if count is None else order[:count])


@given(st.lists(st.integers(0, 40), min_size=300, max_size=400), st.integers(1, 4000), st.randoms())
@settings(max_examples=25)
def test_of_a_large_cache_the_same_go_as_of_a_small_one(uses_of: list[int], needed: int, random: random.Random) -> None:
    pieces = [(random.randint(1, 20), float(use), float(random.randint(0, 3)), False) for use in uses_of]
    order = sorted(range(len(pieces)), key=lambda i: (-pieces[i][1], pieces[i][2], i))
    count = next((n for n in range(1, len(order) + 1) if sum(pieces[i][0] for i in order[:n]) >= needed), None)
    assert chosen("next-use", cached(pieces), needed) == (None if count is None else order[:count])


# -- the others ----------------------------------------------------------------------------------------------------


def test_lru_lets_the_least_recently_used_go_whoever_needs_it() -> None:
    assert chosen("lru", uses(1.0, NOBODY, 100.0, last=[1, 3, 2]), 20) == [0, 2]


def test_never_keeps_what_came_first_and_lets_the_newest_of_a_window_go() -> None:
    pieces = [(10, float(use), 0.0, False) for use in range(40)]
    residents = cached(pieces, capacity=400)
    assert chosen("never", residents, 30) == [39, 38, 37]
    assert chosen("never", residents, 31) is None
    held = replace(residents, held=np.arange(40) >= 38)
    assert chosen("never", held, 10) == [37]


def test_whatever_the_numbers_stand_for_they_are_further_than_any_number_of_seconds() -> None:
    longest = 1e12 / 1e-12
    assert longest < UNKNOWN < BEYOND < NOBODY == math.inf
