"""Selections: disjoint and complete portions that hang on a shard's name and a row's number in it, nothing else."""

import json
import pickle
import tracemalloc
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.order import Limit, Order, OrderOptions, Pieces, SelectedRows, Selection, Split, portions
from forebay.order.selection import Stage
from forebay_core.errors import ConfigurationError
from tests.client.order import model
from tests.client.order.strategies import Case, pieces_of, selected_cases, selections, splits, stages

QUICK = settings(max_examples=100, deadline=None)
EVAL = {"train": 0.99, "eval": 0.01}


def shards(rows: Sequence[int], names: Sequence[str] | None = None) -> Pieces:
    """One piece a shard."""
    keys = [name.encode() for name in names or [f"shard-{number:04}" for number in range(len(rows))]]
    return Pieces(np.array(rows, dtype=np.int64), np.arange(len(rows)), keys)


def taken(selected: SelectedRows) -> list[list[int]]:
    piece = np.repeat(np.arange(len(selected.counts)), selected.counts)
    index = np.concatenate([np.arange(0), *map(np.arange, selected.counts)])
    rows = np.split(selected.rows(piece, index), np.cumsum(selected.counts))
    return [each.tolist() for each in rows[:-1]]


def split(pieces: Pieces, fractions: dict[str, float], **options: Any) -> dict[str, list[list[int]]]:
    return {name: taken(Selection((each,)).over(pieces)) for name, each in portions(fractions, **options).items()}


@QUICK
@given(case=selected_cases())
def test_the_rows_selected_are_those_of_the_model_ascending_and_keep_their_numbers(case: Case) -> None:
    assert case.selection is not None
    assert taken(case.selection.over(pieces_of(case.rows))) == case.chosen


@QUICK
@given(
    rows=st.lists(st.integers(0, 300), max_size=9),
    before=selections(),
    shares=st.lists(st.integers(1, 9), min_size=1),
    data=st.data(),
)
def test_portions_are_disjoint_and_complete_whatever_was_selected_before(
    rows: list[int], before: Selection, shares: list[int], data: st.DataObject
) -> None:
    pieces = pieces_of(rows)
    fractions = {str(number): share / sum(shares) for number, share in enumerate(shares)}
    by: Any = data.draw(st.sampled_from(("sample", "shard")))
    parts = [taken(before.then(each).over(pieces)) for each in portions(fractions, by=by).values()]
    together = [sorted(chain.from_iterable(part[piece] for part in parts)) for piece in range(len(rows))]
    assert together == taken(before.over(pieces))


@QUICK
@given(rows=st.lists(st.integers(0, 300), min_size=1, max_size=9), stage=stages(), data=st.data())
def test_shards_that_are_added_leave_the_portions_of_the_others_alone(
    rows: list[int], stage: Stage, data: st.DataObject
) -> None:
    if isinstance(stage, Limit):
        return
    names = [f"{number}.bin" for number in range(len(rows))]
    kept = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1)))
    everything = taken(Selection((stage,)).over(shards(rows, names)))
    before = taken(
        Selection((stage,)).over(shards([rows[number] for number in kept], [names[number] for number in kept]))
    )
    assert before == [everything[number] for number in kept]


@pytest.mark.parametrize("length", [1, 100, 40_000, 70_000])
def test_a_shard_that_grows_or_is_cut_into_other_pieces_keeps_the_portions_of_its_rows(length: int) -> None:
    (whole,) = split(shards([100_000]), EVAL)["eval"]
    cut = [30_000, 2_768, 0, 1, length, 100_000 - 32_769 - length] if length < 67_231 else [length, 100_000 - length]
    pieces = Pieces(np.array(cut), np.zeros(len(cut), dtype=np.int64), [b"shard-0000"])
    begins = np.cumsum(cut) - cut
    parts = split(pieces, EVAL)["eval"]
    assert [begin + row for begin, part in zip(begins.tolist(), parts, strict=True) for row in part] == whole
    (grown,) = split(shards([length]), EVAL)["eval"]
    assert grown == [row for row in whole if row < length]


