"""What the loader does when something goes wrong: the daemon dies, the source is wrong, the cache is too small."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.daemon import copies
from tests.integration.trainers import in_order, job, reference
from tests.server.daemons import Daemon, client, daemon
from tests.support.data import write_parquet, write_tokens
from tests.support.processes import Process, eventually
from tests.support.proxy import CountingProxy, Fault, Request
from tests.support.seaweedfs import Bucket, SeaweedFS

SAMPLES = 300
DATASET: dict[str, Any] = {
    "format": forebay.Parquet(piece_bytes=1),
    "order": forebay.OrderOptions(lanes=4, window=30),
}


@pytest.fixture
def node(home: Path) -> Iterator[Daemon]:
    with daemon(home) as started:
        yield started


def fills(node: Daemon) -> int:
    with client(node.socket) as asked:
        return int(asked.status().counters.fills)


def serves(address: Path, data: Path) -> bool:
    """Whether a new job over good data runs."""
    with job(str(data), str(address), world_size=1, batch_size=50, dataset=DATASET) as ranks:
        ranks.run()
        return sorted(sample for *_, sample in ranks.seen) == list(range(SAMPLES))


@pytest.mark.parametrize("loader", [{}, {"num_workers": 2}], ids=["in process", "2 workers"])
def test_a_daemon_that_is_killed_and_started_again_costs_a_pause_and_no_sample(
    loader: dict[str, Any], home: Path, data: Path
) -> None:
    with daemon(home) as first:
        expected = in_order(reference(str(data), str(first.socket), 2, **DATASET))
    with (
        daemon(home, name="k") as killed,
        job(str(data), str(killed.socket), world_size=2, batch_size=4, dataset=DATASET, loader=loader) as ranks,
    ):
        ranks.run(5)
        state = ranks.state
        os.kill(killed.process.pid, signal.SIGKILL)
        killed.process.wait(10)
        with daemon(home, name="k"):
            for each in ranks.loaders:
                each.load_state_dict(state)
            ranks.run()
            ranks.run()
    assert in_order(ranks.seen) == expected


def test_a_daemon_that_is_killed_while_the_trainer_waits_for_a_fill_is_ridden_through(
    home: Path, bucket: Bucket, s3: SeaweedFS, data: Path, counting_proxy: CountingProxy
) -> None:
    bucket.upload(data, "train/")
    held, released = threading.Event(), threading.Event()

    def hold(request: Request) -> Fault | None:
        if released.is_set() or len(counting_proxy.gets()) < 12:
            return None
        held.set()
        return Fault(delay_seconds=30)

    counting_proxy.fault = hold
    environment = {**os.environ, **s3.environment(endpoint=counting_proxy.endpoint)}
    seen: list[int] = []
    with daemon(home, env=environment) as killed:
        data_set = forebay.StreamingDataset(
            bucket.uri("train"), columns=["id"], address=str(killed.socket), shuffle=False, **{**DATASET, "order": None}
        )
        loader = forebay.DataLoader(data_set, 10, num_workers=1)
        iterator = iter(loader)
        reading = threading.Thread(target=lambda: seen.extend(i for batch in iterator for i in batch["id"].tolist()))
        reading.start()
        assert held.wait(30)
        os.kill(killed.process.pid, signal.SIGKILL)
        killed.process.wait(10)
    assert len(seen) < SAMPLES
    released.set()
    with daemon(home, env=environment):
        reading.join(60)
        assert not reading.is_alive()
        loader.close()
    assert seen == list(range(SAMPLES))


def test_eight_processes_download_each_piece_once(
    home: Path, bucket: Bucket, s3: SeaweedFS, data: Path, counting_proxy: CountingProxy
) -> None:
    """CASES 28."""
    bucket.upload(data, "train/")
    environment = {**os.environ, **s3.environment(endpoint=counting_proxy.endpoint)}
    script = home / "read.py"
    script.write_text(READ_ALL)
    with daemon(home, env=environment) as node:
        readers = [
            Process(
                [sys.executable, str(script), bucket.uri("train"), str(node.socket), str(rank % 4), "4"],
                log=home / f"reader-{rank}.log",
                limit_seconds=100,
            )
            for rank in range(8)
        ]
        outputs = [json.loads(reader.check(90).splitlines()[-1]) for reader in readers]
        for reader in readers:
            reader.close()
        assert sorted(sample for output in outputs[:4] for sample in output) == list(range(SAMPLES))
        assert sorted(sample for output in outputs[4:] for sample in output) == list(range(SAMPLES))
        with client(node.socket) as asked:
            assert asked.status().counters.fills == 30
    sizes = {path.name: path.stat().st_size for path in data.iterdir()}
    pieces = [
        exchange.request
        for exchange in counting_proxy.exchanges
        if exchange.request.method == "GET" and exchange.request.range and not is_footer(exchange.request, sizes)
    ]
    ranges = [(request.key, request.range) for request in pieces]
    assert len(ranges) == len(set(ranges))
    assert len(ranges) == 30


def is_footer(request: Request, sizes: dict[str, int]) -> bool:
    size = sizes[Path(request.key).name]
    return request.range is not None and request.range.endswith(f"-{size - 1}")


READ_ALL = """
import json, sys
import forebay
source, address, rank, world = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
data = forebay.StreamingDataset(
    source, columns=["id"], rank=rank, world_size=world, address=address, format=forebay.Parquet(piece_bytes=1)
)
loader = forebay.DataLoader(data, 7)
print(json.dumps([i for batch in loader for i in batch["id"].tolist()]))
loader.close()
"""


@pytest.mark.parametrize(
    ("source", "options", "error", "words"),
    [
        ("ftp://host/data", {}, forebay.UnknownScheme, "ftp"),
        ("{home}/nothing-here", {}, forebay.SourceNotFound, "nothing-here"),
        ("{home}/empty", {}, forebay.SourceNotFound, "empty"),
        ("s3://no-such-bucket-here/train", {}, forebay.SourceNotFound, "no-such-bucket-here"),
        ("s3://{bucket}/no-such-prefix", {}, forebay.SourceNotFound, "no-such-prefix"),
        ("s3:///train", {}, forebay.ConfigurationError, "bucket"),
        ("{home}/data", {"columns": ["id", "labels"]}, forebay.ColumnNotFound, "labels"),
        ("{home}/foreign", {}, forebay.BadObject, "shard.parquet"),
        ("{home}/unknown", {}, forebay.ConfigurationError, "format="),
        ("{home}/tokens", {}, forebay.ConfigurationError, "sequence_length"),
        ("{home}/data", {"format": "tokens"}, forebay.ConfigurationError, "sequence_length"),
        ("{home}/data", {"format": "webp"}, forebay.ConfigurationError, "webp"),
    ],
)
def test_bad_sources_and_options_are_one_typed_error_each_and_the_daemon_goes_on(
    source: str,
    options: dict[str, Any],
    error: type[Exception],
    words: str,
    home: Path,
    data: Path,
    bucket: Bucket,
    s3: SeaweedFS,
) -> None:
    (home / "empty").mkdir()
    for name, body in (
        ("foreign/shard.parquet", b"<html>404</html>"),
        ("unknown/x.rec", b"abc"),
        ("tokens/a.bin", b"a"),
    ):
        (home / name).parent.mkdir()
        (home / name).write_bytes(body)
    bucket.put("train/x.parquet", b"PAR1")
    with daemon(home, env={**os.environ, **s3.environment()}) as node:
        with pytest.raises(error) as caught:
            forebay.StreamingDataset(
                source.format(home=home, bucket=bucket.name), address=str(node.socket), **options
            ).open()
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
        assert serves(node.socket, data)
        assert not list((node.cache / "tmp").iterdir())


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, forebay.AccessDenied, "AWS_"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, forebay.AccessDenied, "AWS_ACCESS_KEY_ID"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, forebay.SourceUnreachable, "127.0.0.1:9"),
    ],
)
def test_wrong_credentials_and_endpoints_are_told_apart_within_seconds(
    change: dict[str, str], error: type[Exception], words: str, home: Path, bucket: Bucket, s3: SeaweedFS, data: Path
) -> None:
    bucket.upload(data, "train/")
    with daemon(home, env={**os.environ, **s3.environment(), **change}) as node:
        begun = time.monotonic()
        with pytest.raises(error) as caught:
            forebay.StreamingDataset(bucket.uri("train"), address=str(node.socket)).open()
        assert time.monotonic() - begun < 20
        assert words in str(caught.value)
        keys = [value for name, value in s3.environment().items() if "SECRET" in name]
        assert keys
        assert not any(key in str(caught.value) for key in [*keys, change.get("AWS_SECRET_ACCESS_KEY", keys[0])])
        assert serves(node.socket, data)


@pytest.mark.parametrize("loader", [{}, {"num_workers": 1}], ids=["in process", "worker"])
def test_an_object_that_changes_under_a_running_job_is_named_and_never_mixed(
    loader: dict[str, Any], home: Path, data: Path, node: Daemon
) -> None:
    """CASES 27."""
    options: dict[str, Any] = {"columns": ["id"], "shuffle": False, "format": forebay.Parquet(piece_bytes=1)}
    stream = forebay.StreamingDataset(str(data), address=str(node.socket), **options)
    made = forebay.DataLoader(stream, 10, **loader)
    len(made)
    write_parquet(data, shards=3, rows=100, row_group_rows=10, first_id=5000)
    with pytest.raises(forebay.ObjectChanged, match="shard-00000"):
        check_old(made)
    made.close()


def check_old(loader: forebay.DataLoader) -> None:
    for batch in loader:
        assert batch["id"].max() < 5000


@pytest.mark.parametrize("loader", [{}, {"num_workers": 1}], ids=["in process", "worker"])
def test_a_file_that_is_written_while_it_is_read_in_place_is_named(
    loader: dict[str, Any], home: Path, node: Daemon
) -> None:
    write_tokens(home / "tokens" / "a.bin", samples=4000, sequence_length=64)
    fmt = forebay.Tokens(sequence_length=64, dtype="int32", piece_bytes=64 << 10)
    stream = forebay.StreamingDataset(str(home / "tokens"), format=fmt, address=str(node.socket))
    made = forebay.DataLoader(stream, 10, **loader)
    iterator = iter(made)
    next(iterator)
    with (home / "tokens" / "a.bin").open("r+b") as file:
        file.write(b"\x07" * 4000 * 64 * 4)
    with pytest.raises(forebay.ObjectChanged, match=r"a\.bin (was written while|has changed)"):
        drain(iterator)
    made.close()


def drain(iterator: Iterator[Any]) -> None:
    for _ in iterator:
        pass


def test_an_object_that_is_removed_under_a_running_job_is_named(home: Path, data: Path, node: Daemon) -> None:
    stream = forebay.StreamingDataset(str(data), columns=["id"], shuffle=False, address=str(node.socket))
    loader = forebay.DataLoader(stream, 10)
    len(loader)
    (data / "shard-00002.parquet").unlink()
    with pytest.raises(forebay.SourceError, match="shard-00002"):
        list(loader)
    loader.close()


@pytest.mark.parametrize(
    "loader", [{}, {"num_workers": 2}, {"num_workers": 2, "worker_type": "thread"}], ids=["in process", "2", "threads"]
)
def test_a_dataset_larger_than_the_cache_is_read_whole(loader: dict[str, Any], home: Path) -> None:
    write_tokens(home / "tokens" / "a.bin", samples=2000, sequence_length=512)
    options = {
        "format": forebay.Tokens(sequence_length=512, dtype="int32", piece_bytes=64 << 10),
        "columns": None,
        "order": forebay.OrderOptions(lanes=2, window=60),
    }
    with daemon(home, "--capacity", "1MiB", "--read-in-place", "never") as node:
        with job(
            str(home / "tokens"), str(node.socket), world_size=1, batch_size=32, dataset=options, loader=loader
        ) as ranks:
            ranks.run()
            ranks.run()
            assert sorted(sample for epoch, _, sample in ranks.seen if epoch == 1) == list(range(2000))
        with client(node.socket) as asked:
            status = asked.status()
        assert status.counters.evictions > 0
        assert all(disk.used_bytes + disk.reserved_bytes <= disk.capacity_bytes for disk in status.disks)
        stored = sum(file.stat().st_blocks * 512 for file in (node.cache / "pieces").rglob("*") if file.is_file())
        assert stored <= 2 << 20


@pytest.mark.parametrize(
    "loader", [{}, {"num_workers": 2}, {"num_workers": 2, "worker_type": "thread"}], ids=["in process", "2", "threads"]
)
def test_an_order_that_mixes_more_than_the_cache_holds_is_read_whole_and_the_log_says_what_would_hold_it(
    loader: dict[str, Any], home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_tokens(home / "tokens" / "a.bin", samples=800, sequence_length=512)
    options = {
        "format": forebay.Tokens(sequence_length=512, dtype="int32", piece_bytes=64 << 10),
        "columns": None,
        "order": forebay.OrderOptions(lanes=2),
    }
    with (
        daemon(home, "--capacity", "800KiB", "--read-in-place", "never") as node,
        job(
            str(home / "tokens"), str(node.socket), world_size=1, batch_size=4, dataset=options, loader=loader
        ) as ranks,
    ):
        ranks.run()
        assert sorted(sample for _, _, sample in ranks.seen) == list(range(800))
        ranks.run(5)
    (said,) = [record.getMessage() for record in caplog.records if "mixes" in record.getMessage()]
    assert "the order mixes about 1.56 MiB at a time and the cache gives this loader 400 KiB" in said
    assert "--capacity of at least 3200KiB, or order=forebay.OrderOptions(window=" in said


def test_nodes_that_share_lanes_are_told_once_how_often_pieces_are_fetched(
    data: Path, node: Daemon, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", "forebay")
    monkeypatch.setenv("WORLD_SIZE", "24")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    for lanes, says in ((4, ["12 nodes share the order's 4 lanes, so each piece is fetched about 3 times"]), (12, [])):
        caplog.clear()
        stream = forebay.StreamingDataset(
            str(data),
            format=DATASET["format"],
            order=forebay.OrderOptions(lanes=lanes),
            rank=0,
            world_size=24,
            address=str(node.socket),
        )
        loader = forebay.DataLoader(stream, 2)
        for _ in range(2):
            next(iter(loader))
        loader.close()
        found = [record.getMessage() for record in caplog.records if "share the order's" in record.getMessage()]
        assert [text[: len(says[0])] for text in found] == says if says else found == []


@pytest.mark.parametrize("loader", [{}, {"num_workers": 2}], ids=["in process", "2 workers"])
def test_pieces_that_can_never_fit_pass_the_cache_by_and_the_log_says_what_would_hold_them(
    loader: dict[str, Any], home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """CASES 30: one object is too large."""
    copies._said.clear()
    write_tokens(home / "tokens" / "a.bin", samples=2000, sequence_length=512)
    options: dict[str, Any] = {
        "format": forebay.Tokens(sequence_length=512, dtype="int32", piece_bytes=2 << 20),
        "columns": None,
    }
    with daemon(home, "--read-in-place", "never", name="large") as node:
        expected = in_order(reference(str(home / "tokens"), str(node.socket), 1, **options))
    with daemon(home, "--capacity", "1MiB", "--read-in-place", "never") as node:
        with job(
            str(home / "tokens"), str(node.socket), world_size=1, batch_size=100, dataset=options, loader=loader
        ) as ranks:
            ranks.run()
        with client(node.socket) as asked:
            counters = asked.status().counters
            assert counters.fills == 0
            assert 2 <= counters.bypasses <= 4
        assert node.process.output().count("pass the cache by") == 1
    assert in_order(ranks.seen) == expected
    (said,) = [record.getMessage() for record in caplog.records if "has no room" in record.getMessage()]
    assert "give the cache more capacity, or cut smaller pieces (piece_bytes=)" in said


def test_a_piece_that_fits_neither_into_the_cache_nor_into_memory_is_one_clear_error(home: Path) -> None:
    """CASES 30: one object is too large."""
    write_tokens(home / "tokens" / "a.bin", samples=2000, sequence_length=512)
    fmt = forebay.Tokens(sequence_length=512, dtype="int32", piece_bytes=4 << 20)
    flags = ["--capacity", "1MiB", "--read-in-place", "never", "--fill-memory-bytes", "2MiB"]
    with daemon(home, *flags) as node:
        stream = forebay.StreamingDataset(str(home / "tokens"), format=fmt, address=str(node.socket))
        loader = forebay.DataLoader(stream, 10)
        with pytest.raises(forebay.CapacityError, match=r"piece 0 of .*a\.bin.*memory.*--capacity"):
            next(iter(loader))
        loader.close()
        assert fills(node) == 0


def test_cached_files_that_someone_deletes_are_fetched_again(home: Path, data: Path, node: Daemon) -> None:
    with job(str(data), str(node.socket), world_size=1, batch_size=20, dataset=DATASET) as ranks:
        ranks.run()
    for path in (node.cache / "pieces").rglob("*"):
        if path.is_file():
            path.unlink()
    assert serves(node.socket, data)


def test_without_a_daemon_the_loader_starts_one_of_its_own(home: Path, data: Path) -> None:
    with job(str(data), None, world_size=1, batch_size=20, dataset=DATASET) as ranks:
        ranks.run()
        assert sorted(sample for *_, sample in ranks.seen) == list(range(SAMPLES))


def test_a_process_that_exits_in_the_middle_of_an_epoch_exits_at_once(home: Path, data: Path, node: Daemon) -> None:
    for workers in (0, 2):
        script = EXIT_EARLY.format(source=str(data), address=str(node.socket), workers=workers)
        begun = time.monotonic()
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (3, "")
        imported, ended = (float(line) for line in done.stdout.split())
        assert time.monotonic() - begun - (ended - imported) < 40
        with client(node.socket) as asked:
            eventually(lambda: not asked.status().sessions, 10, "the session to end")


EXIT_EARLY = """
import sys, time
import forebay
loader = forebay.DataLoader(
    forebay.StreamingDataset({source!r}, columns=["id"], address={address!r}, format=forebay.Parquet(piece_bytes=1)),
    10, num_workers={workers},
)
print(time.monotonic(), flush=True)
iterator = iter(loader)
next(iterator)
print(time.monotonic(), flush=True)
sys.exit(3)
"""


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_a_killed_trainer_leaves_no_workers(context: str, home: Path, data: Path, node: Daemon) -> None:
    script = (
        EXIT_EARLY.format(source=str(data), address=str(node.socket), workers=2)
        .replace("sys.exit(3)", "time.sleep(100)")
        .replace("num_workers=2", f"num_workers=2, multiprocessing_context='{context}'")
    )
    with Process([sys.executable, "-c", script], log=home / "trainer.log", limit_seconds=90) as trainer:
        eventually(lambda: len(trainer.output().splitlines()) == 2, 60, "the trainer to have a batch")
        family = trainer.tree()
        assert len(family) >= 3
        os.kill(trainer.pid, signal.SIGKILL)
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family[1:]), 15, "the workers to end")
