"""The simulator against slow models, and the hit ratios of the real policies that it finds."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.order import MixedSequence, MixtureOrder, Order, OrderOptions, RankOrder, SharedLocated, SharedOrder, Split
from forebay.simulation import Job, Scenario, optimum, simulate
from forebay.simulation.optimum import most_hits
from forebay.simulation.reading import leases
from forebay_core.errors import ConfigurationError
from forebay_core.eviction import POLICIES

ROWS = 4


def order(pieces: int, seed: int, *, world: int = 1, rank: int = 0, sticky: bool = False, lanes: int = 2) -> RankOrder:
    options = OrderOptions(lanes=lanes, window=2, sticky=sticky)
    made = Order(np.full(pieces, ROWS), seed=seed, options=options)
    return SharedOrder(made, Split(world, 2 * world), rank)


def job(reads: RankOrder, pieces: int, *, epochs: int = 4, start: float = 0.0) -> Job:
    """A piece a second."""
    return Job(reads, np.arange(pieces), epochs, positions_per_second=float(ROWS), starts_at=start)


def scenario(jobs: Sequence[Job], pieces: int, share: float) -> Scenario:
    return Scenario(tuple(jobs), np.full(pieces, 10), int(10 * pieces * share))


# -- what is read --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", range(2))
def test_leases_cover_every_step_that_reads_of_a_piece(rank: int) -> None:
    reads = order(7, 3, world=2, rank=rank, lanes=3)
    found = leases(job(reads, 7, epochs=2))
    held = list(zip(found.pieces.tolist(), found.start.tolist(), found.stop.tolist(), strict=True))
    read: set[tuple[int, int]] = set()
    for epoch in range(2):
        plan, position = reads.plan(epoch, 0, 1000), 0
        for step in range(plan.steps):
            at = epoch * reads.samples + position
            read |= {(piece, at) for piece in plan.piece[plan.offsets[step] : plan.offsets[step + 1]].tolist()}
            position = int(plan.after[step])
    assert all(any(piece == mine and start <= at < stop for mine, start, stop in held) for piece, at in read)
    assert {(piece, start) for piece, start, _ in held} <= read, "leased when it is read, not before"
    for piece in range(7):
        spans = sorted(span[1:] for span in held if span[0] == piece)
        assert all(before[1] < after[0] for before, after in pairwise(spans)), "once at a time"


def test_leases_of_a_mixture_are_of_the_pieces_that_it_reads() -> None:
    sources = tuple(Order(np.full(size, ROWS), seed=size) for size in (6, 3))
    mixture = MixtureOrder([made.samples for made in sources], [0.5, 0.5], seed=1, block=4)
    reads = SharedLocated(MixedSequence(mixture, sources), Split(1, 2), 0)
    found = leases(Job(reads, np.arange(9) + 5, 1, 1.0))
    assert sorted(set(found.pieces.tolist())) == list(range(5, 14))
    assert (np.diff(found.start) >= 0).all()


# -- the optimum ---------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 3), max_size=7), st.integers(1, 3))
@settings(max_examples=60)
def test_the_optimum_has_as_many_hits_as_the_best_of_all_ways_to_evict(accesses: list[int], room: int) -> None:
    @cache
    def best(index: int, there: frozenset[int]) -> int:
        if index == len(accesses):
            return 0
        piece = accesses[index]
        if piece in there:
            return 1 + best(index + 1, there)
        if len(there) < room:
            return best(index + 1, there | {piece})
        return max(best(index + 1, there - {gone} | {piece}) for gone in there)

    assert most_hits(accesses, [1] * 4, room).sum() == best(0, frozenset())


def test_the_optimum_does_not_depend_on_how_pieces_are_numbered() -> None:
    accesses = [0, 1, 2, 0, 1, 2, 2, 1, 0]
    counts = {
        int(most_hits([names[piece] for piece in accesses], [1] * 3, 2).sum()) for names in permutations(range(3))
    }
    assert len(counts) == 1


# -- hit ratios ----------------------------------------------------------------------------------------------------

HALF = scenario([job(order(300, 1), 300)], 300, 0.5)
FOUR = scenario([job(order(300, seed), 300, start=seed * 75.0) for seed in range(4)], 300, 0.35)
EPOCH = 300.0


def test_one_job_with_half_its_data_hits_half_the_time_where_lru_hardly_does() -> None:
    """CASES 30: a cache smaller than the data is not turned over."""
    measured = (EPOCH, 3 * EPOCH)
    assert optimum(HALF, measured) == pytest.approx(0.5, abs=0.01)
    assert simulate(HALF, measured).hit_ratio > 0.46
    assert simulate(replace(HALF, prefetch=False), measured).hit_ratio == pytest.approx(0.5, abs=0.01)
    assert simulate(replace(HALF, prefetch=False, eviction="lru"), measured).hit_ratio < 0.2
    assert simulate(replace(HALF, prefetch=False, eviction="never"), measured).hit_ratio > 0.44


def test_four_jobs_side_by_side_share_what_they_fetch_as_well_as_can_be() -> None:
    measured = (1.75 * EPOCH, 3 * EPOCH)
    best = optimum(FOUR, measured)
    assert 0.6 < best < 0.7
    assert simulate(FOUR, measured).hit_ratio > 0.93 * best
    assert simulate(replace(FOUR, prefetch=False, eviction="lru"), measured).hit_ratio < 0.35


def test_pieces_are_fetched_before_they_are_read_also_when_the_cache_is_full() -> None:
    found = simulate(HALF, (EPOCH, 3 * EPOCH))
    assert found.waited == 0
    assert found.fetched > 0


def test_a_cache_that_holds_all_fetches_all_once() -> None:
    found = simulate(scenario([job(order(50, 1), 50)], 50, 1.0), (0.0, 1000.0))
    assert (found.fetched, found.fetched_bytes, found.evictions) == (50, 500, 0)


def test_what_finds_no_room_is_counted_and_read_past_the_cache() -> None:
    crowd = [job(order(40, seed), 40) for seed in range(6)]
    assert simulate(scenario(crowd, 40, 0.1), (0.0, 1000.0)).bypassed > 0


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_scenario_has_the_same_outcome(policy: str) -> None:
    small = replace(scenario([job(order(60, 1), 60, epochs=2)], 60, 0.5), eviction=policy)
    assert simulate(small, (0.0, 200.0)) == simulate(small, (0.0, 200.0))


def test_scenarios_that_make_no_sense_are_refused() -> None:
    reads = job(order(10, 1), 10)
    for wrong in ({"eviction": "fifo"}, {"jobs": ()}, {"capacity_bytes": 0}, {"piece_bytes": np.full(9, 10)}):
        with pytest.raises(ConfigurationError):
            replace(scenario([reads], 10, 0.5), **wrong)
