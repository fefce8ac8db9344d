"""What a peer must give before it is measured: every sample once, in any order."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from benchmarks.peers.program import BATCH, SEQUENCE, Rows, WrongSamples, measure, verify


@pytest.fixture
def rows() -> Rows:
    return np.random.default_rng(0).integers(0, 2**15, (3 * BATCH, SEQUENCE), dtype=np.int32)


def test_all_rows_in_any_order_and_any_integer_type_are_right(rows: Rows) -> None:
    shuffled = rows[np.random.default_rng(1).permutation(len(rows))]
    verify(rows, [torch.from_numpy(batch) for batch in np.split(shuffled, 3)])
    verify(rows, [torch.from_numpy(batch).long() for batch in np.split(shuffled, 6)])


@pytest.mark.parametrize("fault", ["a row twice", "a row missing", "one token", "two tokens swapped", "no batch"])
def test_a_wrong_epoch_is_refused(rows: Rows, fault: str) -> None:
    given = rows.copy()
    if fault == "a row twice":
        given[1] = given[0]
    elif fault == "a row missing":
        given = given[1:]
    elif fault == "one token":
        given[5, 7] += 1
    elif fault == "two tokens swapped":
        given[5, :2] = given[5, 1::-1]
    else:
        given = given[:0]
    batches = [torch.from_numpy(given[start : start + BATCH]) for start in range(0, len(given), BATCH)]
    with pytest.raises(WrongSamples):
        verify(rows, batches)


def test_batches_of_another_shape_or_type_are_refused(rows: Rows) -> None:
    with pytest.raises(WrongSamples, match="a batch of"):
        verify(rows, [torch.from_numpy(rows)])
    with pytest.raises(WrongSamples, match="a batch of"):
        verify(rows, [torch.from_numpy(batch).float() for batch in np.split(rows, 3)])


def test_the_first_batch_is_not_measured_and_the_others_are() -> None:
    counted: list[str] = []

    class Batch(list[int]):
        def __init__(self, name: str) -> None:
            super().__init__(range(BATCH))
            self.name = name

        def __len__(self) -> int:
            counted.append(self.name)
            return super().__len__()

    result = measure([Batch("first"), Batch("second"), Batch("third")], seconds=60)
    assert counted == ["second", "third"]
    assert result["gigabytes_per_second"] / result["samples_per_second"] == pytest.approx(SEQUENCE * 4 / 1e9)


def test_a_slow_epoch_is_cut_off(rows: Rows) -> None:
    def endless() -> Iterator[Rows]:
        while True:
            yield rows[:BATCH]

    assert measure(endless(), seconds=0.0)["samples_per_second"] > 0
