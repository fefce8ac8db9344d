"""CheckpointService as the commands call it, besides what everybody does.

An embedded daemon is started where none runs: only a daemon has the credentials for the destination. One that was
asked for by its address is not waited for.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from forebay.daemon.checkpoint_root import CheckpointRoot
from forebay_core.checkpoints.documents import Generation
from forebay_core.checkpoints.names import Attempt
from forebay_core.errors import CheckpointError

#: Small files of one attempt that are fetched side by side.
_AT_ONCE = 8
Item = TypeVar("Item")


@dataclass(frozen=True)
class Removed:
    """An attempt that went, or would go: its objects, and their bytes at the destination."""

    attempt: str
    state: str
    objects: int
    size_bytes: int


class Checkpoints(CheckpointRoot):
    """One root, as it is looked at and tidied up."""

    def collect(
        self, *, keep_last: int, keep_every_steps: int, undecided_seconds: float, dry_run: bool
    ) -> list[Removed]:
        """Applies a retention and cleans up; 0 stands for all, none and never."""
        from forebay_protos.v1 import checkpoints_pb2 as pb

        retention = pb.Retention(keep_last=keep_last, keep_every_steps=keep_every_steps)
        request = pb.CollectGarbageRequest(
            root=self.root, retention=retention, undecided_seconds=undecided_seconds, dry_run=dry_run
        )
        reply = self._call("CollectGarbage", request, pb.CollectGarbageResponse)
        return [Removed(each.attempt, each.state, each.objects, each.size_bytes) for each in reply.removed]

    def generation(self, number: int) -> Generation | None:
        """What a start of the job said of itself; None where nobody claimed that generation."""
        from forebay_protos.v1 import checkpoints_pb2 as pb

        request = pb.ReadLedgerRequest(root=self.root, without_parts=True)
        reply = self._call("ReadLedger", request, pb.ReadLedgerResponse)
        documents = {each.generation: each.document for each in reply.generations}
        return Generation.decode(documents[number]) if documents.get(number) else None

    def reading(self, attempt: Attempt, *, ends: bool = True) -> "Reading":
        """The files of an attempt, as long as the context lasts.

        ends: what was fetched may go then. Small files go by themselves after a while, and a restore that runs on this
        node may still want them.
        """
        return Reading(self, attempt, ends=ends)


class Reading:
    """Fetches files of one attempt; may be used on several threads. The root is only read: it need not be writable."""

    def __init__(self, checkpoints: Checkpoints, attempt: Attempt, *, ends: bool) -> None:
        self._checkpoints, self._attempt, self._ends = checkpoints, attempt, ends

    def __enter__(self) -> Self:
        self._checkpoints.find_staging()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._ends:
            self._checkpoints.end_reading(self._attempt)

    def fetch(self, file: str) -> Path:
        """A local file; `CheckpointNotFound` where the attempt has none of that name."""
        path, _ = self._checkpoints.fetch(self._attempt, file)
        return path

    def each(self, files: Sequence[str], decode: Callable[[bytes], Item]) -> dict[str, Item | CheckpointError]:
        """The small files of these names, decoded, or why they cannot be read."""

        def read(file: str) -> Item | CheckpointError:
            try:
                return decode(self.fetch(file).read_bytes())
            except CheckpointError as error:
                return error

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return dict(zip(files, pool.map(read, files), strict=True))
