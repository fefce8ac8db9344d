"""A hundred thousand leases, taken and given back: what the daemon holds afterwards is what it held before."""

from pathlib import Path

import psutil

from forebay_protos.v1 import daemon_pb2 as pb
from tests.server.daemons import CALL_SECONDS, Client, client, daemon, read, token_spec, write_shards
from tests.support.processes import eventually

PIECES, ROUNDS, CALLS = 100, 50, 20
WARM_UP = 10
#: What an allocator may keep; one object kept for each lease would be more.
GROWTH_BYTES = 4 << 20


def a_round(caller: Client, dataset: str) -> None:
    """One loader's life: it publishes, reads everything some times over, reports, and goes."""
    session = caller.session(dataset)
    caller.publish(session, range(PIECES), range(PIECES), range(1, PIECES + 1))
    for call in range(CALLS):
        assert len(caller.acquire(session, range(PIECES))) == PIECES
        caller.report(session, call, 10.0)
        caller.release(session, range(PIECES))
    caller.stub.CloseSession(pb.CloseSessionRequest(session_id=session), timeout=CALL_SECONDS)


def test_a_hundred_thousand_leases_leave_memory_descriptors_threads_and_sessions_as_they_were(home: Path) -> None:
    write_shards(home / "data", shards=1, samples=PIECES)
    with daemon(home, "--read-in-place", "never") as running, client(running.socket) as caller:
        dataset = caller.open([str(home / "data")], token_spec(piece_bytes=64)).dataset_id
        first = caller.session(dataset)
        for lease in caller.acquire(first, range(PIECES)):
            read(running.cache, lease)
        for _ in range(WARM_UP):
            a_round(caller, dataset)
        process = psutil.Process(running.process.pid)
        before = process.memory_info().rss, process.num_fds(), process.num_threads()
        for _ in range(ROUNDS):
            a_round(caller, dataset)
        status = caller.status()
        assert [session.session_id for session in status.sessions] == [first]
        assert status.counters.hits >= PIECES * ROUNDS * CALLS == 100_000
        eventually(lambda: process.num_fds() <= before[1] and process.num_threads() <= before[2], 20, "what was opened")
        assert process.memory_info().rss - before[0] < GROWTH_BYTES