def test_rows_of_units_beyond_the_first_are_those_of_the_model() -> None:
    selection = Selection((portions({"a": 0.002, "b": 0.003, "c": 0.9}, seed=5)["b"],))
    (rows,) = taken(selection.over(shards([70_000])))
    near_borders = {*range(32_600, 32_900), *range(65_400, 65_700)}
    expected = [
        row
        for row in sorted({*rows, *near_borders})
        if model.portion_of(b"shard-0000", row, selection.spec()[0], 0) == "b"
    ]
    assert rows == expected
    assert 208 <= len(rows) <= 212


def test_every_aligned_stretch_has_its_share_to_within_one_row() -> None:
    for fraction in (0.01, 0.3, 0.5, 0.77):
        (rows,) = split(shards([1 << 16]), {"a": 0.1, "b": fraction})["b"]
        for bits in range(16):
            stretches = np.bincount(np.array(rows) >> bits, minlength=1 << (16 - bits))
            assert np.abs(stretches - fraction * (1 << bits)).max() <= 1 + 1e-6


def test_small_shards_get_their_shares_in_the_sum() -> None:
    for rows in (1, 7, 150):
        parts = split(shards([rows] * 4000), {"train": 0.94, "eval": 0.05, "test": 0.01})
        for name, fraction in (("train", 0.94), ("eval", 0.05), ("test", 0.01)):
            numbers = np.array([len(part) for part in parts[name]])
            assert abs(numbers.sum() - 4000 * rows * fraction) < 5 * np.sqrt(
                4000 * min(rows * fraction * (1 - fraction), 1)
            )


def test_every_row_is_equally_likely_and_rows_are_drawn_anew_for_each_shard_and_seed() -> None:
    pieces = shards([32] * 2000)
    drawn = [split(pieces, {"a": 0.7, "b": 0.3}, seed=seed)["b"] for seed in (0, 1)]
    for rows in drawn:
        frequency = np.bincount(np.concatenate([np.array(each) for each in rows]), minlength=32) / 2000
        assert np.abs(frequency - 0.3).max() < 4.5 * np.sqrt(0.21 / 2000)
        assert len(set(map(tuple, rows))) > 1990
    assert sum(one == other for one, other in zip(*drawn, strict=True)) < 5


def test_a_split_of_a_split_is_drawn_anew_even_with_the_same_seed() -> None:
    half = portions({"a": 0.5, "b": 0.5})["a"]
    for by in ("sample", "shard"):
        half = portions({"a": 0.5, "b": 0.5}, by=by)["a"]
        pieces = shards([1] * 4000)
        once = Selection((half,)).over(pieces).counts.sum()
        twice = Selection((half, half)).over(pieces).counts.sum()
        assert abs(once - 2000) < 160
        assert abs(twice - 1000) < 140


def test_a_limit_takes_the_first_samples_and_of_a_split_its_first() -> None:
    pieces = shards([3, 0, 4, 5])
    assert taken(Selection((Limit(5),)).over(pieces)) == [[0, 1, 2], [], [0, 1], []]
    assert taken(Selection((Limit(99),)).over(pieces)) == [[0, 1, 2], [], [0, 1, 2, 3], [0, 1, 2, 3, 4]]
    half = portions({"a": 0.5})["a"]
    everything = taken(Selection((half,)).over(pieces))
    first = taken(Selection((half, Limit(4))).over(pieces))
    assert list(chain(*first)) == list(chain(*everything))[:4]
    limited = taken(Selection((Limit(5), half)).over(pieces))
    assert all(set(rows) <= set(before) for rows, before in zip(limited, [[0, 1, 2], [], [0, 1], []], strict=True))


def test_a_split_by_shard_gives_each_shard_to_one_portion_by_its_name_alone() -> None:
    names = [f"part-{number}" for number in range(1000)]
    parts = split(shards([5] * 1000, names), {"train": 0.8, "eval": 0.2}, by="shard")
    sizes = np.array([[len(rows) for rows in part] for part in parts.values()])
    assert sizes.sum(axis=0).tolist() == [5] * 1000
    assert set(sizes.ravel().tolist()) == {0, 5}
    assert 150 < np.count_nonzero(sizes[1]) < 250
    alone = split(shards([9], ["part-17"]), {"train": 0.8, "eval": 0.2}, by="shard")
    assert [bool(alone[name][0]) for name in ("train", "eval")] == (sizes[:, 17] > 0).tolist()


