"""How an epoch's end is cut: the tails row by row, and what is refused before training starts."""

from typing import Any

import pytest

from forebay.order import Split, Step
from forebay_core.errors import ConfigurationError, EmptyDataset


@pytest.mark.parametrize(
    ("world_size", "global_batch", "tail", "samples", "takes", "pads"),
    [
        (2, 4, "even", 8, [4, 4], [0, 0]),
        (2, 4, "even", 10, [4, 4, 2], [0, 0, 0]),
        (2, 4, "even", 9, [4, 3, 2], [0, 0, 0]),
        (2, 2, "even", 3, [3], [0]),
        (4, 4, "even", 7, [7], [0]),
        (4, 8, "even", 9, [5, 4], [0, 0]),
        (4, 8, "even", 11, [6, 5], [0, 0]),
        (4, 5, "even", 8, [4, 4], [0, 0]),
        (4, 5, "even", 7, [7], [0]),
        (4, 8, "even", 12, [8, 4], [0, 0]),
        (4, 8, "even", 3, [3], [1]),
        (1, 5, "even", 6, [5, 1], [0, 0]),
        (1, 1, "even", 3, [1, 1, 1], [0, 0, 0]),
        (2, 4, "drop", 11, [4, 4], [0, 0]),
        (2, 4, "drop", 8, [4, 4], [0, 0]),
        (2, 4, "drop", 3, [], []),
        (2, 4, "pad", 11, [4, 4, 3], [0, 0, 1]),
        (2, 4, "pad", 8, [4, 4], [0, 0]),
        (3, 9, "pad", 1, [1], [8]),
    ],
)
def test_the_last_samples_are_cut_as_the_tail_says(
    *, world_size: int, global_batch: int, tail: Any, samples: int, takes: list[int], pads: list[int]
) -> None:
    split = Split(world_size, global_batch, tail)
    schedule = split.schedule(samples, 0, 100)
    assert schedule.take.tolist() == takes
    assert schedule.pads.tolist() == pads
    assert split.steps(samples) == len(takes)
    if takes:
        assert schedule.after[-1] == samples


@pytest.mark.parametrize("tail", ["even", "drop", "pad"])
def test_a_schedule_is_its_single_steps_one_after_another(tail: Any) -> None:
    for world_size, global_batch in [(1, 1), (2, 5), (5, 5), (3, 8)]:
        split = Split(world_size, global_batch, tail)
        for samples in range(40):
            position = 0
            steps: list[Step] = []
            while (step := split.step(samples, position)) is not None:
                assert split.steps(samples, position) == split.steps(samples) - len(steps)
                steps.append(step)
                position = step.after
            for limit in (0, 1, len(steps), 100):
                columns = split.schedule(samples, 0, limit)
                arrays = (columns.position, columns.take, columns.pads, columns.after)
                assert [Step(*row) for row in zip(*(a.tolist() for a in arrays), strict=True)] == steps[:limit]


@pytest.mark.parametrize("tail", ["even", "drop", "pad"])
@pytest.mark.parametrize(("world_size", "global_batch"), [(1, 1), (1, 7), (3, 5), (4, 4), (5, 30)])
def test_the_position_of_a_step_is_where_the_steps_before_it_end(tail: Any, world_size: int, global_batch: int) -> None:
    split = Split(world_size, global_batch, tail)
    for samples in range(5, 80):
        begins = []
        step = split.step(samples, 0)
        while step is not None:
            begins.append(step.position)
            step = split.step(samples, step.after)
        assert [split.position_of(samples, number) for number in range(len(begins) + 3)] == [*begins, None, None, None]


def test_the_first_ranks_get_the_samples_that_do_not_divide() -> None:
    step = Split(4, 10, "even").step(100, 0)
    assert step is not None
    assert step.rank_sizes(4) == [3, 3, 2, 2]


def test_there_is_no_step_after_the_end() -> None:
    assert Split(2, 4).step(10, 10) is None


@pytest.mark.parametrize(
    ("samples", "split", "error", "says"),
    [
        (0, Split(1, 1), EmptyDataset, "no samples"),
        (3, Split(4, 8), ConfigurationError, "3 samples are fewer than the 4 ranks"),
        (3, Split(4, 8, "pad"), ConfigurationError, "at most 3 ranks"),
        (7, Split(2, 8, "drop"), ConfigurationError, "drops the whole epoch"),
    ],
)
def test_an_epoch_that_cannot_be_shared_out_is_refused_beforehand(
    samples: int, split: Split, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        split.check(samples)


def test_an_epoch_of_one_sample_for_each_rank_is_accepted() -> None:
    Split(4, 8).check(4)
    Split(4, 8, "pad").check(4)
    Split(4, 8, "drop").check(8)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((0, 1), "world_size=0"),
        ((3, 2), "global batch of 2"),
        ((1, 0), "global batch of 0"),
        ((1, 1, "keep"), "'even', 'drop', 'pad'"),
    ],
)
def test_a_split_that_cannot_work_is_refused_at_construction(arguments: tuple[Any, ...], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Split(*arguments)
