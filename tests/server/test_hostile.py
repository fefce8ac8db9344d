"""Hostile and broken clients before one real daemon: each is refused, and the others are served meanwhile.

The daemon is shared by all tests here, so what one of them broke fails the next ones too; each ends with a look at it.
"""

import json
import os
import socket as sockets
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

import grpc
import psutil
import pytest

from forebay_protos.v1 import daemon_pb2 as pb
from tests.server.daemons import CALL_SECONDS, Client, Daemon, client, daemon, read, token_spec, write_shards
from tests.server.test_daemon import refused
from tests.support.processes import HOME_VARIABLE, end_processes_of, eventually

PIECES = 10_000
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
UNREADABLE = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
FULL = grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.fixture(scope="module")
def node() -> Iterator[Daemon]:
    """A daemon of this module, beside a dataset of 10,000 small pieces and a file that it must not give away."""
    with tempfile.TemporaryDirectory(prefix="fb-") as directory:
        home = Path(directory)
        write_shards(home / "data", shards=10, samples=PIECES // 10)
        (home / "datum").mkdir()
        write_shards(home / "datum", shards=1)
        flags = ("--allow-read", str(home / "data"), "--allow-read", "s3://bucket/allowed")
        with daemon(home, *flags, env={**os.environ, HOME_VARIABLE: str(home)}) as started:
            yield started
        end_processes_of(home)


@pytest.fixture
def caller(node: Daemon) -> Iterator[Client]:
    """A well-behaved client, which is served before and after the test."""
    with client(node.socket) as good:
        assert_serves(node, good)
        yield good
        assert_serves(node, good)


@pytest.fixture
def dataset(node: Daemon, caller: Client) -> str:
    return opened(node, caller)


def opened(node: Daemon, caller: Client) -> str:
    return str(caller.open([str(node.cache.parent / "data")], token_spec(piece_bytes=64)).dataset_id)


def assert_serves(node: Daemon, caller: Client) -> None:
    assert caller.is_serving()
    session = caller.session(opened(node, caller))
    lease = caller.acquire(session, [7])[0]
    assert len(read(node.cache, lease)) == 64
    caller.stub.CloseSession(pb.CloseSessionRequest(session_id=session), timeout=CALL_SECONDS)


@contextmanager
def bounded(node: Daemon, *, megabytes: float) -> Iterator[None]:
    """Fails where the daemon's memory has grown by more, or it has more descriptors than before a moment later."""
    process = psutil.Process(node.process.pid)
    memory, descriptors = process.memory_info().rss, process.num_fds()
    yield
    eventually(lambda: process.num_fds() <= descriptors + 4, 20, "descriptors to be closed")
    assert (process.memory_info().rss - memory) / 1e6 < megabytes


HUGE = "x" * 3_000_000
#: URLs, the format, and the error's name; none: there are several that would do.
URLS = [
    ([HUGE], "", "AccessDenied"),
    (["s3://" + HUGE], "", "AccessDenied"),
    (["s3://bucket/allowed/" + "k" * 3_000_000], "", ""),
    (["s3://bucket/allowed/../other"], "", "ConfigurationError"),
    (["s3://bucket/allowedness"], "", "AccessDenied"),
    (["s3://bucket"], "", "AccessDenied"),
    (["s3://bucket/allow*"], "", "AccessDenied"),
    (["s3://bucket/\0"], "", "AccessDenied"),
    (["/\0"], "", "ConfigurationError"),
    (["file://host/x"], "", "ConfigurationError"),
    (["\x1b[31m://x"], "", "AccessDenied"),
    (["/etc/passwd"], "", "AccessDenied"),
    (["/proc/self/environ"], "", "AccessDenied"),
    (["HOME/data/../datum"], "", "AccessDenied"),
    (["HOME/datum"], "", "AccessDenied"),
    (["HOME/data", "HOME/datum"], "", "AccessDenied"),
    (["HOME/dat*"], "", "AccessDenied"),
    (["HOME/data/" + "n" * 300], "", ""),
    (["HOME/data"] * 2, "", "ConfigurationError"),
    (["/a"] * 200_000, "", "ConfigurationError"),
    (["HOME/data/[" + "a" * 100_000], "", ""),
    (["HOME/data"], "{", "ConfigurationError"),
    (["HOME/data"], "[" * 1_000_000, "ConfigurationError"),
    (["HOME/data"], '{"name": "tokens", "sequence_length": ' + "9" * 100_000 + "}", "ConfigurationError"),
    (["HOME/data"], json.dumps({**token_spec(), "sequence_length": 0}), "ConfigurationError"),
    (["HOME/data"], json.dumps({**token_spec(), "sequence_length": -(2**63)}), "ConfigurationError"),
    (["HOME/data"], json.dumps({**token_spec(), "sequence_length": "16"}), "ConfigurationError"),
    (["HOME/data"], json.dumps({**token_spec(), "piece_bytes": 1e400}), "ConfigurationError"),
    (["HOME/data"], json.dumps({**token_spec(), "dtype": "O"}), "ConfigurationError"),
    (["HOME/data"], json.dumps({**token_spec(), "name": "os.system"}), "ConfigurationError"),
    (["HOME/data"], json.dumps({**token_spec(), "surplus": 1}), "ConfigurationError"),
]


def test_what_cannot_be_opened_is_refused_with_a_short_typed_error(node: Daemon, caller: Client) -> None:
    for urls, format_json, name in URLS:
        named = [url.replace("HOME", str(node.cache.parent)) for url in urls]
        request = pb.OpenDatasetRequest(urls=named, format_json=format_json or json.dumps(token_spec()))
        found = refused(lambda: caller.stub.OpenDataset(request, timeout=CALL_SECONDS))  # noqa: B023 - called at once
        shown = (urls[0][:60], format_json[:60], found[0], found[1], found[2][:300])
        assert found[1] == (name or found[1]) != "InternalError", shown
        assert "\n" not in found[2], shown
        assert len(quote(found[2])) < 8000, shown
        assert "Traceback" not in found[2], shown
    assert "bucket" not in node.process.output(), "a bucket that is not allowed was asked"


def test_sessions_and_leases_that_are_not_there_are_refused_by_name(node: Daemon, caller: Client, dataset: str) -> None:
    session = caller.session(dataset)
    for call, status, name in [
        (lambda: caller.session(HUGE), INVALID, "ConfigurationError"),
        (lambda: caller.session("../../etc/passwd"), INVALID, "ConfigurationError"),
        (lambda: caller.session("\0"), INVALID, "ConfigurationError"),
        (lambda: caller.session(dataset, [HUGE]), INVALID, "ColumnNotFound"),
        (lambda: caller.session(dataset, ["a"] * 20_000), INVALID, "ConfigurationError"),
        (lambda: caller.session(dataset, ["tokens"] * 2), INVALID, "ConfigurationError"),
        (lambda: caller.acquire(HUGE, [0]), NOT_FOUND, "UnknownSession"),
        (lambda: caller.acquire("", []), NOT_FOUND, "UnknownSession"),
        (lambda: caller.acquire(session, [PIECES]), INVALID, "ConfigurationError"),
        (lambda: caller.acquire(session, [0] * 3_000_000), INVALID, "ConfigurationError"),
        (lambda: caller.release(session, [0] * 3_000_000), INVALID, "ConfigurationError"),
        (lambda: caller.report(session, -(2**63)), INVALID, "ConfigurationError"),
        (lambda: caller.report(session, 0, float("inf")), INVALID, "ConfigurationError"),
        (lambda: caller.report(session, 0, -1.0), INVALID, "ConfigurationError"),
        (lambda: caller.report("\x1b[31m", 0), NOT_FOUND, "UnknownSession"),
        (lambda: caller.publish(session, [0, 1], [0], [1, 2]), INVALID, "ConfigurationError"),
        (lambda: caller.publish(session, [2**32 - 1], [0], [1]), INVALID, "ConfigurationError"),
        (lambda: caller.publish(session, [0], [2**63 - 1], [0]), INVALID, "ConfigurationError"),
        (lambda: caller.publish("unknown", [0] * 10, [0] * 10, [1] * 10), NOT_FOUND, "UnknownSession"),
    ]:
        found = refused(call)
        assert found[:2] == (status, name), found
        assert len(quote(found[2])) < 8000
    caller.publish(session, [0, 1], [0, 2**63 - 2], [2**63 - 1, 2**63 - 1])
    caller.report(session, 2**63 - 1, 1e308)
    caller.stub.CloseSession(pb.CloseSessionRequest(session_id=session), timeout=CALL_SECONDS)
    for call in (lambda: caller.acquire(session, [0]), lambda: caller.report(session, 1)):
        assert refused(call)[1] == "UnknownSession"


def test_what_is_too_long_or_no_message_or_no_method_is_refused(node: Daemon, caller: Client) -> None:
    def call(method: str, payload: bytes) -> Callable[[], object]:
        bound = caller.channel.unary_unary(method, request_serializer=None, response_deserializer=None)
        return lambda: bound(payload, timeout=CALL_SECONDS)

    service = "/forebay.v1.DaemonService"
    with bounded(node, megabytes=100):
        assert refused(call(f"{service}/OpenDataset", b"\0" * (5 << 20)))[0] == FULL
        for payload in (b"\xff" * 100, b"\x0a\x02\xff\xfe", b"\x0a\xff\xff\xff\xff\x0f"):
            assert refused(call(f"{service}/OpenDataset", payload))[0] in UNREADABLE
        for method in (f"{service}/Nothing", "/forebay.v1.Other/GetStatus", "/", f"{service}/../GetStatus", "/" + HUGE):
            status = refused(call(method, b""))[0]
            assert status in (grpc.StatusCode.UNIMPLEMENTED, FULL, grpc.StatusCode.INTERNAL), (method[:50], status)
        metadata = [(f"key-{number}", "v" * 4000) for number in range(16)]
        found = refused(lambda: caller.stub.GetStatus(pb.GetStatusRequest(), metadata=metadata, timeout=CALL_SECONDS))
        assert found[0] == FULL


def test_ten_million_needs_are_refused_before_they_are_all_there(node: Daemon, caller: Client, dataset: str) -> None:
    session = caller.session(dataset)
    chunk = pb.PublishNeedsRequest(session_id=session, pieces=[1] * 200_000, first=[2] * 200_000, last=[3] * 200_000)
    with bounded(node, megabytes=400):
        found = refused(lambda: caller.stub.PublishNeeds(iter([chunk] * 50), timeout=60))
    assert found[:2] == (INVALID, "ConfigurationError")
    assert "4000000 needs" in found[2]
    caller.stub.CloseSession(pb.CloseSessionRequest(session_id=session), timeout=CALL_SECONDS)


def test_streams_that_nobody_ends_hold_nobody_up(node: Daemon, caller: Client, dataset: str) -> None:
    session = caller.session(dataset)
    silence = threading.Event()

    def never_ending() -> Iterator[pb.PublishNeedsRequest]:
        yield pb.PublishNeedsRequest(session_id=session, pieces=[0], first=[0], last=[1])
        silence.wait(60)

    with bounded(node, megabytes=50):
        calls = [caller.stub.PublishNeeds.future(never_ending(), timeout=60) for _ in range(100)]
        assert_serves(node, caller)
        for call in calls:
            call.cancel()
        silence.set()
    caller.publish(session, [0], [0], [1])
    caller.stub.CloseSession(pb.CloseSessionRequest(session_id=session), timeout=CALL_SECONDS)


@pytest.mark.parametrize(
    "said",
    [
        os.urandom(4096),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        PREFACE,
        PREFACE + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" + os.urandom(64),
        PREFACE + b"\xff\xff\xff\x01\x04\x00\x00\x00\x01",
        b"",
    ],
    ids=["noise", "http1", "tls", "stalled preface", "noise after settings", "endless frame", "silence"],
)
def test_connections_that_speak_no_grpc_or_stop_speaking_hold_nobody_up(
    node: Daemon, caller: Client, said: bytes
) -> None:
    with bounded(node, megabytes=50), ExitStack() as connections:
        for _ in range(200):
            connection = connections.enter_context(sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM))
            connection.settimeout(20)
            connection.connect(str(node.socket))
            connection.sendall(said)
        assert_serves(node, caller)


