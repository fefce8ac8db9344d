"""The daemon that the demo and the benchmarks start for themselves."""

from pathlib import Path

import psutil
import pytest

from forebay.demo.daemon import own_daemon
from forebay_core.errors import DaemonUnavailable


def test_it_serves_in_the_block_without_the_users_settings_and_is_gone_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_CAPACITY", "much")
    with own_daemon(tmp_path, "--capacity", "1GiB") as daemon:
        status = daemon.client().status()
        assert (status.process_id, status.disks[0].path) == (daemon.process_id, str(tmp_path / "cache"))
    assert not psutil.pid_exists(daemon.process_id)


def test_a_directory_too_deep_for_a_socket_gets_one_elsewhere(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    with own_daemon(deep, "--capacity", "1GiB") as daemon:
        assert daemon.client().status().disks[0].path == str(deep / "cache")
    assert not daemon.socket.parent.exists()


def test_one_that_cannot_serve_says_why_and_where_its_log_is(tmp_path: Path) -> None:
    with pytest.raises(DaemonUnavailable, match=f"capacity 'much' is not a size.*{tmp_path}/daemon.log"):  # noqa: SIM117
        with own_daemon(tmp_path, "--capacity", "much"):
            pass
