"""A session against a real daemon: leases, needs and positions, and what a restart leaves of them."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from forebay.daemon.client import DaemonClient
from forebay.daemon.session import NEEDS_PER_MESSAGE, Lease, Session, Taken
from forebay.daemon.status import SessionStatus
from forebay_core.errors import ColumnNotFound, ConfigurationError, DaemonError
from tests.server.daemons import daemon
from tests.support.data import write_parquet
from tests.support.processes import Process, eventually

SHARDS = 4


@pytest.fixture
def data(home: Path) -> Path:
    write_parquet(home / "data", shards=SHARDS)
    return home / "data"


@contextmanager
def opened(socket: Path, data: Path) -> Iterator[tuple[DaemonClient, Session]]:
    client = DaemonClient(str(socket), reconnect_seconds=60)
    session = Session(client, client.open_dataset([str(data)]), ["id"], "test")
    try:
        yield client, session
    finally:
        session.close()


def only_session(client: DaemonClient) -> SessionStatus:
    [status] = client.status().sessions
    return status


def await_files(leases: list[Lease]) -> None:
    for lease in leases:
        eventually(lease.path.exists, 20, f"{lease.path} to appear")


def publish_all(session: Session) -> None:
    pieces = np.arange(SHARDS, dtype=np.int64)
    session.publish(pieces, pieces * 100, pieces * 100 + 100)


def test_leases_name_files_that_appear_and_then_their_inode_and_size(home: Path, data: Path) -> None:
    with daemon(home) as running, opened(running.socket, data) as (_, session):
        await_files(session.acquire([2, 0]))
        leases = session.acquire([2, 0])
        assert [lease.piece for lease in leases] == [2, 0]
        for lease in leases:
            found = lease.path.stat()
            assert (lease.inode, lease.size, lease.pending) == (found.st_ino, found.st_size, False)


def test_the_daemon_knows_needs_position_and_leases(home: Path, data: Path) -> None:
    with daemon(home) as running, opened(running.socket, data) as (client, session):
        publish_all(session)
        session.report(50, 12.5)
        session.acquire([1, 2, 3])
        session.release(np.array([2]))
        status = only_session(client)
        assert (status.label, status.process_id, status.position) == ("test", os.getpid(), 50)
        assert (status.positions_per_second, status.needs, status.leases) == (12.5, SHARDS, 2)


def test_needs_of_many_messages_arrive_whole(home: Path, data: Path) -> None:
    with daemon(home) as running, opened(running.socket, data) as (client, session):
        pieces = np.arange(2 * NEEDS_PER_MESSAGE + 1, dtype=np.int64) % SHARDS
        session.publish(pieces, pieces, pieces + 1)
        assert only_session(client).needs > 0
        session.publish(pieces[:0], pieces[:0], pieces[:0])
        assert only_session(client).needs == 0


def test_wrong_requests_are_refused_and_the_session_lives_on(home: Path, data: Path) -> None:
    with daemon(home) as running, opened(running.socket, data) as (client, session):
        with pytest.raises(ConfigurationError):
            session.acquire([SHARDS])
        with pytest.raises(ColumnNotFound):
            Session(client, client.open_dataset([str(data)]), ["no such"], "test")
        with pytest.raises(ValueError, match="unequal"):
            session.publish(np.arange(2), np.arange(1), np.arange(2))
        assert session.acquire([]) == []


def test_a_killed_daemon_that_is_started_again_gets_the_whole_session_back(home: Path, data: Path) -> None:
    with daemon(home) as first:
        client = DaemonClient(str(first.socket), reconnect_seconds=60)
        session = Session(client, client.open_dataset([str(data)]), ["id"], "test")
        publish_all(session)
        session.report(150, 5.0, Taken(150, 6.0, 0.0))
        await_files(session.acquire([0, 1, 2]))
        assert only_session(client).waited_seconds == 6.0
        session.release([1])
        first.process.kill_tree()
    answers: list[list[Lease]] = []
    thread = threading.Thread(target=lambda: answers.append(session.acquire([3])))
    thread.start()
    with daemon(home) as second:
        thread.join(60)
        assert [lease.piece for lease in answers[0]] == [3]
        status = only_session(client)
        assert second.boot_id != first.boot_id
        assert (status.needs, status.position, status.leases) == (SHARDS, 150, 3)
        session.report(151, 5.0, Taken(180, 7.5, 1.0))
        status = only_session(client)
        told = (status.waited_seconds, status.waiting_seconds)
        assert told == (1.5, 1.0), "what the first daemon has heard of is not the second one's to count"
        session.close()


def test_a_daemon_that_came_back_without_its_cache_is_given_the_dataset_again(home: Path, data: Path) -> None:
    with daemon(home) as first:
        client = DaemonClient(str(first.socket), reconnect_seconds=60)
        session = Session(client, client.open_dataset([str(data)]), ["id"], "test")
    with daemon(home, "--cache-dir", str(home / "other-cache")):
        await_files(session.acquire([0]))
        assert only_session(client).leases == 1
        session.close()


def test_a_report_to_a_restarted_daemon_gives_it_the_session_back_and_neither_report_nor_release_raises(
    home: Path, data: Path
) -> None:
    with daemon(home) as first:
        client = DaemonClient(str(first.socket), reconnect_seconds=60)
        session = Session(client, client.open_dataset([str(data)]), ["id"], "test")
        session.publish(np.arange(2), np.array([5, 50]), np.array([10, 60]))
    session.report(7)
    session.release([0])
    with daemon(home):
        client.status()
        session.release([0])
        assert client.status().sessions == ()
        session.report(9)
        assert (only_session(client).position, only_session(client).needs) == (9, 2)
        session.close()
        assert client.status().sessions == ()


def test_a_piece_that_cannot_be_read_is_fetched_again(home: Path, data: Path) -> None:
    """CASES 31: the disk fails."""
    with daemon(home) as running, opened(running.socket, data) as (client, session):
        session.acquire([0])
        eventually(lambda: not session.acquire([0])[0].pending, 20, "the piece")
        (before,) = session.acquire([0])
        session.unreadable(0, before.disk_id)
        eventually(lambda: not session.acquire([0])[0].pending, 20, "the piece again")
        session.acquire([0])
        assert client.status().counters.fills == 2


def test_closing_is_idempotent_and_silent_without_a_daemon(home: Path, data: Path) -> None:
    with daemon(home) as running:
        client = DaemonClient(str(running.socket), reconnect_seconds=60)
        session = Session(client, client.open_dataset([str(data)]), [], "test")
    session.close()
    session.close()
    with pytest.raises(DaemonError, match="closed"):
        session.acquire([0])


def test_threads_may_lease_and_report_at_once(home: Path, data: Path) -> None:
    with daemon(home) as running, opened(running.socket, data) as (client, session):
        failures: list[Exception] = []

        def use(piece: int) -> None:
            try:
                for position in range(20):
                    session.acquire([piece])
                    session.report(position)
                    session.release([piece])
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=use, args=(piece,)) for piece in range(SHARDS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert failures == []
        assert only_session(client).leases == 0


FORKING = """
import os, sys
from forebay.daemon.client import DaemonClient
from forebay.daemon.session import Session
client = DaemonClient(sys.argv[1])
session = Session(client, client.open_dataset([sys.argv[2]]), ["id"], "forking")
session.acquire([0])
pid = os.fork()
if pid == 0:
    session.acquire([1])
    session.close()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
session.acquire([2])
[status] = client.status().sessions
assert status.leases == 3, status
session.close()
assert client.status().sessions == ()
"""


def test_a_forked_child_uses_the_session_and_does_not_end_it(home: Path, data: Path) -> None:
    with daemon(home) as running:
        program = [sys.executable, "-W", "ignore", "-c", FORKING, str(running.socket), str(data)]
        with Process(program, log=home / "forking.log", limit_seconds=60) as process:
            process.check(60)
