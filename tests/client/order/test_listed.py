"""Epochs over lists of indices, against lists."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.order import BatchedOrder, ListedOrder, Listing, Lists, Order, RankPlan, SharedOrder, Split
from forebay_core.errors import StateError
from tests.client.order.strategies import splits


def a_listing(indices: list[int], *, shuffle: Any = False, seed: int = 0, offsets: Any = None) -> Listing:
    """The list of an epoch."""
    order = Order.of_indices(len(indices), seed=seed, shuffle=shuffle)
    return Listing(np.array(indices, dtype=np.int64), order, offsets)


@given(
    indices=st.lists(st.integers(0, 2**62), min_size=8, max_size=60),
    split=splits(),
    shuffle=st.sampled_from(("global", False)),
    seed=st.integers(),
    epoch=st.integers(0, 5),
)
def test_every_rank_reads_its_share_of_the_places_and_finds_the_lists_indices_there(
    indices: list[int], split: Split, shuffle: Any, seed: int, epoch: int
) -> None:
    listing = a_listing(indices, shuffle=shuffle, seed=seed)
    places = listing.order.epoch(epoch).sample_ids(0, len(indices)).tolist()
    for rank in range(split.world_size):
        order = ListedOrder(Lists(listing), split, rank)
        plain = SharedOrder(listing.order, split, rank)
        assert order.samples == len(indices)
        assert order.steps(3) == plain.steps(3)
        assert order.position_of(1) == plain.position_of(1)
        mine, theirs = order.plan(epoch, 3, 100), plain.plan(epoch, 3, 100)
        assert mine.offsets.tolist() == theirs.offsets.tolist()
        assert mine.after.tolist() == theirs.after.tolist()
        assert mine.position.tolist() == theirs.position.tolist()
        assert mine.row.tolist() == [indices[places[position]] for position in mine.position.tolist()]
        assert mine.sample_id.tolist() == mine.row.tolist()
    assert [listing.index_at(epoch, position) for position in range(len(indices) + 1)] == [
        *(indices[place] for place in places),
        None,
    ]


def steps_of(plan: RankPlan) -> list[list[int]]:
    """The indices of each step."""
    bounds = plan.offsets.tolist()
    return [plan.row[start:stop].tolist() for start, stop in pairwise(bounds)]


@given(
    batches=st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=6), min_size=1, max_size=20),
    first=st.integers(0, 20),
    steps=st.integers(1, 8),
)
def test_steps_that_were_cut_already_are_read_as_they_are(batches: list[list[int]], first: int, steps: int) -> None:
    first = min(first, len(batches) - 1)
    offsets = np.cumsum([0, *map(len, batches)])
    order = BatchedOrder(Lists(a_listing([i for batch in batches for i in batch], offsets=offsets)), Split(1, 1))
    plan = order.plan(0, int(offsets[first]), steps)
    assert steps_of(plan) == batches[first : first + steps]
    assert plan.after.tolist() == offsets[first + 1 : first + steps + 1].tolist()
    assert plan.position.tolist() == list(range(offsets[first], plan.after[-1]))
    assert not plan.is_pad.any()
    assert [order.position_of(step) for step in range(len(batches) + 1)] == [*offsets[:-1].tolist(), None]
    assert [order.steps(int(offset)) for offset in offsets] == list(range(len(batches), -1, -1))


def test_a_position_within_a_step_that_was_cut_already_is_refused() -> None:
    order = BatchedOrder(Lists(a_listing([1, 2, 3], offsets=np.array([0, 2, 3]))), Split(1, 1))
    for position in (1, 4):
        with pytest.raises(StateError, match="no border between two batches"):
            order.steps(position)


def test_a_digest_tells_lists_and_their_cuts_apart() -> None:
    one = a_listing([1, 2, 3], offsets=np.array([0, 2, 3]))
    others = [
        a_listing([1, 2, 3]),
        a_listing([1, 3, 2], offsets=np.array([0, 2, 3])),
        a_listing([1, 2, 3], offsets=np.array([0, 1, 3])),
        a_listing([1, 2], offsets=np.array([0, 2])),
    ]
    assert len({listing.digest for listing in (one, *others)}) == 5
    assert one.digest == a_listing([1, 2, 3], offsets=np.array([0, 2, 3])).digest


def test_the_lists_of_the_latest_two_epochs_are_kept() -> None:
    lists = Lists()
    assert lists.last is None
    for epoch in range(3):
        lists.put(epoch, a_listing([epoch]))
    assert lists.find(0) is None
    assert [lists.of(epoch).indices.tolist() for epoch in (1, 2)] == [[1], [2]]
    lists.put(1, a_listing([9]))
    assert lists.current.indices.tolist() == [9]
    assert [lists.of(epoch).indices.tolist() for epoch in (1, 2)] == [[9], [2]]
    with pytest.raises(StateError, match="epoch 0 was never drawn"):
        lists.of(0)
