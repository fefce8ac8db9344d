"""A trainer that cannot see the daemon's files reads copies of them, and the same samples."""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.daemon import copies
from forebay.daemon.client import DaemonClient
from forebay_core.anonymous import AnonymousFile
from tests.integration.trainers import in_order, job, reference
from tests.server.daemons import Daemon, client, daemon
from tests.support.data import write_tokens
from tests.support.leaks import threads_beyond
from tests.support.processes import eventually
from tests.support.proxy import CountingProxy, Fault, Request
from tests.support.seaweedfs import Bucket, SeaweedFS

DATASET: dict[str, Any] = {
    "format": forebay.Parquet(piece_bytes=1),
    "order": forebay.OrderOptions(lanes=4, window=30),
}


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said once in a process is said once in a test."""
    copies._said.clear()


def hide(node: Daemon) -> None:
    """As for a container that has mounted the socket and not the cache: the disk's id is another one there."""
    (node.cache / "disk-id").write_text("of another disk")


File = tuple[int, int]


def copies_held(before: Mapping[File, int]) -> dict[File, int]:
    """The sizes of the files without a name that this process holds and did not before, by device and inode.

    But for those to which pytest leads the output: gRPC sometimes says there that a process has forked.
    """
    found = {}
    outputs = {(held.st_dev, held.st_ino) for held in map(os.fstat, (1, 2))}
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            held = link.stat()
            is_copy = "(deleted)" in str(link.readlink()) and (held.st_dev, held.st_ino) not in outputs
            if is_copy and held.st_size and (held.st_dev, held.st_ino) not in before:
                found[held.st_dev, held.st_ino] = held.st_size
    return found


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "copied through" in record.getMessage()]


@pytest.mark.parametrize(
    "loader",
    [
        {},
        {"num_workers": 2, "multiprocessing_context": "fork"},
        {"num_workers": 2, "multiprocessing_context": "forkserver"},
        {"num_workers": 2, "worker_type": "thread"},
    ],
    ids=["in process", "fork", "forkserver", "threads"],
)
def test_a_trainer_that_does_not_see_the_cache_reads_the_same_samples_and_is_told_once_what_to_mount(
    loader: dict[str, Any], home: Path, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with daemon(home) as seen:
        expected = in_order(reference(str(data), str(seen.socket), 2, **DATASET))
    before = copies_held({})
    print("as gRPC does", file=sys.stderr)
    with daemon(home, name="far") as node:
        hide(node)
        with job(str(data), str(node.socket), world_size=2, batch_size=4, dataset=DATASET, loader=loader) as ranks:
            ranks.run()
            ranks.run()
        with client(node.socket) as asked:
            eventually(lambda: not asked.status().sessions, 20, "the sessions to end")
            assert asked.status().counters.fills == 30
    ranks.loaders = ()
    eventually(lambda: not copies_held(before), 20, "all copies to go")
    assert in_order(ranks.seen) == expected
    (line,) = said(caplog)
    assert f"looked in {node.cache}" in line
    assert "set FOREBAY_CACHE_DIR to the place" in line


def test_copies_take_no_more_room_than_they_may_and_go_with_their_leases(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tokens(home / "tokens" / "a.bin", samples=1600, sequence_length=512)
    fmt = forebay.Tokens(sequence_length=512, dtype="int32", piece_bytes=64 << 10)
    monkeypatch.setenv("FOREBAY_COPIES_CAPACITY", "1MiB")
    before = copies_held({})
    with daemon(home, "--read-in-place", "never") as node:
        hide(node)
        stream = forebay.StreamingDataset(
            str(home / "tokens"), format=fmt, address=str(node.socket), order=forebay.OrderOptions(lanes=2)
        )
        loader = forebay.DataLoader(stream, 8)
        held, samples = [], 0
        for batch in loader:
            samples += len(batch["tokens"])
            held.append(sum(copies_held(before).values()))
        loader.close()
    assert samples == 1600
    assert 1 << 19 < max(held) < 2 << 20  # the order mixes 3 MiB at a time
    assert sum(copies_held(before).values()) < 64 << 10  # of the manifest


def test_a_daemon_that_is_killed_in_the_middle_of_a_copy_is_asked_again_and_the_copy_is_whole(
    home: Path, data: Path
) -> None:
    from forebay_protos.v1 import daemon_pb2 as pb

    class Killing(AnonymousFile):
        """Kills the daemon with the first chunk, and lets it come back."""

        def write(self, chunk: bytes | bytearray | memoryview) -> None:
            super().write(chunk)
            if first.process.returncode is None:
                os.kill(first.process.pid, signal.SIGKILL)
                first.process.wait(10)
                threading.Thread(target=lambda: again.append(second.__enter__())).start()

    with daemon(home, name="k") as first:
        asked = DaemonClient(str(first.socket))
        opened = asked.open_dataset([str(data)])
        second, again = daemon(home, name="k"), list[Daemon]()
        file = Killing()
        asked.read("ReadManifest", pb.ReadManifestRequest(dataset_id=opened.dataset_id), pb.ReadManifestResponse, file)
        eventually(lambda: again, 20, "the second daemon to serve")
        second.__exit__(None, None, None)
    assert Path(file.path).read_bytes() == opened.manifest_path.read_bytes()


def test_a_loader_that_is_closed_while_a_copy_waits_for_its_piece_ends_at_once(
    home: Path, bucket: Bucket, s3: SeaweedFS, data: Path, counting_proxy: CountingProxy
) -> None:
    bucket.upload(data, "train/")
    held = threading.Event()

    def hold(request: Request) -> Fault | None:
        if len(counting_proxy.gets()) < 12:
            return None
        held.set()
        return Fault(delay_seconds=60)

    before = set(threading.enumerate())
    counting_proxy.fault = hold
    with daemon(home, env={**os.environ, **s3.environment(endpoint=counting_proxy.endpoint)}) as node:
        hide(node)
        stream = forebay.StreamingDataset(
            bucket.uri("train"), address=str(node.socket), shuffle=False, format=forebay.Parquet(piece_bytes=1)
        )
        loader = forebay.DataLoader(stream, 10)
        iterator: Iterator[Any] = iter(loader)
        next(iterator)
        assert held.wait(30)
        loader.close()
        eventually(lambda: not threads_beyond(before), 20, "the threads to end")


def test_an_object_that_cannot_be_fetched_is_the_same_error_through_a_copy(home: Path, data: Path) -> None:
    with daemon(home) as node:
        hide(node)
        stream = forebay.StreamingDataset(str(data), address=str(node.socket), shuffle=False)
        loader = forebay.DataLoader(stream, 10)
        len(loader)
        (data / "shard-00002.parquet").unlink()
        with pytest.raises(forebay.SourceError, match="shard-00002"):
            list(loader)
        loader.close()
