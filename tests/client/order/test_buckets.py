"""Batches of like lengths beside a plain model: what is read, what is needed, what is padded, and what is refused."""

import pickle
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.order import BucketedSequence, Buckets, Order, OrderOptions, SharedLocated, SharedOrder, Split
from forebay.order.lanes import Int64
from forebay.order.rank_order import RankOrder
from forebay_core.errors import ConfigurationError
from tests.client.order import model
from tests.client.order.strategies import Case as Epoch
from tests.client.order.strategies import cases as epochs
from tests.client.order.strategies import selected_cases, splits

QUICK = settings(max_examples=60, deadline=None)
BUCKETS = 7


@dataclass(frozen=True)
class Case:
    epoch: Epoch
    lengths: list[int]
    window: int
    unit: int

    def sequence(self) -> BucketedSequence:
        buckets = Buckets(self.lengths, window=self.window, unit=self.unit)
        return BucketedSequence(self.epoch.order(), buckets, seed=self.epoch.seed)

    def regrouped(self) -> list[model.Sample]:
        """The sample at each position."""
        whole, regrouped = self.epoch.model(), []
        for number, begin in enumerate(range(0, len(whole), self.window)):
            block = sorted(whole[begin : begin + self.window], key=self.length)
            units = [block[start : start + self.unit] for start in range(0, len(block), self.unit)]
            words = model.words(self.epoch.seed, BUCKETS, len(units), block=number, epoch=self.epoch.epoch)
            for unit in sorted(range(len(units)), key=lambda unit: (words[unit], unit)):
                regrouped += units[unit]
        return regrouped

    def length(self, sample: model.Sample) -> int:
        return self.lengths[sample.sample_id]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    epoch = draw(
        st.one_of(epochs(smallest=1, largest=200), selected_cases(largest=200)).filter(lambda e: e.samples > 0)
    )
    window = draw(st.integers(1, 60))
    lengths = st.lists(st.integers(0, 9), min_size=sum(epoch.rows), max_size=sum(epoch.rows))
    return Case(epoch, draw(lengths), window, draw(st.integers(1, window)))


@QUICK
@given(case=cases(), split=splits(), data=st.data())
def test_every_ranks_plan_from_anywhere_equals_the_model_and_its_pieces_are_needed(
    case: Case, split: Split, data: st.DataObject
) -> None:
    samples, epoch, sequence = case.epoch.samples, case.epoch.epoch, case.sequence()
    whole, at = case.regrouped(), data.draw(st.one_of(st.just(0), st.integers(0, samples)))
    ranks = [SharedLocated(sequence, split, rank) for rank in range(split.world_size)]
    plans = [rank.plan(epoch, at, 10**6) for rank in ranks]
    needs = [rank.needs(epoch, at) for rank in ranks]
    number = 0
    while step := model.next_step(samples, at, **vars(split)):
        taken = sorted(step.take, key=lambda q: (case.length(whole[q]), q))
        taken += sorted(step.pads, key=lambda q: (case.length(whole[q]), q))
        size, larger = divmod(len(taken), split.world_size)
        ends = [0, *accumulate(size + (rank < larger) for rank in range(split.world_size))]
        for rank, plan in enumerate(plans):
            mine = slice(int(plan.offsets[number]), int(plan.offsets[number + 1]))
            expected = taken[ends[rank] : ends[rank + 1]]
            assert plan.position[mine].tolist() == expected
            assert plan.sample_id[mine].tolist() == [whole[q].sample_id for q in expected]
            assert plan.row[mine].tolist() == [whole[q].row for q in expected]
            assert int(plan.after[number]) == step.after
            for position, is_pad in zip(expected, plan.is_pad[mine].tolist(), strict=True):
                when, mine_needs = step.take[0] if is_pad else position, needs[rank]
                held = (mine_needs.first <= when) & (when < mine_needs.last)
                assert whole[position].piece in mine_needs.pieces[held]
        number, at = number + 1, step.after
    assert {plan.steps for plan in plans} == {number}


@QUICK
@given(case=cases())
def test_every_sample_is_read_once_in_an_epoch(case: Case) -> None:
    read = case.sequence().read(case.epoch.epoch, 0, case.epoch.samples)
    assert sorted(read.sample_id.tolist()) == sorted(sample.sample_id for sample in case.epoch.model())


def log_normal(samples: int) -> Int64:
    """Lengths of documents: a median of 400, a mean of 660."""
    return np.exp(np.random.default_rng(5).normal(6, 1, samples)).astype(np.int64) + 1


def batches(order: RankOrder, lengths: Int64) -> list[Int64]:
    """The lengths of each batch of an epoch."""
    found: list[Int64] = []
    at = 0
    while at < order.samples:
        plan = order.plan(0, at, 64)
        found += np.split(lengths[plan.sample_id], plan.offsets[1:-1])
        at = int(plan.after[-1])
    return found


def padding(batches: list[Int64]) -> float:
    """Padded positions, in proportion to real ones."""
    return sum(len(batch) * int(batch.max()) for batch in batches) / sum(int(batch.sum()) for batch in batches) - 1


