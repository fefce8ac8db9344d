"""The sample digest against plain arithmetic, and its sum over ranks against the order engine, however a run is cut."""

import hashlib
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay import digest
from forebay.digest import NOTHING, SampleDigest, digests_of, expected, expected_range, mix, reading
from forebay.order import (
    BucketedSequence,
    Buckets,
    MixedSequence,
    MixtureOrder,
    Order,
    RankOrder,
    SharedLocated,
    Split,
    Tail,
    shared,
)
from forebay_core.errors import ConfigurationError, StateError
from tests.client.order import model
from tests.client.order.strategies import Case, cases, selected_cases, splits

THOROUGH = settings(max_examples=150, deadline=None)
QUICK = settings(max_examples=40, deadline=None)
WORD = (1 << 64) - 1


def plainly_mixed(epoch: int, position: int, sample_id: int, source: int = 0) -> int:
    """The mix as its docstring tells it, in Python's integers."""
    keys = hashlib.sha256(f"forebay samples-1 {epoch} {source}".encode()).digest()
    low, high = position, sample_id
    for number in range(4):
        word = (high + int.from_bytes(keys[8 * number : 8 * number + 8], "little")) & WORD
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & WORD
        word = (word ^ word >> 27) * 0x94D049BB133111EB & WORD
        low, high = high, low ^ word ^ word >> 31
    return high << 64 | low


def summed(handed_out: list[tuple[int, int, int]]) -> SampleDigest:
    """Of (epoch, position, sample id)."""
    return SampleDigest(sum(plainly_mixed(*each) for each in handed_out) % (1 << 128), len(handed_out))


numbers = st.integers(0, (1 << 62) - 1)


@THOROUGH
@given(epoch=st.integers(0, 1 << 40), samples=st.lists(st.tuples(numbers, numbers, st.integers(0, 9)), max_size=20))
def test_the_mix_is_what_its_definition_says(epoch: int, samples: list[tuple[int, int, int]]) -> None:
    position, sample_id, source = np.array(samples, dtype=np.int64).reshape(-1, 3).T
    words = mix(epoch, position, sample_id, source).tolist()
    assert [high << 64 | low for low, high in words] == [plainly_mixed(epoch, *each) for each in samples]


def test_the_mix_never_changes_under_its_name() -> None:
    words = mix(3, np.array([5]), np.array([7])).tolist()
    assert words == [[11478587405477039996, 2887260957712731814]]
    assert digest.ALGORITHM == "samples-1"


def play(order_of: Any, samples: int, pairs: list[Any]) -> tuple[SampleDigest, list[tuple[int, int]]]:
    """Runs on over two epochs, through these (split, steps): the sum over all ranks, and the places between."""
    total, epoch, position = NOTHING, 0, 0
    places = [(0, 0)]
    for split, steps in [*pairs, (pairs[-1][0], 10**6), (pairs[-1][0], 10**6)]:
        orders: list[RankOrder] = [order_of(split, rank) for rank in range(split.world_size)]
        plans = [order.plan(epoch, position, steps) for order in orders]
        for plan in plans:
            total = sum(digests_of(plan, epoch), total)
        if plans[0].steps == 0:
            epoch, position = epoch + 1, 0
        else:
            after = int(plans[0].after[-1])
            epoch, position = (epoch + 1, 0) if after == samples else (epoch, after)
        places.append((epoch, position))
    return total, places


@THOROUGH
@given(
    case=cases(largest=400) | selected_cases(largest=400),
    pairs=st.lists(st.tuples(splits(), st.integers(1, 5)), min_size=1, max_size=6),
)
def test_all_ranks_together_hand_out_what_the_order_says_through_any_changes(case: Case, pairs: list[Any]) -> None:
    tail: Tail = "pad" if pairs[0][0].tail == "pad" else "even"
    pairs = [(Split(split.world_size, split.global_batch, tail), steps) for split, steps in pairs]
    order = case.order()
    total, places = play(lambda split, rank: shared(order, None, case.seed, split, rank), case.samples, pairs)
    assert total == expected(reading(order), case.samples, places[0], places[-1])


@THOROUGH
@given(case=cases(largest=400), split=splits(), data=st.data())
def test_each_step_adds_what_the_model_hands_out_and_no_pad(case: Case, split: Split, data: st.DataObject) -> None:
    samples, order = case.model(), case.order()
    position = 0
    while (step := model.next_step(case.samples, position, **vars(split))) is not None:
        shares = model.shares(samples, step, split.world_size)
        for rank, share in enumerate(shares):
            plan = order.epoch(case.epoch).plan(position, 1, split=split, rank=rank)
            real = [(case.epoch, at, sample.sample_id) for at, sample, is_pad in share if not is_pad]
            assert digests_of(plan, case.epoch) == [summed(real)]
        position = step.after


