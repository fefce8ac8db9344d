"""The figures of an order beside plain counting, and at the extremes that everybody knows."""

import math
import tracemalloc
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from forebay.order import Order, OrderOptions, Shuffle, Split
from forebay.order.quality import Excerpt, Figures, Quality, advice, expected_distinct, measure
from forebay_core.errors import ConfigurationError, EmptyDataset
from tests.client.order import model
from tests.client.order.strategies import Case, cases, splits

QUICK = settings(max_examples=60, deadline=None)
ROWS = np.full(60, 100)
SHARDS = np.arange(60) // 3


def quality(
    shuffle: Shuffle = "window",
    *,
    lanes: int | None = None,
    window: int | None = None,
    world_size: int = 4,
    batch_size: int = 8,
    ranks_per_node: int = 1,
) -> Quality:
    """Of 60 pieces of 100 rows, three to a shard."""
    order = Order(ROWS, seed=5, shuffle=shuffle, options=OrderOptions(lanes=lanes, window=window))
    split = Split(world_size, batch_size * world_size)
    return measure(order, ROWS, SHARDS, split=split, ranks_per_node=ranks_per_node)


def excerpts(quality: Quality) -> list[Excerpt]:
    return [quality.start, quality.middle, quality.end]


def mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


def counted(case: Case, split: Split, excerpt: Excerpt, shards: list[int]) -> dict[str, float | None]:
    """The figures by counting in the model's lists. Ranks without samples do not count."""
    epoch = case.model()
    steps = []
    position = 0
    for number in range(excerpt.first_step + excerpt.steps):
        step = model.next_step(case.samples, position, **vars(split))
        assert step is not None
        steps += [step] if number >= excerpt.first_step else []
        position = step.after
    batches = [[epoch[q] for q in step.take] for step in steps]
    shares = [model.shares(epoch, step, split.world_size) for step in steps]
    ranks = [[sample for _, sample, pad in share if not pad] for step in shares for share in step]
    ranks = [rank for rank in ranks if rank]
    most = [Counter(shards[sample.piece] for sample in batch).most_common(1)[0][1] / len(batch) for batch in batches]
    moved = displacements(epoch, [q for step in steps for q in step.take])
    return {
        "shards_per_batch": mean([len({shards[sample.piece] for sample in batch}) for batch in batches]),
        "pieces_per_batch": mean([len({sample.piece for sample in batch}) for batch in batches]),
        "shards_per_rank_batch": mean([len({shards[sample.piece] for sample in rank}) for rank in ranks]),
        "pieces_per_rank_batch": mean([len({sample.piece for sample in rank}) for rank in ranks]),
        "largest_shard_share": mean(most),
        "mean_displacement": mean(moved),
        "max_displacement": max(moved),
    }


def displacements(epoch: list[model.Sample], positions: list[int]) -> list[float]:
    in_lane = {lane: [q for q, s in enumerate(epoch) if s.lane == lane] for lane in {s.lane for s in epoch}}
    begin = {lane: min(epoch[q].coordinate for q in turns) for lane, turns in in_lane.items()}
    return [
        abs(in_lane[lane].index(q) - (epoch[q].coordinate - begin[lane])) / len(in_lane[lane])
        for q, lane in ((q, epoch[q].lane) for q in positions)
    ]