def test_fractions_that_sum_to_one_but_for_rounding_leave_nothing_out() -> None:
    for fractions in (
        {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3},
        dict(zip("abcdefghij", [0.1] * 10, strict=True)),
        {"a": 1.0},
    ):
        parts = split(shards([1] * 500 + [77_777]), fractions)
        assert sum(len(rows) for part in parts.values() for rows in part) == 78_277
    tenths: Any = dict.fromkeys("abcdefghij", np.float32(0.1))
    for fractions in (tenths, {"a": 0.5, "b": 0.4999999}):
        made = list(portions(fractions).values())
        assert (made[0].low, made[-1].high) == (0, 1 << 40)
    parts = split(shards([77_777]), {"a": 0.25, "b": 0.5})
    assert sum(len(part[0]) for part in parts.values()) == pytest.approx(58_333, abs=3)


def test_the_order_in_which_portions_are_named_does_not_matter() -> None:
    one, other = portions({"train": 0.9, "eval": 0.1}), portions({"eval": 0.1, "train": 0.9})
    assert one == other
    assert list(one) == ["train", "eval"]


def test_a_spec_is_json_and_tells_every_choice() -> None:
    fractions: Any = {"train": np.float64(0.75), "eval": 0.25}
    seed: Any = np.int64(3)
    limit: Any = np.int64(10)
    selection = Selection((Limit(limit), portions(fractions, seed=seed, by="shard")["train"]))
    assert json.loads(json.dumps(selection.spec())) == [
        {"limit": 10},
        {"portion": "train", "of": {"eval": 0.25, "train": 0.75}, "by": "shard", "seed": 3, "algorithm": "split-1"},
    ]


@QUICK
@given(case=selected_cases(), split=splits(tails=("even",)))
def test_an_epoch_hands_out_every_selected_sample_exactly_once_under_its_id_in_the_whole(
    case: Case, split: Split
) -> None:
    epoch = case.engine()
    plans = [epoch.plan(0, 10**6, split=split, rank=rank) for rank in range(split.world_size)]
    first = np.cumsum(case.rows) - case.rows
    handed = [(int(first[piece]) + row, piece, row) for piece, rows in enumerate(case.chosen) for row in rows]
    seen = []
    for plan in plans:
        columns = (plan.sample_id, plan.piece, plan.row)
        seen += list(zip(*(column[~plan.is_pad].tolist() for column in columns), strict=True))
    assert sorted(seen) == handed


@QUICK
@given(case=selected_cases(), split=splits(), rank=st.integers(0, 6))
def test_pieces_of_which_nothing_is_selected_are_never_needed(case: Case, split: Split, rank: int) -> None:
    needs = case.engine().needs(0, split=split, rank=rank % split.world_size)
    assert set(needs.pieces.tolist()) <= {piece for piece, rows in enumerate(case.chosen) if rows}


def test_unshuffled_portions_come_in_the_order_of_the_sample_ids() -> None:
    pieces = shards([50, 30, 0, 70])
    selected = Selection((portions({"a": 0.4, "b": 0.6})["a"],)).over(pieces)
    read = Order(pieces.rows, seed=0, shuffle=False, selected=selected).epoch(0).sample_ids(0, selected.counts.sum())
    assert np.all(np.diff(read) > 0)


def test_an_order_records_its_selection_and_only_where_it_has_one() -> None:
    pieces = shards([50, 30])
    selection = Selection((Limit(60),))
    order = Order(pieces.rows, seed=0, selected=selection.over(pieces))
    assert (order.samples, order.spec()["selection"]) == (60, [{"limit": 60}])
    assert "selection" not in Order(pieces.rows, seed=0).spec()
    assert Order.of_indices(80, seed=0, selected=selection.over(Pieces.of_indices(80))).spec() == {
        "algorithm": "global-1",
        "seed": 0,
        "selection": [{"limit": 60}],
    }


