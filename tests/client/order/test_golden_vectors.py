"""Literal orders. A change of any of them changes the order of every run that is under way.

If one of these fails, the change is wrong, or it needs a new algorithm name beside the old one; never a new literal.
"""

import hashlib
from typing import Any

import pytest

from forebay.order import Order, OrderOptions, Split

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
    plan = Order([1000] * 5000, seed=3).epoch(7).plan(3_000_000, 2, split=Split(3, 10), rank=1)
    assert plan.sample_id.tolist() == [1279188, 4200702, 3794152, 3760703, 3595430, 1035362]
    assert plan.offsets.tolist() == [0, 3, 6]
