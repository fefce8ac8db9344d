"""CheckpointService as everybody calls it: one root through one daemon, plain values in and out.

Every call rides through the daemon's restarts, but for `verify`. Any thread.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from forebay.daemon import channel
from forebay.daemon.client import DaemonClient
from forebay.daemon.source_urls import absolute
from forebay_core.checkpoints.documents import State
from forebay_core.checkpoints.names import Attempt, parse_attempt
from forebay_core.errors import CheckpointNotFound, DaemonError

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from forebay_protos.v1 import checkpoints_pb2 as pb

#: Of a call, which may list thousands of attempts on a slow store, or wait there for another node's file.
_PATIENCE_SECONDS = 3600.0
Reply = TypeVar("Reply", bound="Message")


@dataclass(frozen=True, slots=True)
class Place:
    """A path on one of the daemon's disks, wherever this process sees them."""

    disk_id: str
    path: str


@dataclass(frozen=True, slots=True)
class Opened:
    """A root as this node's daemon opened it. node_id: the same for all ranks that stage in the same place.

    staging: the directory as the daemon sees it. is_new: of one that was only tried, whether it is still to be made.
    """

    root: str
    node_id: str
    staging: Place
    has_put_if_absent: bool
    embedded: bool
    newest_generation: int
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An attempt as the destination and this node know it. `state` is empty without a decision that can be read.

    reason: why it was decided so, or what is wrong with it.
    `world_size`, `size_bytes` and `decided_unix_seconds` are 0 where they are not known.
    """

    attempt: Attempt
    state: str = ""
    reason: str = ""
    world_size: int = 0
    durable_ranks: tuple[int, ...] = ()
    staged_ranks: tuple[int, ...] = ()
    size_bytes: int = 0
    decided_unix_seconds: float = 0.0

    @property
    def is_committed(self) -> bool:
        return self.state == State.COMMITTED

    @property
    def is_unreadable(self) -> bool:
        """Something was decided, and this forebay cannot read what."""
        return not self.state and bool(self.decided_unix_seconds)

    @property
    def said_state(self) -> str:
        """In words, with the reason."""
        state = self.state or ("unreadable" if self.is_unreadable else "undecided")
        return f"{state}: {self.reason}" if self.reason else state


@dataclass(frozen=True, slots=True)
class Listing:
    """What there is in a root, the newest first."""

    root: str
    checkpoints: tuple[Checkpoint, ...]
    newest_generation: int

    def existing(self) -> "Listing":
        """Itself. Raises `CheckpointNotFound` where there are no checkpoints, and no generation either."""
        if not self.checkpoints and not self.newest_generation:
            raise CheckpointNotFound(
                f"there are no checkpoints of forebay at {self.root}: give the root that the Checkpointer was given"
            )
        return self


@dataclass(frozen=True, slots=True)
class VerifyStep:
    """A file that was looked at; `fault` is empty where it is as it was written."""

    file: str
    size_bytes: int
    fault: str
    files_done: int
    files_total: int


class CheckpointRoot:
    """What can be asked about one root; a path is made absolute.

    Raises `DaemonUnavailable`, `DaemonError`, `CheckpointError` and its kinds, `SourceError` and its kinds.
    """

    def __init__(self, client: DaemonClient, root: str) -> None:
        self._client = client
        self._staging_path = ""
        self.root = absolute(root)

    def open(self, *, only_tries: bool = False) -> Opened:
        """Lets the daemon try the root, where something is written and deleted; with `only_tries` nothing is left.

        The other calls ask about the form in which the daemon knows it from then on.
        """
        from forebay_protos.v1 import checkpoints_pb2 as pb

        reply = self._call("OpenRoot", pb.OpenRootRequest(root=self.root, only_tries=only_tries), pb.OpenRootResponse)
        staging = Place(reply.staging_disk.disk_id, reply.staging_disk.path)
        self._client.disks.learn([(staging.disk_id, staging.path)])
        self.root = reply.root
        return Opened(
            reply.root,
            reply.node_id,
            staging,
            reply.has_put_if_absent,
            reply.embedded,
            reply.newest_generation,
            reply.is_new,
        )

    def listing(self, *, with_manifests: bool = True) -> Listing:
        """What there is at the destination and on this node; world sizes and bytes are of the manifests."""
        from forebay_protos.v1 import checkpoints_pb2 as pb

        request = pb.ListCheckpointsRequest(root=self.root, with_manifests=with_manifests)
        reply = self._call("ListCheckpoints", request, pb.ListCheckpointsResponse)
        return Listing(self.root, tuple(map(_checkpoint, reply.checkpoints)), reply.newest_generation)

    def decide(self, attempt: Attempt, state: State, reason: str = "") -> str:
        """What holds now, which may be another's decision; empty where nothing can be decided yet."""
        from forebay_protos.v1 import checkpoints_pb2 as pb

        request = pb.DecideRequest(root=self.root, attempt=attempt.name, state=state.value, reason=reason)
        return self._call("Decide", request, pb.DecideResponse).state

    def verify(self, attempt: Attempt, *, deep: bool) -> Iterator[VerifyStep]:
        """The files of an attempt, one after the other as they are looked at."""
        from forebay_protos.v1 import checkpoints_pb2 as pb

        request = pb.VerifyCheckpointRequest(root=self.root, attempt=attempt.name, deep=deep)
        socket = self._client.address.socket
        method = method_of("VerifyCheckpoint")
        for step in channel.answers(socket, method, request, pb.VerifyCheckpointResponse):
            yield VerifyStep(step.file, step.size_bytes, step.fault, step.files_done, step.files_total)

    def drop(self, attempt: Attempt) -> bool:
        """It is not wanted any more, as far as this node goes: what is staged of it and not durable is lost.

        Whether that was so: it was sealed, and not durable.
        """
        from forebay_protos.v1 import checkpoints_pb2 as pb

        request = pb.DropAttemptRequest(root=self.root, attempt=attempt.name)
        return self._call("DropAttempt", request, pb.DropAttemptResponse).given_up

    def fetch(self, attempt: Attempt, file: str, *, wait_seconds: float = 0.0) -> tuple[Path, bool]:
        """A file of the attempt on this node, and whether it was staged here. `CheckpointNotFound` where it is not
        there within `wait_seconds`."""
        from forebay_protos.v1 import checkpoints_pb2 as pb

        request = pb.FetchFileRequest(root=self.root, attempt=attempt.name, file=file, wait_seconds=wait_seconds)
        reply = self._call("FetchFile", request, pb.FetchFileResponse)
        return self.locate(Place(reply.file.disk_id, reply.file.path)), reply.staged

    def end_reading(self, attempt: Attempt) -> None:
        """What was fetched of the attempt may go."""
        from forebay_protos.v1 import checkpoints_pb2 as pb

        self._call("EndReading", pb.EndReadingRequest(root=self.root, attempt=attempt.name), pb.EndReadingResponse)

    def find_staging(self) -> None:
        """For who only reads, and does not `open` a root, which may not be writable."""
        self._staging_path = self._client.status().staging.path

    def locate(self, place: Place) -> Path:
        """Where this process sees what is staged. `DaemonError` where it does not."""
        if self._staging_path:
            self._client.disks.learn([(place.disk_id, self._staging_path)])
        found = self._client.disks.locate(place.disk_id, place.path)
        if found is None:
            what, to_do = self._client.disks.why_not(place.disk_id)
            raise DaemonError(f"{what}, and checkpoints are written there: {to_do}")
        return found

    def _call(self, method: str, request: "Message", reply: type[Reply]) -> Reply:
        return self._client.call(method_of(method), request, reply, timeout_seconds=_PATIENCE_SECONDS)


def method_of(name: str) -> str:
    """Of the service, as gRPC calls it."""
    return f"forebay.v1.CheckpointService/{name}"


def _checkpoint(message: "pb.Checkpoint") -> Checkpoint:
    attempt = parse_attempt(message.attempt)
    if attempt is None:
        raise DaemonError(f"the daemon named {message.attempt!r}, which is no attempt; its log has the details")
    return Checkpoint(
        attempt,
        message.state,
        message.reason,
        message.world_size,
        tuple(message.durable_ranks),
        tuple(message.staged_ranks),
        message.size_bytes,
        message.decided_unix_seconds,
    )
