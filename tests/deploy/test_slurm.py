"""Prolog and epilog, run as Slurm runs them: at once for several jobs, and again for the same one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.tools import DEPLOY, output, tool
from tests.server.daemons import client
from tests.support.processes import eventually

SCRIPTS = sorted((DEPLOY / "slurm").glob("*.sh"))
PROLOG, EPILOG = DEPLOY / "slurm/prolog.sh", DEPLOY / "slurm/epilog.sh"


class Node:
    """A machine whose jobs begin and end."""

    def __init__(self, home: Path) -> None:
        self.socket, self.jobs = home / "run/s", home / "jobs"
        program = home / "forebay"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m forebay.cli "$@"\n')
        program.chmod(0o755)
        (home / "run").mkdir(mode=0o750)
        self.environment = {
            **os.environ,
            "FOREBAY_PROGRAM": str(program),
            "FOREBAY_JOBS_DIR": str(self.jobs),
            "FOREBAY_SOCKET": str(self.socket),
            "FOREBAY_CACHE_DIR": str(home / "cache"),
            "FOREBAY_CAPACITY": "1GiB",
            "FOREBAY_LOG": str(home / "log"),
        }

    def start(self, script: Path, job: str, **changes: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [script],
            env={**self.environment, "SLURM_JOB_ID": job, **changes},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def process_id(self) -> int:
        with client(self.socket) as caller:
            return int(caller.status().process_id)


def ends(*started: "subprocess.Popen[str]", status: int = 0) -> list[str]:
    said = [process.communicate(timeout=100)[0] for process in started]
    assert [process.returncode for process in started] == [status] * len(started), said
    return said


@pytest.fixture
def node(home: Path) -> Node:
    return Node(home)  # what a test leaves running goes with its home


def test_the_scripts_are_right_for_bash_and_for_its_linter() -> None:
    assert len(SCRIPTS) == 2
    for script in SCRIPTS:
        output("bash", "-n", script)
        assert os.access(script, os.X_OK)
        assert "set -euo pipefail" in script.read_text()
    assert output(tool("shellcheck", brought_by="make install"), *SCRIPTS) == ""


def test_jobs_of_one_node_share_a_daemon_that_ends_with_the_last(node: Node) -> None:
    ends(*(node.start(PROLOG, job) for job in ("1", "2", "2")))
    first = node.process_id()
    ends(node.start(EPILOG, "1"))
    assert node.process_id() == first
    ends(node.start(EPILOG, "2"), node.start(EPILOG, "2"))
    eventually(lambda: not node.socket.exists(), 20, "the daemon to end")


def test_a_daemon_that_cannot_be_started_drains_the_node_only_where_that_is_asked(node: Node) -> None:
    """It is not waited for once it has ended."""
    broken = {"FOREBAY_PROGRAM": "/bin/false"}
    script = PROLOG.read_text().replace("seq 60", "seq 6000")
    path = node.jobs.parent / "prolog.sh"
    path.write_text(script)
    path.chmod(0o755)
    (said,) = ends(node.start(path, "1", **broken))
    assert "forebay does not serve" in said
    ends(node.start(path, "1", **broken, FOREBAY_REQUIRED="1"), status=1)


def test_without_a_job_they_do_nothing(node: Node) -> None:
    for script in SCRIPTS:
        environment = {name: value for name, value in node.environment.items() if name != "SLURM_JOB_ID"}
        ended = subprocess.run([script], env=environment, capture_output=True, text=True, timeout=20, check=False)
        assert ended.returncode == 1
        assert "SLURM_JOB_ID" in ended.stderr
    assert not node.jobs.exists()
