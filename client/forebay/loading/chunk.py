"""What passes between the planner, the readers and the trainer: plain values that cross threads and processes."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from forebay.digest import NOTHING, SampleDigest
from forebay.skipping import SkippedSample
from forebay.timing import Stage
from forebay_core.errors import ForebayError, by_name

Int64 = npt.NDArray[np.int64]


class StillFilling(Exception):
    """A piece that is being filled has not come for long: is the daemon still at it?"""


class Closed(Exception):
    """The loader was closed while something waited for it."""


class PieceFile(NamedTuple):
    """Where the local form of a piece lies. `inode` and `size` are 0 while the daemon still fills it.

    `offset` and `length` bound the piece in a file that holds more (a source read in place); length 0: the whole file.
    """

    piece: int
    path: str
    inode: int
    size: int
    offset: int
    length: int
    #: The user's own file, read where it lies: links are followed, no lock is taken.
    in_place: bool = False
    #: The position over all epochs from which on nobody of this rank wants the piece any more, as is known so far.
    until: int = 0
    #: Of the daemon; empty where the file is not on one of its disks.
    disk_id: str = ""


class StepEnd(NamedTuple):
    """Where the loader stands once a step was handed out, and the number of that step over all epochs.

    digest: of the samples that the step hands out on this rank.
    """

    epoch: int
    position: int
    step: int
    last_of_epoch: bool
    digest: SampleDigest = NOTHING


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive steps of one rank, read together.

    offsets: [steps + 1], the cut of the samples into steps; the other arrays are [samples], as in `RankPlan`.
    ends: one for each step.
    files: every piece of the chunk.
    source, source_epoch: of each sample of a mixture, [samples]; None for one dataset, whose epoch is `epoch`.
    begin, end: the positions over all epochs before and after it, by which readers close what nobody wants any more.
    is_frugal: the cache is small: whoever reads it closes everything else first.
    """

    epoch: int
    offsets: Int64
    sample_id: Int64
    piece: Int64
    row: Int64
    position: Int64
    is_pad: npt.NDArray[np.bool_]
    ends: tuple[StepEnd, ...]
    files: tuple[PieceFile, ...]
    begin: int
    end: int
    is_frugal: bool = False
    source: Int64 | None = None
    source_epoch: Int64 | None = None

    def epochs(self, cut: slice) -> list[int]:
        """The epoch of its own dataset in which each of the samples is read."""
        if self.source_epoch is None:
            return [self.epoch] * (cut.stop - cut.start)
        epochs: list[int] = self.source_epoch[cut].tolist()
        return epochs

    def with_files(self, files: tuple[PieceFile, ...]) -> "Chunk":
        """The same samples in other places."""
        return replace(self, files=files)


class Batch(NamedTuple):
    """One step's data with what the trainer's thread needs to hand it over."""

    data: Any
    end: StepEnd
    samples: int
    stages: tuple[Stage, ...]
    skipped: tuple[SkippedSample, ...] = ()

    def pin_memory(self) -> "Batch":
        """With its tensors in pinned memory."""
        from torch.utils.data._utils.pin_memory import pin_memory

        return self._replace(data=pin_memory(self.data))  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class Lost:
    """A reader found files gone, or (`gone=False`) waited long for one that is still being filled.

    The chunk has to be leased and read again. `unreadable` is the path of a file that is there and cannot be read.
    """

    chunk: Chunk
    message: str
    gone: bool
    unreadable: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """A chunk that cannot be read, for a reason that forebay knows: the error's class name, message and notes."""

    error: str
    message: str
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, error: ForebayError) -> "Failed":
        """What crosses processes of an error."""
        return cls(type(error).__name__, str(error), tuple(getattr(error, "__notes__", ())))

    def raised(self) -> ForebayError:
        """The error again."""
        error = by_name(self.error)(self.message)
        for note in self.notes:
            error.add_note(note)
        return error
