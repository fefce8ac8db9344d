"""What becomes of a trainer whose daemon goes: it waits, goes on with one of its own, or says so at once."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import forebay
from forebay.daemon.client import DaemonClient
from tests.integration.trainers import in_order, job, reference
from tests.server.daemons import Daemon, daemon

DATASET: dict[str, Any] = {
    "format": forebay.Parquet(piece_bytes=1),
    "order": forebay.OrderOptions(lanes=4, window=30),
}


@pytest.fixture
def small_daemons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what a test's own daemon is told."""
    monkeypatch.setenv("FOREBAY_CAPACITY", "1GiB")


def kill(node: Daemon) -> None:
    os.kill(node.process.pid, signal.SIGKILL)
    node.process.wait(10)


def own_daemons(home: Path) -> int:
    lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return sum("--embedded" in line and str(home) in " ".join(line) for line in lines)


def replaced(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "one of this user's own" in record.getMessage()]


@pytest.mark.usefixtures("small_daemons")
@pytest.mark.parametrize("is_discovered", [False, True], ids=["explicit", "discovered"])
@pytest.mark.parametrize("loader", [{}, {"num_workers": 2}], ids=["in process", "2 workers"])
def test_a_daemon_that_is_gone_for_good_is_replaced_in_mid_epoch_and_not_a_sample_is_lost_or_moved(
    loader: dict[str, Any],
    is_discovered: bool,
    home: Path,
    data: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dataset = {**DATASET, "fallback": "embedded", "daemon_wait_seconds": 0.5}
    with daemon(home, name="gone") as gone:
        address = str(gone.socket)
        if is_discovered:
            monkeypatch.setenv("FOREBAY_ADDRESS", address)
        given = None if is_discovered else address
        with job(str(data), given, world_size=2, batch_size=4, dataset=dataset, loader=loader) as ranks:
            ranks.run(5)
            kill(gone)
            shutil.rmtree(gone.cache)
            state = ranks.state
            for each in ranks.loaders:
                each.load_state_dict(state)
            ranks.run()
            ranks.run()
            assert own_daemons(home) == 1
            assert len(replaced(caplog)) == 1
            expected = in_order(reference(str(data), given, 2, **DATASET, fallback="embedded"))
    assert in_order(ranks.seen) == expected


@pytest.mark.usefixtures("small_daemons")
def test_a_daemon_that_was_never_there_is_replaced_without_a_wait(home: Path, data: Path) -> None:
    stream = forebay.StreamingDataset(str(data), address=str(home / "nobody"), fallback="embedded")
    assert stream.samples == 300
    assert own_daemons(home) == 1


def first_of(data: Path, **options: Any) -> Callable[[], object]:
    return lambda: forebay.StreamingDataset(str(data), **options).samples


def test_a_missing_daemon_is_an_error_at_once_where_that_is_asked_for_and_none_is_started(
    home: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(forebay.DaemonUnavailable, match="forebay serve"):
        first_of(data, address=str(home / "nobody"), fallback="error", daemon_wait_seconds=60)()
    monkeypatch.setenv("FOREBAY_FALLBACK", "error")
    with pytest.raises(forebay.DaemonUnavailable, match="no socket is there, waited 0 s"):
        first_of(data)()
    assert own_daemons(home) == 0


@pytest.mark.parametrize("options", [{"fallback": "error"}, {"fallback": "wait", "daemon_wait_seconds": 0.3}])
def test_a_daemon_that_goes_in_mid_epoch_ends_the_epoch_with_one_clear_error_and_a_state_that_goes_on(
    options: dict[str, Any], home: Path, data: Path
) -> None:
    with daemon(home) as first:
        expected = in_order(reference(str(data), str(first.socket), 1, **DATASET))
    with daemon(home, name="k") as killed:
        address = str(killed.socket)
        with job(str(data), address, world_size=1, batch_size=4, dataset={**DATASET, **options}) as ranks:
            ranks.run(5)
            ranks.loaders[0].load_state_dict(ranks.state)
            kill(killed)
            with pytest.raises(forebay.DaemonUnavailable, match=f"no daemon answers at {killed.socket}"):
                ranks.run()
            seen, state = ranks.seen, ranks.state
        with (
            daemon(home, name="k"),
            job(str(data), address, world_size=1, batch_size=4, state=state, dataset=DATASET) as resumed,
        ):
            resumed.run()
    assert in_order(seen + resumed.seen) == expected


def test_a_client_that_errs_at_once_still_finds_a_daemon_that_was_restarted_between_its_calls(home: Path) -> None:
    with daemon(home, name="k") as first:
        client = DaemonClient(str(first.socket), fallback="error")
        assert client.status().boot_id == first.boot_id
        kill(first)
        with daemon(home, name="k") as second:
            assert client.status().boot_id == second.boot_id


def test_the_loader_may_say_it_too_and_must_not_contradict_the_dataset(home: Path, data: Path) -> None:
    with pytest.raises(forebay.DaemonUnavailable):
        len(forebay.DataLoader(forebay.StreamingDataset(str(data)), 4, address=str(home / "n"), fallback="error"))
    with pytest.raises(forebay.ConfigurationError, match="fallback='wait' here, fallback='error'"):
        forebay.DataLoader(forebay.StreamingDataset(str(data), fallback="error"), 4, fallback="wait")
    with pytest.raises(forebay.ConfigurationError, match="map-style"):
        forebay.DataLoader([1, 2, 3], 1, daemon_wait_seconds=3)