def test_the_default_window_counts_the_bytes_of_the_pieces_that_take_part() -> None:
    pieces = shards([1000] * 1000)
    options = OrderOptions(lanes=1)

    def window(selection: Selection) -> int:
        selected = selection.over(pieces)
        return Order(pieces.rows, seed=0, options=options, total_bytes=1_000_000 << 20, selected=selected).window

    assert window(Selection()) == window(Selection((Limit(500_000),))) == 16 << 10
    sparse = Selection((portions({"a": 0.1, "b": 0.9})["a"],))
    assert window(sparse) == pytest.approx((16 << 10) / 10, rel=0.01)


def test_a_portion_of_indices_is_read_at_random_access() -> None:
    samples = 100_000_000
    tracemalloc.start()
    try:
        selected = Selection((portions(EVAL)["train"],)).over(Pieces.of_indices(samples))
        order = Order.of_indices(samples, seed=1, selected=selected)
        plan = order.epoch(3).plan(order.samples // 2, 10, split=Split(2, 512), rank=1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert order.samples == pytest.approx(samples * 0.99, rel=1e-5)
    assert len(set(plan.sample_id.tolist())) == 2560
    assert plan.sample_id.tolist() == plan.row.tolist()
    assert peak < 5e6


def test_memory_follows_the_pieces_and_never_the_samples() -> None:
    pieces = Pieces(np.full(100_000, 10_000), np.arange(100_000) // 10, [b"%d" % number for number in range(10_000)])
    tracemalloc.start()
    try:
        selected = Selection((portions(EVAL)["eval"],)).over(pieces)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert selected.counts.sum() == pytest.approx(10_000_000, rel=1e-3)
    assert peak < 30e6


def test_a_selection_survives_pickling_and_may_be_empty() -> None:
    pieces = shards([5])
    selected = Selection((portions({"a": 0.5, "b": 0.5})["a"],)).over(pieces)
    assert taken(pickle.loads(pickle.dumps(selected))) == taken(selected)
    assert taken(Selection((portions(EVAL)["eval"],)).over(shards([]))) == []
    assert taken(Selection().over(pieces)) == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("fractions", "options", "says"),
    [
        ({}, {}, r"split\(\{\}\): give a fraction for each name"),
        ([0.5, 0.5], {}, "give a fraction for each name"),
        ({"a": 0.5, "b": 0.6}, {}, r"sum to 1\.1: give 1 at most"),
        ({"a": 0}, {}, "fraction 0 of 'a'"),
        ({"a": -0.1}, {}, r"fraction -0\.1 of 'a'"),
        ({"a": float("nan")}, {}, "fraction nan of 'a'"),
        ({"a": "0.5"}, {}, r"fraction '0\.5' of 'a'"),
        ({"a": True}, {}, "fraction True of 'a'"),
        ({"a": 2}, {}, "fraction 2 of 'a'"),
        ({"a": 1e-13, "b": 0.5}, {}, "fraction 1e-13 of 'a' leaves it no sample"),
        ({1: 0.5}, {}, "name 1 is no string"),
        ({"a": 0.5}, {"by": "rows"}, "by='rows': give 'sample' or 'shard'"),
        ({"a": 0.5}, {"seed": 1.5}, r"seed=1\.5"),
    ],
)
def test_splits_that_cannot_work_are_refused_by_name(fractions: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        portions(fractions, **options)


@pytest.mark.parametrize("limit", [0, -1, 0.1, "10", True])
def test_limits_that_are_no_number_of_samples_are_refused(limit: Any) -> None:
    with pytest.raises(ConfigurationError, match="limit="):
        Limit(limit)


def test_a_limit_beyond_any_dataset_takes_all_of_it() -> None:
    pieces = Pieces(np.array([3, 4]), np.array([0, 1]), [b"a", b"b"])
    assert Selection((Limit(10**30),)).over(pieces).counts.tolist() == [3, 4]