@given(cases(smallest=1, largest=200), splits(), st.integers(1, 4))
@QUICK
def test_the_figures_are_what_plain_counting_gives(case: Case, split: Split, pieces_of_a_shard: int) -> None:
    try:
        split.check(case.samples)
    except ConfigurationError:
        assume(False)
    shards = [piece // pieces_of_a_shard for piece in range(len(case.rows))]
    rows = np.array(case.rows)
    found = measure(case.order(), rows, np.array(shards), split=split, epoch=case.epoch)
    for excerpt in excerpts(found):
        for name, value in counted(case, split, excerpt, shards).items():
            assert getattr(excerpt.found, name) == pytest.approx(value), name
    assert found.shards == len({shard for shard, number in zip(shards, case.rows, strict=True) if number})


@given(cases(smallest=1, largest=200), splits(tails=("even",)), st.integers(1, 4))
@QUICK
def test_no_node_reads_a_piece_that_is_not_counted_as_fetched_or_open(
    case: Case, split: Split, ranks_per_node: int
) -> None:
    assume(split.world_size <= case.samples)
    rows = np.array(case.rows)
    shards = np.arange(len(rows))
    found = measure(case.order(), rows, shards, split=split, epoch=case.epoch, ranks_per_node=ranks_per_node)
    epoch = case.model()
    read: set[tuple[int, int]] = set()
    position, first_step = 0, True
    while (step := model.next_step(case.samples, position, **vars(split))) is not None:
        shares = model.shares(epoch, step, split.world_size)
        mine = {
            (rank // ranks_per_node, s.piece) for rank, share in enumerate(shares) for _, s, pad in share if not pad
        }
        if first_step:
            assert len({piece for _, piece in mine}) <= found.start.found.open_pieces
            assert max(Counter(node for node, _ in mine).values()) <= found.start.found.open_pieces_per_node
        read |= mine
        position, first_step = step.after, False
    assert len(read) / found.pieces <= found.fetches_per_piece + 1e-9
    assert found.fetches_per_piece <= found.nodes
    assert found.nodes == math.ceil(split.world_size / ranks_per_node)


def test_samples_in_their_stored_order_come_from_one_shard_and_do_not_move() -> None:
    found = quality(False, batch_size=5)
    for excerpt in excerpts(found):
        assert excerpt.found.shards_per_rank_batch == 1
        assert excerpt.found.largest_shard_share > 0.95
        assert excerpt.found.shards_per_batch < 1.1
        assert (excerpt.found.mean_displacement, excerpt.found.max_displacement) == (0, 0)
        assert excerpt.found.correlation == excerpt.found.lane_correlation == pytest.approx(1, abs=0.01)
        assert excerpt.found.open_pieces == 1
    assert advice(found)[0].endswith("the samples are not shuffled")


def test_a_global_shuffle_is_as_good_as_a_true_one() -> None:
    found = quality("global")
    for excerpt in excerpts(found):
        mine, true = excerpt.found, excerpt.true_shuffle
        for name in ("shards_per_batch", "pieces_per_batch", "largest_shard_share", "mean_displacement"):
            assert getattr(mine, name) == pytest.approx(getattr(true, name), rel=0.05), name
        assert mine.max_displacement == pytest.approx(true.max_displacement, abs=0.05)
        assert mine.correlation is not None
        assert abs(mine.correlation) < 0.1
        assert mine.open_pieces == true.open_pieces == 60
    assert not [said for said in advice(found) if "a true shuffle" in said]


def test_a_wider_window_puts_more_pieces_into_a_batch_and_keeps_more_open() -> None:
    narrow, wide = (quality(window=window, lanes=4).middle.found for window in (1, 600))
    assert narrow.pieces_per_batch < 6 < 18 < wide.pieces_per_batch
    assert narrow.open_pieces < 10 < 20 < wide.open_pieces
    assert narrow.lane_correlation is not None
    assert wide.lane_correlation is not None
    assert abs(wide.lane_correlation) < 0.2 < 0.5 < narrow.lane_correlation


def test_rows_of_a_piece_in_their_order_correlate_within_each_lane_though_not_from_lane_to_lane() -> None:
    found = quality(False, lanes=2).middle.found
    assert found.lane_correlation == pytest.approx(1, abs=0.01)
    assert found.correlation is not None
    assert found.correlation < 0


def test_that_lanes_lie_far_apart_is_no_correlation_within_them() -> None:
    rows = np.array([6000])
    order = Order(rows, seed=0, options=OrderOptions(lanes=16, window=6000))
    found = measure(order, rows, np.array([0]), split=Split(4, 32)).middle.found
    assert found.lane_correlation is not None
    assert abs(found.lane_correlation) < 0.2


@pytest.mark.parametrize(
    ("world_size", "ranks_per_node", "nodes", "fetches"),
    [(4, 1, 4, 1.0), (8, 1, 8, 2.0), (8, 2, 4, 1.0), (8, 8, 1, 1.0), (7, 7, 1, 1.0), (16, 1, 16, 4.0), (9, 8, 2, 1.25)],
)
def test_each_node_fetches_the_pieces_of_the_lanes_that_its_ranks_read(
    world_size: int, ranks_per_node: int, nodes: int, fetches: float
) -> None:
    """Four lanes of whole pieces; the ninth rank's ninth of a step lies in the last lane."""
    batch_size = 4 if world_size == 9 else 8
    found = quality(lanes=4, world_size=world_size, batch_size=batch_size, ranks_per_node=ranks_per_node)
    assert found.nodes == nodes
    assert found.fetches_per_piece == fetches


def test_a_global_shuffle_is_fetched_by_every_node_whole() -> None:
    found = quality("global", world_size=6)
    assert found.fetches_per_piece == 6
    assert any("6.0 times in an epoch, by 6 nodes: a global shuffle" in said for said in advice(found))


def test_of_very_many_ranks_some_whole_nodes_stand_for_all() -> None:
    found = quality(lanes=4, world_size=1000, batch_size=1, ranks_per_node=10)
    assert (found.nodes, found.fetches_per_piece) == (100, 25)


def test_advice_names_what_a_batch_holds_and_what_to_raise() -> None:
    narrow = quality(window=1, lanes=2, ranks_per_node=4)
    said = advice(narrow)
    assert len(said) == 1
    assert said[0].startswith(f"a batch holds {narrow.middle.found.pieces_per_batch:.1f} pieces of ")
    assert f"a true shuffle would hold {narrow.middle.true_shuffle.pieces_per_batch:.1f} of " in said[0]
    assert "raise the window, which is 1 samples" in said[0]
    assert "raise the lanes, which are 4, to the number of nodes" in advice(quality(lanes=4, world_size=8))[-1]
    assert advice(quality(lanes=16, window=10_000)) == []


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8).filter(any), st.data())
@QUICK
def test_the_distinct_groups_of_a_true_shuffle_follow_the_hypergeometric_distribution(
    sizes: list[int], data: st.DataObject
) -> None:
    samples = sum(sizes)
    drawn = data.draw(st.integers(0, samples))
    exact = sum(1 - math.comb(samples - size, drawn) / math.comb(samples, drawn) for size in sizes)
    assert expected_distinct(np.array(sizes), drawn) == pytest.approx(exact, abs=1e-9)