@pytest.mark.parametrize(("world_size", "batch_size"), [(1, 32), (8, 32), (4, 8), (8, 7)])
def test_little_is_padded_whatever_the_ranks_and_batches_are_in_a_mixed_order(world_size: int, batch_size: int) -> None:
    lengths = log_normal(40_000)
    order = Order([1000] * 40, seed=1, options=OrderOptions(window=2500))
    split, rank = Split(world_size, world_size * batch_size), world_size // 2
    bucketed = batches(SharedLocated(BucketedSequence(order, Buckets(lengths), seed=1), split, rank), lengths)
    plain = batches(SharedOrder(order, split, rank), lengths)
    assert padding(plain) > 1
    assert padding(bucketed) < 0.1
    means = np.array([batch.mean() for batch in bucketed])
    in_a_window = 8192 // split.global_batch
    windows = means[: len(means) // in_a_window * in_a_window].reshape(-1, in_a_window)
    along = [np.corrcoef(np.arange(in_a_window), window)[0, 1] for window in windows]
    assert abs(np.mean(along)) < 0.4
    assert np.all(abs(windows.mean(axis=1) / means.mean() - 1) < 0.15)


def test_all_ranks_of_a_step_have_samples_of_like_lengths() -> None:
    lengths = log_normal(16_384)
    sequence = BucketedSequence(Order.of_indices(16_384, seed=0), Buckets(lengths, unit=256), seed=0)
    ranks = [batches(SharedLocated(sequence, Split(4, 256), rank), lengths) for rank in range(4)]
    longest = np.array([[batch.max() for batch in rank] for rank in ranks])
    assert np.median(longest.max(axis=0) / longest.min(axis=0)) < 1.3


def test_of_indices_nothing_is_needed() -> None:
    sequence = BucketedSequence(Order.of_indices(100, seed=0), Buckets(np.arange(100), window=50, unit=5), seed=0)
    order = SharedLocated(sequence, Split(2, 8, "pad"), 1)
    assert not order.has_pieces
    assert len(order.needs(0, 96).pieces) == 0


class Counted(np.ndarray[Any, Any]):
    """Lengths that count how many of them are asked for."""

    asked: list[int]

    def __getitem__(self, index: Any) -> Any:
        self.asked.append(len(index))
        return np.asarray(self)[index]


def test_any_position_costs_its_block() -> None:
    lengths = (np.arange(10**6) % 97).view(Counted)
    lengths.asked = []
    sequence = BucketedSequence(Order.of_indices(10**6, seed=0), Buckets(lengths, window=1024, unit=64), seed=0)
    plan = SharedLocated(sequence, Split(2, 64), 0).plan(3, 1024 * 900, 4)
    assert plan.steps == 4
    assert lengths.asked == [1024]


def test_lengths_in_a_file_are_the_same_as_in_memory_in_any_type(tmp_path: Path) -> None:
    lengths = np.arange(1000) % 100
    np.save(tmp_path / "lengths.npy", lengths.astype(np.uint8))
    kept = [Buckets(lengths), Buckets(lengths.tolist()), Buckets(tmp_path / "lengths.npy")]
    assert len({each.digest for each in kept}) == 1
    assert Buckets(lengths[::-1]).digest != kept[0].digest
    again = pickle.loads(pickle.dumps(kept[2]))
    assert again.by_sample.tolist() == lengths.tolist()
    assert again.spec() == {"algorithm": "buckets-1", "window": 8192, "unit": 256, "lengths": kept[0].digest}


def test_lengths_and_options_that_cannot_work_are_refused_by_name(tmp_path: Path) -> None:
    refused: dict[str, dict[str, Any]] = {
        "window=0": {"window": 0},
        "window=1048577": {"window": 2**20 + 1},
        "unit=0": {"unit": 0},
        r"unit=9\): give an integer from 1 to 8": {"unit": 9, "window": 8},
        "unit=True": {"unit": True},
        "unit=2.5": {"unit": 2.5},
        r"shape \(1, 3\)": {"lengths": [[1, 2, 3]]},
        "type float64": {"lengths": [1.5]},
    }
    for says, options in refused.items():
        arguments: dict[str, Any] = {"lengths": [1, 2, 3], **options}
        with pytest.raises(ConfigurationError, match=says):
            Buckets(**arguments)
    with pytest.raises(ConfigurationError, match="3 lengths and the dataset 4 samples"):
        Buckets([1, 2, 3]).check(4)
    with pytest.raises(ConfigurationError, match=r"nothing\.npy cannot be read"):
        Buckets(tmp_path / "nothing.npy").check(4)
    (tmp_path / "text.npy").write_text("1 2 3")
    with pytest.raises(ConfigurationError, match=r"text\.npy cannot be read"):
        Buckets(tmp_path / "text.npy").check(4)
    np.save(tmp_path / "floats.npy", [1.5])
    with pytest.raises(ConfigurationError, match=r"^/[^(]*floats\.npy holds an array of shape \(1,\) and type float64"):
        Buckets(tmp_path / "floats.npy").check(1)
