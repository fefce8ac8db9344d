"""What a rank reads of a mixture and what it says it needs, beside the model: whole lists, sorted all at once."""

from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.order import MixedSequence, MixtureOrder, Order, OrderOptions, RankPlan, SharedLocated, Split, located_plan
from forebay.order.mixture_plan import Reach
from tests.client.order import model
from tests.client.order.strategies import Case as Epoch
from tests.client.order.strategies import splits

QUICK = settings(max_examples=60, deadline=None)


@dataclass(frozen=True)
class Source:
    rows: tuple[int, ...]
    seed: int
    shuffle: Any
    lanes: int
    window: int
    sticky: bool

    def order(self) -> Order:
        options = OrderOptions(lanes=self.lanes, window=self.window, sticky=self.sticky)
        return Order(self.rows, seed=self.seed, shuffle=self.shuffle, options=options)

    def model(self, epoch: int) -> list[model.Sample]:
        return modelled(self, epoch)


@cache
def modelled(source: Source, epoch: int) -> list[model.Sample]:
    return Epoch(**{**vars(source), "rows": list(source.rows)}, epoch=epoch).model()


@dataclass(frozen=True)
class Case:
    sources: tuple[Source, ...]
    weights: tuple[float, ...]
    seed: int
    block: int
    epoch_length: int

    def sequence(self) -> MixedSequence:
        orders = tuple(source.order() for source in self.sources)
        samples = [order.samples for order in orders]
        mixture = MixtureOrder(samples, self.weights, seed=self.seed, block=self.block, epoch_length=self.epoch_length)
        return MixedSequence(mixture, orders)

    def model(self, epoch: int) -> list[tuple[float, int, int, model.Sample]]:
        """(fraction, source, its epoch, sample) at each position of an epoch."""
        slots = self.sequence().mixture.slots
        samples = [sum(source.rows) for source in self.sources]
        begin, stop = epoch * self.epoch_length, (epoch + 1) * self.epoch_length
        found = []
        for source, own_epoch, position in model.draws(samples, slots, self.seed, stop)[begin:stop]:
            sample = self.sources[source].model(own_epoch)[position]
            found.append((sample.coordinate / samples[source], source, own_epoch, sample))
        return found


