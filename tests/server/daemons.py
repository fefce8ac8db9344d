"""A real daemon process and a plain gRPC client of it, for tests that go over the socket."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc

from forebay_core.mapping import MappedFile
from forebay_protos.v1 import daemon_pb2 as pb
from forebay_protos.v1 import daemon_pb2_grpc
from tests.support.processes import Process, eventually

CALL_SECONDS = 20


@dataclass
class Daemon:
    """A daemon that serves."""

    process: Process
    socket: Path
    cache: Path
    boot_id: str


class Client:
    """Calls over one channel."""

    def __init__(self, socket: Path) -> None:
        self.channel = grpc.insecure_channel(f"unix:{socket}")
        self.stub = daemon_pb2_grpc.DaemonServiceStub(self.channel)  # type: ignore[no-untyped-call]
        self.health = health_pb2_grpc.HealthStub(self.channel)

    def open(self, urls: Sequence[str], format_spec: Mapping[str, object] | None = None) -> pb.OpenDatasetResponse:
        format_json = json.dumps(format_spec) if format_spec else ""
        request = pb.OpenDatasetRequest(urls=urls, format_json=format_json)
        answer: pb.OpenDatasetResponse = self.stub.OpenDataset(request, timeout=CALL_SECONDS)
        return answer

    def session(self, dataset_id: str, columns: Sequence[str] = ()) -> str:
        request = pb.OpenSessionRequest(dataset_id=dataset_id, columns=columns, label="test", process_id=1)
        return str(self.stub.OpenSession(request, timeout=CALL_SECONDS).session_id)

    def acquire(self, session: str, pieces: Sequence[int]) -> list[pb.Lease]:
        request = pb.AcquireRequest(session_id=session, pieces=pieces)
        return list(self.stub.Acquire(request, timeout=CALL_SECONDS).leases)

    def publish(self, session: str, pieces: Sequence[int], first: Sequence[int], last: Sequence[int]) -> None:
        half = len(pieces) // 2
        parts = [slice(0, half), slice(half, len(pieces))]
        chunks = [
            pb.PublishNeedsRequest(session_id=session, pieces=pieces[part], first=first[part], last=last[part])
            for part in parts
        ]
        self.stub.PublishNeeds(iter(chunks), timeout=CALL_SECONDS)

    def report(self, session: str, position: int, rate: float = 0.0) -> None:
        request = pb.ReportPositionRequest(session_id=session, position=position, positions_per_second=rate)
        self.stub.ReportPosition(request, timeout=CALL_SECONDS)

    def release(self, session: str, pieces: Sequence[int]) -> None:
        self.stub.Release(pb.ReleaseRequest(session_id=session, pieces=pieces), timeout=CALL_SECONDS)

    def status(self) -> pb.GetStatusResponse:
        answer: pb.GetStatusResponse = self.stub.GetStatus(pb.GetStatusRequest(), timeout=CALL_SECONDS)
        return answer

    def is_serving(self) -> bool:
        answer = self.health.Check(health_pb2.HealthCheckRequest(service=""), timeout=CALL_SECONDS)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


@contextmanager
def client(socket: Path) -> Iterator[Client]:
    made = Client(socket)
    try:
        yield made
    finally:
        made.channel.close()


@contextmanager
def daemon(
    home: Path,
    *flags: str,
    env: Mapping[str, str] | None = None,
    name: str = "d",
    program: Sequence[str] = ("-m", "forebay_server"),
    limit_seconds: float = 100,
) -> Iterator[Daemon]:
    """A daemon on `<home>/<name>/s`, with its cache in `<home>/cache-<name>` unless the flags say otherwise.

    `program`: what Python is to run.
    """
    socket, cache = home / name / "s", home / f"cache-{name}"
    log = home / f"{name}-{len(list(home.glob(f'{name}-*.log')))}.log"
    defaults = ["--socket", str(socket), "--capacity", "1GiB"]
    defaults += [] if "--cache-dir" in flags else ["--cache-dir", str(cache)]
    with Process(command(*defaults, *flags, program=program), log=log, limit_seconds=limit_seconds, env=env) as process:
        line = eventually(lambda: _ready_line(process), 20, f"the daemon to serve; its log is {log}")
        yield Daemon(process, socket, cache, str(json.loads(line)["boot_id"]))


def command(*flags: str, program: Sequence[str] = ("-m", "forebay_server")) -> list[str]:
    return [sys.executable, *program, "--json", *flags]


def _ready_line(process: Process) -> str:
    if process.returncode is not None:
        raise RuntimeError(f"the daemon ended with {process.returncode}: {process.output()}")
    lines = process.output().splitlines(keepends=True)
    return next((line for line in lines if line.startswith('{"socket"') and line.endswith("\n")), "")


def read(disk: Path, lease: pb.Lease, seconds: float = 20) -> bytes:
    """The bytes of a leased piece as a loader takes them: waits for the rename, or raises what `.error` says."""
    path = disk / lease.path if lease.disk_id else Path(lease.path)

    def appeared() -> bool:
        error = path.with_name(f"{path.name}.error")
        if error.exists():
            raise RuntimeError(error.read_text())
        return path.exists()

    eventually(appeared, seconds, f"{path} to appear")
    length = lease.length_bytes or None
    with MappedFile.open(path, offset=lease.offset_bytes, length=length, in_place=not lease.disk_id) as mapped:
        return bytes(mapped.view)


def token_spec(sequence_length: int = 16, piece_bytes: int = 4096) -> dict[str, object]:
    return {
        "name": "tokens",
        "cut": "tokens-1",
        "sequence_length": sequence_length,
        "dtype": "int32",
        "piece_bytes": piece_bytes,
    }


def write_shards(directory: Path, *, shards: int, samples: int = 256, sequence_length: int = 16) -> bytes:
    """Token files with running numbers; gives their bytes end to end."""
    directory.mkdir(parents=True, exist_ok=True)
    whole = np.arange(shards * samples * sequence_length, dtype=np.int32)
    for shard, part in enumerate(np.split(whole, shards)):
        part.tofile(directory / f"{shard:05d}.bin")
    return whole.tobytes()
