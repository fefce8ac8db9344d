"""HTTP of a real daemon: what it answers, to whom, and that nobody can harm the daemon through it."""

import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.server.daemons import Client, Daemon, client, command, daemon, read, token_spec, write_shards
from tests.support.processes import eventually

SECONDS = 20
CONNECTIONS = 64
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Served:
    """A daemon with a page, and a client of its socket."""

    daemon: Daemon
    caller: Client
    port: int

    def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def status(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.ask("/status.json").body)
        return found


@contextmanager
def serving(home: Path, *flags: str) -> Iterator[Served]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "AWS_"))}
    with daemon(home, "--http", "127.0.0.1:0", *flags, env=env) as running, client(running.socket) as caller:
        address = caller.status().http_address
        yield Served(running, caller, int(address.rstrip("/").rpartition(":")[2]))


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """One for the tests that leave it as they find it."""
    with tempfile.TemporaryDirectory(prefix="fb-") as directory, serving(Path(directory)) as found:
        yield found


def test_everything_that_is_answered_is_guarded_also_what_is_refused(served: Served) -> None:
    answers = {
        200: [served.ask(path) for path in ("/", "/page.js", "/page.css", "/icon.svg", "/metrics", "/status.json")],
        400: [served.ask("/status.json?after=soon")],
        404: [served.ask("/favicon.ico"), served.ask("/../../etc/passwd"), served.ask("/page/index.html")],
        405: [served.ask("/", "POST"), served.ask("/status.json", "DELETE"), served.ask("/metrics", "OPTIONS")],
        421: [served.ask("/status.json", Host="evil.example")],
    }
    for status, found in answers.items():
        for answer in found:
            assert answer.status == status
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-store"
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert "access-control-allow-origin" not in answer.headers
            assert "python" not in answer.headers["server"].lower()
    assert served.ask("/", "HEAD").body == b""


def test_what_is_no_http_is_answered_and_leaves_no_line_in_the_log(served: Served) -> None:
    before = served.daemon.process.output()
    for nonsense in (b"nonsense\r\n\r\n", b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", served.port), SECONDS) as connection:
            connection.sendall(nonsense)
            assert connection.recv(4096).startswith(b"HTTP/1.0 400")
    assert served.daemon.process.output() == before


def test_however_many_ask_for_the_status_it_is_made_a_few_times_a_second(served: Served) -> None:
    times = [served.status()["time"] for _ in range(40)]
    assert len(set(times)) < len(times)


def test_the_page_is_whole_and_asks_for_nothing_from_elsewhere(served: Served) -> None:
    page = served.ask("/").body.decode()
    assert served.ask("/").headers["content-type"] == "text/html; charset=utf-8"
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
    for name in ("page.js", "page.css", "icon.svg"):
        assert name in page
        assert served.ask(f"/{name}").status == 200


def test_health_and_readiness_are_told(served: Served) -> None:
    assert [(served.ask(path).status, served.ask(path).body) for path in ("/healthz", "/readyz")] == [
        (200, b"alive\n"),
        (200, b"ready\n"),
    ]


def test_the_status_says_what_the_daemon_itself_says(home: Path) -> None:
    write_shards(home / "data", shards=3)
    with serving(home, "--read-in-place", "never") as served:
        opened = served.caller.open([str(home / "data")], token_spec())
        session = served.caller.session(opened.dataset_id)
        for lease in served.caller.acquire(session, [0, 1, 2]):
            read(served.daemon.cache, lease)
        eventually(lambda: served.caller.status().fills_running == 0, SECONDS, "the fills to end")
        told, status = served.caller.status(), json.loads(served.ask("/status.json").body)
        assert status["version"] == 1
        assert status["daemon"]["boot_id"] == served.daemon.boot_id
        assert status["disks"][0]["used_bytes"] == told.disks[0].used_bytes > 0
        assert status["datasets"] == {
            "count": 1,
            "rows": [
                {
                    "source": f"file://{home}/data",
                    "bytes": told.disks[0].used_bytes,
                    "pieces": told.disks[0].pieces,
                    "sessions": 1,
                    "is_in_place": False,
                }
            ],
        }
        assert status["counters"]["misses"] == 3
        assert status["counters"]["leased_bytes"] == 3 * 4096
        assert status["sessions"]["rows"][0]["leases"] == 3
    with serving(home, "--read-in-place", "never") as again:
        rows = eventually(
            lambda: json.loads(again.ask("/status.json").body)["datasets"]["rows"], SECONDS, "the index to be loaded"
        )
        assert (rows[0]["source"], rows[0]["pieces"]) == (f"file://{home}/data", 3), "a restart forgets whose it is"


def test_more_connections_than_are_allowed_are_closed_and_calls_do_not_notice(served: Served) -> None:
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", served.port), SECONDS))
            connection.sendall(REQUEST)
            assert connection.recv(1)
        with socket.create_connection(("127.0.0.1", served.port), SECONDS) as refused, suppress(ConnectionError):
            refused.sendall(REQUEST)
            assert refused.recv(1) == b""
        assert served.caller.status().process_id == served.daemon.process.pid
    eventually(lambda: _answers(served), SECONDS, "a place to be free again")


def _answers(served: Served) -> bool:
    try:
        return served.ask("/healthz").status == 200
    except (ConnectionError, http.client.HTTPException):
        return False


def test_a_connection_that_is_kept_open_does_not_keep_the_daemon_from_ending(home: Path) -> None:
    with serving(home) as served, socket.create_connection(("127.0.0.1", served.port), SECONDS) as connection:
        connection.sendall(b"GET /status.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(1)
        served.daemon.process.signal(signal.SIGTERM)
        assert served.daemon.process.wait(SECONDS) == 0


def test_an_address_in_use_is_an_error_at_the_start_that_says_what_to_do_and_leaves_nothing(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = ["--socket", str(home / "s"), "--cache-dir", str(home / "c"), "--http", f"127.0.0.1:{port}"]
        ended = subprocess.run(command(*flags), capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert f"127.0.0.1:{port}: Address already in use" in ended.stderr
    assert "--http, FOREBAY_HTTP" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert not (home / "s").exists()


def test_a_trainers_own_daemon_goes_on_without_a_page_where_it_cannot_have_one(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with daemon(home, "--embedded", "--http", address) as running, client(running.socket) as caller:
            assert caller.status().http_address == ""
            assert f"there is no status page: HTTP cannot be served on {address}" in running.process.output()


def test_nothing_listens_unless_it_is_asked_for(home: Path) -> None:
    with daemon(home) as running, client(running.socket) as caller:
        assert caller.status().http_address == ""
        assert "http" not in json.loads(
            next(line for line in running.process.output().splitlines() if line.startswith('{"socket"'))
        )


def test_an_address_that_others_reach_is_warned_of(home: Path) -> None:
    with daemon(home, "--http", "0.0.0.0:0") as running:
        assert "everyone who reaches" in running.process.output()
