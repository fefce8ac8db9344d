"""The commands of those who run a daemon, as they run them, against a real one: ls, warm, pin, evict, top, sessions."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from forebay.cli import run
from forebay_core.mapping import MappedFile
from tests.server.daemons import Client, Daemon, client, daemon, read, token_spec, write_shards
from tests.support.processes import eventually

COPY = ("--read-in-place", "never")
FORMAT = json.dumps(token_spec())
#: A piece of 4096 bytes, with its sidecar.
PIECE_ON_DISK = 8192


class Operator:
    """Runs commands as a user does: exit status and the JSON object that was printed."""

    def __init__(self, running: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
        self._running = running
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        self._capsys.readouterr()
        status = run([*arguments, "--json", f"--address=unix:{self._running.socket}"])
        return status, json.loads(self._capsys.readouterr().out)

    def text(self, *arguments: str) -> str:
        self._capsys.readouterr()
        run([*arguments, f"--address=unix:{self._running.socket}"])
        return self._capsys.readouterr().out

    def warm(self, source: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
        return self("warm", str(source), "--format", FORMAT, *arguments)


@contextmanager
def served(home: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> Iterator[tuple[Daemon, Client, Operator]]:
    with daemon(home, *COPY, *flags) as running, client(running.socket) as caller:
        yield running, caller, Operator(running, capsys)


def leased(caller: Client, data: Path, pieces: range) -> tuple[str, list[Any]]:
    session = caller.session(caller.open([str(data)], token_spec()).dataset_id)
    leases = caller.acquire(session, pieces)
    eventually(lambda: caller.status().fills_running == 0, 20, "the fills to end")
    return session, leases


def cached(operator: Operator, source: Path) -> int:
    return sum(row["pieces"] for row in operator("ls", str(source))[1]["contents"])


def test_a_dataset_is_warmed_once_and_then_read_without_a_miss(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = home / "data"
    write_shards(data, shards=2)
    with served(home, capsys) as (running, caller, operator):
        status, found = operator.warm(data, "--check")
        assert (status, found["total"], found["missing"], found["fetched"]) == (1, 8, 8, 0)
        assert caller.status().counters.fills == 0, "a check fetches nothing"
        status, found = operator.warm(data)
        assert (status, found["complete"], found["fetched"], found["bytes"]) == (0, True, 8, 8 * 4096)
        status, found = operator.warm(data)
        assert (status, found["there"], found["fetched"]) == (0, 8, 0)
        assert operator.warm(data, "--check")[0] == 0
        _, leases = leased(caller, data, range(8))
        assert b"".join(read(running.cache, lease) for lease in leases) == b"".join(
            path.read_bytes() for path in sorted(data.iterdir())
        )
        counters = caller.status().counters
        assert (counters.hits, counters.misses, counters.fills) == (8, 0, 8)
        assert not [s for s in caller.status().sessions if s.label == "warm"], "its sessions have ended"


def test_warming_fills_the_cache_and_turns_nothing_over(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    big, small = home / "big", home / "small"
    write_shards(big, shards=4)
    write_shards(small, shards=1)
    with served(home, capsys, "--capacity", str(8 * PIECE_ON_DISK)) as (_, caller, operator):
        leased(caller, small, range(4))
        status, found = operator.warm(big)
        assert status == 1
        assert found["fetched"] + found["missing"] == 16
        assert found["missing"] >= 12, "what a trainer holds stays"
        assert cached(operator, small) == 4
        assert cached(operator, big) == found["fetched"] > 0, "what was warmed was not pushed out by the rest of it"
        assert "did not fit" in operator.text("warm", str(big), "--format", FORMAT)


def test_what_cannot_be_warmed_is_said_with_its_reason(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = home / "data"
    write_shards(data, shards=2)
    with served(home, capsys) as (_, caller, operator):
        caller.open([str(data)], token_spec())
        with (data / "00001.bin").open("r+b") as file:
            file.write(b"changed!")
        status, found = operator.warm(data)
        assert status in (0, 1)
        assert found["total"] == 8
        (data / "00001.bin").unlink()
        status, found = operator("warm", str(home / "nowhere"), "--format", FORMAT)
        assert found["error"] == "SourceNotFound"
        assert "nowhere" in found["message"]


def test_ls_shows_datasets_and_below_a_url_its_objects(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_shards(home / "train", shards=2)
    write_shards(home / "training", shards=1)
    with served(home, capsys) as (running, caller, operator):
        assert operator("ls") == (0, {"contents": []})
        assert operator("ls", str(home / "train"))[0] == 1
        operator.warm(home / "train")
        _, leases = leased(caller, home / "training", range(3))
        assert len(leases) == 3
        rows = {row["url"]: row for row in operator("ls")[1]["contents"]}
        assert {url.rpartition("/")[2]: row["pieces"] for url, row in rows.items()} == {"train": 8, "training": 3}
        assert sum(row["bytes"] for row in rows.values()) == caller.status().disks[0].used_bytes
        status, found = operator("ls", str(home / "train"))
        assert status == 0
        assert [(row["url"].rpartition("/")[2], row["pieces"], row["rows"]) for row in found["contents"]] == [
            ("00000.bin", 4, 256),
            ("00001.bin", 4, 256),
        ]
        assert all(row["version"] and row["disks"] == [str(running.cache)] for row in found["contents"])
        assert [row["leased"] for row in operator("ls", str(home / "training"))[1]["contents"]] == [3]
        assert cached(operator, home / "train" / "00001.bin") == 4
        assert "00001.bin" in operator.text("ls", str(home / "train"))


def test_evict_removes_what_is_named_and_spares_what_is_leased_mapped_or_pinned(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """CASES 29."""
    write_shards(home / "train", shards=2)
    write_shards(home / "training", shards=1)
    with served(home, capsys) as (running, caller, operator):
        operator.warm(home / "train")
        operator.warm(home / "training")
        status, found = operator("evict", str(home / "train"), "--dry-run")
        assert (status, found["pieces"], found["bytes"]) == (0, 8, 8 * PIECE_ON_DISK)
        assert cached(operator, home / "train") == 8

        session, leases = leased(caller, home / "train", range(2))
        caller.release(session, [1])
        with MappedFile.open(running.cache / leases[1].path, offset=0, length=None, in_place=False) as mapped:
            before = bytes(mapped.view)
            operator("pin", str(home / "train" / "00001.bin"))
            status, found = operator("evict", str(home / "train"))
            assert (found["pieces"], found["leased"], found["in_use"], found["kept"]) == (2, 1, 1, 4)
            status, found = operator("evict", str(home / "train"), "--force")
            assert (found["pieces"], found["kept"]) == (2, 4)
            assert bytes(mapped.view) == before, "who has it mapped keeps it"
        assert cached(operator, home / "training") == 4
        operator("unpin", str(home / "train"))
        assert operator("evict", "--all")[1]["pieces"] == 8
        assert operator("ls")[1] == {"contents": []}
        assert not list((running.cache / "pieces").rglob("*.json"))


def test_evict_wants_to_be_told_what(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(home, capsys) as (_, _caller, operator):
        for arguments in (("evict",), ("evict", "/x", "--all")):
            status, found = operator(*arguments)
            assert status == 2
            assert "--all" in found["message"]


@pytest.mark.parametrize("command", ["ls", "warm", "pin", "unpin", "evict"])
def test_an_empty_name_is_not_taken_for_the_working_directory(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, ""]) == 2
    assert "is a variable unset?" in capsys.readouterr().err


def test_what_is_pinned_stays_through_others_and_through_a_restart(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, others = home / "kept", home / "others"
    write_shards(kept, shards=2)
    write_shards(others, shards=4)
    room = ("--capacity", str(10 * PIECE_ON_DISK))
    with served(home, capsys, *room) as (_, caller, operator):
        assert operator("pin") == (0, {"pinned": []})
        operator("pin", str(kept / "00000.bin"))
        operator.warm(kept)
        eventually(lambda: operator("pin")[1]["pinned"][0]["pieces"] == 4, 20, "what came later to be kept")
        session, _ = leased(caller, others, range(4))
        caller.release(session, range(4))
        session, _ = leased(caller, others, range(4, 12))
        assert cached(operator, kept / "00000.bin") == 4, "pinned"
        assert cached(operator, kept / "00001.bin") == 0, "not pinned, and in the way of what was demanded"
    with served(home, capsys, *room) as (_, caller, operator):
        eventually(lambda: operator("pin")[1]["pinned"][0]["pieces"] == 4, 20, "the pins of before")
        leased(caller, others, range(12, 16))
        assert operator("unpin", str(home / "elsewhere"))[0] == 1
        status, found = operator("unpin", str(kept))
        assert (status, found) == (0, {"ended": 1, "pinned": []})
        assert operator("unpin", str(kept))[0] == 1
        session, _ = leased(caller, others, range(6))
        assert cached(operator, kept) < 4, "it may go now"


def test_pins_leave_room_for_others_to_pass_through(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CASES 30."""
    kept, others = home / "kept", home / "others"
    write_shards(kept, shards=3)
    write_shards(others, shards=1)
    pieces = 10
    with served(home, capsys, "--capacity", str(pieces * PIECE_ON_DISK)) as (_, caller, operator):
        operator("pin", str(kept))
        operator.warm(kept)
        (row,) = operator("pin")[1]["pinned"]
        assert row["pieces"] == math.floor(0.8 * pieces)
        assert row["beyond"] > 0
        for piece in range(4):
            session, _ = leased(caller, others, range(piece, piece + 1))
            caller.release(session, [piece])


