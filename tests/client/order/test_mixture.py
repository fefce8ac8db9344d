"""Mixtures beside the model: shares, own epochs, random access, steps; and what is refused."""

import json
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.order import Draws, MixtureOrder, Order, OrderOptions, Split, in_step_order, runs
from forebay.order.mixture import apportion
from forebay_core.errors import ConfigurationError, EmptyDataset
from tests.client.order import model
from tests.client.order.strategies import splits

QUICK = settings(max_examples=100, deadline=None)


@dataclass(frozen=True)
class Case:
    sources: list[int]
    weights: list[float]
    seed: int
    block: int
    epoch_length: Any

    def engine(self) -> MixtureOrder:
        return MixtureOrder(
            self.sources, self.weights, seed=self.seed, block=self.block, epoch_length=self.epoch_length
        )

    def model(self, stop: int) -> list[tuple[int, int, int]]:
        return model.draws(self.sources, apportion(self.weights, self.block), self.seed, stop)[:stop]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    number = draw(st.integers(1, 5))
    return Case(
        sources=draw(st.lists(st.integers(1, 40), min_size=number, max_size=number)),
        weights=draw(st.lists(st.floats(0.01, 1), min_size=number, max_size=number)),
        seed=draw(st.integers()),
        block=draw(st.one_of(st.integers(number, 12), st.integers(number, 150))),
        epoch_length=draw(st.integers(1, 200)),
    )


def rows(draws: Draws) -> list[tuple[int, int, int]]:
    columns = (draws.source, draws.source_epoch, draws.source_position)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@QUICK
@given(case=cases(), data=st.data())
def test_any_range_of_any_epoch_equals_the_model(case: Case, data: st.DataObject) -> None:
    order, epoch = case.engine(), data.draw(st.integers(0, 3))
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, order.samples)] * 2)))
    begin = epoch * order.samples
    expected = case.model(4 * order.samples)
    assert rows(order.epoch(epoch).draws(start, stop)) == expected[begin + start : begin + stop]
    assert rows(order.draws(0, 4 * order.samples)) == expected


@QUICK
@given(case=cases(), number=st.integers(0, 2**31))
def test_every_block_holds_exactly_the_slots_of_each_source(case: Case, number: int) -> None:
    order = case.engine()
    draws = order.draws(number * case.block, (number + 1) * case.block)
    assert np.bincount(draws.source, minlength=len(case.sources)).tolist() == order.slots


