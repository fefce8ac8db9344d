"""A plain gRPC client of the checkpoint service, which does what the ranks of one node do."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from forebay_core.checkpoints.names import Attempt
from forebay_protos.v1 import checkpoints_pb2 as pb
from forebay_protos.v1 import checkpoints_pb2_grpc
from tests.server.checkpoints.desks import size_of, write

SECONDS = 30
DURABLE, FAILED = pb.WatchAttemptResponse.PHASE_DURABLE, pb.WatchAttemptResponse.PHASE_FAILED


class Ranks:
    """The ranks of a node, over one channel."""

    def __init__(self, socket: Path, root: str, ranks: Sequence[int] = (0,), world_size: int = 1) -> None:
        self.channel = grpc.insecure_channel(f"unix:{socket}")
        self.stub = checkpoints_pb2_grpc.CheckpointServiceStub(self.channel)  # type: ignore[no-untyped-call]
        self.root, self.ranks, self.world_size = root, list(ranks), world_size

    def opened(self) -> pb.OpenRootResponse:
        answer: pb.OpenRootResponse = self.stub.OpenRoot(pb.OpenRootRequest(root=self.root), timeout=SECONDS)
        return answer

    def begin(self, this: Attempt, size_bytes: int | None = None, **options: Any) -> Path:
        """The directory, as this process sees it."""
        request = pb.BeginAttemptRequest(
            root=self.root,
            attempt=this.name,
            ranks=self.ranks,
            world_size=self.world_size,
            size_bytes=size_of(this, self.ranks) if size_bytes is None else size_bytes,
            **options,
        )
        answer = self.stub.BeginAttempt(request, timeout=SECONDS)
        directory: str = answer.directory.path
        return Path(self.opened().staging_disk.path) / directory

    def stage(self, this: Attempt, *, size: int = 3000) -> Path:
        directory = self.begin(this, size_of(this, self.ranks, size))
        write(directory, this, self.ranks, self.world_size, size=size)
        return directory

    def seal(self, this: Attempt, **options: Any) -> None:
        request = pb.SealAttemptRequest(
            root=self.root,
            attempt=this.name,
            ranks=self.ranks,
            world_size=self.world_size,
            **options,
        )
        self.stub.SealAttempt(request, timeout=SECONDS)

    def save(self, this: Attempt, *, size: int = 3000, **options: Any) -> Attempt:
        self.stage(this, size=size)
        self.seal(this, **options)
        return this

    def watch(self, this: Attempt) -> list[pb.WatchAttemptResponse]:
        """All that is said until the end."""
        return list(self.stub.WatchAttempt(pb.WatchAttemptRequest(root=self.root, attempt=this.name), timeout=SECONDS))

    def list(self, *, with_manifests: bool = False) -> pb.ListCheckpointsResponse:
        request = pb.ListCheckpointsRequest(root=self.root, with_manifests=with_manifests)
        answer: pb.ListCheckpointsResponse = self.stub.ListCheckpoints(request, timeout=SECONDS)
        return answer

    def fetch(self, this: Attempt, file: str, *, wait_seconds: float = 0.0) -> pb.FetchFileResponse:
        request = pb.FetchFileRequest(root=self.root, attempt=this.name, file=file, wait_seconds=wait_seconds)
        answer: pb.FetchFileResponse = self.stub.FetchFile(request, timeout=SECONDS)
        return answer

    def decide(self, this: Attempt, state: str, reason: str = "") -> pb.DecideResponse:
        request = pb.DecideRequest(root=self.root, attempt=this.name, state=state, reason=reason)
        answer: pb.DecideResponse = self.stub.Decide(request, timeout=SECONDS)
        return answer


@contextmanager
def node_of(socket: Path, root: str | Path, ranks: Sequence[int] = (0,), world_size: int = 1) -> Iterator[Ranks]:
    made = Ranks(socket, str(root), ranks, world_size)
    try:
        yield made
    finally:
        made.channel.close()


def until_gone(path: Path) -> None:
    """Waits until a path is not there any more."""
    deadline = time.monotonic() + SECONDS
    while path.exists():
        assert time.monotonic() < deadline, f"{path} is still there"
        time.sleep(0.02)