def test_a_thousand_sessions_and_ten_thousand_leases_are_served_and_leave_nothing(
    node: Daemon, caller: Client, dataset: str
) -> None:
    with bounded(node, megabytes=100):
        sessions = [caller.session(dataset) for _ in range(1000)]
        leases = caller.acquire(sessions[0], range(PIECES))
        assert [lease.piece for lease in leases] == list(range(PIECES))
        with ThreadPoolExecutor(16) as pool:
            for answer in pool.map(lambda session: caller.acquire(session, range(5)), sessions):
                assert len(answer) == 5
        assert len(caller.status().sessions) == 1000
        for session in sessions:
            caller.stub.CloseSession(pb.CloseSessionRequest(session_id=session), timeout=CALL_SECONDS)
    assert len(caller.status().sessions) == 0


def test_sixty_four_clients_at_once_are_all_served(node: Daemon, caller: Client, dataset: str) -> None:
    """CASES 30: over the socket, with a connection each; `test_cache` has the invariant itself."""

    def run(number: int) -> int:
        with client(node.socket) as own:
            session = own.session(dataset)
            pieces = [(number * 97 + step) % PIECES for step in range(50)]
            got = sum(len(read(node.cache, lease)) for lease in own.acquire(session, pieces))
            own.stub.CloseSession(pb.CloseSessionRequest(session_id=session), timeout=CALL_SECONDS)
            return got

    with bounded(node, megabytes=100), ThreadPoolExecutor(64) as pool:
        assert set(pool.map(run, range(64))) == {50 * 64}