@QUICK
@given(case=cases(), stop=st.integers(0, 500))
def test_each_source_goes_through_its_own_epochs_in_order_whatever_those_of_the_mixture(case: Case, stop: int) -> None:
    order = case.engine()
    drawn: list[list[tuple[int, int]]] = [[] for _ in case.sources]
    for epoch in range(-(-stop // order.samples)):
        for source, *place in rows(order.epoch(epoch).draws(0, min(order.samples, stop - epoch * order.samples))):
            drawn[source].append((place[0], place[1]))
    for samples, places in zip(case.sources, drawn, strict=True):
        assert places == [divmod(number, samples) for number in range(len(places))]


@QUICK
@given(case=cases(), data=st.data())
def test_draws_before_a_position_are_counted_for_each_source(case: Case, data: st.DataObject) -> None:
    order, epoch = case.engine(), data.draw(st.integers(0, 2))
    position = data.draw(st.integers(0, order.samples))
    before = [source for source, *_ in case.model(epoch * order.samples + position)]
    assert order.epoch(epoch).drawn(position).tolist() == [before.count(s) for s in range(len(case.sources))]


@QUICK
@given(case=cases(), data=st.data())
def test_the_span_of_some_draws_holds_all_of_them_in_the_fewest_blocks(case: Case, data: st.DataObject) -> None:
    order = case.engine()
    source = data.draw(st.integers(0, len(case.sources) - 1))
    first = data.draw(st.integers(0, 60))
    stop = first + data.draw(st.integers(1, 60))
    begin, end = (int(bound[0]) for bound in order.span(source, np.array([first]), np.array([stop])))
    assert begin % case.block == end % case.block == 0
    before, after = order.drawn(begin)[source], order.drawn(end)[source]
    assert before <= first < before + order.slots[source]
    assert after - order.slots[source] < stop <= after


def test_a_position_far_away_costs_no_more_than_the_first() -> None:
    order = MixtureOrder([10**9, 7 * 10**11], [1, 3], seed=1)
    far = 10**15 + 12_345
    draws = order.draws(far, far + 64)
    drawn = order.drawn(far)
    assert drawn.sum() == far
    for source, samples in enumerate((10**9, 7 * 10**11)):
        mine = draws.source == source
        number = draws.source_epoch[mine] * samples + draws.source_position[mine]
        assert number.tolist() == list(range(drawn[source], drawn[source] + mine.sum()))


@pytest.mark.parametrize(
    ("sources", "weights", "block", "epoch_length", "positions"),
    [
        ([100, 50], [1, 1], 10, "longest", 200),
        ([100, 50], [1, 1], 10, "shortest", 100),
        ([100, 50], [7, 3], 10, "longest", 167),
        ([100, 50], [7, 3], 10, "shortest", 142),
        ([100, 50], [7, 3], 10, 33, 33),
        ([1, 1], [1, 999], 1000, "shortest", 1),
        ([1, 1], [1, 999], 1000, "longest", 1000),
        ([10**12, 5], [0.9999, 0.0001], 10_000, "longest", -(-(10**16) // 9999)),
    ],
)
def test_an_epoch_is_as_long_as_its_sources_or_as_it_is_given(
    sources: list[int], weights: list[float], *, block: int, epoch_length: Any, positions: int
) -> None:
    assert MixtureOrder(sources, weights, seed=0, block=block, epoch_length=epoch_length).samples == positions


def test_in_whole_blocks_the_longest_epoch_reads_all_and_the_shortest_nothing_twice() -> None:
    sources = [300, 120]
    longest = MixtureOrder(sources, [0.6, 0.4], seed=3, block=10)
    assert (longest.samples, longest.epoch(0).drawn(longest.samples).tolist()) == (500, [300, 200])
    shortest = MixtureOrder(sources, [0.6, 0.4], seed=3, block=10, epoch_length="shortest")
    assert (shortest.samples, shortest.epoch(0).drawn(shortest.samples).tolist()) == (300, [180, 120])


@pytest.mark.parametrize(
    ("weights", "block", "slots"),
    [
        ([0.7, 0.3], 10_000, [7000, 3000]),
        ([1, 1, 1], 10, [4, 3, 3]),
        ([2, 3, 5], 7, [1, 2, 4]),
        ([1e-9, 1, 1], 11, [1, 5, 5]),
        ([1e-300, 1e300], 100, [1, 99]),
        ([1e-9, 1e-8, 1e6], 3, [1, 1, 1]),
        ([0.16, 0.17, 0.67], 4, [1, 1, 2]),
        ([5], 3, [3]),
    ],
)
def test_weights_become_slots_by_largest_remainder_and_no_source_gets_none(
    weights: list[float], block: int, slots: list[int]
) -> None:
    assert apportion(weights, block) == slots


@QUICK
@given(
    weights=st.lists(st.floats(min_value=1e-12, max_value=1e12), min_size=1, max_size=8), block=st.integers(8, 65_536)
)
def test_slots_fill_the_block_stay_by_their_weight_and_make_themselves_again(weights: list[float], block: int) -> None:
    slots = apportion(weights, block)
    assert sum(slots) == block
    assert min(slots) >= 1
    exact = [Fraction(weight) * block / sum(map(Fraction, weights)) for weight in weights]
    if min(exact) >= 1:
        assert all(abs(have - want) < 1 for have, want in zip(slots, exact, strict=True))
    ranked = sorted(range(len(weights)), key=lambda source: weights[source])
    assert all(slots[low] <= slots[high] or weights[low] == weights[high] for low, high in pairwise(ranked))
    assert apportion([float(number) for number in slots], block) == slots


def test_a_mixture_made_from_its_recorded_spec_is_the_same_mixture() -> None:
    sources = [1000, 37, 5]
    order = MixtureOrder(sources, [0.6, 0.399, 0.001], seed=-(2**70), block=300)
    spec = json.loads(json.dumps(order.spec()))
    assert spec == {
        "algorithm": "mixture-1",
        "seed": -(2**70),
        "block": 300,
        "slots": [180, 119, 1],
        "epoch_length": 1667,
    }
    again = MixtureOrder(
        sources, spec["slots"], seed=spec["seed"], block=spec["block"], epoch_length=spec["epoch_length"]
    )
    assert again.spec() == spec
    of_numpy: Any = np.int64(300)
    assert json.dumps(MixtureOrder(sources, spec["slots"], seed=of_numpy, block=of_numpy).spec())
    assert rows(again.draws(0, 2000)) == rows(order.draws(0, 2000))
    assert rows(MixtureOrder(sources, spec["slots"], seed=1, block=300).draws(0, 300)) != rows(order.draws(0, 300))


def test_a_step_is_sorted_along_the_lines_and_never_by_source_first() -> None:
    fraction = np.array([0.9, 0.1, 0.5, 0.1, 0.2, 0.0, 0.9])
    assert in_step_order(fraction, np.array([4, 3])).tolist() == [1, 3, 2, 0, 5, 4, 6]
    assert in_step_order(fraction, np.array([7])).tolist() == [5, 1, 3, 4, 2, 0, 6]
    assert in_step_order(fraction[:0], np.array([], dtype=np.int64)).tolist() == []


@QUICK
@given(case=cases(), pairs=st.lists(st.tuples(splits(), st.integers(1, 4)), min_size=1, max_size=5))
def test_steps_equal_the_model_through_any_changes_of_world_and_batch_size(case: Case, pairs: list[Any]) -> None:
    order = case.engine()
    fractions = [position / case.sources[source] for source, _, position in case.model(order.samples)]
    at = 0
    for split, limit in [*pairs, (pairs[-1][0], 10**6)]:
        schedule = split.schedule(order.samples, at, limit)
        draws = order.epoch(0).draws(at, at + int(schedule.take.sum()))
        fraction = draws.source_position / np.array(case.sources)[draws.source]
        in_order = at + in_step_order(fraction, schedule.take)
        begin = np.cumsum(schedule.take) - schedule.take
        for number, position in enumerate(schedule.position.tolist()):
            step = model.next_step(order.samples, position, **vars(split))
            assert step is not None
            expected = sorted(step.take, key=lambda q: (fractions[q], q))
            handed = []
            for rank in range(split.world_size):
                mine = runs(schedule, split, rank)
                run = slice(begin[number] + mine.start[number], begin[number] + mine.stop[number])
                handed.append(in_order[run].tolist())
            assert sum(handed, []) == expected  # noqa: RUF017
            sizes = [len(share) for share in handed]
            assert len(step.pads) > 0 or max(sizes) - min(sizes) <= 1
        at = int(schedule.after[-1]) if len(schedule) else at


def test_sources_are_read_exactly_once_in_their_epochs_and_ranks_keep_their_part_of_each() -> None:
    sources = [Order([50] * 20, seed=5, options=OrderOptions(lanes=4, window=1)), Order.of_indices(400, seed=6)]
    mixture = MixtureOrder([order.samples for order in sources], [0.7, 0.3], seed=7, block=100)
    draws = mixture.draws(0, 2000)
    seen: list[list[int]] = [[], []]
    fraction = np.empty(2000)
    for source, order in enumerate(sources):
        for epoch in range(2):
            mine = np.flatnonzero((draws.source == source) & (draws.source_epoch == epoch))
            position = draws.source_position[mine]
            located = order.epoch(epoch).locate(int(position[0]), int(position[-1]) + 1)
            fraction[mine] = located.fraction
            seen[source] += located.sample_id.tolist()
    assert sorted(seen[0][:1000]) == list(range(1000))
    assert sorted(seen[1][:400]) == list(range(400))
    by_rank = in_step_order(fraction, np.full(20, 100)).reshape(20, 4, 25)
    for rank in range(4):
        mine = by_rank[:, rank].ravel()
        assert abs(np.count_nonzero(draws.source[mine] == 1) - 150) < 50
        assert abs(fraction[mine].mean() - (2 * rank + 1) / 8) < 0.05


def test_mixtures_that_cannot_work_are_refused_by_name() -> None:
    def refused(says: str, error: type[Exception] = ConfigurationError, **changed: Any) -> None:
        arguments: dict[str, Any] = {"sources": [10, 10], "weights": [1, 1], "seed": 0, **changed}
        with pytest.raises(error, match=says):
            MixtureOrder(arguments.pop("sources"), arguments.pop("weights"), **arguments)

    refused("2 sources and 1 weights", weights=[1])
    refused("source 1 of the mixture has no samples", EmptyDataset, sources=[10, 0])
    refused("samples of source 0='x'", sources=["x", 10])
    refused("block=10000 for 0 sources", sources=[], weights=[])
    refused("block=1 for 2 sources", block=1)
    refused("at most 65536", block=65_537)
    refused("block=2.5", block=2.5)
    refused("epoch=0", epoch_length=0)
    refused(f"epoch={1 << 60}.*1 to {1 << 48}", epoch_length=1 << 60)
    refused("epoch='long'", epoch_length="long")
    refused("epoch=1.5", epoch_length=1.5)
    refused("seed='zero'", seed="zero")
    for weight in (0, -1, float("nan"), float("inf"), "much"):
        refused(f"weight {weight!r} of source 1", weights=[1, weight])


def test_positions_and_epochs_that_do_not_exist_are_refused_by_name() -> None:
    order = MixtureOrder([10, 10], [1, 1], seed=0, epoch_length=30)
    with pytest.raises(ConfigurationError, match="epoch -1"):
        order.epoch(-1)
    with pytest.raises(ConfigurationError, match=r"position 31 .* 30 positions"):
        order.epoch(0).draws(0, 31)
    with pytest.raises(ConfigurationError, match="position -1"):
        order.epoch(0).drawn(-1)
    with pytest.raises(ConfigurationError, match="position -1"):
        order.draws(-1, 3)
    with pytest.raises(ConfigurationError, match="rank 2 is not one of 2 ranks"):
        runs(Split(2, 2).schedule(4, 0, 1), Split(2, 2), 2)