def test_a_true_shuffle_of_a_billion_samples_has_its_known_limit() -> None:
    """Where few of many are drawn, drawing with and without putting back are the same."""
    sizes = np.full(1000, 1_000_000)
    assert expected_distinct(sizes, 500) == pytest.approx(1000 * (1 - (1 - 1 / 1000) ** 500), rel=1e-4)


def test_the_true_shuffles_other_figures_are_those_of_random_permutations() -> None:
    """2,000 permutations that numpy draws, cut at the excerpt's steps."""
    rows, shards = np.array([30, 10, 20]), np.array([0, 0, 1])
    found = measure(Order(rows, seed=0), rows, shards, split=Split(2, 10))
    drawn = np.random.default_rng(1)
    shard_of_sample = np.repeat(shards, rows)
    for excerpt in excerpts(found):
        place = np.arange(excerpt.first_step * 10, (excerpt.first_step + excerpt.steps) * 10)
        permutations = [drawn.permutation(60)[place] for _ in range(2000)]
        share = np.mean([np.bincount(shard_of_sample[each[:10]]).max() / 10 for each in permutations])
        moved = np.mean([np.abs(each - place).mean() / 60 for each in permutations])
        assert excerpt.true_shuffle.largest_shard_share == pytest.approx(share, rel=0.05)
        assert excerpt.true_shuffle.mean_displacement == pytest.approx(moved, rel=0.02)
        assert excerpt.true_shuffle.max_displacement == max(max(q, 59 - q) for q in place.tolist()) / 60
        assert excerpt.true_shuffle.correlation == -1 / 59


def test_the_excerpts_are_the_first_the_middle_and_the_last_full_steps() -> None:
    looked_at = [(excerpt.first_step, excerpt.steps) for excerpt in excerpts(quality(world_size=1, batch_size=100))]
    assert looked_at == [(0, 19), (20, 19), (40, 19)]
    assert looked_at[-1][0] + looked_at[-1][1] == Split(1, 100).full_steps(6000)
    assert all(one[0] + one[1] <= other[0] for one, other in pairwise(looked_at))


@pytest.mark.parametrize(("world_size", "global_batch"), [(1, 1), (3, 100), (3, 5)])
def test_the_smallest_epochs_have_figures_too(world_size: int, global_batch: int) -> None:
    rows = np.array([world_size])
    found = measure(Order(rows, seed=0), rows, np.array([0]), split=Split(world_size, global_batch))
    assert found.start == found.middle == found.end
    assert found.start.found.pieces_per_batch == found.start.true_shuffle.pieces_per_batch == 1
    assert isinstance(found.start.found, Figures)
    assert found.start.found.correlation is None or world_size >= 3


def test_what_cannot_be_shared_out_is_refused() -> None:
    rows = np.array([5])
    with pytest.raises(ConfigurationError, match="fewer than the 6 ranks"):
        measure(Order(rows, seed=0), rows, np.array([0]), split=Split(6, 6))
    with pytest.raises(EmptyDataset):
        measure(Order([0], seed=0), np.array([0]), np.array([0]), split=Split(1, 1))
    with pytest.raises(ConfigurationError, match="GPUs of a node"):
        measure(Order(rows, seed=0), rows, np.array([0]), split=Split(1, 1), ranks_per_node=0)


def test_a_billion_samples_cost_the_memory_of_their_pieces_and_windows() -> None:
    rows = np.full(100_000, 10_000)
    order = Order(rows, seed=1)
    tracemalloc.start()
    try:
        found = measure(order, rows, np.arange(100_000) // 10, split=Split(64, 2048), ranks_per_node=8)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.samples == 1_000_000_000
    assert peak < 150 << 20
