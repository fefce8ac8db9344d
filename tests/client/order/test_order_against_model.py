"""The engine beside the model: every sample of every rank's plan, wherever it starts and however the world changes."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.order import EpochOrder, RankPlan, Split
from forebay_core.errors import ConfigurationError
from tests.client.order import model
from tests.client.order.strategies import Case, cases, selected_cases, splits

QUICK = settings(max_examples=100, deadline=None)
THOROUGH = settings(max_examples=300, deadline=None)


def either(**sizes: int) -> st.SearchStrategy[Case]:
    """A whole dataset, or a selection of its samples."""
    return cases(**sizes) | selected_cases(**sizes)


def rows_of(plan: RankPlan, step: int) -> list[tuple[int, ...]]:
    run = slice(plan.offsets[step], plan.offsets[step + 1])
    columns = (plan.position, plan.sample_id, plan.piece, plan.row, plan.is_pad)
    return [tuple(int(value) for value in values) for values in zip(*(column[run] for column in columns), strict=True)]


def rows_expected(share: list[tuple[int, model.Sample, bool]]) -> list[tuple[int, ...]]:
    return [(q, sample.sample_id, sample.piece, sample.row, int(is_pad)) for q, sample, is_pad in share]


def walk(samples: int, split: Split, position: int = 0) -> list[model.Step]:
    steps = []
    while (step := model.next_step(samples, position, **vars(split))) is not None:
        steps.append(step)
        position = step.after
    return steps


def all_ranks(epoch: EpochOrder, position: int, steps: int, split: Split) -> list[RankPlan]:
    return [epoch.plan(position, steps, split=split, rank=rank) for rank in range(split.world_size)]


@THOROUGH
@given(case=either(), pairs=st.lists(st.tuples(splits(), st.integers(1, 5)), min_size=1, max_size=6))
def test_plans_equal_the_model_through_any_changes_of_world_and_batch_size(case: Case, pairs: list[Any]) -> None:
    epoch, expected = case.engine(), case.model()
    position = 0
    for split, limit in [*pairs, (pairs[-1][0], 10**6)]:
        plans = all_ranks(epoch, position, limit, split)
        steps = walk(case.samples, split, position)[:limit]
        assert [plan.after.tolist() for plan in plans] == [[step.after for step in steps]] * split.world_size
        for number, step in enumerate(steps):
            for plan, share in zip(plans, model.shares(expected, step, split.world_size), strict=True):
                assert rows_of(plan, number) == rows_expected(share)
        position = steps[-1].after if steps else position


@THOROUGH
@given(case=either(largest=900), data=st.data())
def test_any_range_of_positions_equals_the_model(case: Case, data: st.DataObject) -> None:
    expected = [sample.sample_id for sample in case.model()]
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, case.samples)] * 2)))
    epoch = case.engine()
    assert epoch.sample_ids(start, stop).tolist() == expected[start:stop]
    assert epoch.sample_ids(0, case.samples).tolist() == expected


@QUICK
@given(case=either(), data=st.data())
def test_samples_are_located_where_the_model_has_them(case: Case, data: st.DataObject) -> None:
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, case.samples)] * 2)))
    located = case.engine().locate(start, stop)
    found = zip(*(a.tolist() for a in (located.sample_id, located.piece, located.row, located.fraction)), strict=True)
    assert list(found) == [
        (sample.sample_id, sample.piece, sample.row, sample.coordinate / case.samples)
        for sample in case.model()[start:stop]
    ]


@QUICK
@given(case=cases(smallest=7), pairs=st.lists(st.tuples(splits(tails=("even",)), st.integers(1, 5)), min_size=1))
def test_every_sample_is_planned_exactly_once_through_any_resizes(case: Case, pairs: list[Any]) -> None:
    epoch, position = case.engine(), 0
    seen: list[int] = []
    for split, limit in [*pairs, (pairs[-1][0], 10**6)]:
        plans = all_ranks(epoch, position, limit, split)
        seen += [sample for plan in plans for sample in plan.sample_id[~plan.is_pad].tolist()]
        position = int(plans[0].after[-1]) if plans[0].steps else position
    assert sorted(seen) == list(range(case.samples))


@QUICK
@given(case=cases(smallest=1, largest=150), split=splits())
def test_a_resume_at_any_step_plans_what_the_whole_epoch_planned(case: Case, split: Split) -> None:
    for rank in {0, split.world_size - 1}:
        whole = case.engine().plan(0, 10**6, split=split, rank=rank)
        for done, position in enumerate(whole.after.tolist()):
            rest = case.engine().plan(position, 10**6, split=split, rank=rank)
            assert rest.after.tolist() == whole.after[done + 1 :].tolist()
            assert rest.sample_id.tolist() == whole.sample_id[whole.offsets[done + 1] :].tolist()
            one = case.engine().plan(position, 1, split=split, rank=rank)
            assert one.sample_id.tolist() == rest.sample_id[: len(one.sample_id)].tolist()


@QUICK
@given(case=cases(smallest=1), split=splits(), position=st.integers(0, 400))
def test_all_ranks_make_the_number_of_steps_that_is_said_beforehand(case: Case, split: Split, position: int) -> None:
    position = min(position, case.samples)
    plans = all_ranks(case.engine(), position, 10**6, split)
    assert {plan.steps for plan in plans} == {split.steps(case.samples, position)}
    sizes = np.array([np.diff(plan.offsets) for plan in plans])
    if sizes.size:
        assert sizes.min() >= 1
        assert (sizes.max(axis=0) - sizes.min(axis=0)).max() <= 1
        assert plans[0].after[-1] == case.samples


@QUICK
@given(case=cases(smallest=7), batch=st.integers(7, 60), worlds=st.tuples(*[st.integers(1, 7)] * 2))
def test_the_sequence_of_steps_is_the_same_for_any_number_of_ranks(
    case: Case, batch: int, worlds: tuple[int, int]
) -> None:
    def steps(world_size: int) -> list[list[tuple[int, ...]]]:
        plans = all_ranks(case.engine(), 0, case.samples // batch, Split(world_size, batch, "drop"))
        return [[row for plan in plans for row in rows_of(plan, step)] for step in range(plans[0].steps)]

    assert steps(worlds[0]) == steps(worlds[1])


@THOROUGH
@given(case=either(), split=splits(), position=st.integers(0, 400), rank=st.integers(0, 6))
def test_needs_bound_every_position_at_which_a_piece_is_planned(
    case: Case, split: Split, position: int, rank: int
) -> None:
    position, rank = min(position, case.samples), rank % split.world_size
    epoch = case.engine()
    needs = epoch.needs(position, split=split, rank=rank)
    assert needs.first.tolist() == sorted(needs.first.tolist())
    assert np.all((position <= needs.first) & (needs.first < needs.last) & (needs.last <= case.samples))
    plan = epoch.plan(position, 10**6, split=split, rank=rank)
    begins = np.repeat([position, *plan.after[:-1].tolist()][: plan.steps], np.diff(plan.offsets))
    wanted_at = np.where(plan.is_pad, begins, plan.position)
    for piece, at in zip(plan.piece.tolist(), wanted_at.tolist(), strict=True):
        assert np.any((needs.pieces == piece) & (needs.first <= at) & (at < needs.last))


@QUICK
@given(case=cases(smallest=1), split=splits(tails=("even",)), data=st.data())
def test_needs_name_only_lanes_that_the_rank_reads_from(case: Case, split: Split, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, split.world_size - 1))
    epoch, expected = case.engine(), case.model()
    plan = epoch.plan(0, 10**6, split=split, rank=rank)
    lanes = {expected[q].lane for q in plan.position.tolist()}
    pieces = {sample.piece for sample in expected if sample.lane in lanes}
    assert set(epoch.needs(0, split=split, rank=rank).pieces.tolist()) <= pieces


@QUICK
@given(case=either(), data=st.data())
def test_places_are_the_next_samples_of_the_lanes(case: Case, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, case.samples))
    expected = case.model()
    ahead: dict[int, model.Sample] = {}
    for sample in reversed(expected[position:]):
        ahead[sample.lane] = sample
    behind = [sample.lane for sample in expected[:position]]
    places = case.engine().places(position)
    assert [(place.lane, place.piece, place.row, place.offset) for place in places] == [
        (lane, ahead[lane].piece, ahead[lane].row, behind.count(lane)) for lane in sorted(ahead)
    ]


def test_positions_and_ranks_that_do_not_exist_are_refused_by_name() -> None:
    epoch = Case([5, 5], 0, "window", 2, 3, True, 0).engine()
    with pytest.raises(ConfigurationError, match=r"position 11 .* 10 samples"):
        epoch.plan(11, 1, split=Split(1, 1), rank=0)
    with pytest.raises(ConfigurationError, match="position -1"):
        epoch.sample_ids(-1, 3)
    with pytest.raises(ConfigurationError, match=r"rank 2 .* 2 ranks"):
        epoch.plan(0, 1, split=Split(2, 2), rank=2)