sources = st.builds(
    Source,
    rows=st.lists(st.integers(0, 30), min_size=1, max_size=8).filter(lambda rows: sum(rows) > 0).map(tuple),
    seed=st.integers(0, 1000),
    shuffle=st.sampled_from(("window", "window", "window", "global", False)),
    lanes=st.sampled_from((1, 3, 4, 4, 8)),
    window=st.integers(1, 40),
    sticky=st.booleans(),
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    number = draw(st.integers(1, 3))
    return Case(
        sources=tuple(draw(st.lists(sources, min_size=number, max_size=number))),
        weights=tuple(draw(st.lists(st.floats(0.05, 1), min_size=number, max_size=number))),
        seed=draw(st.integers(0, 1000)),
        block=draw(st.integers(number, 40)),
        epoch_length=draw(st.one_of(st.integers(8, 20), st.integers(8, 150))),
    )


Row = tuple[int, int, int, int, int, int, bool]


def planned(plan: RankPlan) -> list[list[Row]]:
    """For each step its (source, source epoch, sample id, piece, row, position, is pad)."""
    assert plan.source is not None
    assert plan.source_epoch is not None
    columns = (plan.source, plan.source_epoch, plan.sample_id, plan.piece, plan.row, plan.position, plan.is_pad)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    return [rows[start:stop] for start, stop in zip(plan.offsets[:-1], plan.offsets[1:], strict=True)]


def expected(case: Case, epoch: int, step: model.Step, world_size: int) -> list[list[Row]]:
    """What each rank reads in a step."""
    whole = case.model(epoch)
    first_piece = [0, *accumulate(len(source.rows) for source in case.sources)]
    rows = []
    for taken, is_pad in ((step.take, False), (step.pads, True)):
        for position in sorted(taken, key=lambda q: (whole[q][0], q)):
            _, source, own_epoch, sample = whole[position]
            piece = first_piece[source] + sample.piece
            rows.append((source, own_epoch, sample.sample_id, piece, sample.row, position, is_pad))
    size, larger = divmod(len(rows), world_size)
    ends = [0, *accumulate(size + (rank < larger) for rank in range(world_size))]
    return [rows[start:stop] for start, stop in pairwise(ends)]


@QUICK
@given(case=cases(), split=splits(), data=st.data())
def test_every_ranks_plan_from_anywhere_equals_the_model(case: Case, split: Split, data: st.DataObject) -> None:
    sequence, epoch = case.sequence(), data.draw(st.integers(0, 3))
    at = data.draw(st.one_of(st.just(0), st.integers(0, case.epoch_length)))
    plans = [SharedLocated(sequence, split, rank).plan(epoch, at, 10**6) for rank in range(split.world_size)]
    ranks = [planned(plan) for plan in plans]
    number = 0
    while step := model.next_step(case.epoch_length, at, **vars(split)):
        assert [rank[number] for rank in ranks] == expected(case, epoch, step, split.world_size)
        assert {int(plan.after[number]) for plan in plans} == {step.after}
        number, at = number + 1, step.after
    assert {plan.steps for plan in plans} == {number}


@QUICK
@given(case=cases(), split=splits(), data=st.data())
def test_whatever_a_rank_will_read_is_among_its_needs_at_that_position(
    case: Case, split: Split, data: st.DataObject
) -> None:
    epoch, at = data.draw(st.integers(0, 3)), data.draw(st.integers(0, case.epoch_length))
    for rank in range(split.world_size):
        order = SharedLocated(case.sequence(), split, rank)
        needs = order.needs(epoch, at)
        assert np.all(np.diff(needs.first) >= 0)
        assert np.all((at <= needs.first) & (needs.first < needs.last) & (needs.last <= case.epoch_length))
        plan = order.plan(epoch, at, 10**6)
        step_of = np.repeat(np.arange(plan.steps), np.diff(plan.offsets))
        begin = np.append(at, plan.after)[step_of]
        when = np.where(plan.is_pad, begin, plan.position)
        for piece, position in set(zip(plan.piece.tolist(), when.tolist(), strict=True)):
            held = (needs.pieces == piece) & (needs.first <= position) & (position < needs.last)
            assert held.any()


def large(*, lanes: tuple[int, int] = (16, 16)) -> MixedSequence:
    """Two sources of 100 and 1600 pieces."""
    orders = tuple(
        Order([100] * pieces, seed=pieces, options=OrderOptions(lanes=number, window=200))
        for pieces, number in zip((100, 1600), lanes, strict=True)
    )
    return MixedSequence(MixtureOrder([order.samples for order in orders], [1, 1], seed=1), orders)


def test_a_node_needs_its_part_of_every_source_and_not_the_whole() -> None:
    sequence, split = large(), Split(8, 1024)
    wanted = [set(SharedLocated(sequence, split, rank).needs(0, 0).pieces.tolist()) for rank in range(8)]
    assert set.union(*wanted) == set(range(1700))
    for mine in wanted:
        assert 0 < sum(piece < 100 for piece in mine) < 40
        assert 200 < sum(piece >= 100 for piece in mine) < 500


def test_a_source_that_is_read_often_in_an_epoch_has_needs_in_each_of_its_epochs() -> None:
    sequence = large()
    needs = SharedLocated(sequence, Split(1, 64), 0).needs(0, 0)
    times = np.bincount(needs.pieces)[:100]
    assert times.min() >= sequence.samples // 2 // 10_000
    length = (needs.last - needs.first)[needs.pieces < 100]
    assert np.median(length) < sequence.samples / 4


def test_the_needs_of_very_many_source_epochs_are_few() -> None:
    orders = (Order([3], seed=0), Order([1000] * 50, seed=1, options=OrderOptions(lanes=4, window=100)))
    mixture = MixtureOrder([3, 50_000], [1, 1], seed=2)
    order = SharedLocated(MixedSequence(mixture, orders), Split(2, 16), 0)
    needs = order.needs(0, 0)
    assert np.count_nonzero(needs.pieces == 0) < 300
    assert needs.last[needs.pieces == 0].max() == mixture.samples


def test_a_source_that_lays_its_pieces_anew_is_needed_in_all_lanes_once_its_epochs_are_not_told_apart() -> None:
    orders = (
        Order([5] * 80, seed=0, options=OrderOptions(lanes=4, window=1, sticky=False)),
        Order([400] * 70, seed=1, options=OrderOptions(lanes=4, window=100)),
    )
    order = SharedLocated(MixedSequence(MixtureOrder([400, 28_000], [1, 1], seed=2), orders), Split(4, 64), 0)
    needs, at = order.needs(0, 0), 0
    while at < order.samples:
        plan = order.plan(0, at, 256)
        for piece in range(80):
            wanted, held = plan.position[plan.piece == piece], needs.pieces == piece
            first, last = needs.first[held, None], needs.last[held, None]
            assert np.all(np.any((first <= wanted) & (wanted < last), axis=0))
        at = int(plan.after[-1])


def test_a_plan_ends_early_rather_than_locate_very_much_and_goes_on_from_there() -> None:
    sequence = large()
    order = SharedLocated(sequence, Split(4, 20_000), 1)
    plan = order.plan(0, 0, 256)
    assert 1 <= plan.steps * 20_000 <= located_plan.POSITIONS_AT_ONCE
    again = order.plan(0, int(plan.after[0]), 1)
    cut = slice(int(plan.offsets[1]), int(plan.offsets[2]))
    assert np.array_equal(again.sample_id, plan.sample_id[cut])
    assert SharedLocated(sequence, Split(1, 150_000), 0).plan(0, 0, 8).steps == 1


def test_in_every_epoch_of_a_source_each_sample_is_read_once_over_all_ranks_and_resizes() -> None:
    orders = (Order([50] * 4, seed=5), Order([30] * 3, seed=6, shuffle="global"))
    sequence = MixedSequence(MixtureOrder([200, 90], [0.7, 0.3], seed=7, block=10, epoch_length=150), orders)
    seen: list[list[int]] = [[], []]
    splits = [Split(1, 8), Split(3, 20), Split(2, 2), Split(5, 40)]
    for epoch in range(8):
        at = 0
        while at < 150:
            split = splits[(epoch + at) % 4]
            after = {
                _take_one(SharedLocated(sequence, split, rank), epoch, at, seen) for rank in range(split.world_size)
            }
            (at,) = after
    for source, samples in enumerate((200, 90)):
        own = sorted(seen[source])
        whole = len(own) // samples
        assert whole >= 4
        for sample in range(samples):
            assert own.count(sample) in (whole, whole + 1)


def _take_one(order: SharedLocated, epoch: int, at: int, seen: list[list[int]]) -> int:
    plan = order.plan(epoch, at, 1)
    (step,) = planned(plan)
    for source, _, sample_id, *_, is_pad in step:
        if not is_pad:
            seen[source].append(sample_id)
    return int(plan.after[0])


@pytest.mark.parametrize("lanes", [(16, 16), (16, 4), (16, 1)])
def test_lanes_that_a_rank_can_reach_are_told_narrowly_only_for_sources_of_as_many_lanes(
    lanes: tuple[int, int],
) -> None:
    reach = Reach(large(lanes=lanes).sources)
    reached = [np.count_nonzero(each < 200_000) for each in reach.touched_from(200_000, 0, Split(8, 4096), 3)]
    assert reached == {(16, 16): [4, 4], (16, 4): [8, 2], (16, 1): [16, 1]}[lanes]
