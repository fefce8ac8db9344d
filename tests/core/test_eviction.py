"""Which pieces make room."""

import math

from hypothesis import given
from hypothesis import strategies as st

from forebay_core.eviction import Resident, victims


def _piece(key: str, next_use: float | None = None, *, last: float = 0, size: int = 10, held: bool = False) -> Resident:
    return Resident(key, size, next_use, last, held)


def test_what_nobody_needs_goes_first_the_least_recently_used_before_the_others() -> None:
    cache = [_piece("soon", 1), _piece("old", last=1), _piece("new", last=2), _piece("late", 100)]
    assert victims(cache, 20) == ["old", "new"]


def test_then_goes_what_is_needed_furthest_away() -> None:
    cache = [_piece("soon", 1), _piece("unneeded"), _piece("late", 100), _piece("later", 200)]
    assert victims(cache, 30) == ["unneeded", "later", "late"]


def test_no_more_goes_than_is_needed() -> None:
    cache = [_piece("a", size=5), _piece("b", last=1, size=7), _piece("c", last=2)]
    assert victims(cache, 12) == ["a", "b"]
    assert victims(cache, 1) == ["a"]
    assert victims(cache, 0) == []


def test_what_is_held_never_goes() -> None:
    cache = [_piece("held", held=True), _piece("free", 1)]
    assert victims(cache, 10) == ["free"]
    assert victims(cache, 20) is None


def test_a_prefetch_only_takes_the_room_of_what_is_needed_later_than_itself() -> None:
    cache = [_piece("unneeded"), _piece("sooner", 5), _piece("same", 7), _piece("later", 9)]
    assert victims(cache, 20, before=7) == ["unneeded", "later"]
    assert victims(cache, 30, before=7) is None


def test_what_nobody_can_say_of_yet_goes_after_the_unneeded_before_the_needed_and_for_no_prefetch() -> None:
    cache = [_piece("late", 100), _piece("unknown", math.inf), _piece("unneeded", last=9)]
    assert victims(cache, 30) == ["unneeded", "unknown", "late"]
    assert victims(cache, 20, before=7) == ["unneeded", "late"]
    assert victims(cache, 30, before=7) is None


def test_an_empty_cache_gives_nothing() -> None:
    assert victims([], 1) is None


_residents = st.lists(
    st.builds(
        Resident,
        key=st.uuids().map(str),
        bytes=st.integers(0, 20),
        next_use=st.none() | st.integers(0, 9).map(float) | st.just(math.inf),
        last_used=st.integers(0, 9).map(float),
        held=st.booleans(),
    ),
    max_size=12,
)


@given(_residents, st.integers(0, 100), st.none() | st.integers(0, 9).map(float))
def test_the_choice_is_a_shortest_beginning_of_the_order(
    cache: list[Resident], needed: int, before: float | None
) -> None:
    free = [r for r in cache if not r.held and (r.next_use is None or before is None or before < r.next_use < math.inf)]
    unneeded = sorted((r for r in free if r.next_use is None), key=lambda r: (r.last_used, r.key))
    needed_later = sorted(
        (r for r in free if r.next_use is not None), key=lambda r: (-(r.next_use or 0), r.last_used, r.key)
    )
    order = unneeded + needed_later
    enough = (count for count in range(len(order) + 1) if sum(r.bytes for r in order[:count]) >= needed)
    count = next(enough, None)
    expected = None if count is None else [r.key for r in order[:count]]
    assert victims(cache, needed, before=before) == expected
