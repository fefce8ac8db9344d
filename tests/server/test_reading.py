"""The bytes of pieces over the socket, for clients that cannot see the files."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest

from forebay_core.errors import AccessDenied
from forebay_core.mapping import is_mapped
from forebay_protos.v1 import admin_pb2, admin_pb2_grpc
from forebay_protos.v1 import daemon_pb2 as pb
from forebay_server.reading import Reading
from forebay_server.sources.permits import Permits
from tests.server import test_sessions as sessions
from tests.server.daemons import CALL_SECONDS, Client, Daemon, client, daemon, read, token_spec, write_shards
from tests.support.processes import Process, eventually

MIB = 1 << 20


@pytest.fixture
def node(home: Path) -> Iterator[Daemon]:
    with daemon(home, "--read-in-place", "never") as started:
        yield started


def chunks(asked: Client, session: str, piece: int) -> list[pb.ReadResponse]:
    return list(asked.stub.Read(pb.ReadRequest(session_id=session, piece=piece), timeout=CALL_SECONDS))


@pytest.mark.parametrize("in_place", ["auto", "never"])
def test_a_piece_comes_in_chunks_and_is_what_a_reader_would_map(home: Path, in_place: str) -> None:
    whole = write_shards(home / "data", shards=2, samples=4096, sequence_length=256)
    with daemon(home, "--read-in-place", in_place) as node, client(node.socket) as asked:
        opened = asked.open([str(home / "data")], token_spec(256, piece_bytes=5 * MIB // 2))
        session = asked.session(opened.dataset_id)
        parts = chunks(asked, session, 1)
        assert max(len(part.data) for part in parts) <= MIB
        data = b"".join(part.data for part in parts)
        assert data in whole
        assert parts[-1].size_bytes == len(data) > MIB
        assert asked.status().sessions[0].leases == 0
        (lease,) = asked.acquire(session, [1])
        assert read(node.cache, lease) == data


def test_a_manifest_comes_as_the_file_it_is(home: Path, node: Daemon) -> None:
    write_shards(home / "data", shards=2)
    with client(node.socket) as asked:
        opened = asked.open([str(home / "data")], token_spec())
        parts = asked.stub.ReadManifest(pb.ReadManifestRequest(dataset_id=opened.dataset_id), timeout=CALL_SECONDS)
        assert b"".join(part.data for part in parts) == (node.cache / opened.manifest.path).read_bytes()


def test_what_cannot_be_read_is_an_error_of_its_kind(home: Path, node: Daemon) -> None:
    write_shards(home / "data", shards=2)
    with client(node.socket) as asked:
        opened = asked.open([str(home / "data")], token_spec())
        session = asked.session(opened.dataset_id)
        asked_for = [("no such session", 0, grpc.StatusCode.NOT_FOUND), (session, 99, grpc.StatusCode.INVALID_ARGUMENT)]
        for name, piece, status in asked_for:
            with pytest.raises(grpc.RpcError) as caught:
                chunks(asked, name, piece)
            assert caught.value.code() == status
        (home / "data/00001.bin").unlink()
        with pytest.raises(grpc.RpcError) as caught:
            chunks(asked, session, 7)
        assert "SourceNotFound" in str(caught.value.trailing_metadata())
        with pytest.raises(grpc.RpcError) as caught:
            list(asked.stub.ReadManifest(pb.ReadManifestRequest(dataset_id="x"), timeout=CALL_SECONDS))
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_clients_that_take_nothing_hold_none_of_the_daemons_memory_and_the_piece_while_they_live(
    home: Path, node: Daemon
) -> None:
    """CASES 29: eviction spares what is being read."""
    write_shards(home / "data", shards=1, samples=64, sequence_length=MIB // 4)
    with client(node.socket) as asked:
        opened = asked.open([str(home / "data")], token_spec(MIB // 4, piece_bytes=64 * MIB))
        session = asked.session(opened.dataset_id)
        assert len(b"".join(part.data for part in chunks(asked, session, 0))) == 64 * MIB
        before = psutil.Process(node.process.pid).memory_info().rss
        slow = [asked.stub.Read(pb.ReadRequest(session_id=session, piece=0)) for _ in range(8)]
        for stream in slow:
            assert next(stream).size_bytes == 64 * MIB
        assert psutil.Process(node.process.pid).memory_info().rss - before < 128 * MIB
        (piece,) = [path for path in (node.cache / "pieces").rglob("*") if len(path.name) == 64]
        assert is_mapped(piece)
        for stream in slow:
            stream.cancel()
        eventually(lambda: not is_mapped(piece), 20, "the piece to be let go of")
        assert asked.status().sessions[0].leases == 0


READER = """
import sys
from pathlib import Path
from forebay_protos.v1 import admin_pb2, admin_pb2_grpc
from forebay_protos.v1 import daemon_pb2 as pb
from tests.server.daemons import Client
stream = Client(Path(sys.argv[1])).stub.Read(pb.ReadRequest(session_id=sys.argv[2], piece=0))
next(stream)
print("reading", flush=True)
import time
time.sleep(100)
"""


def test_a_client_that_is_killed_while_it_reads_leaves_no_lock_behind(home: Path, node: Daemon) -> None:
    write_shards(home / "data", shards=1, samples=16, sequence_length=MIB // 4)
    with client(node.socket) as asked:
        opened = asked.open([str(home / "data")], token_spec(MIB // 4, piece_bytes=16 * MIB))
        session = asked.session(opened.dataset_id)
        chunks(asked, session, 0)
        (piece,) = [path for path in (node.cache / "pieces").rglob("*") if len(path.name) == 64]
        program = [sys.executable, "-c", READER, str(node.socket), session]
        with Process(program, log=home / "reader.log", limit_seconds=60) as reader:
            eventually(lambda: "reading" in reader.output(), 30, "the reader to read")
            eventually(lambda: is_mapped(piece), 20, "the piece to be held")
            reader.signal(signal.SIGKILL)
            eventually(lambda: not is_mapped(piece), 20, "the piece to be let go of")


def test_a_local_file_that_the_group_may_not_read_is_neither_leased_nor_read_to_it(home: Path) -> None:
    home.chmod(0o755)
    write_shards(home / "data", shards=2)
    (home / "data").chmod(0o755)
    (home / "data/00000.bin").chmod(0o644)
    (home / "data/00001.bin").chmod(0o600)
    with daemon(home, "--group", str(os.getgid())) as node, client(node.socket) as asked:
        session = asked.session(asked.open([str(home / "data")], token_spec()).dataset_id)
        assert chunks(asked, session, 0)
        (lease,) = asked.acquire(session, [7])
        with pytest.raises(RuntimeError, match=r"AccessDenied.*not every member of the group"):
            read(node.cache, lease)
        with pytest.raises(grpc.RpcError) as caught:
            chunks(asked, session, 7)
        assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED


def test_what_is_opened_to_be_read_to_a_client_is_judged_itself_and_not_what_was_leased(home: Path) -> None:
    write_shards(home / "data", shards=1)

    async def run() -> None:
        async with sessions.node(home, read_in_place="auto") as (made, _):
            session = await sessions.session_over(made, home / "data")
            forbidding = Permits(group_id=4_000_000_000)
            reading = Reading(
                made.sessions, made.pool, made.fills, lambda _: None, bypass=made.bypass, permits=forbidding
            )
            with pytest.raises(AccessDenied, match="not every member of the group"):
                [part async for part in reading.piece(session, 0)]

    asyncio.run(run())


def test_while_no_disk_takes_a_piece_it_is_read_all_the_same(home: Path, node: Daemon) -> None:
    """CASES 31: the disk fails."""
    whole = write_shards(home / "data", shards=2)
    with client(node.socket) as asked:
        opened = asked.open([str(home / "data")], token_spec())
        session = asked.session(opened.dataset_id)
        admin = admin_pb2_grpc.AdminServiceStub(asked.channel)  # type: ignore[no-untyped-call]
        admin.DrainDisk(admin_pb2.DrainDiskRequest(path=str(node.cache)), timeout=CALL_SECONDS)
        (lease,) = asked.acquire(session, [1])
        assert (lease.bypassed, lease.pending) == (True, False)
        data = b"".join(part.data for part in chunks(asked, session, 1))
        assert data == whole[4096:8192]
        assert asked.status().counters.bypasses == 1
        assert asked.status().sessions[0].leases == 0
        admin.AdmitDisk(admin_pb2.AdmitDiskRequest(path=str(node.cache)), timeout=CALL_SECONDS)
        (other,) = asked.acquire(session, [2])
        assert read(node.cache, other) == whole[8192:12288]
