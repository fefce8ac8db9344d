"""Whether a run that was killed and resumed was exact: pure functions over records.

The *effective sequence* is what the trained model has seen: of the first run what its restored state had counted, and
all of the second. It is compared by position with one process that iterates without training, and with the numbers
that the dataset was written with. Nothing here asks the loader or its state what should have come.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from forebay.demo.records import StepRecord

__all__ = ["Handed", "Verdict", "effective_sequence", "verify"]


@dataclass(frozen=True, slots=True)
class Handed:
    """One sample as it was handed to a trainer: where in the order, which one, and what its row says it is."""

    epoch: int
    position: int
    sample_id: int
    number: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """Samples seen more than once in an epoch, samples not seen, and whether every position had its own sample."""

    samples_repeated: int
    samples_skipped: int
    order_equal: bool

    @property
    def exact(self) -> bool:
        return self.order_equal and self.samples_repeated == 0 and self.samples_skipped == 0


def effective_sequence(
    first: Sequence[StepRecord], second: Sequence[StepRecord], restored: tuple[int, int]
) -> list[Handed]:
    """What the resumed model has seen. `restored` is the (epoch, position) that the second run started from."""
    kept = [handed for record in first for handed in _handed(record) if (handed.epoch, handed.position) < restored]
    return kept + [handed for record in second for handed in _handed(record)]


def _handed(record: StepRecord) -> list[Handed]:
    rows = zip(record.positions, record.sample_ids, record.numbers, strict=True)
    return [Handed(record.epoch, position, sample_id, number) for position, sample_id, number in rows]


def verify(sequence: Sequence[Handed], reference: Sequence[Sequence[int]], samples: int) -> Verdict:
    """Compares with `reference`: for each epoch the row numbers by position. `samples` is the size of the dataset."""
    seen = Counter((handed.epoch, handed.number) for handed in sequence)
    expected = {(epoch, number) for epoch in range(len(reference)) for number in range(samples)}
    got = sorted((handed.epoch, handed.position, handed.sample_id, handed.number) for handed in sequence)
    want = [
        (epoch, position, number, number)
        for epoch, numbers in enumerate(reference)
        for position, number in enumerate(numbers)
    ]
    return Verdict(
        samples_repeated=sum(seen.values()) - len(seen),
        samples_skipped=len(expected - seen.keys()),
        order_equal=got == want,
    )
