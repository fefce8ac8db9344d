"""`forebay verify`: by a running daemon and beside none; it finds what is damaged, and changes nothing unasked."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from forebay.cli import run
from tests.server.daemons import Client, Daemon, client, daemon, read, token_spec, write_shards
from tests.support.processes import eventually

COPY = ("--read-in-place", "never")


def fill(caller: Client, running: Daemon, data: Path) -> list[Path]:
    """All pieces of the dataset are in the cache; their paths."""
    session = caller.session(caller.open([str(data)], token_spec()).dataset_id)
    leases = caller.acquire(session, range(8))
    for lease in leases:
        read(running.cache, lease)
    eventually(lambda: caller.status().fills_running == 0, 20, "the fills to end")
    return [running.cache / lease.path for lease in leases]


def flip_a_bit(path: Path) -> None:
    found = path.stat()
    content = bytearray(path.read_bytes())
    content[100] ^= 4
    path.write_bytes(content)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def snapshot(cache: Path) -> dict[str, bytes]:
    whole = [*(cache / "pieces").rglob("*"), *(cache / "quarantine").rglob("*")]
    return {str(path): path.read_bytes() for path in whole if path.is_file()}


class Verify:
    """Runs the command as a user does."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        status = run(["verify", "--json", *arguments])
        return status, json.loads(self._capsys.readouterr().out)


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str]) -> Verify:
    return Verify(capsys)


@contextmanager
def filled(home: Path) -> Iterator[tuple[Daemon, list[Path]]]:
    write_shards(home / "data", shards=2)
    with daemon(home, *COPY) as running, client(running.socket) as caller:
        yield running, fill(caller, running, home / "data")


def test_a_running_daemon_verifies_what_it_holds_and_repairs_what_it_is_asked_to(home: Path, verify: Verify) -> None:
    """CASES 26."""
    with filled(home) as (running, pieces):
        address = f"--address=unix:{running.socket}"
        assert verify(address) == (0, {"pieces": 8, "bytes": 8 * 4096, "damaged": [], "repaired": False})
        flip_a_bit(pieces[5])
        before = snapshot(running.cache)
        status, found = verify(address)
        assert status == 1
        (damaged,) = found["damaged"]
        assert damaged["key"] == pieces[5].name
        assert damaged["url"] == f"file://{home}/data/00001.bin"
        assert damaged["piece"] == 5
        assert damaged["disk"] == str(running.cache)
        assert "other bytes" in damaged["reason"]
        assert snapshot(running.cache) == before, "nothing is changed unasked"

        assert verify(address, "--repair")[0] == 0
        assert not pieces[5].exists()
        assert (running.cache / "quarantine" / pieces[5].name).exists()
        with client(running.socket) as caller:
            assert fill(caller, running, home / "data") == pieces
        assert verify(address) == (0, {"pieces": 8, "bytes": 8 * 4096, "damaged": [], "repaired": False})
        assert "00001.bin" in next(home.glob("d-*.log")).read_text(), "the log says it too"


def test_a_directory_that_no_daemon_holds_is_verified_beside_none(home: Path, verify: Verify) -> None:
    """CASES 26."""
    with filled(home) as (running, pieces):
        directory = f"--cache-dir={running.cache}"
        status, refused = verify(directory)
        assert (status, refused["error"]) == (1, "AlreadyRunning")
        assert f"pid {running.process.pid}" in refused["message"]
    flip_a_bit(pieces[0])
    with pieces[1].open("r+b") as file:
        file.truncate(10)
    before = snapshot(running.cache)
    status, found = verify(directory)
    assert status == 1
    assert found["pieces"] == 8
    reasons = {piece["piece"]: piece["reason"] for piece in found["damaged"]}
    assert sorted(reasons) == [0, 1]
    assert "not whole" in reasons[1]
    assert snapshot(running.cache) == before
    assert not (running.cache / "lock").exists()

    assert verify(directory, "--repair")[0] == 0
    assert verify(directory) == (0, {"pieces": 6, "bytes": 6 * 4096, "damaged": [], "repaired": False})
    with daemon(home, *COPY) as again, client(again.socket) as caller:
        assert fill(caller, again, home / "data") == pieces


def test_what_is_no_cache_is_refused_and_not_made_one(home: Path, verify: Verify) -> None:
    (home / "other").mkdir()
    for name in ("other", "missing"):
        status, refused = verify(f"--cache-dir={home / name}")
        assert (status, refused["error"]) == (2, "ConfigurationError")
    assert list((home / "other").iterdir()) == []
    assert not (home / "missing").exists()


def test_people_are_told_in_words(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with filled(home) as (running, pieces):
        flip_a_bit(pieces[3])
        address = f"--address=unix:{running.socket}"
        assert run(["verify", address]) == 1
        said = capsys.readouterr().out
        assert f"piece 3 of file://{home}/data/00000.bin holds other bytes" in said
        assert "1 damaged; take them out of use with --repair" in said
        assert run(["verify", address, "--repair"]) == 0
        assert run(["verify", address]) == 0
        assert capsys.readouterr().out.endswith(": all right\n")
