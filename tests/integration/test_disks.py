"""Several disks under a real daemon and real loaders: small file systems that fill up, refuse writes and break down."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay_core.node_layout import LOCK_FILE
from tests.integration.trainers import in_order, job, reference
from tests.server.daemons import Daemon, client, command, daemon
from tests.support.filesystems import break_down, ext4, read_only, tmpfs
from tests.support.processes import eventually

SAMPLES = 300
DATASET: dict[str, Any] = {
    "format": forebay.Parquet(piece_bytes=1),
    "order": forebay.OrderOptions(lanes=4, window=30),
}


def directories(*paths: Path) -> list[str]:
    return [flag for path in paths for flag in ("--cache-dir", str(path))]


def status(node: Daemon) -> dict[str, Any]:
    with client(node.socket) as asked:
        return {disk.path: disk for disk in asked.status().disks}


def state(node: Daemon, path: Path) -> str:
    return str(status(node)[str(path)].state)


def run_epoch(node: Daemon, data: Path, expected: list[Any], **loader: Any) -> None:
    """A whole epoch from the start; every sample once, in order."""
    with job(str(data), str(node.socket), world_size=1, batch_size=10, dataset=DATASET, loader=loader) as ranks:
        ranks.run()
        assert in_order(ranks.seen) == expected


def fill_up(path: Path) -> None:
    """Writes a file as large as its disk lets it become."""
    with path.open("wb", buffering=0) as ballast, suppress(OSError):
        while ballast.write(bytes(1 << 16)):
            pass
    assert os.statvfs(path).f_bavail < 16


def places(batch: dict[str, Any]) -> list[tuple[int, int]]:
    """Position and id of each sample."""
    return list(zip(batch[forebay.POSITION].tolist(), batch[forebay.SAMPLE_ID].tolist(), strict=True))


def forebay_disk(node: Daemon, *arguments: str) -> dict[str, Any]:
    program = [sys.executable, "-m", "forebay.cli", "disk", *arguments, "--address", f"unix:{node.socket}", "--json"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_an_epoch_is_read_from_two_disks_and_one_can_be_drained_and_admitted_by_command(home: Path, data: Path) -> None:
    a, b = home / "a", home / "b"
    with daemon(home, *directories(a, b), name="d") as node:
        expected = in_order(reference(str(data), str(node.socket), 1, **DATASET))
        pieces = {path: disk.pieces for path, disk in status(node).items()}
        assert sum(pieces.values()) == 30
        assert min(pieces.values()) >= 5, "both take their part"
        run_epoch(node, data, expected)
        assert forebay_disk(node, "drain", str(a))["draining"] is True
        assert status(node)[str(a)].pieces == pieces[str(a)], "what is there stays"
        run_epoch(node, data, expected)
        assert forebay_disk(node, "admit", str(a))["draining"] is False
        assert forebay_disk(node, "admit", "/nowhere")["error"] == "ConfigurationError"


@pytest.mark.parametrize("loader", [{}, {"num_workers": 1}], ids=["in process", "1 worker"])
def test_a_disk_that_breaks_down_in_mid_epoch_costs_the_trainer_no_sample(
    home: Path, data: Path, loader: dict[str, Any]
) -> None:
    """CASES 31: the disk fails; training goes on from the other, and from the source."""
    with daemon(home, name="whole") as whole:
        expected = in_order(reference(str(data), str(whole.socket), 1, **DATASET))
    a, b = home / "a", home / "b"
    with (
        ext4(a, "64M") as disk,
        daemon(home, *directories(disk, b), "--capacity", "40MiB") as node,
        job(str(data), str(node.socket), world_size=1, batch_size=10, dataset=DATASET, loader=loader) as ranks,
    ):
        run_epoch(node, data, expected)
        assert status(node)[str(a)].pieces > 0
        iterator = iter(ranks.loaders[0])
        batches = [next(iterator) for _ in range(3)]
        break_down(disk)
        batches += iterator
        seen = [(0, *place) for batch in batches for place in places(batch)]
        assert in_order(seen) == expected, "a reader that was under way goes on"
        ranks.run()
        assert sorted(sample for *_, sample in ranks.seen) == list(range(SAMPLES)), "and so does the next epoch"
        eventually(lambda: state(node, a) == "down", 30, "the daemon to find out")
        run_epoch(node, data, expected)
        assert status(node)[str(a)].pieces == 0


def test_a_trainer_whose_only_disk_breaks_down_reads_on_past_the_cache(home: Path, data: Path) -> None:
    """CASES 31: without any disk what is needed comes from the source."""
    with daemon(home, name="whole") as whole:
        expected = in_order(reference(str(data), str(whole.socket), 1, **DATASET))
    with (
        ext4(home / "a", "64M") as disk,
        daemon(home, *directories(disk), "--capacity", "40MiB", "--prefetch-fills", "0") as node,
        job(str(data), str(node.socket), world_size=1, batch_size=10, dataset=DATASET) as ranks,
    ):
        iterator = iter(ranks.loaders[0])
        batches = [next(iterator) for _ in range(3)]
        break_down(disk)
        batches += iterator
        seen = [(0, *place) for batch in batches for place in places(batch)]
        assert in_order(seen) == expected
        eventually(lambda: state(node, disk) == "down", 30, "the daemon to find out")


def test_a_daemon_on_the_only_disk_serves_what_is_there_when_that_refuses_writes_also_from_the_start(
    home: Path, data: Path
) -> None:
    """CASES 31: a read-only disk."""
    with tmpfs(home / "a", "32M") as disk:
        with daemon(home, *directories(disk), "--capacity", "20MiB", name="r") as node:
            expected = in_order(reference(str(data), str(node.socket), 1, **DATASET))
        read_only(disk)
        with daemon(home, *directories(disk), "--capacity", "20MiB", name="r") as node:
            assert state(node, disk) == "read-only"
            run_epoch(node, data, expected)
            other = command("--socket", str(home / "o/s"), *directories(disk))
            ended = subprocess.run(other, capture_output=True, text=True, timeout=20, check=False)
            assert (ended.returncode, "another daemon" in ended.stderr) == (1, True)
            read_only(disk, wanted=False)
            assert forebay_disk(node, "admit", str(disk))["state"] == "normal"
            assert (disk / LOCK_FILE).exists()


def test_a_daemon_starts_on_a_full_disk_and_serves_what_is_there(home: Path, data: Path) -> None:
    """CASES 31: a full disk at the start."""
    with ext4(home / "a", "32M") as disk:
        with daemon(home, *directories(disk), "--capacity", "20MiB", name="f") as node:
            expected = in_order(reference(str(data), str(node.socket), 1, **DATASET))
        fill_up(disk / "lost+found" / "ballast")
        with daemon(home, *directories(disk), "--capacity", "20MiB", name="f") as node:
            run_epoch(node, data, expected)


def test_a_start_goes_on_without_a_directory_that_cannot_be_used_says_so_and_takes_it_in_later(
    home: Path, data: Path
) -> None:
    """CASES 31, 32: one bad disk does not keep the daemon from the others."""
    foreign, good = home / "foreign", home / "good"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("mine")
    with daemon(home, *directories(foreign, good)) as node:
        assert "thesis.tex" in status(node)[str(foreign)].reason
        assert (state(node, foreign), state(node, good)) == ("down", "normal")
        assert "is left out for now" in node.process.output()
        expected = in_order(reference(str(data), str(node.socket), 1, **DATASET))
        (foreign / "thesis.tex").unlink()
        assert forebay_disk(node, "admit", str(foreign))["state"] == "normal"
        run_epoch(node, data, expected)
    flags = ["--socket", str(home / "n/s"), *directories(home / "data", Path("/dev/null/x"))]
    ended = subprocess.run(command(*flags), capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == 2
    assert str(home / "data") in ended.stderr


def test_a_start_on_a_disk_that_has_failed_is_told_from_a_wrong_setting(home: Path) -> None:
    """CASES 31: a service manager starts the daemon again after status 1, and not after 2."""
    with ext4(home / "disk", "16M") as disk:
        with daemon(home, "--cache-dir", str(disk / "cache"), "--capacity", "1MiB"):
            pass
        break_down(disk)
        program = command("--socket", str(home / "s"), "--cache-dir", str(disk / "cache"), "--capacity", "1MiB")
        ended = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1, ended.stderr
    assert "no cache directory can be used" in ended.stderr


def test_a_disk_that_fills_up_under_the_daemon_is_worked_around(home: Path, data: Path) -> None:
    """CASES 31: somebody else fills the disk."""
    with daemon(home, name="whole") as whole:
        expected = in_order(reference(str(data), str(whole.socket), 1, **DATASET))
    with tmpfs(home / "a", "16M") as disk, daemon(home, *directories(disk, home / "b"), "--capacity", "12MiB") as node:
        fill_up(disk / "ballast")
        run_epoch(node, data, expected)
        assert state(node, home / "b") == "normal"