@QUICK
@given(world=st.integers(1, 4), batch=st.integers(1, 3), samples=st.integers(8, 90), epochs=st.integers(1, 3))
def test_what_a_tail_drops_is_not_expected(world: int, batch: int, samples: int, epochs: int) -> None:
    split = Split(world, world * min(batch, samples // world), "drop")
    order = Order.of_indices(samples, seed=1)
    handed: list[tuple[int, int, int]] = []
    for epoch in range(epochs):
        ids = order.epoch(epoch).sample_ids(0, samples).tolist()
        stop = samples // split.global_batch * split.global_batch
        handed += [(epoch, at, ids[at]) for at in range(stop)]
    assert expected(reading(order), samples, (0, 0), (epochs, 0), split=split) == summed(handed)


@QUICK
@given(data=st.data(), split=splits(), steps=st.integers(1, 40))
def test_mixtures_and_buckets_are_proven_alike(data: st.DataObject, split: Split, steps: int) -> None:
    split = Split(split.world_size, split.global_batch)
    sources = (Order([7, 0, 9], seed=1), Order([40], seed=2))
    mixed = MixedSequence(MixtureOrder([16, 40], [1.0, 2.0], seed=data.draw(st.integers()), block=10), sources)
    lengths = np.array(data.draw(st.lists(st.integers(0, 9), min_size=40, max_size=40)))
    bucketed = BucketedSequence(sources[1], Buckets(lengths, window=16, unit=4), seed=2)
    sequence: MixedSequence | BucketedSequence = mixed if data.draw(st.booleans()) else bucketed
    total, places = play(lambda split, rank: SharedLocated(sequence, split, rank), sequence.samples, [(split, steps)])
    assert total == expected(reading(sequence), sequence.samples, places[0], places[-1])


def test_a_sample_that_is_missing_doubled_or_misplaced_shows() -> None:
    right = [(0, at, at * 7 % 10) for at in range(10)]
    swapped = [(0, 0, 7), (0, 1, 0), *right[2:]]
    wrong = [right[1:], [*right, right[3]], swapped, [*right[:-1], (1, *right[-1][1:])]]
    values = {summed(each).value for each in [right, *wrong]}
    assert len(values) == len(wrong) + 1
    assert summed(right[::-1]) == summed(right)


def test_the_source_of_a_sample_is_part_of_it() -> None:
    position, ids = np.array([4]), np.array([4])
    assert mix(0, position, ids, np.array([0])).tolist() == mix(0, position, ids).tolist()
    assert mix(0, position, ids, np.array([1])).tolist() != mix(0, position, ids).tolist()


def test_long_ranges_are_summed_in_pieces_without_a_change() -> None:
    order = Order.of_indices(600_000, seed=5)
    whole = expected_range(reading(order), 2, 0, 600_000)
    cut = [expected_range(reading(order), 2, start, start + 200_000) for start in range(0, 600_000, 200_000)]
    assert whole == sum(cut, NOTHING)


@THOROUGH
@given(value=st.integers(0, (1 << 128) - 1), samples=numbers, skipped=st.integers(0, 5))
def test_a_digest_comes_back_from_json_and_from_other_processes(value: int, samples: int, skipped: int) -> None:
    made = SampleDigest(value, samples, skipped)
    assert SampleDigest.decode(made.encode()) == made
    assert pickle.loads(pickle.dumps(made)) == made


@pytest.mark.parametrize(
    "encoded",
    [
        {},
        None,
        {**NOTHING.encode(), "value": "12"},
        {**NOTHING.encode(), "value": "x" * 32},
        {**NOTHING.encode(), "samples": -1},
        {**NOTHING.encode(), "algorithm": "samples-2"},
    ],
)
def test_what_is_no_digest_is_refused(encoded: Any) -> None:
    with pytest.raises(StateError, match="sample digest"):
        SampleDigest.decode(encoded)


@pytest.mark.parametrize(("begin", "end"), [((1, 0), (0, 5)), ((0, 11), (1, 0)), ((-1, 0), (0, 0)), ((0, 3), (0, 2))])
def test_a_stretch_that_is_none_is_refused(begin: tuple[int, int], end: tuple[int, int]) -> None:
    with pytest.raises(ConfigurationError, match="is no stretch of epochs of 10 samples"):
        expected(reading(Order.of_indices(10, seed=0)), 10, begin, end)
