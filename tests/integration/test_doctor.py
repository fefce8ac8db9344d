"""`forebay doctor` against a real daemon and a real store; and that no secret is in anything that either says."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.cli import run
from forebay.daemon.client import DaemonClient
from forebay_core.errors import ForebayError
from tests.server.daemons import Daemon, daemon
from tests.support.processes import Process
from tests.support.proxy import CountingProxy
from tests.support.seaweedfs import Bucket, SeaweedFS

MIB = 1 << 20


@pytest.fixture
def node(home: Path, s3: SeaweedFS) -> Iterator[Daemon]:
    """A daemon that can read the store."""
    environment = {**os.environ, **s3.environment()}
    with daemon(home, env=environment) as started:
        yield started


@pytest.fixture
def source(s3: SeaweedFS) -> Iterator[str]:
    s3.create_bucket("for-doctor")
    for number in range(2):
        s3.client().request("PUT", f"/for-doctor/train/{number}.bin", body=bytes(MIB))
    yield "s3://for-doctor/train"
    s3.delete_bucket("for-doctor")


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit status, and the findings by their check and text."""
    status = run(["doctor", *arguments, "--json"])
    return status, json.loads(capsys.readouterr().out)


def found(report: dict[str, Any], check: str) -> dict[str, str]:
    [finding] = [finding for finding in report["findings"] if finding["check"] == check]
    return dict(finding)


