"""The daemon as its clients meet it: a process behind a socket, with files beside it."""

import json
import os
import shutil
import signal
import socket as sockets
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest

from forebay_core.manifest import Manifest
from forebay_core.mapping import MappedFile
from forebay_protos.v1 import daemon_pb2 as pb
from tests.server.daemons import Client, client, command, daemon, read, token_spec, write_shards
from tests.support.data import write_parquet
from tests.support.processes import eventually
from tests.support.proxy import CountingProxy, Fault, Request
from tests.support.seaweedfs import Bucket, SeaweedFS

COPY = ("--read-in-place", "never")


def refused(call: Callable[[], object]) -> tuple[grpc.StatusCode, str, str]:
    """The status, the class name and the message with which a call fails."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    names = dict(error.trailing_metadata() or ())
    return error.code(), names.get("forebay-error", ""), error.details()


def open_tokens(caller: Client, data: Path, columns: tuple[str, ...] = ()) -> tuple[Manifest, str]:
    opened = caller.open([str(data)], token_spec())
    path = Path(opened.disks[0].path) / opened.manifest.path
    manifest = Manifest.open(path, inode=opened.manifest.inode, size=opened.manifest.size_bytes)
    return manifest, caller.session(opened.dataset_id, columns)


def test_pieces_of_parquet_arrive_as_arrow_files_of_the_wanted_columns(home: Path) -> None:
    write_parquet(home / "data", shards=3, rows=100)
    with daemon(home) as running, client(running.socket) as caller:
        opened = caller.open([str(home / "data")])
        session = caller.session(opened.dataset_id, ["value", "id"])
        leases = caller.acquire(session, [2, 0, 1])
        assert [lease.piece for lease in leases] == [2, 0, 1]
        tables = [pa.ipc.open_file(read(running.cache, lease)).read_all() for lease in leases]
        assert [table.column_names for table in tables] == [["value", "id"]] * 3
        assert [table["id"][0].as_py() for table in tables] == [200, 0, 100]
        again = caller.acquire(session, [0])[0]
        assert not again.pending
        assert (running.cache / again.path).stat().st_ino == again.inode
        status = caller.status()
        assert (status.counters.misses, status.counters.fills) == (3, 3)
        assert status.disks[0].used_bytes <= status.disks[0].capacity_bytes
        assert status.sessions[0].leases == 3


def test_local_tokens_are_read_where_they_lie(home: Path) -> None:
    whole = write_shards(home / "data", shards=2)
    with daemon(home) as running, client(running.socket) as caller:
        manifest, session = open_tokens(caller, home / "data")
        leases = caller.acquire(session, range(manifest.pieces))
        assert b"".join(read(running.cache, lease) for lease in leases) == whole
        assert all(lease.disk_id == "" and lease.path.startswith(str(home / "data")) for lease in leases)
        assert {lease.inode for lease in leases} == {path.stat().st_ino for path in (home / "data").iterdir()}
        caller.publish(session, *needs_in_sequence(manifest))
        caller.report(session, 0, 10.0)
        assert caller.status().counters.prefetches == caller.status().fills_running == 0
        assert caller.status().disks[0].pieces == 0


def test_local_tokens_are_copied_when_reading_in_place_is_off(home: Path) -> None:
    whole = write_shards(home / "data", shards=2)
    with daemon(home, *COPY) as running, client(running.socket) as caller:
        manifest, session = open_tokens(caller, home / "data")
        leases = caller.acquire(session, range(manifest.pieces))
        assert b"".join(read(running.cache, lease) for lease in leases) == whole
        assert caller.status().disks[0].pieces == manifest.pieces


def test_a_local_file_that_changed_is_said_to_have_changed(home: Path) -> None:
    write_shards(home / "data", shards=1)
    with daemon(home) as running, client(running.socket) as caller:
        _, session = open_tokens(caller, home / "data")
        (home / "data/00000.bin").write_bytes(b"\0" * 20_000)
        lease = caller.acquire(session, [0])[0]
        with pytest.raises(RuntimeError, match="ObjectChanged"):
            read(running.cache, lease)


def test_what_a_session_needs_is_fetched_ahead_in_the_order_of_need(home: Path) -> None:
    write_shards(home / "data", shards=3)
    with daemon(home, *COPY, "--prefetch-fills", "1") as running, client(running.socket) as caller:
        manifest, session = open_tokens(caller, home / "data")
        pieces = list(range(manifest.pieces))
        wanted = [100 * (len(pieces) - piece) for piece in pieces]
        caller.publish(session, pieces, wanted, [position + 50 for position in wanted])
        caller.report(session, 0, 10.0)
        eventually(lambda: caller.status().disks[0].pieces == len(pieces), 20, "everything to be fetched ahead")
        leases = caller.acquire(session, pieces)
        assert not any(lease.pending for lease in leases)
        births = [(running.cache / lease.path).stat().st_mtime_ns for lease in leases]
        assert births == sorted(births, reverse=True), "the piece needed first must come first"
        counters = caller.status().counters
        assert (counters.hits, counters.misses, counters.prefetches) == (len(pieces), 0, len(pieces))


def test_a_cache_of_half_the_data_serves_all_of_it_and_never_grows_beyond(home: Path) -> None:
    whole = write_shards(home / "data", shards=8)
    capacity = 100_000
    with daemon(home, *COPY, "--capacity", str(capacity)) as running, client(running.socket) as caller:
        manifest, session = open_tokens(caller, home / "data")
        caller.publish(session, *needs_in_sequence(manifest))
        got = b""
        for piece in range(manifest.pieces):
            got += read(running.cache, caller.acquire(session, [piece])[0])
            caller.release(session, [piece])
            caller.report(session, int(manifest.row_start[piece + 1]), 100.0)
            disk = caller.status().disks[0]
            assert disk.used_bytes + disk.reserved_bytes <= capacity
        assert got == whole
        assert caller.status().counters.evictions > 0


def needs_in_sequence(manifest: Manifest) -> tuple[list[int], list[int], list[int]]:
    starts = manifest.row_start.tolist()
    return list(range(manifest.pieces)), starts[:-1], starts[1:]


def test_hostile_and_mistaken_calls_are_refused_and_harm_nobody(home: Path) -> None:
    write_shards(home / "data", shards=1)
    with daemon(home) as running, client(running.socket) as caller:
        manifest, session = open_tokens(caller, home / "data")
        dataset = caller.open([str(home / "data")], token_spec()).dataset_id
        invalid = grpc.StatusCode.INVALID_ARGUMENT
        for call, status, name, part in [
            (lambda: caller.open([]), invalid, "ConfigurationError", "at least one URL"),
            (lambda: caller.open(["ftp://x/y"]), invalid, "UnknownScheme", "ftp"),
            (lambda: caller.open([str(home / "no")]), grpc.StatusCode.NOT_FOUND, "SourceNotFound", "no"),
            (lambda: caller.session("nonsense"), invalid, "ConfigurationError", "nonsense"),
            (lambda: caller.session(dataset, ["colour"]), invalid, "ColumnNotFound", "colour"),
            (lambda: caller.acquire(session, [manifest.pieces]), invalid, "ConfigurationError", "no piece"),
            (lambda: caller.acquire(session, [0, 2**32 - 1]), invalid, "ConfigurationError", "no piece"),
            (lambda: caller.acquire("x", [0]), grpc.StatusCode.NOT_FOUND, "UnknownSession", "'x'"),
            (lambda: caller.report(session, -1), invalid, "ConfigurationError", "-1"),
            (lambda: caller.report(session, 0, float("nan")), invalid, "ConfigurationError", "nan"),
            (lambda: caller.publish(session, [99], [0], [1]), invalid, "ConfigurationError", "99"),
            (lambda: caller.publish(session, [0], [5], [1]), invalid, "ConfigurationError", "first <= last"),
            (lambda: caller.publish(session, [0], [-5], [1]), invalid, "ConfigurationError", "0 <="),
            (lambda: caller.stub.PublishNeeds(iter([]), timeout=10), invalid, "ConfigurationError", "one session"),
        ]:
            found = refused(call)
            assert found[:2] == (status, name), found
            assert part in found[2]
            assert "\n" not in found[2]
        caller.release(session, [0, 99, 2**32 - 1])
        caller.stub.CloseSession(pb.CloseSessionRequest(session_id="x"), timeout=10)
        assert caller.acquire(session, []) == []
        assert read(running.cache, caller.acquire(session, [0])[0])
        assert caller.status().sessions[0].leases == 0, "a refused Acquire leases nothing, one in place pins nothing"


def test_many_clients_share_each_download(home: Path) -> None:
    """CASES 28."""
    whole = write_shards(home / "data", shards=4)
    with daemon(home, *COPY) as running:

        def run(_: int) -> bytes:
            with client(running.socket) as caller:
                manifest, session = open_tokens(caller, home / "data")
                leases = caller.acquire(session, range(manifest.pieces))
                return b"".join(read(running.cache, lease) for lease in leases)

        with ThreadPoolExecutor(16) as pool:
            assert set(pool.map(run, range(32))) == {whole}
        with client(running.socket) as caller:
            status = caller.status()
            assert status.counters.fills == status.disks[0].pieces == 16
            assert len(status.sessions) == 32


def temp_bytes(cache: Path) -> int:
    return sum(path.stat().st_size for path in (cache / "tmp").iterdir())


def test_sigkill_in_mid_fill_leaves_nothing_that_looks_whole(
    home: Path, s3: SeaweedFS, bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    """CASES 26."""
    whole = write_shards(home / "data", shards=1, samples=6144, sequence_length=1024)
    bucket.put("data/00000.bin", whole)
    environment = {**os.environ, **s3.environment(endpoint=counting_proxy.endpoint)}
    url = f"s3://{bucket.name}/data"
    spec = token_spec(sequence_length=1024, piece_bytes=32 << 20)

    def second_part_hangs(request: Request) -> Fault | None:
        return Fault(hang=True) if request.key and request.range and "bytes=0-" not in request.range else None

    with daemon(home, env=environment) as running, client(running.socket) as caller:
        session = caller.session(caller.open([url], spec).dataset_id)
        counting_proxy.fault = second_part_hangs
        lease = caller.acquire(session, [0])[0]
        assert lease.pending
        eventually(lambda: temp_bytes(running.cache) > 0, 20, "the first part to be written")
        running.process.kill_tree()
    assert not (running.cache / lease.path).exists()
    assert temp_bytes(running.cache) > 0
    counting_proxy.fault = lambda _: None
    with daemon(home, env=environment) as running, client(running.socket) as caller:
        eventually(lambda: temp_bytes(running.cache) == 0, 20, "the old temp file to go")
        session = caller.session(caller.open([url], spec).dataset_id)
        again = caller.acquire(session, [0])[0]
        assert again.path == lease.path
        assert read(running.cache, again) == whole


def test_a_killed_daemon_starts_again_with_what_it_had(home: Path) -> None:
    whole = write_shards(home / "data", shards=2)
    with daemon(home, *COPY) as running, client(running.socket) as caller:
        manifest, session = open_tokens(caller, home / "data")
        for lease in caller.acquire(session, range(manifest.pieces)):
            read(running.cache, lease)
        eventually(lambda: caller.status().fills_running == 0, 20, "the fills to end")
        running.process.kill_tree()
    assert running.socket.exists()
    with daemon(home, *COPY) as second, client(second.socket) as caller:
        assert second.boot_id != running.boot_id
        assert refused(lambda: caller.acquire(session, [0]))[1] == "UnknownSession"
        manifest, session = open_tokens(caller, home / "data")
        leases = caller.acquire(session, range(manifest.pieces))
        assert not any(lease.pending for lease in leases)
        assert b"".join(read(second.cache, lease) for lease in leases) == whole


@pytest.mark.parametrize("damage", ["deleted", "overwritten", "truncated"])
def test_a_lost_index_is_made_anew_from_the_files(home: Path, damage: str) -> None:
    write_shards(home / "data", shards=2)
    with daemon(home, *COPY) as running, client(running.socket) as caller:
        manifest, session = open_tokens(caller, home / "data")
        for lease in caller.acquire(session, range(manifest.pieces)):
            read(running.cache, lease)
        used = eventually(lambda: caller.status().disks[0], 5, "the status").used_bytes
        running.process.signal(signal.SIGTERM)
        assert running.process.wait(20) == 0
    index = running.cache / "index" / "cache.db"
    if damage == "deleted":
        shutil.rmtree(index.parent)
    elif damage == "overwritten":
        index.write_bytes(b"not a database" * 1000)
    else:
        os.truncate(index, index.stat().st_size // 2)
    with daemon(home, *COPY) as running, client(running.socket) as caller:
        eventually(lambda: caller.status().disks[0].pieces == manifest.pieces, 20, "the index to be made anew")
        assert caller.status().disks[0].used_bytes == used
        manifest, session = open_tokens(caller, home / "data")
        assert not any(lease.pending for lease in caller.acquire(session, range(manifest.pieces)))


def test_a_piece_whose_file_is_gone_is_fetched_again(home: Path) -> None:
    whole = write_shards(home / "data", shards=1)
    with daemon(home, *COPY) as running, client(running.socket) as caller:
        _, session = open_tokens(caller, home / "data")
        lease = caller.acquire(session, [0])[0]
        assert read(running.cache, lease) == whole[:4096]
        (running.cache / lease.path).unlink()
        again = caller.acquire(session, [0])[0]
        assert again.pending
        assert read(running.cache, again) == whole[:4096]


def test_a_mapped_piece_outlives_its_lease(home: Path) -> None:
    """CASES 29."""
    whole = write_shards(home / "data", shards=8)
    with daemon(home, *COPY, "--capacity", "40000") as running, client(running.socket) as caller:
        manifest, session = open_tokens(caller, home / "data")
        lease = caller.acquire(session, [0])[0]
        read(running.cache, lease)
        inode = (running.cache / lease.path).stat().st_ino
        with MappedFile.open(running.cache / lease.path) as mapped:
            caller.release(session, [0])
            for piece in range(1, manifest.pieces):
                read(running.cache, caller.acquire(session, [piece])[0])
                caller.release(session, [piece])
            assert caller.status().counters.evictions > 0
            assert (running.cache / lease.path).stat().st_ino == inode
            assert bytes(mapped.view) == whole[:4096]


def test_sigterm_drains_and_leaves_neither_socket_nor_locks(home: Path) -> None:
    write_shards(home / "data", shards=1)
    with daemon(home, *COPY) as running, client(running.socket) as caller:
        assert caller.is_serving()
        _, session = open_tokens(caller, home / "data")
        read(running.cache, caller.acquire(session, [0])[0])
        assert running.socket.stat().st_mode & 0o777 == 0o660
        assert running.socket.parent.stat().st_mode & 0o777 == 0o750
        running.process.signal(signal.SIGTERM)
        assert running.process.wait(20) == 0
    assert list(running.socket.parent.iterdir()) == []
    assert not (running.cache / "lock").exists()
    assert list((running.cache / "tmp").iterdir()) == []


def test_a_second_daemon_on_one_socket_or_one_cache_says_who_holds_it(home: Path) -> None:
    with daemon(home) as running:
        other = ["--socket", str(home / "o" / "s"), "--cache-dir", str(home / "cache-o")]
        for flags in (
            [*other[:2], "--cache-dir", str(running.cache)],
            ["--socket", str(running.socket), *other[2:]],
        ):
            ended = subprocess.run(command(*flags), capture_output=True, text=True, timeout=20, check=False)
            assert ended.returncode == 1
            assert f"pid {running.process.pid}" in ended.stderr
            assert len(ended.stderr.splitlines()) == 1
        with client(running.socket) as caller:
            assert caller.is_serving()


def test_a_socket_left_over_by_a_crash_is_replaced(home: Path) -> None:
    """CASES 32."""
    (home / "d").mkdir()
    with sockets.socket(sockets.AF_UNIX) as left:
        left.bind(str(home / "d" / "s"))
    with daemon(home) as running, client(running.socket) as caller:
        assert caller.is_serving()


@pytest.mark.parametrize(
    ("flags", "status", "part"),
    [
        (["--capacity", "lots"], 2, "lots"),
        (["--capacity", "900PiB"], 2, "give it a smaller capacity"),
        (["--nonsense"], 2, "--nonsense"),
        (["--socket", "/tmp/" + "x" * 110], 2, "107"),
        (["--cache-dir", "/dev/null/x"], 2, "/dev/null"),
        (["--log-file", "/dev/null/x"], 2, "log file"),
    ],
)
def test_wrong_calls_end_with_status_2_and_say_what_is_wrong(
    home: Path, flags: list[str], status: int, part: str
) -> None:
    defaults = ["--socket", str(home / "s")]
    defaults += [] if "--cache-dir" in flags else ["--cache-dir", str(home / "c")]
    ended = subprocess.run(command(*defaults, *flags), capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == status
    line = ended.stderr.splitlines()[-1]
    assert line.startswith("forebay: ")
    assert part in line
    said = json.loads(ended.stdout)
    assert said.keys() == {"error", "message"}
    assert said["error"] == "ConfigurationError"


def test_a_cache_directory_that_others_can_write_is_refused(home: Path) -> None:
    (home / "c").mkdir()
    (home / "c").chmod(0o777)
    flags = ["--socket", str(home / "s"), "--cache-dir", str(home / "c")]
    ended = subprocess.run(command(*flags), capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == 2
    assert "others can write" in ended.stderr


def test_an_embedded_daemon_ends_when_nobody_has_needed_it_for_a_while(home: Path) -> None:
    write_shards(home / "data", shards=1)
    with daemon(home, "--embedded", "--idle-seconds", "0.5") as running, client(running.socket) as caller:
        _, session = open_tokens(caller, home / "data")
        with pytest.raises(TimeoutError):
            running.process.wait(1.5)
        caller.stub.CloseSession(pb.CloseSessionRequest(session_id=session), timeout=10)
        assert running.process.wait(10) == 0
    assert not running.socket.exists()


def test_settings_come_from_flags_then_the_environment(home: Path) -> None:
    environment = {**os.environ, "FOREBAY_CAPACITY": "5MiB", "FOREBAY_SOCKET": str(home / "unused")}
    with daemon(home, "--log-file", str(home / "log"), env=environment) as running, client(running.socket) as caller:
        assert caller.status().disks[0].capacity_bytes == 1 << 30
        assert "serving on" in (home / "log").read_text()
    environment["FOREBAY_CACHE_DIR"] = f"{home}/from-environment:7MiB"
    process = subprocess.Popen(
        [sys.executable, "-m", "forebay_server", "--json"], stdout=subprocess.PIPE, env=environment
    )
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["socket"] == str(home / "unused")
        with client(home / "unused") as caller:
            assert caller.status().disks[0].capacity_bytes == 7 << 20
            assert caller.status().disks[0].path == f"{home}/from-environment"
    finally:
        process.terminate()
        process.wait(20)
        assert process.stdout is not None
        process.stdout.close()


def test_needs_of_a_hundred_thousand_parts_are_taken_in_while_others_are_served(home: Path) -> None:
    write_shards(home / "data", shards=1)
    with daemon(home) as running, client(running.socket) as caller, client(running.socket) as other:
        manifest, session = open_tokens(caller, home / "data")
        parts = 100_000
        pieces = [part % manifest.pieces for part in range(parts)]
        worker = threading.Thread(
            target=caller.publish, args=(session, pieces, list(range(parts)), list(range(1, parts + 1)))
        )
        worker.start()
        while worker.is_alive():
            assert other.is_serving()
        worker.join()
        assert caller.status().sessions[0].needs == parts


def test_what_it_says_to_whoever_started_it_is_one_message_whatever_the_buffering(home: Path) -> None:
    ours, theirs = sockets.socketpair(sockets.AF_UNIX, sockets.SOCK_SEQPACKET)
    place = command("--socket", str(home / "d" / "s"), "--cache-dir", str(home / "c"), "--capacity", "1GiB")
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with ours, theirs, subprocess.Popen(place, stdout=theirs.fileno(), env=environment) as process:
        try:
            message = ours.recv(1 << 16)
        finally:
            process.terminate()
    assert message.endswith(b"\n")
    assert json.loads(message)["pid"] == process.pid
