"""What a demo's trainers write down as they go, and reading it back after they were killed.

Every rank appends one line to a file of its own after each optimizer step; rank 0 also appends events. A line is one
`write` to a file opened for appending, so a SIGKILL loses at most a line that was never whole, and that line belongs to
a step that was never finished.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Event", "Journal", "StepRecord", "Tail", "journal_path", "read_events", "read_steps"]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One optimizer step of one rank: what it was handed, without padding.

    `step` counts finished steps over all runs. `sample_ids` and `positions` are the loader's word, `numbers` what the
    rows themselves say. `loss` is the mean over the global batch.
    """

    run: int
    rank: int
    world_size: int
    step: int
    epoch: int
    positions: list[int]
    sample_ids: list[int]
    numbers: list[int]
    loss: float
    fetch_seconds: float
    step_seconds: float


@dataclass(frozen=True, slots=True)
class Event:
    """What rank 0 has seen happen, and the step, epoch and position that it happened to.

    kind: "started" or "restored" (`source`: "local" or "durable"); "local" or "durable" when a checkpoint has become
    that, with the seconds that it has taken so far by the point, and "blocked".
    """

    run: int
    kind: str
    step: int
    epoch: int
    position: int
    mlflow_run_id: str = ""
    source: str = ""
    generation: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


class Journal:
    """Appends records to one file, each whole or not at all."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def append(self, record: StepRecord | Event) -> None:
        os.write(self._file, json.dumps(asdict(record)).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


class Tail:
    """Reads the lines that were added to a file since it last looked; the file need not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def lines(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                yield json.loads(line)


def journal_path(directory: Path, run: int, rank: int | None) -> Path:
    """The file of one rank's steps, or of the run's events for None."""
    return directory / "records" / (f"run-{run}-events.jsonl" if rank is None else f"run-{run}-rank-{rank}.jsonl")


def read_steps(directory: Path, run: int, world_size: int) -> list[StepRecord]:
    """All whole records of a run, by step, then rank: the order in which the samples were handed out."""
    files = [Tail(journal_path(directory, run, rank)) for rank in range(world_size)]
    records = [StepRecord(**line) for file in files for line in file.lines()]
    return sorted(records, key=lambda record: (record.step, record.rank))


def read_events(directory: Path, run: int) -> Sequence[Event]:
    return [Event(**line) for line in Tail(journal_path(directory, run, None)).lines()]
