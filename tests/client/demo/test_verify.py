"""The demo's proof must see every kind of damage: each test breaks one thing in an exact pair of runs."""

from dataclasses import replace

import pytest

from forebay.demo.records import StepRecord
from forebay.demo.verify import Handed, Verdict, effective_sequence, verify

SAMPLES, EPOCHS, BATCH = 11, 2, 4
#: For each epoch the sample at each position: any two permutations do.
REFERENCE = [[(3 * position + epoch) % SAMPLES for position in range(SAMPLES)] for epoch in range(EPOCHS)]
RESTORED = (1, 4)
EXACT = Verdict(samples_repeated=0, samples_skipped=0, order_equal=True)


def run(number: int, world_size: int, start: tuple[int, int], stop: tuple[int, int]) -> list[StepRecord]:
    """The records of a run from one (epoch, position) to another, each step shared out among the ranks."""
    records: list[StepRecord] = []
    for epoch in range(start[0], EPOCHS):
        first = start[1] if epoch == start[0] else 0
        for begin in range(first, SAMPLES, BATCH):
            if (epoch, begin) >= stop:
                return records
            positions = list(range(begin, min(begin + BATCH, SAMPLES)))
            records += [
                record(number, rank, world_size, epoch, positions[rank::world_size]) for rank in range(world_size)
            ]
    return records


def record(number: int, rank: int, world_size: int, epoch: int, positions: list[int]) -> StepRecord:
    ids = [REFERENCE[epoch][position] for position in positions]
    return StepRecord(
        number, rank, world_size, epoch * 3 + positions[0] // BATCH, epoch, positions, ids, ids, 1.0, 0.0, 0.1
    )


@pytest.fixture
def killed() -> list[StepRecord]:
    """Two ranks, killed one step after the state that was restored."""
    return run(0, 2, (0, 0), (1, 8))


@pytest.fixture
def resumed() -> list[StepRecord]:
    return run(1, 3, RESTORED, (EPOCHS, 0))


def judge(first: list[StepRecord], second: list[StepRecord]) -> Verdict:
    return verify(effective_sequence(first, second, RESTORED), REFERENCE, SAMPLES)


def test_a_run_that_repeats_only_what_its_state_had_not_counted_is_exact(
    killed: list[StepRecord], resumed: list[StepRecord]
) -> None:
    assert any((r.epoch, r.positions[0]) >= RESTORED for r in killed), "the kill must leave something to repeat"
    assert judge(killed, resumed) == EXACT
    assert judge(killed, resumed).exact


def test_samples_handed_out_again_after_the_restart_are_repeated(
    killed: list[StepRecord], resumed: list[StepRecord]
) -> None:
    again = run(1, 3, (1, 0), (1, 4))
    verdict = judge(killed, [*again, *resumed])
    assert verdict == Verdict(samples_repeated=4, samples_skipped=0, order_equal=False)


def test_samples_that_were_fetched_and_never_handed_out_are_skipped(
    killed: list[StepRecord], resumed: list[StepRecord]
) -> None:
    verdict = judge(killed, [r for r in resumed if r.positions[0] >= 8])
    assert verdict == Verdict(samples_repeated=0, samples_skipped=4, order_equal=False)


def test_the_right_samples_at_other_positions_are_another_order(
    killed: list[StepRecord], resumed: list[StepRecord]
) -> None:
    first = resumed[0]
    swapped = replace(first, sample_ids=first.sample_ids[::-1], numbers=first.numbers[::-1])
    assert swapped != first
    assert judge(killed, [swapped, *resumed[1:]]) == Verdict(0, 0, order_equal=False)


def test_rows_that_are_not_what_the_loader_says_they_are_are_noticed(
    killed: list[StepRecord], resumed: list[StepRecord]
) -> None:
    first = resumed[0]
    mislabelled = replace(first, numbers=first.numbers[::-1])
    assert not judge(killed, [mislabelled, *resumed[1:]]).order_equal


def test_an_epoch_in_the_order_of_another_epoch_is_noticed(killed: list[StepRecord], resumed: list[StepRecord]) -> None:
    wrong = [replace(r, sample_ids=[REFERENCE[0][p] for p in r.positions]) for r in resumed]
    wrong = [replace(r, numbers=r.sample_ids) for r in wrong]
    assert not judge(killed, wrong).exact


def test_a_sample_that_no_process_ever_sees_is_skipped(killed: list[StepRecord], resumed: list[StepRecord]) -> None:
    sequence = effective_sequence(killed, resumed, RESTORED)
    assert verify(sequence, REFERENCE, SAMPLES + 1).samples_skipped == EPOCHS


def test_the_effective_sequence_ends_the_first_run_at_the_restored_position(
    killed: list[StepRecord], resumed: list[StepRecord]
) -> None:
    sequence = effective_sequence(killed, [], RESTORED)
    assert max((handed.epoch, handed.position) for handed in sequence) == (1, 3)
    assert Handed(0, 0, REFERENCE[0][0], REFERENCE[0][0]) in sequence
