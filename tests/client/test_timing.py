"""The parts of fetch_seconds."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.timing import Stage, StageName, time_batch

NAMES: list[StageName] = ["remote_wait", "read", "transform", "collate"]
PARTS = ("remote_wait", "read", "transform", "collate", "queue")


@given(
    cuts=st.lists(st.floats(0, 100), min_size=2, max_size=9).map(sorted),
    names=st.lists(st.sampled_from(NAMES), min_size=8, max_size=8),
    start=st.floats(0, 100),
    length=st.floats(0, 100),
)
def test_the_parts_add_up_to_fetch_seconds(
    cuts: list[float], names: list[StageName], start: float, length: float
) -> None:
    stages = [Stage(name, *cut) for name, cut in zip(names, pairwise(cuts), strict=False)]
    timing = time_batch(stages, start, start + length, step=0, samples=1, at=0.0)
    assert sum(getattr(timing, part) for part in PARTS) == pytest.approx(timing.fetch_seconds, abs=1e-9)
    assert all(getattr(timing, part) >= 0 for part in PARTS)


def test_what_was_done_before_the_trainer_came_is_not_counted() -> None:
    stages = [Stage("remote_wait", 0.0, 8.0), Stage("read", 8.0, 11.0), Stage("collate", 11.0, 11.5)]
    timing = time_batch(stages, 10.0, 12.0, step=3, samples=4, at=0.0)
    assert (timing.remote_wait, timing.read, timing.collate, timing.queue) == (0.0, 1.0, 0.5, 0.5)
    assert timing.fetch_seconds == 2.0


def test_a_batch_that_was_ready_costs_only_its_handing_over() -> None:
    timing = time_batch([Stage("read", 1.0, 2.0)], 5.0, 5.25, step=0, samples=1, at=0.0)
    assert (timing.fetch_seconds, timing.queue, timing.read) == (0.25, 0.25, 0.0)
