"""Which rank writes what: pure rules, and ranks that agree, each a thread here."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.checkpoint.ownership import Agreement, Held, Holding, Owners, cut, owned, pieces
from forebay_core.errors import CheckpointError


class Circle:
    """Ranks that gather, each on its thread."""

    def __init__(self, world_size: int) -> None:
        self._told: list[Any] = [None] * world_size
        self._barrier = Barrier(world_size, timeout=60)
        self.owners = [Owners(rank, self._gather_of(rank), piece_bytes=64) for rank in range(world_size)]

    def _gather_of(self, rank: int) -> Callable[[Any], list[Any]]:
        def gather(value: Any) -> list[Any]:
            self._told[rank] = value
            self._barrier.wait()
            answer = list(self._told)
            self._barrier.wait()
            return answer

        return gather

    def agree(self, held: Sequence[Callable[[], Held]], sums: Callable[[int, int], int] | None = None) -> list[Any]:
        """What each rank gets, or the error it raises. sums: of a rank and the index of a holding."""

        def one(rank: int) -> Agreement | Exception:
            try:
                return self.owners[rank].agree(
                    held[rank], lambda indexes: [sums(rank, index) if sums else 0 for index in indexes]
                )
            except CheckpointError as error:
                return error

        with ThreadPoolExecutor(len(held)) as pool:
            return list(pool.map(one, range(len(held))))


def giving(held: Held) -> Callable[[], Held]:
    return lambda: held


def replicated(key: str, size: int, world_size: int, *, is_buffer: bool = False, item_bytes: int = 4) -> Holding:
    return Holding(key, (size,), (0,), (size,), item_bytes, tuple(range(world_size)), "float32", is_buffer)


def sharded(key: str, size: int, rank: int, world_size: int) -> Holding:
    rows = math.ceil(size / world_size)
    start, end = min(rank * rows, size), min((rank + 1) * rows, size)
    return Holding(key, (size,), (start,), (end - start,), 4, (rank,), "float32 Shard(0)")


def covered(agreements: Sequence[Agreement]) -> dict[str, int]:
    """How many elements of each tensor are written, by all ranks."""
    found: dict[str, int] = {}
    places = set()
    for agreement in agreements:
        for piece in agreement.owned:
            assert (piece.key, piece.offsets) not in places
            places.add((piece.key, piece.offsets))
            found[piece.key] = found.get(piece.key, 0) + math.prod(piece.sizes)
    return found


@given(st.lists(st.integers(0, 7), max_size=3), st.integers(1, 300), st.sampled_from([1, 2, 4, 8]))
def test_parts_cover_a_tensor_once_and_are_no_larger_than_asked_or_one_row(
    sizes: list[int], most_bytes: int, item_bytes: int
) -> None:
    parts = cut(sizes, item_bytes, most_bytes)
    elements = [
        tuple(offset + at for offset, at in zip(offsets, indexes, strict=True))
        for offsets, part in parts
        for indexes in _indexes(part)
    ]
    assert sorted(elements) == sorted(_indexes(sizes))
    for _, part in parts:
        assert math.prod(part) * item_bytes <= most_bytes or len(parts) == 1 or 1 in part


def _indexes(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    if not sizes:
        return [()]
    return [(first, *rest) for first in range(sizes[0]) for rest in _indexes(sizes[1:])]


@given(st.lists(st.integers(0, 200), max_size=12), st.integers(1, 5))
def test_what_all_hold_is_written_once_and_shared_out_by_bytes(lengths: list[int], world_size: int) -> None:
    holdings = [replicated(f"t{number}", size, world_size) for number, size in enumerate(lengths)]
    all_pieces = pieces(holdings, 64)
    shares = [owned(all_pieces, rank) for rank in range(world_size)]
    written = sorted((piece.key, piece.offsets) for share in shares for piece in share)
    assert written == sorted((piece.key, piece.offsets) for piece in all_pieces)
    burdens = [sum(piece.size_bytes for piece in share) for share in shares]
    largest = max((piece.size_bytes for piece in all_pieces), default=0)
    assert max(burdens) - min(burdens) <= largest


def test_one_large_tensor_does_not_burden_one_rank() -> None:
    all_pieces = pieces([replicated("embedding", 1000, 4), replicated("bias", 8, 4)], 64)
    burdens = [sum(piece.size_bytes for piece in owned(all_pieces, rank)) for rank in range(4)]
    assert max(burdens) < 1.1 * min(burdens)


def test_buffers_are_written_by_the_first_that_has_them() -> None:
    """T18"""
    all_pieces = pieces([replicated(f"b{number}", 10, 4, is_buffer=True) for number in range(9)])
    assert len(owned(all_pieces, 0)) == 9
    assert all(not owned(all_pieces, rank) for rank in (1, 2, 3))


def test_ranks_that_hold_the_same_agree_by_a_signature_alone() -> None:
    circle = Circle(3)
    held = [Held([replicated("a", 50, 3), sharded("b", 10, rank, 3)], {("tied",): "a"}) for rank in range(3)]
    first = circle.agree([giving(each) for each in held])
    assert covered(first) == {"a": 50, "b": 10}
    assert first[1].wholes == {"a": (50,), "b": (10,)}
    assert first[1].aliases == {("tied",): "a"}
    again = circle.agree([giving(each) for each in held])
    assert all(one is other for one, other in zip(first, again, strict=True))


def test_ranks_that_hold_different_tensors_assign_them_among_the_holders() -> None:
    """Two pipeline stages of two ranks, and a parameter that has no state on rank 3."""
    held = [
        Held([replicated("first" if rank < 2 else "second", 40, 4), *([replicated("c", 9, 4)] * (rank < 3))], {})
        for rank in range(4)
    ]
    circle = Circle(4)
    agreed = circle.agree([giving(each) for each in held])
    assert covered(agreed) == {"first": 40, "second": 40, "c": 9}
    assert {piece.key for piece in agreed[3].owned} == {"second"}
    assert all(agreement.wholes.keys() == {"first", "second", "c"} for agreement in agreed)


def test_a_rank_that_comes_to_hold_more_changes_the_agreement_of_all() -> None:
    circle = Circle(2)
    before = circle.agree([lambda: Held([replicated("a", 4, 2)], {})] * 2)
    after = circle.agree([lambda: Held([replicated("a", 4, 2)], {}), lambda: Held([replicated("b", 4, 2)], {})])
    assert covered(after) == {"a": 4, "b": 4}
    assert all(one is not other for one, other in zip(before, after, strict=True))


def test_what_looks_replicated_and_is_not_is_an_error_on_all_ranks() -> None:
    circle = Circle(3)
    held = Held([replicated("a", 4, 3), replicated("b", 4, 3), replicated("norm", 4, 3, is_buffer=True)], {})
    found = circle.agree([lambda: held] * 3, lambda rank, index: 7 if (rank, index) == (2, 1) else 0)
    assert all(isinstance(error, CheckpointError) for error in found)
    assert str(found[0]).startswith("b is not the same on ranks 0 and 2")
    fine = circle.agree([lambda: held] * 3, lambda rank, index: 100 * rank if index == 2 else 0)
    assert covered(fine) == {"a": 4, "b": 4, "norm": 4}


def test_two_tensors_of_one_name_and_two_sizes_are_an_error_on_all_ranks() -> None:
    held = [giving(Held([replicated("a", size, 2)], {})) for size in (4, 5)]
    assert all("a has the size" in str(error) for error in Circle(2).agree(held))


def test_an_error_of_one_rank_is_one_of_all_and_the_next_time_they_agree() -> None:
    def failing() -> Held:
        raise CheckpointError("mask is a sparse tensor")

    def fine() -> Held:
        return Held([replicated("a", 4, 2)], {})

    circle = Circle(2)
    found = circle.agree([fine, failing])
    assert [str(error) for error in found] == [
        "rank 1 cannot save its state: CheckpointError: mask is a sparse tensor",
        "mask is a sparse tensor",
    ]
    assert covered(circle.agree([fine, fine])) == {"a": 4}


def test_the_empty_part_of_a_tensor_that_does_not_divide_is_nobodys() -> None:
    held = [Held([sharded("a", 5, rank, 4)], {}) for rank in range(4)]
    assert held[3].holdings[0].sizes == (0,)
    agreed = Circle(4).agree([giving(each) for each in held])
    assert covered(agreed) == {"a": 5}
    assert not agreed[3].owned


@pytest.mark.parametrize("sizes", [(0,), (3, 0)])
def test_a_tensor_without_elements_is_written_all_the_same(sizes: tuple[int, ...]) -> None:
    holding = Holding("a", sizes, (0,) * len(sizes), sizes, 4, (0, 1), "float32")
    assert len(owned(pieces([holding]), 0)) == 1
