"""The program `forebay` as a user runs it: output, exit status, and what is printed where."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import HealthServicer

from forebay_core.errors import ConfigurationError, DaemonUnavailable
from tests.server.daemons import daemon
from tests.support.processes import Process, eventually

FOREBAY = [sys.executable, "-m", "forebay.cli"]


def run(command: list[str], environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, env=environment)


def forebay(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **settings}
    return run([*FOREBAY, *arguments], environment)


def test_the_version_is_printed() -> None:
    done = forebay("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, "forebay 0.1.0\n", "")


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_names_the_commands(arguments: list[str]) -> None:
    done = forebay(*arguments)
    assert done.returncode == 0
    assert all(command in done.stdout for command in ("serve", "status", "demo"))


def test_the_options_of_serve_and_demo_are_listed_by_their_help() -> None:
    serve, demo = forebay("serve", "--help"), forebay("demo", "--help")
    assert (serve.returncode, demo.returncode) == (0, 0)
    assert all(option in serve.stdout for option in ("--socket", "--cache-dir", "--capacity", "--log-level", "--json"))
    assert all(option in demo.stdout for option in ("--json", "--bucket", "--directory", "--keep"))


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["status", "--no-such"], ["status", "extra"], ["serve", "--no-such"], ["demo", "--no-such"]],
)
def test_a_wrong_call_has_status_2_and_says_so_on_stderr(arguments: list[str]) -> None:
    done = forebay(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.strip()


def test_a_failure_is_one_line_that_says_what_to_do(home: Path) -> None:
    done = forebay("status", "--address", str(home / "nobody"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"forebay: no daemon answers at {home / 'nobody'}")
    assert f"forebay serve --socket {home / 'nobody'}" in done.stderr
    assert done.stderr.count("\n") == 1


def test_with_json_an_error_is_also_an_object_on_stdout(home: Path) -> None:
    done = forebay("status", "--json", "--address", str(home / "nobody"))
    error = json.loads(done.stdout)
    assert error["error"] == DaemonUnavailable.__name__
    assert done.stderr == f"forebay: {error['message']}\n"


def test_a_wrong_setting_is_a_wrong_call() -> None:
    done = forebay("status", "--json", FOREBAY_ADDRESS="tcp://node:1")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"] == ConfigurationError.__name__


def test_the_traceback_is_shown_for_debugging_only(home: Path) -> None:
    done = forebay("status", "--address", str(home / "nobody"), FOREBAY_DEBUG="1")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_status_shows_a_daemon_as_tables_and_as_json(home: Path) -> None:
    with daemon(home) as running:
        plain = forebay("status", "--address", f"unix:{running.socket}")
        found = forebay("status", "--json", FOREBAY_ADDRESS=str(running.socket))
    assert (plain.returncode, found.returncode) == (0, 0)
    assert f"process {running.process.pid}" in plain.stdout
    assert str(running.cache) in plain.stdout
    assert "1.0 GiB" in plain.stdout
    assert "\x1b" not in plain.stdout
    status = json.loads(found.stdout)
    assert status["address"] == f"unix:{running.socket}"
    assert status["process_id"] == running.process.pid
    assert status["disks"][0]["capacity_bytes"] == 1 << 30
    assert status["counters"]["hits"] == 0


def test_health_says_whether_a_daemon_serves_ends_or_is_not_there(home: Path) -> None:
    with daemon(home) as running:
        plain = forebay("health", "--address", f"unix:{running.socket}")
        found = forebay("health", "--json", FOREBAY_ADDRESS=str(running.socket))
    assert (plain.returncode, plain.stdout) == (0, f"serving on unix:{running.socket}\n")
    assert json.loads(found.stdout) == {"address": f"unix:{running.socket}", "serving": True}
    gone = forebay("health", "--address", f"unix:{running.socket}")
    assert (gone.returncode, "no daemon answers" in gone.stderr) == (1, True)
    with ThreadPoolExecutor() as threads:
        server, servicer = grpc.server(threads), HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        server.add_insecure_port(f"unix:{home}/ending")
        server.start()
        servicer.enter_graceful_shutdown()
        ending = forebay("health", "--address", f"unix:{home}/ending")
        server.stop(None).wait(10)
    assert (ending.returncode, "is ending" in ending.stderr) == (1, True)


def test_serve_becomes_the_daemon_with_its_options(home: Path) -> None:
    options = ["--json", "--socket", str(home / "s"), "--cache-dir", str(home / "c"), "--capacity", "1GiB"]
    with Process([*FOREBAY, "serve", *options], log=home / "serve.log", limit_seconds=60) as process:
        eventually(lambda: '{"socket"' in process.output(), 20, "the daemon to serve")
        done = forebay("status", "--json", "--address", str(home / "s"))
        assert json.loads(done.stdout)["process_id"] == process.pid
        process.signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_a_reader_that_closes_the_pipe_leaves_no_traceback(home: Path) -> None:
    with daemon(home) as running:
        command = f"{' '.join(FOREBAY)} status --address {running.socket} | true"
        done = run(["/bin/sh", "-c", command])
    assert done.stderr == ""


INTERRUPTED = """
import os, signal, forebay.cli as cli
@cli.app.command()
def wait() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell begins with it ignored
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()
cli.main(["wait"])
"""


def test_an_interrupt_is_quiet_and_has_status_130() -> None:
    done = run([sys.executable, "-c", INTERRUPTED])
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


LIGHT = """
import sys, forebay.cli, forebay.daemon.client
print([name for name in ('grpc', 'torch', 'mlflow') if name in sys.modules])
"""


def test_importing_the_client_loads_neither_grpc_nor_torch_nor_mlflow() -> None:
    done = run([sys.executable, "-c", LIGHT])
    assert done.stdout == "[]\n"
