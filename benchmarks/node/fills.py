"""How fast a daemon fills its cache from a bucket, beside obstore alone with as many requests at once.

Both read the same object in ranges of a piece and write each to a file of its own on the same disk, with its crc32c. A
turn of the daemon is a new daemon with an empty cache: it counts from the call that leases all pieces to the last file
at its place, and the daemon's own CPU time.

Both begin with free memory that the machine has at hand. And no turn removes many files: ext4 passes over inodes that
were freed in the last minutes, one by one, whenever it makes a file, and the daemon makes two for each piece.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.daemon import emptied, served
from benchmarks.free_memory import touch
from benchmarks.shape import measured
from tests.server.daemons import client, token_spec
from tests.support.seaweedfs import Bucket

PIECE_BYTES, AT_ONCE = 8 << 20, 16
SEQUENCE = 2048
_POLL_SECONDS = 0.002


@dataclass(frozen=True)
class Remote:
    """One object of tokens in a bucket."""

    bucket: Bucket
    key: str
    size: int


def upload(bucket: Bucket, megabytes: int) -> Remote:
    """Random bytes. From now on this process and those that it starts reach the bucket's server."""
    os.environ.update(bucket.server.environment())
    size = megabytes << 20
    bucket.put("tokens.bin", os.urandom(size))
    return Remote(bucket, "tokens.bin", size)


def _cost(remote: Remote, wall_seconds: float, cpu_seconds: float) -> dict[str, float]:
    return {
        "megabytes_per_second": remote.size / 1e6 / wall_seconds,
        "cpu_seconds_per_gigabyte": cpu_seconds / (remote.size / 1e9),
    }


def by_obstore(remote: Remote, directory: Path) -> Mapping[str, float]:
    """One turn of obstore alone."""
    with emptied(directory) as target:
        numbers = map(str, (remote.size, PIECE_BYTES, AT_ONCE))
        command = [sys.executable, "-m", "benchmarks.node.copy_program", remote.bucket.name, remote.key, *numbers]
        ended = subprocess.run([*command, str(target)], check=True, stdout=subprocess.PIPE, timeout=600)
        written = sum(path.stat().st_size for path in target.iterdir())
        assert written == remote.size, "obstore must write all there is"
    return _cost(remote, **json.loads(ended.stdout))


def by_daemon(remote: Remote, directory: Path) -> Mapping[str, float]:
    """One turn of a daemon of its own."""
    options = ("--capacity", str(2 * remote.size + (1 << 30)), "--remote-requests", str(AT_ONCE))
    with emptied(directory) as home, served(home, *options) as node, client(node.own.socket) as asked:
        opened = asked.open([remote.bucket.uri(remote.key)], token_spec(SEQUENCE, PIECE_BYTES))
        session = asked.session(opened.dataset_id)
        touch(directory, remote.size)
        cpu = node.cpu_seconds()
        with measured() as usage:
            leases = asked.acquire(session, range(-(-remote.size // PIECE_BYTES)))
            root = Path(opened.disks[0].path)
            for path in [root / lease.path for lease in leases]:
                while not path.exists():
                    assert not path.with_name(f"{path.name}.error").exists()
                    time.sleep(_POLL_SECONDS)
        written = sum((root / lease.path).stat().st_size for lease in leases)
        assert written == remote.size, "the daemon must write all there is"
        return _cost(remote, usage.wall_seconds, node.cpu_seconds() - cpu)
