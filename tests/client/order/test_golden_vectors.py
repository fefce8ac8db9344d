"""Literal orders. A change of any of them changes the order of every run that is under way.

If one of these fails, the change is wrong, or it needs a new algorithm name beside the old one; never a new literal.
"""

import hashlib
from typing import Any

import numpy as np
import pytest

from forebay.order import (
    BucketedSequence,
    Buckets,
    MixedSequence,
    MixtureOrder,
    Order,
    OrderOptions,
    Pieces,
    Selection,
    SharedLocated,
    Split,
    portions,
)

ROWS = [5, 7, 0, 4, 8]
SMALL: list[tuple[dict[str, Any], list[int], int, int, list[int]]] = [
    (
        {"lanes": 4, "window": 3},
        ROWS,
        17,
        0,
        [0, 13, 17, 6, 2, 14, 20, 7, 1, 12, 18, 9, 4, 15, 19, 8, 3, 23, 21, 11, 16, 5, 22, 10],
    ),
    (
        {"lanes": 4, "window": 3},
        ROWS,
        17,
        1,
        [1, 12, 17, 6, 0, 13, 18, 7, 2, 14, 19, 8, 4, 15, 20, 9, 3, 23, 21, 10, 16, 5, 22, 11],
    ),
    (
        {"lanes": 3, "window": 6, "sticky": False},
        ROWS,
        17,
        1,
        [17, 5, 12, 16, 6, 13, 20, 8, 2, 21, 7, 14, 19, 10, 1, 18, 11, 0, 22, 9, 15, 23, 4, 3],
    ),
    (
        {"lanes": 1, "window": 100},
        [10] * 3,
        -(2**80),
        2**40,
        [11, 10, 21, 24, 14, 17, 25, 12, 28, 19, 3, 27, 20, 23, 16, 18, 15, 1, 13, 2, 22, 0, 26, 4, 7, 29, 9, 8, 6, 5],
    ),
]


def digest(order: Order, epoch: int) -> str:
    return hashlib.sha256(order.epoch(epoch).sample_ids(0, order.samples).astype("<i8").tobytes()).hexdigest()


@pytest.mark.parametrize(("options", "rows", "seed", "epoch", "expected"), SMALL)
def test_small_orders_are_what_they_always_were(
    options: dict[str, Any], rows: list[int], seed: int, epoch: int, expected: list[int]
) -> None:
    order = Order(rows, seed=seed, options=OrderOptions(**options))
    assert order.algorithm == "window-1"
    assert order.epoch(epoch).sample_ids(0, order.samples).tolist() == expected


def test_an_order_of_six_lanes_and_default_window_is_what_it_always_was() -> None:
    order = Order([1000] * 50, seed=3, options=OrderOptions(lanes=6))
    assert order.window == 8334
    assert digest(order, 2) == "6f72379d2d1b013e0e5500bd368969558165786469a0b45d0aecd9822123a081"


def test_an_order_of_many_blocks_is_what_it_always_was() -> None:
    order = Order([100] * 5000, seed=3, options=OrderOptions(window=1000))
    assert digest(order, 7) == "9668ef80e7a38187b1895d8d302eee67168fa810e1185e06f6a4e09340875567"


def test_a_ranks_plan_in_mid_epoch_is_what_it_always_was() -> None:
    order = Order([1000] * 5000, seed=3, options=OrderOptions(window=2**14))
    plan = order.epoch(7).plan(3_000_000, 2, split=Split(3, 10), rank=1)
    assert plan.sample_id.tolist() == [1279188, 4200702, 3794152, 3760703, 3595430, 1035362]
    assert plan.offsets.tolist() == [0, 3, 6]


@pytest.mark.parametrize(
    ("samples", "seed", "epoch", "expected"),
    [
        (24, 17, 0, [20, 4, 10, 12, 11, 5, 0, 8, 21, 13, 14, 3, 23, 9, 22, 16, 17, 7, 6, 1, 15, 18, 19, 2]),
        (24, 17, 1, [11, 3, 7, 13, 21, 5, 2, 8, 20, 9, 4, 22, 19, 6, 17, 16, 12, 14, 10, 15, 0, 23, 18, 1]),
        (7, -(2**80), 2**40, [6, 1, 0, 2, 3, 4, 5]),
    ],
)
def test_small_global_orders_are_what_they_always_were(
    samples: int, seed: int, epoch: int, expected: list[int]
) -> None:
    order = Order.of_indices(samples, seed=seed)
    assert order.algorithm == "global-1"
    assert order.epoch(epoch).sample_ids(0, samples).tolist() == expected


def test_big_global_orders_are_what_they_always_were() -> None:
    order = Order.of_indices(100_000, seed=3)
    assert digest(order, 7) == "aaa3c0ef0de129ac6116cd5af7908b000875432967761f1b44f809c3b7faf5a8"
    read = Order.of_indices(2**40 + 1, seed=3).epoch(7).sample_ids(2**39, 2**39 + 5)
    assert read.tolist() == [939278040132, 103561440348, 585848244197, 34882119171, 824337929220]


def test_a_ranks_plan_of_a_global_order_is_what_it_always_was() -> None:
    plan = Order.of_indices(1_281_167, seed=3).epoch(7).plan(640_000, 2, split=Split(3, 10), rank=1)
    assert plan.sample_id.tolist() == [428595, 678614, 698664, 313292, 348882, 427776]
    assert plan.position.tolist() == [640007, 640008, 640001, 640011, 640015, 640013]