def test_a_node_that_works_has_no_problem_and_is_measured(
    node: Daemon, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, report = told(capsys, source, "--address", f"unix:{node.socket}", "--rate", "1KiB", "--seconds", "0.5")
    assert status == 0
    assert not [finding for finding in report["findings"] if finding["verdict"] == "problem"]
    checks = {finding["check"] for finding in report["findings"]}
    assert {"socket", "versions", "trainer: memory", "daemon: memory", "credentials", "region", "clock"} <= checks
    assert {"list", "head", "read", "measured: remote", "measured: write", "throughput"} <= checks
    assert f"disk {node.cache}" in checks
    assert found(report, "list")["found"].startswith("2 objects, 2.0 MiB")
    assert "training reads 1.0 KiB/s" in found(report, "throughput")["found"]


def test_people_get_a_table_and_a_source_that_is_not_there_a_failure(
    node: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    status = run(["doctor", "s3://no-such-bucket/train", "--address", f"unix:{node.socket}", "--seconds", "0"])
    printed = capsys.readouterr().out
    assert status == 1
    assert "no bucket 'no-such-bucket'" in printed
    assert "AWS_ENDPOINT_URL" in printed
    assert "1 problem" in printed
    assert "Traceback" not in printed


def test_each_problem_says_what_to_do_also_a_path_with_a_typo(
    node: Daemon, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "empty").mkdir()
    for path in (home / "dta", home / "empty"):
        status, report = told(capsys, str(path), "--address", f"unix:{node.socket}", "--seconds", "0")
        problems = [finding for finding in report["findings"] if finding["verdict"] == "problem"]
        assert (status, [finding["check"] for finding in problems]) == (1, ["list"])
        assert all(finding["advice"].startswith("check ") for finding in problems)


def test_a_source_that_the_daemon_may_not_read_is_neither_listed_nor_probed(
    home: Path, source: str, s3: SeaweedFS, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = {**os.environ, **s3.environment()}
    with daemon(home, "--allow-read", "s3://for-doctor/other", env=environment) as node:
        status, report = told(capsys, source, "--address", f"unix:{node.socket}", "--seconds", "0")
    assert status == 1
    assert "not among what this daemon may read" in found(report, "credentials")["found"]
    assert not [finding for finding in report["findings"] if finding["check"] in ("list", "head", "read", "service")]


def test_the_daemons_switches_for_reading_win_over_its_environment(
    home: Path, source: str, s3: SeaweedFS, counting_proxy: CountingProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = {**os.environ, **s3.environment(endpoint=counting_proxy.endpoint)}
    with daemon(home, "--anonymous", "--requester-pays", env=environment) as node:
        status, report = told(capsys, source, "--address", f"unix:{node.socket}", "--seconds", "0")
    assert status == 1
    assert found(report, "credentials")["found"].startswith("anonymous reading")
    assert found(report, "credentials")["found"].endswith("which pay for the requests")
    assert "does not let it be read anonymously" in found(report, "list")["found"]
    assert {exchange.request.access_key for exchange in counting_proxy.exchanges} == {""}


def test_without_a_daemon_what_can_be_checked_is_and_the_command_is_given(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, report = told(capsys, "--address", f"unix:{home}/none")
    assert status == 1
    assert f"forebay serve --socket {home}/none" in found(report, "socket")["advice"]
    assert found(report, "trainer: memory")["verdict"] in ("ok", "warning")
    status, report = told(capsys, "s3://bucket/train")
    assert status == 1
    assert found(report, "source")["verdict"] == "problem"
    status, report = told(capsys)
    assert status == 0
    assert found(report, "socket")["verdict"] == "warning"
    assert not (home / "runtime" / "forebay").exists()


@pytest.mark.parametrize("arguments", [["--rate", "10%"], ["--rate", "fast"], ["a", "a"], ["a", "s3://b/c"]])
def test_a_wrong_call_has_status_2(arguments: list[str], home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", *arguments, "--address", f"unix:{home}/none"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("forebay: ")
    assert ("--rate" in said) is ("--rate" in arguments)


def test_no_secret_is_in_anything_that_a_daemon_or_a_doctor_says(
    home: Path, s3: SeaweedFS, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Planted: keys, a session token, passwords of a service and a proxy, and a presigned URL for a source."""
    secrets = ["hunter2-secret-key", "hunter2-session-token", "hunter2-password", "hunter2-proxy", "hunter2-signature"]
    host = s3.endpoint.removeprefix("http://")
    environment = {
        **os.environ,
        **s3.environment(endpoint=f"http://user:hunter2-password@{host}"),
        "AWS_SECRET_ACCESS_KEY": secrets[0],
        "AWS_SESSION_TOKEN": secrets[1],
        "http_proxy": "http://user:hunter2-proxy@127.0.0.1:1",
        "NO_PROXY": "127.0.0.1",
    }
    said = []
    with daemon(home, "--log-level", "debug", env=environment) as node:
        address = f"unix:{node.socket}"
        client = DaemonClient(address, reconnect_seconds=0.0)
        presigned = f"{source}/0.bin?X-Amz-Signature=hunter2-signature&X-Amz-Expires=60"
        for urls in ([source], [presigned], [f"s3://user:hunter2-password@{source.removeprefix('s3://')}"]):
            with pytest.raises(ForebayError) as caught:
                client.open_dataset(urls)
            said.append(str(caught.value))
        run(["doctor", source, "--address", address, "--seconds", "0"])
        run(["doctor", presigned, "--address", address, "--seconds", "0", "--json"])
        run(["status", "--address", address, "--json"])
        output = capsys.readouterr()
        said += [output.out, output.err]
        assert "refuses the credentials" in output.out
        node.process.signal(signal.SIGTERM)
        node.process.wait(20)
        said.append(node.process.output())
    for text in said:
        assert text
        for secret in secrets:
            assert secret not in text


LIBRARY = """
import logging, os
from forebay_server.__main__ import _set_up_log
from forebay_server.config import ServerConfig
_set_up_log(ServerConfig(), os.environ)
log = logging.getLogger("some.library")
log.warning("GET %s", "https://b/k?X-Amz-Signature=hunter2-signature")
try:
    raise ValueError("sent " + os.environ["AWS_SECRET_ACCESS_KEY"])
except ValueError:
    log.exception("it failed")
"""


def test_what_another_library_logs_is_cleaned_too_also_in_a_traceback(home: Path) -> None:
    environment = {**os.environ, "AWS_SECRET_ACCESS_KEY": "hunter2-secret-key"}
    with Process([sys.executable, "-c", LIBRARY], log=home / "log", limit_seconds=60, env=environment) as process:
        output = process.check(60)
    assert "GET https://b/k?X-Amz-Signature=[redacted]" in output
    assert "ValueError: sent [redacted]" in output
    assert "hunter2" not in output


def checkpoint_findings(report: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {finding["check"]: finding for finding in report["findings"] if finding["check"].startswith("checkpoints")}


def test_a_root_for_checkpoints_is_tried(
    node: Daemon, home: Path, bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    address = ("--address", f"unix:{node.socket}", "--seconds", "0")
    for root in (bucket.uri("runs/a"), str(home / "runs")):
        status, report = told(capsys, *address, "--checkpoints", root)
        findings = checkpoint_findings(report)
        assert status == 0
        assert set(findings) == {"checkpoints", "checkpoints: commit", "checkpoints: staging"}
        assert {finding["verdict"] for finding in findings.values()} == {"ok"}, findings
        assert root in findings["checkpoints"]["found"]
        assert str(node.cache / "staging") in findings["checkpoints: staging"]["found"]
    assert bucket.keys() == [], "the trial leaves nothing"
    assert not (home / "runs").exists()


def test_a_directory_that_does_not_exist_is_tried_and_not_made(
    node: Daemon, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = ("--address", f"unix:{node.socket}", "--seconds", "0")
    (home / "there").mkdir()
    for root, is_new in ((home / "brand/new", True), (home / "there", False)):
        status, report = told(capsys, *address, "--checkpoints", str(root))
        assert status == 0
        found = checkpoint_findings(report)["checkpoints"]["found"]
        assert found.endswith("which does not exist yet and would be made") is is_new
    assert not (home / "brand").exists()
    assert list((home / "there").iterdir()) == []


def test_a_root_that_cannot_be_written_is_a_problem_with_advice(
    home: Path, s3: SeaweedFS, bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = {**os.environ, **s3.environment(identity="reader")}
    with daemon(home, "--allow-write", bucket.uri("allowed"), env=environment) as node:
        address = ("--address", f"unix:{node.socket}", "--seconds", "0")
        for root in (bucket.uri("allowed/a"), bucket.uri("elsewhere"), "ftp://x/y"):
            status, report = told(capsys, *address, "--checkpoints", root)
            [finding] = checkpoint_findings(report).values()
            assert (status, finding["verdict"]) == (1, "problem"), root
            assert finding["found"]


def test_without_a_daemon_a_root_cannot_be_tried(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, report = told(capsys, "--address", f"unix:{home}/nobody", "--checkpoints", "s3://bucket/runs")
    assert status == 1
    assert checkpoint_findings(report)["checkpoints"]["advice"] == "start one, then ask again"
    assert told(capsys, "--address", f"unix:{home}/nobody", "--checkpoints", "")[0] == 2
