"""CheckpointService as a checkpointer calls it, besides what everybody does.

Room is waited for in slices, so that no call lasts for as long as there is none. Any thread.
"""

import json
import logging
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from forebay.daemon import channel
from forebay.daemon.checkpoint_root import CheckpointRoot, Place, method_of
from forebay.daemon.status import UploadStatus
from forebay_core.checkpoints.names import Attempt
from forebay_core.errors import (
    CheckpointError,
    DaemonError,
    DaemonUnavailable,
    SourceError,
    StagingFull,
    by_name,
    one_line,
)

if TYPE_CHECKING:
    from forebay_protos.v1 import checkpoints_pb2 as pb

_log = logging.getLogger("forebay.checkpoint")
WhenFull = Literal["block", "skip", "fail"]
_SLICE_SECONDS = 20.0
#: Before a watch that was cut off is begun again.
_AGAIN_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class NoRoom:
    """There is no directory for an attempt: it is to be asked for again, or the attempt is left out.

    why: as the daemon says it.
    """

    is_skipped: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """Which ranks of how many an attempt has on this node."""

    ranks: Sequence[int]
    world_size: int


@dataclass(frozen=True, slots=True)
class Keep:
    """Retention; None: all, none besides."""

    last: int | None = None
    every_steps: int | None = None


@dataclass(frozen=True, slots=True)
class Fate:
    """How a sealed attempt fares. ended: durable or failed; `error` says why it failed."""

    is_durable: bool = False
    error: Exception | None = None

    @property
    def ended(self) -> bool:
        return self.is_durable or self.error is not None


class Calls(CheckpointRoot):
    """What a job asks about its root."""

    def of_root(self, root: str) -> "Calls":
        """The same daemon about another root."""
        return Calls(self._client, root)

    def claim(self, token: str, parent: Attempt | None, notes: Mapping[str, Any]) -> int:
        """The generation that this start of the job is."""
        from forebay_protos.v1 import checkpoints_pb2 as pb

        name = "" if parent is None else parent.name
        request = pb.ClaimGenerationRequest(
            root=self.root, token=token, parent=name, notes_json=json.dumps(dict(notes), allow_nan=False)
        )
        reply = self._call("ClaimGeneration", request, pb.ClaimGenerationResponse)
        return reply.generation

    def begin(
        self, attempt: Attempt, part: Part, size_bytes: int, *, when_full: WhenFull, fences: bool
    ) -> "Place | NoRoom":
        """A directory for the attempt, or that there is no room: for "block" after waiting for some seconds.

        fences: `CheckpointFenced` where a newer generation was claimed. `StagingFull` for "fail", and for what will
        never have room.
        """
        from forebay_protos.v1 import checkpoints_pb2 as pb

        kind = pb.BeginAttemptRequest
        modes = {"block": kind.WHEN_FULL_BLOCK, "skip": kind.WHEN_FULL_SKIP, "fail": kind.WHEN_FULL_FAIL}
        request = kind(
            root=self.root,
            attempt=attempt.name,
            ranks=part.ranks,
            world_size=part.world_size,
            size_bytes=size_bytes,
            when_full=modes[when_full],
            wait_seconds=_SLICE_SECONDS,
            check_fenced=fences,
        )
        began = time.monotonic()
        try:
            reply = self._call("BeginAttempt", request, pb.BeginAttemptResponse)
        except StagingFull as error:
            if when_full == "block" and time.monotonic() - began >= _SLICE_SECONDS:
                return NoRoom(is_skipped=False, why=one_line(error))
            raise
        if reply.skipped:
            return NoRoom(is_skipped=True)
        return Place(reply.directory.disk_id, reply.directory.path)

    def seal(self, attempt: Attempt, part: Part, *, keep: Keep | None, supersedes: bool) -> None:
        """From now on the daemon sees to it. keep: of the node of rank 0."""
        from forebay_protos.v1 import checkpoints_pb2 as pb

        request = pb.SealAttemptRequest(
            root=self.root,
            attempt=attempt.name,
            ranks=part.ranks,
            world_size=part.world_size,
            supersedes=supersedes,
            retention=None
            if keep is None
            else pb.Retention(keep_last=keep.last or 0, keep_every_steps=keep.every_steps or 0),
        )
        self._call("SealAttempt", request, pb.SealAttemptResponse)

    def watch(self, attempt: Attempt, is_ended: threading.Event) -> Generator[Fate, None, None]:
        """At once, at each change and every second or so; the last one has ended, or nobody wants to know any more.

        Who stops listening closes it. After a fork or a restart the daemon is asked again, and so is one that knows the
        attempt by its destination alone, for as long as that does not answer: neither says that anything is lost.

        Raises `DaemonUnavailable` where no daemon comes back.
        """
        while True:
            try:
                for fate in self._watch_once(attempt):
                    yield fate
                    if fate.ended:
                        return
            except DaemonUnavailable:
                self._client.status(is_ended=is_ended.is_set)  # waits until a daemon answers, or raises
            except SourceError as error:
                _log.debug("it is not known whether %s is durable: %s", attempt.name, one_line(error))
            if is_ended.wait(_AGAIN_SECONDS):
                return

    def _watch_once(self, attempt: Attempt) -> Iterator[Fate]:
        from forebay_protos.v1 import checkpoints_pb2 as pb

        request = pb.WatchAttemptRequest(root=self.root, attempt=attempt.name)
        method = method_of("WatchAttempt")
        for status in channel.answers(self._client.address.socket, method, request, pb.WatchAttemptResponse):
            yield _fate(status)

    def uploads(self) -> dict[str, UploadStatus]:
        """What this node has sealed of the root, by the names of the attempts; in one try, {} without an answer."""
        try:
            uploads = self._client.status_now().staging.uploads
        except DaemonError:
            return {}
        return {each.attempt: each for each in uploads if each.root == self.root}

    def expedite(self, attempt: Attempt) -> None:
        """Uploads it before others."""
        from forebay_protos.v1 import checkpoints_pb2 as pb

        self._call("Expedite", pb.ExpediteRequest(root=self.root, attempt=attempt.name), pb.ExpediteResponse)

    def append_ledger(self, generation: int, part: int, content: bytes) -> None:
        """Adds a part to the generation's ledger; it is durable then."""
        from forebay_protos.v1 import checkpoints_pb2 as pb

        request = pb.AppendLedgerRequest(root=self.root, generation=generation, part=part, content=content)
        self._call("AppendLedger", request, pb.AppendLedgerResponse)


def _fate(status: "pb.WatchAttemptResponse") -> Fate:
    from forebay_protos.v1 import checkpoints_pb2 as pb

    if status.phase == pb.WatchAttemptResponse.PHASE_DURABLE:
        return Fate(is_durable=True)
    if status.phase != pb.WatchAttemptResponse.PHASE_FAILED:
        return Fate()
    known = by_name(status.error_class) if status.error_class else CheckpointError
    return Fate(error=known(status.error_message or "the upload failed; the daemon's log says why"))
