"""What a machine that went down, and a disk that is full, leave to the next daemon: served, and never a wrong byte."""

import json
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from forebay_protos.v1 import daemon_pb2 as pb
from tests.server.daemons import client, command, daemon, read, token_spec, write_shards
from tests.support.processes import Process, eventually

COPY = ("--read-in-place", "never")
PIECE = 4096
#: What the disk did to which pieces.
DAMAGE = {1: "zeros", 2: "truncated", 3: "stale", 4: "empty", 5: "no data", 6: "no sidecar"}


def lose_power(cache: Path, pieces: list[Path]) -> None:
    """All is of another boot, and what had not been synced is as a file system may leave it."""
    shutil.rmtree(cache / "index")
    for path in pieces:
        sidecar = path.with_name(f"{path.name}.json")
        sidecar.write_text(json.dumps(json.loads(sidecar.read_text()) | {"boot": "the one before"}))
    for number, how in DAMAGE.items():
        path = pieces[number]
        found = path.stat()
        if how == "no data":
            path.unlink()
            continue
        if how == "no sidecar":
            path.with_name(f"{path.name}.json").unlink()
            continue
        whole = path.read_bytes()
        path.write_bytes(
            {"zeros": bytes(PIECE), "truncated": whole[:100], "stale": whole[:2048] + b"\xee" * 2048, "empty": b""}[how]
        )
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


@pytest.mark.parametrize("when", ["at once", "after the background has proven them"])
def test_after_a_power_loss_what_is_right_is_used_again_and_what_is_not_is_fetched(home: Path, when: str) -> None:
    """CASES 26 and 33."""
    whole = write_shards(home / "data", shards=2)
    rates = ("--verify-bytes-per-second", "0") if when == "at once" else ()
    with daemon(home, *COPY) as running, client(running.socket) as caller:
        session = caller.session(caller.open([str(home / "data")], token_spec()).dataset_id)
        leases = caller.acquire(session, range(8))
        for lease in leases:
            read(running.cache, lease)
        eventually(lambda: caller.status().fills_running == 0, 20, "the fills to end")
        running.process.signal(signal.SIGKILL)
        running.process.wait(20)
    pieces = [running.cache / lease.path for lease in leases]
    lose_power(running.cache, pieces)
    with daemon(home, *COPY, *rates) as running, client(running.socket) as caller:
        if when != "at once":
            eventually(lambda: not pieces[1].exists(), 20, "the damage to be found")
            eventually(lambda: not pieces[3].exists(), 20, "the damage to be found")
            eventually(lambda: caller.status().disks[0].pieces == 2, 20, "the others to be counted")
        session = caller.session(caller.open([str(home / "data")], token_spec()).dataset_id)
        leases = caller.acquire(session, range(8))
        assert b"".join(read(running.cache, lease) for lease in leases) == whole
        eventually(lambda: caller.status().fills_running == 0, 20, "the fills to end")
        assert caller.status().counters.fills == len(DAMAGE)
        assert caller.status().disks[0].pieces == 8


@contextmanager
def on_a_disk_of(size: str, home: Path, *flags: str) -> Iterator[Process]:
    """A daemon over a small file system in a mount namespace of its own; it is started again whenever it ends."""
    alone = ["unshare", "--mount", *(["--map-root-user"] if os.getuid() else []), "sh", "-c"]
    (home / "cache-d").mkdir()
    mount = f"mount -t tmpfs -o size={size},mode=0750 tmpfs {home / 'cache-d'}"
    if shutil.which("unshare") is None or subprocess.run([*alone, mount], capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount: no mount namespace (unshare --mount) to have a small disk in")
    serve = shlex.join(command("--socket", str(home / "d" / "s"), "--cache-dir", str(home / "cache-d"), *flags))
    program = f"{mount} && while true; do {serve}; done"
    with Process([*alone, program], log=home / "d.log", limit_seconds=100) as process:
        yield process


def serving_pid(process: Process, *, nth: int) -> int:
    """The process id of the nth daemon, once it serves."""

    def ready() -> str:
        lines = [line for line in process.output().splitlines() if line.startswith('{"socket"') and line.endswith("}")]
        return lines[nth - 1] if len(lines) >= nth else ""

    return int(json.loads(eventually(ready, 30, f"daemon {nth} to serve"))["pid"])


def fill_up(directory: Path, name: str = "junk") -> None:
    with (directory / name).open("wb", buffering=0) as file, suppress(OSError):  # no space left
        while True:
            file.write(bytes(4096))
    assert shutil.disk_usage(directory).free == 0


def settled(leases: list[pb.Lease]) -> list[pb.Lease]:
    """The leases once none is pending."""
    return [] if any(lease.pending for lease in leases) else leases


def test_a_start_on_a_full_disk_serves_what_is_there_and_makes_room_for_more(home: Path) -> None:
    """CASES 31."""
    whole = write_shards(home / "data", shards=2)
    with on_a_disk_of("512k", home, *COPY) as process:
        pid = serving_pid(process, nth=1)
        seen = Path(f"/proc/{pid}/root{home}/cache-d")
        with client(home / "d" / "s") as caller:
            session = caller.session(caller.open([str(home / "data")], token_spec()).dataset_id)
            leases = caller.acquire(session, range(4))
            assert b"".join(read(seen, lease) for lease in leases) == whole[: 4 * PIECE]
            eventually(lambda: caller.status().fills_running == 0, 20, "the fills to end")
        fill_up(seen)
        os.kill(pid, signal.SIGKILL)
        pid = serving_pid(process, nth=2)
        seen = Path(f"/proc/{pid}/root{home}/cache-d")
        with client(home / "d" / "s") as caller:
            session = caller.session(caller.open([str(home / "data")], token_spec()).dataset_id)
            leases = caller.acquire(session, range(4))
            assert not all(lease.pending for lease in leases), "some go, since some of a disk is left to others"
            leases = eventually(lambda: settled(caller.acquire(session, range(4))), 90, "what has no room to pass by")
            for piece, lease in enumerate(leases):
                assert lease.bypassed or read(seen, lease) == whole[piece * PIECE :][:PIECE]
            caller.release(session, range(4))
            if not caller.status().counters.evictions:  # the killed daemon has left some room
                fill_up(seen, "more junk")
            (lease,) = caller.acquire(session, [7])
            assert read(seen, lease) == whole[7 * PIECE :]
            assert caller.status().counters.evictions > 0
