"""All facts of one diagnosis: of the daemon, of every disk, also one that is gone, and no more than was asked for."""

import asyncio
from pathlib import Path

import pytest

from forebay_core.diagnosis import DaemonFacts, DiskFacts, Fact, MeasurementFacts
from forebay_core.errors import ConfigurationError
from forebay_server.diagnosis.run import Diagnosis, DiskBooks, Limits
from forebay_server.sources.registry import Stores
from forebay_server.sources.remote import RemoteCounters

MIB = 1 << 20


def facts_of(disks: list[DiskBooks], limits: Limits) -> list[Fact]:
    diagnosis = Diagnosis(
        Stores({}, RemoteCounters()), lambda: disks, environment={"http_proxy": "http://p:hunter2@h"}, version="1.0"
    )

    async def gather() -> list[Fact]:
        return [fact async for fact in diagnosis.facts([], limits)]

    return asyncio.run(gather())


def test_disks_that_the_daemon_does_not_use_are_said_and_not_measured(tmp_path: Path) -> None:
    (tmp_path / "disk-id").write_text("d1")
    well = DiskBooks("d1", tmp_path, 100 * MIB, 10 * MIB, "normal", "")
    gone = DiskBooks("", tmp_path / "gone", 0, 0, "down", "no such directory")
    broken = DiskBooks("d3", tmp_path, 100 * MIB, 0, "read-only", "Read-only file system")
    daemon, first, second, third, *measured = facts_of([well, gone, broken], Limits(5.0, MIB))
    assert isinstance(daemon, DaemonFacts)
    assert (daemon.version, daemon.machine.proxies) == ("1.0", {"http_proxy": "http://h"})
    assert isinstance(first, DiskFacts)
    assert (first.id_inode, first.state) == ((tmp_path / "disk-id").stat().st_ino, "normal")
    assert first.size_bytes > 0
    assert isinstance(second, DiskFacts)
    assert (second.id_inode, second.size_bytes, second.state, second.reason) == (0, 0, "down", "no such directory")
    assert isinstance(third, DiskFacts)
    assert third.state == "read-only"
    assert [(m.what, m.disk_id) for m in measured if isinstance(m, MeasurementFacts)] == [
        ("write", "d1"),
        ("read", "d1"),
    ]
    assert len(measured) == 2


def test_nothing_is_measured_in_no_time(tmp_path: Path) -> None:
    facts = facts_of([DiskBooks("d1", tmp_path, 1, 0, "normal", "")], Limits(0.0, 0))
    assert [type(fact) for fact in facts] == [DaemonFacts, DiskFacts]


@pytest.mark.parametrize(("seconds", "count"), [(-1.0, 0), (31.0, 0), (1.0, 1 << 40), (float("nan"), 0)])
def test_no_caller_can_ask_for_a_measurement_without_end(seconds: float, count: int) -> None:
    with pytest.raises(ConfigurationError, match="a measurement takes"):
        Limits(seconds, count)
