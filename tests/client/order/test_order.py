"""The order itself: its options, what it depends on, and vectors that hold the algorithm still."""

import json
import pickle
import tracemalloc
from typing import Any

import numpy as np
import pytest

from forebay.order import Order, OrderOptions, Split
from forebay.order.lanes import bit_reversed, cut_lanes
from forebay_core.errors import ConfigurationError


def ids(order: Order, epoch: int = 0) -> list[int]:
    return order.epoch(epoch).sample_ids(0, order.samples).tolist()  # type: ignore[no-any-return]


def test_without_a_shuffle_samples_come_in_the_order_of_their_ids() -> None:
    order = Order([3, 0, 4, 1], seed=1, shuffle=False)
    assert (order.lanes, order.window) == (1, 1)
    assert ids(order) == ids(order, 5) == list(range(8))


def test_lanes_given_explicitly_split_an_unshuffled_dataset() -> None:
    order = Order([5, 5], seed=1, shuffle=False, options=OrderOptions(lanes=2))
    assert ids(order) == [0, 5, 1, 6, 2, 7, 3, 8, 4, 9]


def test_a_shuffled_dataset_has_sixteen_lanes_unless_told_otherwise() -> None:
    assert Order([100], seed=0).lanes == 16
    assert Order([100], seed=0, options=OrderOptions(lanes=3)).lanes == 3