def test_top_and_sessions_show_who_reads_what(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = home / "data"
    write_shards(data, shards=2)
    with served(home, capsys) as (running, caller, operator):
        session, _ = leased(caller, data, range(8))
        caller.report(session, 77, 12.0)
        status, found = operator("sessions")
        assert status == 0
        assert [(row["label"], row["position"], row["leases"]) for row in found["sessions"]] == [("test", 77, 8)]
        assert "test" in operator.text("sessions")
        status, report = operator("top")
        assert status == 0
        assert report["counters"]["fills"] == 8
        shown = operator.text("top", "--once", "--interval", "0.1")
        assert str(running.cache) in shown
        assert "1 sessions" in shown
        assert str(data) in shown


def test_without_a_daemon_every_command_says_so_in_one_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (("ls",), ("pin",), ("unpin", "/x"), ("evict", "--all"), ("warm", "/x"), ("sessions",), ("top",)):
        assert run([*arguments, f"--address=unix:{home}/nobody.sock"]) == 1
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert f"start one with: forebay serve --socket {home}/nobody.sock" in error


def test_what_a_terminal_would_obey_in_a_name_is_written_out(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = home / "data"
    write_shards(data, shards=1)
    (data / "00000.bin").rename(data / "\x1b[31mred\n.bin")
    with served(home, capsys) as (_, _caller, operator):
        operator.warm(data)
        assert r"\x1b[31mred\n.bin" in operator.text("ls", str(data))
        assert r"\x1b[31mred\n.bin" in operator.text("unpin", str(data / "\x1b[31mred\n.bin"))
