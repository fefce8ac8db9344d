"""How long a client waits for its leases when so many others ask too, all pieces being in the cache.

Each client asks for a batch of pieces and gives them back, so many times a second as a trainer that reads a gigabyte a
second in the smallest usual pieces would. Up to four clients have a process each; above that they share four, as
threads, because more processes than that would measure the scheduler. In between each makes a call that does nothing:
on a busy machine the ratio of the two says what the daemon adds.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from statistics import median, quantiles

from benchmarks.daemon import Daemon
from tests.server.daemons import client, token_spec

BATCH, PROCESSES = 16, 4
CURVE = (1, 4, 16, 64)
CALLS_PER_SECOND = 20


def prepare(node: Daemon, url: str, sequence: int, piece_bytes: int) -> str:
    """Brings the first pieces into the cache; gives the dataset's id."""
    with client(node.own.socket) as asked:
        dataset = asked.open([url], token_spec(sequence, piece_bytes)).dataset_id
        session = asked.session(dataset)
        while any(lease.pending for lease in asked.acquire(session, range(BATCH))):
            pass
    return str(dataset)


def turn(node: Daemon, dataset: str, clients: int, calls: int) -> Mapping[str, float]:
    """So many clients with so many calls each."""
    each, fills = _shares(clients), node.status().counters.fills
    with ExitStack() as stack:
        running = [stack.enter_context(_start(str(node.own.socket), dataset, share, calls)) for share in each]
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        cpu = node.cpu_seconds()
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        answers: list[dict[str, list[float]]] = [
            json.loads(process.stdout.readline()) for process in running if process.stdout
        ]
        cpu = node.cpu_seconds() - cpu
    assert node.status().counters.fills == fills, "all must have been in the cache"
    acquires, empty_calls = (
        [value for answer in answers for value in answer[kind]] for kind in ("acquires", "empty_calls")
    )
    return {
        "median_milliseconds": median(acquires),
        "p99_milliseconds": quantiles(acquires, n=100)[-1],
        "empty_call_median_milliseconds": median(empty_calls),
        "empty_call_p99_milliseconds": quantiles(empty_calls, n=100)[-1],
        "daemon_cpu_milliseconds_per_call": 1e3 * cpu / (3 * len(acquires)),
    }


def _shares(clients: int) -> Sequence[int]:
    processes = min(clients, PROCESSES)
    return [clients // processes + (number < clients % processes) for number in range(processes)]


def _start(socket: str, dataset: str, clients: int, calls: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "benchmarks.node.acquire_program", socket, dataset),
            *map(str, (BATCH, clients, calls, CALLS_PER_SECOND)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