@pytest.mark.parametrize(
    ("pieces", "rows", "lanes", "total_bytes", "window"),
    [
        (10_000, 1000, 16, 0, 64_000),
        (10_000, 100, 16, 0, 6_400),
        (10_000, 100, 3, 0, 102_400 // 3),
        (10_000, 100, 1024, 0, 400),
        (100, 10_000_000, 16, 0, 2**21 // 16),
        (10_000, 1000, 16, 10_000_000 << 20, (16 << 10) // 16),
        (10_000, 1000, 16, 10_000_000 << 40, 1),
        (4, 10, 16, 0, 3),
    ],
)
def test_the_default_window_follows_the_pieces_and_never_the_machine(
    pieces: int, rows: int, lanes: int, total_bytes: int, window: int
) -> None:
    order = Order([rows] * pieces, seed=0, options=OrderOptions(lanes=lanes), total_bytes=total_bytes)
    assert order.window == window


def test_the_default_window_counts_pieces_of_the_mean_size() -> None:
    rows = [1] * 3000 + [5] * 1000
    assert Order(rows, seed=0, options=OrderOptions(lanes=1)).window == 2048


@pytest.mark.parametrize(("sample_bytes", "samples"), [(110_000, 600_000), (12_288, 2_000_000), (4096, 5_000_000)])
def test_a_batch_of_class_sorted_data_is_nearly_as_mixed_as_a_permutation_at_the_defaults(
    sample_bytes: int, samples: int
) -> None:
    """Each class of 1000 fills pieces of its own, as in data that is stored class after class in many shards."""
    rows, classes = (8 << 20) // sample_bytes, 1000
    order = Order([rows] * (samples // rows), seed=1, total_bytes=samples // rows * rows * sample_bytes)
    middle = order.samples // 2
    drawn = order.epoch(0).sample_ids(middle, middle + 256 * 100) * classes // order.samples
    in_a_batch = np.mean([len(np.unique(batch)) for batch in drawn.reshape(-1, 256)])
    of_a_permutation = classes * (1 - (1 - 1 / classes) ** 256)
    assert in_a_batch > 0.88 * of_a_permutation


def test_the_first_batch_of_an_epoch_needs_few_of_the_pieces_that_are_mixed() -> None:
    order = Order([76] * 10_000, seed=1)
    assert order.window * order.lanes == pytest.approx(1024 * 76, abs=16)
    assert len(np.unique(order.epoch(0).locate(0, 256).piece)) < 100
    assert len(np.unique(order.epoch(0).locate(380_000, 380_256).piece)) > 200


def test_an_order_made_from_its_recorded_spec_is_the_same_order() -> None:
    rows = [10, 0, 25, 3]
    spec = json.loads(json.dumps(Order(rows, seed=-(2**70), options=OrderOptions(lanes=3, sticky=False)).spec()))
    assert spec == {"algorithm": "window-1", "seed": -(2**70), "lanes": 3, "window": 13, "sticky": False}
    options = OrderOptions(lanes=spec["lanes"], window=spec["window"], sticky=spec["sticky"])
    again = Order(np.array(rows), seed=spec["seed"], options=options, total_bytes=10**15)
    assert again.spec() == spec
    assert Order(rows, seed=0, shuffle=False).spec()["algorithm"] == "sequential-1"


def test_the_global_shuffle_mixes_all_samples_and_steps_hand_them_out_in_the_order_of_their_ids() -> None:
    order = Order([100_000] * 10, seed=4, shuffle="global")
    read = order.epoch(0).sample_ids(0, 1000)
    assert np.unique(read // 1000).size > 600
    plans = [order.epoch(0).plan(0, 10, split=Split(4, 100), rank=rank) for rank in range(4)]
    for step in range(10):
        handed = np.concatenate([plan.sample_id[plan.offsets[step] : plan.offsets[step + 1]] for plan in plans])
        assert handed.tolist() == sorted(read[step * 100 : step * 100 + 100].tolist())


def test_pieces_and_options_have_no_part_in_the_global_shuffle() -> None:
    options = OrderOptions(lanes=5, window=7, sticky=False)
    orders = [Order([30, 0, 12], seed=4, shuffle="global", options=options), Order.of_indices(42, seed=4)]
    assert orders[0].spec() == orders[1].spec() == {"algorithm": "global-1", "seed": 4}
    assert ids(orders[0], 3) == ids(orders[1], 3)
    assert [(order.lanes, order.window) for order in orders] == [(1, 42)] * 2


def test_indices_are_their_own_samples_and_rows_and_nothing_is_needed_for_them() -> None:
    split = Split(3, 10, "pad")
    epoch = Order.of_indices(104, seed=9).epoch(1)
    plans = [epoch.plan(0, 100, split=split, rank=rank) for rank in range(3)]
    for rank, plan in enumerate(plans):
        assert plan.sample_id.tolist() == plan.row.tolist()
        assert not plan.piece.any()
        assert len(epoch.needs(0, split=split, rank=rank).pieces) == 0
    handed = np.concatenate([plan.sample_id[~plan.is_pad] for plan in plans])
    assert sorted(handed.tolist()) == list(range(104))
    assert ids(Order.of_indices(7, seed=9, shuffle=False)) == list(range(7))
    with pytest.raises(ConfigurationError, match="position 105"):
        epoch.needs(105, split=split, rank=0)


def test_no_indices_are_legal_and_fewer_are_refused() -> None:
    assert ids(Order.of_indices(0, seed=1)) == []
    assert ids(Order.of_indices(1, seed=1)) == [0]
    with pytest.raises(ConfigurationError, match="samples=-1"):
        Order.of_indices(-1, seed=1)
    wrong: Any = 2.5
    with pytest.raises(ConfigurationError, match=r"samples=2\.5"):
        Order.of_indices(wrong, seed=1)


def test_seed_and_epoch_change_the_order_and_nothing_else_is_needed_to_repeat_it() -> None:
    rows = [20] * 10
    assert ids(Order(rows, seed=1)) == ids(Order(rows, seed=1))
    assert ids(Order(rows, seed=1)) != ids(Order(rows, seed=2))
    assert ids(Order(rows, seed=1)) != ids(Order(rows, seed=1), 1)
    assert ids(Order(rows, seed=0)) != ids(Order(rows, seed=2**64))


def test_pieces_without_rows_change_nothing_but_the_numbers_of_the_pieces() -> None:
    with_empty = Order([0, 20, 0, 0, 30, 0], seed=3).epoch(1).plan(0, 9, split=Split(2, 8), rank=1)
    without = Order([20, 30], seed=3).epoch(1).plan(0, 9, split=Split(2, 8), rank=1)
    assert with_empty.sample_id.tolist() == without.sample_id.tolist()
    assert with_empty.piece.tolist() == [(1, 4)[piece] for piece in without.piece.tolist()]


def pieces_of_rank(order: Order, epoch: int, rank: int) -> set[int]:
    plan = order.epoch(epoch).plan(0, 10**6, split=Split(4, 16), rank=rank)
    return set(plan.piece.tolist())


def test_sticky_lanes_keep_a_ranks_pieces_over_epochs_and_others_draw_them_anew() -> None:
    sticky = Order([10] * 64, seed=5, options=OrderOptions(lanes=4))
    drawn = Order([10] * 64, seed=5, options=OrderOptions(lanes=4, sticky=False))
    for rank in range(4):
        assert pieces_of_rank(sticky, 0, rank) == pieces_of_rank(sticky, 1, rank)
        assert pieces_of_rank(drawn, 0, rank) != pieces_of_rank(drawn, 1, rank)
    assert ids(drawn) == ids(sticky)


def test_with_as_many_ranks_as_lanes_each_rank_reads_its_own_lane() -> None:
    order = Order([10] * 64, seed=5, options=OrderOptions(lanes=4))
    pieces = [pieces_of_rank(order, 0, rank) for rank in range(4)]
    assert sum(len(each) for each in pieces) == 64
    assert set.union(*pieces) == set(range(64))


def test_lanes_differ_by_at_most_one_sample_and_the_first_in_turn_are_the_longer() -> None:
    lanes = cut_lanes(20, 6)
    assert lanes.lane_of_slot.tolist() == [0, 4, 2, 1, 5, 3]
    assert lanes.length.tolist() == [4, 3, 3, 3, 4, 3]
    assert lanes.start.tolist() == [0, 4, 7, 10, 13, 17]
    assert bit_reversed(8).tolist() == [0, 4, 2, 6, 1, 5, 3, 7]


def test_the_two_epochs_asked_for_last_are_kept() -> None:
    order = Order([10], seed=0)
    first, second = order.epoch(0), order.epoch(1)
    assert order.epoch(0) is first
    assert order.epoch(1) is second
    order.epoch(2)
    assert order.epoch(0) is not first


def test_an_order_survives_pickling() -> None:
    order = Order([10, 20], seed=7)
    assert ids(pickle.loads(pickle.dumps(order)), 3) == ids(order, 3)


def test_positions_beyond_32_bits_are_read_like_any_others() -> None:
    order = Order([2**40], seed=1, options=OrderOptions(lanes=1, window=1000))
    read = order.epoch(0).sample_ids(2**39, 2**39 + 5000)
    assert len(set(read.tolist())) == 5000
    assert 0 < np.abs(read - np.arange(2**39, 2**39 + 5000)).max() < 1000
    plan = order.epoch(0).plan(2**39, 2, split=Split(1, 2500), rank=0)
    assert sorted(plan.sample_id.tolist()) == sorted(read.tolist())


@pytest.mark.parametrize("fraction", [0.0, 0.5, 0.99])
def test_memory_follows_the_pieces_and_never_the_samples(fraction: float) -> None:
    rows = np.full(100_000, 10_000)
    tracemalloc.start()
    try:
        order = Order(rows, seed=1)
        position = int(order.samples * fraction)
        plan = order.epoch(2).plan(position, 1, split=Split(16, 4096), rank=3)
        needs = order.epoch(2).needs(position, split=Split(16, 4096), rank=3)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(plan.piece) == 256
    assert set(plan.piece.tolist()) <= set(needs.pieces.tolist())
    assert peak < 50e6


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"lanes": 0}, "lanes=0"),
        ({"lanes": 5000}, "1 to 4096"),
        ({"lanes": 2.0}, "lanes=2.0"),
        ({"window": 0}, "window=0"),
        ({"window": 2**31}, "window=2147483648"),
    ],
)
def test_options_out_of_range_are_refused_at_construction(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        OrderOptions(**options)


def test_arguments_that_cannot_work_are_refused_by_name() -> None:
    wrong: Any = "full"
    with pytest.raises(ConfigurationError, match="shuffle='full': give 'window', 'global' or False"):
        Order([1], seed=0, shuffle=wrong)
    wrong = "zero"
    with pytest.raises(ConfigurationError, match="seed='zero'"):
        Order([1], seed=wrong)
    with pytest.raises(ConfigurationError, match="epoch -1"):
        Order([1], seed=0).epoch(-1)


def test_an_order_of_no_samples_is_legal_and_empty() -> None:
    epoch = Order([0, 0], seed=0).epoch(0)
    assert epoch.plan(0, 5, split=Split(2, 4), rank=1).steps == 0
    assert len(epoch.needs(0, split=Split(2, 4), rank=1).pieces) == 0
    assert epoch.places(0) == []
