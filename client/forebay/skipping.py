"""What is kept and said of samples that could not be read and were skipped (`on_error="skip"`).

A `SkippedSample` is made by the reader that met it and travels with its batch; the `SkipLedger` of a loader takes it in
when that batch is handed out, never before, on the trainer's thread. What is logged is bounded: the first sample of
each class of error, then numbers: at each power of ten, at the end of an epoch, and when the loader is closed.
"""

import logging
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

KEPT_RECORDS = 10_000
LOGGED_CLASSES = 100
MESSAGE_CHARACTERS = 500
_log = logging.getLogger("forebay")


@dataclass(frozen=True, slots=True)
class SamplePlace:
    """Which sample of an epoch, and where it lies.

    position: in the epoch's order. shard: its URL; None for a map-style dataset. row: its number among the shard's
    rows, or the index in a map-style dataset.
    """

    epoch: int
    position: int
    sample_id: int
    shard: str | None
    row: int

    def __str__(self) -> str:
        row = f"index {self.row}" if self.shard is None else f"{self.shard} row {self.row}"
        return f"sample {self.sample_id} ({row}, epoch {self.epoch}, position {self.position})"


@dataclass(frozen=True, slots=True)
class SkippedSample(SamplePlace):
    """A sample that could not be read and in whose place another of its batch stood.

    step: the batch's number over all epochs, as in `BatchTiming`. error: the name of the exception's class. message:
    what it said, on one line, cut off after 500 characters.
    """

    step: int
    error: str
    message: str

    @classmethod
    def of(cls, place: SamplePlace, step: int, error: BaseException) -> "SkippedSample":
        """The record of an exception."""
        message = " ".join(str(error).split())[:MESSAGE_CHARACTERS]
        return cls(
            place.epoch,
            place.position,
            place.sample_id,
            place.shard,
            place.row,
            step,
            type(error).__name__,
            message,
        )

    def __str__(self) -> str:
        return f"{SamplePlace.__str__(self)}: {self.error}: {self.message}"


class SkipLedger:
    """The skipped samples of one loader: the latest of them, their number, and what the log is told."""

    def __init__(self) -> None:
        self.total = 0
        self.latest: deque[SkippedSample] = deque(maxlen=KEPT_RECORDS)
        self._classes: set[str] = set()
        self._unsaid: Counter[str] = Counter()
        self._milestone = 10

    def take(self, skipped: Sequence[SkippedSample]) -> None:
        """Counts the samples that a batch lacks, now that it is handed out."""
        for record in skipped:
            self.total += 1
            self.latest.append(record)
            self._unsaid[record.error] += 1
            if record.error not in self._classes and len(self._classes) < LOGGED_CLASSES:
                self._classes.add(record.error)
                _log.warning(
                    "skipped %s; another of its batch stands in its place. Further %ss are counted in loader.skipped",
                    record,
                    record.error,
                )
        if self.total >= self._milestone:
            self._milestone = 10 ** len(str(self.total))
            self.summarise("so far")

    def summarise(self, when: str) -> None:
        """Says how many samples were skipped since it was last said, if any were."""
        if not self._unsaid:
            return
        kinds = ", ".join(f"{count} × {name}" for name, count in self._unsaid.most_common(5))
        _log.warning(
            "%s: %d more skipped (%s), %d in all; loader.skipped lists them",
            when,
            self._unsaid.total(),
            kinds,
            self.total,
        )
        self._unsaid.clear()
