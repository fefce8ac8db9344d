"""The global shuffle: that it is a permutation, the one the model tells, and that no order is favoured."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.order.lanes import Int64
from forebay.order.permutation import Permutation
from forebay.order.philox import seed_digest
from tests.client.order import model

BIG = [2**16 - 1, 2**16, 2**16 + 1, 2**17 - 1, 2**17 + 1, 317**2, 317**2 + 1, 99_991, 510_510, 1_000_003]


def read(permutation: Permutation, positions: Int64) -> Int64:
    samples = np.empty_like(positions)
    permutation.read(0, positions, samples)
    return samples


def excess(counts: Int64) -> float:
    """How many standard deviations the chi-square of counts that should be equal lies above what chance gives."""
    expected = counts.sum() / counts.size
    chi_square = float(((counts - expected) ** 2).sum() / expected)
    return (chi_square - (counts.size - 1)) / math.sqrt(2 * (counts.size - 1))


def test_every_sample_of_a_dataset_of_any_size_is_read_once_and_found_again() -> None:
    for samples in range(2001):
        permutation, positions = Permutation(samples, 3, samples), np.arange(samples)
        found = read(permutation, positions)
        assert np.array_equal(np.sort(found), positions)
        assert np.array_equal(permutation.positions(found), positions)


@pytest.mark.parametrize("samples", BIG)
def test_every_sample_of_a_big_dataset_is_read_once_and_found_again(samples: int) -> None:
    permutation, positions = Permutation(1, 0, samples), np.arange(samples)
    found = read(permutation, positions)
    assert np.array_equal(np.sort(found), positions)
    assert np.array_equal(permutation.positions(found), positions)


@settings(max_examples=150, deadline=None)
@given(
    samples=st.one_of(st.integers(1, 2000), st.integers(1, 2**62)),
    seed=st.integers(),
    epoch=st.integers(0, 2**63),
    data=st.data(),
)
def test_any_positions_in_any_order_read_what_the_model_reads(
    samples: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    positions = data.draw(st.lists(st.integers(0, samples - 1), min_size=1, max_size=8))
    permutation = Permutation(seed_digest(seed), epoch, samples)
    found = read(permutation, np.array(positions))
    assert found.tolist() == [model.permuted(position, samples, seed, epoch) for position in positions]
    assert permutation.positions(found).tolist() == positions


@pytest.mark.parametrize("samples", [3, 5, 6])
def test_all_orders_of_a_few_samples_are_equally_frequent(samples: int) -> None:
    orders: dict[tuple[int, ...], int] = {}
    for epoch in range(8000):
        order = tuple(read(Permutation(2, epoch, samples), np.arange(samples)).tolist())
        orders[order] = orders.get(order, 0) + 1
    assert len(orders) == math.factorial(samples)
    assert excess(np.array(list(orders.values()))) < 4


@pytest.mark.parametrize("samples", [7, 40, 256, 300])
def test_any_sample_follows_any_other_equally_often(samples: int) -> None:
    epochs = max(2000, 10 * samples)
    pairs = np.zeros((samples, samples), dtype=np.int64)
    for epoch in range(epochs):
        order = read(Permutation(4, epoch, samples), np.arange(samples))
        np.add.at(pairs, (order[:-1], order[1:]), 1)
    assert abs(excess(pairs[~np.eye(samples, dtype=bool)])) < 4
    assert not pairs.diagonal().any()


@pytest.mark.parametrize("samples", [2**20, 10**6, 10**9, 2**40 + 1])
def test_samples_read_together_lie_evenly_over_a_big_dataset(samples: int) -> None:
    positions = np.arange(samples // 3, samples // 3 + 200_000)
    found = read(Permutation(6, 1, samples), positions)
    cells = found * 500 // samples
    assert excess(np.bincount(cells, minlength=500)) < 4
    assert abs(excess(np.bincount(cells[:-1] * 500 + cells[1:], minlength=250_000))) < 5


def test_seed_and_epoch_change_the_permutation() -> None:
    positions = np.arange(10_000)
    base = read(Permutation(1, 1, 10_000), positions)
    for other in (Permutation(2, 1, 10_000), Permutation(1, 2, 10_000)):
        same = np.count_nonzero(read(other, positions) == base)
        assert same < 10