def test_a_small_mixture_is_what_it_always_was() -> None:
    order = MixtureOrder([5, 9, 40], [0.5, 0.3, 0.2], seed=17, block=10)
    assert order.algorithm == "mixture-1"
    draws = order.epoch(1).draws(0, 20)
    assert draws.source.tolist() == [0, 1, 0, 2, 1, 2, 1, 0, 0, 0, 1, 0, 2, 1, 0, 0, 1, 0, 2, 0]
    assert draws.source_epoch.tolist() == [20, 6, 20, 1, 6, 1, 6, 20, 20, 20, 7, 21, 1, 7, 21, 21, 7, 21, 1, 21]
    assert draws.source_position.tolist() == [0, 6, 1, 0, 7, 1, 8, 2, 3, 4, 0, 0, 2, 1, 1, 2, 2, 3, 3, 4]


def test_a_mixture_of_the_default_block_is_what_it_always_was() -> None:
    order = MixtureOrder([10**6, 10**5, 10**4], [0.7, 0.299, 0.001], seed=3)
    assert (order.slots, order.samples) == ([7000, 2990, 10], 10_000_000)
    draws = order.epoch(2).draws(0, 50_000)
    columns = np.stack([draws.source, draws.source_epoch, draws.source_position]).astype("<i8")
    expected = "367d320108fab5dbf439d1db048ae57cd874021e6113da80a2363054aef1bfb4"
    assert hashlib.sha256(columns.tobytes()).hexdigest() == expected


def rows_of(
    pieces: Pieces, name: str, fractions: dict[str, float], *, times: int = 1, **options: Any
) -> list[list[int]]:
    selected = Selection((portions(fractions, **options)[name],) * times).over(pieces)
    numbers = [np.arange(count) for count in selected.counts]
    return [selected.rows(np.full_like(index, piece), index).tolist() for piece, index in enumerate(numbers)]


def test_portions_of_a_split_are_what_they_always_were() -> None:
    keys = [b"a/0.parquet", b"a/1.parquet", b"\xff.parquet"]
    pieces = Pieces(np.array([9, 4, 0, 12]), np.array([0, 0, 1, 2]), keys)
    fractions = {"train": 0.6, "eval": 0.3, "test": 0.1}
    assert rows_of(pieces, "train", fractions, seed=17) == [[0, 3, 5, 6, 8], [1, 2], [], [1, 2, 4, 6, 7, 9, 10]]
    assert rows_of(pieces, "eval", fractions, seed=17) == [[1, 2, 4], [0, 3], [], [3, 5, 8, 11]]
    assert rows_of(pieces, "test", fractions, seed=17) == [[7], [], [], [0]]
    halves = {"a": 0.5, "b": 0.5}
    assert rows_of(pieces, "b", halves, times=2) == [[1, 5], [0], [], [0, 4, 8]]
    assert rows_of(pieces, "a", halves, seed=-(2**80), by="shard") == [[], [], [], list(range(12))]


def test_a_small_portion_of_a_big_shard_is_what_it_always_was() -> None:
    shard = Pieces(np.array([200_000]), np.array([0]), [b"shard-0000"])
    (rows,) = rows_of(shard, "eval", {"train": 0.9999, "eval": 0.0001})
    expected = [7283, 8909, 24314, 39569, 44732, 56124, 61979, 72812, 74096, 85063, 96968, 99810]
    assert rows[:12] == expected
    assert rows[12:] == [112093, 128819, 133781, 139859, 154250, 163061, 168202, 172945, 188124]


def test_batches_of_like_lengths_are_what_they_always_were() -> None:
    order, buckets = Order.of_indices(24, seed=17), Buckets([index * 7 % 24 for index in range(24)], window=10, unit=3)
    sequence = BucketedSequence(order, buckets, seed=17)
    assert buckets.spec()["algorithm"] == "buckets-1"
    assert sequence.read(0, 0, 24).sample_id.tolist() == [
        10,
        11,
        8,
        5,
        0,
        21,
        4,
        12,
        13,
        20,
        23,
        6,
        3,
        7,
        14,
        1,
        22,
        9,
        16,
        17,
        2,
        18,
        15,
        19,
    ]
    plan = SharedLocated(sequence, Split(2, 6), 1).plan(1, 6, 2)
    assert (plan.sample_id.tolist(), plan.position.tolist()) == ([22, 12, 2, 19, 16, 17], [10, 11, 6, 12, 17, 13])


def test_a_ranks_plan_of_a_mixture_is_what_it_always_was() -> None:
    orders = (Order([50] * 40, seed=3), Order([30] * 7, seed=4))
    mixture = MixtureOrder([2000, 210], [0.8, 0.2], seed=5, block=10)
    plan = SharedLocated(MixedSequence(mixture, orders), Split(3, 12), 1).plan(2, 600, 2)
    assert plan.source is not None
    assert (plan.source.tolist(), plan.sample_id.tolist(), plan.piece.tolist()) == (
        [1, 0, 0, 0, 0, 0, 0, 1],
        [22, 1651, 1598, 1176, 1426, 1950, 1570, 65],
        [40, 33, 31, 23, 28, 39, 31, 42],
    )
