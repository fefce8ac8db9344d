"""A daemon's start and end with checkpoints: what stops it, what does not, and who finishes."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forebay_core.checkpoints.names import Attempt
from forebay_protos.v1 import checkpoints_pb2 as pb
from forebay_protos.v1 import daemon_pb2
from tests.server.checkpoints.calls import DURABLE, SECONDS, Ranks, node_of
from tests.server.checkpoints.desks import attempt
from tests.server.checkpoints.test_service import refused
from tests.server.daemons import Daemon, client, command, daemon
from tests.support.processes import eventually


@contextmanager
def saved_to_nowhere(home: Path, *flags: str) -> Iterator[tuple[Daemon, Ranks, Attempt]]:
    """A daemon with a sealed attempt whose destination is away: there is a file in the place of the directory."""
    this = attempt(1)
    with daemon(home, *flags) as running, node_of(running.socket, home / "root") as ranks:
        ranks.opened()
        if (home / "root").exists():
            (home / "root").rename(home / "away")
        (home / "root").touch()
        ranks.save(this)
        upload = eventually(lambda: uploads(running), SECONDS, "the failure of the upload")[0]
        assert upload.phase in ("queued", "uploading")
        yield running, ranks, this


def uploads(running: Daemon) -> list[daemon_pb2.UploadStatus]:
    with client(running.socket) as caller:
        return [upload for upload in caller.status().staging.uploads if upload.error_message]


def heal(ranks: Ranks, this: Attempt) -> None:
    """The destination is there again, and the attempt is asked for, so that it is tried at once."""
    Path(ranks.root).unlink()
    ranks.stub.Expedite(pb.ExpediteRequest(root=ranks.root, attempt=this.name), timeout=SECONDS)


def test_an_embedded_daemon_stays_as_long_as_something_is_left_to_upload(home: Path) -> None:
    """CASES 39."""
    with saved_to_nowhere(home, "--embedded", "--idle-seconds", "0.1") as (running, ranks, this):
        with pytest.raises(TimeoutError):
            running.process.wait(1)
        heal(ranks, this)
        assert running.process.wait(SECONDS) == 0
    assert (home / "root" / this.decision).exists()


def test_an_embedded_daemon_that_is_told_to_end_finishes_its_uploads_first(home: Path) -> None:
    with saved_to_nowhere(home, "--embedded", "--drain-seconds", "25") as (running, ranks, this):
        running.process.signal(signal.SIGTERM)
        heal(ranks, this)
        assert running.process.wait(SECONDS) == 0
    assert (home / "root" / this.decision).exists()


def test_a_system_daemon_that_is_told_to_end_leaves_its_uploads_to_its_successor(home: Path) -> None:
    """CASES 45."""
    with saved_to_nowhere(home, "--drain-seconds", "1000") as (running, _, this):
        running.process.signal(signal.SIGTERM)
        assert running.process.wait(SECONDS) == 0
    (home / "root").unlink()
    with daemon(home) as successor, node_of(successor.socket, home / "root") as ranks:
        assert ranks.watch(this)[-1].phase == DURABLE
    assert (home / "root" / this.decision).exists()


def test_a_daemon_that_has_no_place_for_checkpoints_serves_and_says_why(home: Path) -> None:
    with daemon(home):
        pass
    (home / "cache-d" / "staging").rename(home / "elsewhere")
    (home / "cache-d" / "staging").touch()
    with daemon(home) as running, node_of(running.socket, home / "root") as ranks, client(running.socket) as caller:
        opening = pb.OpenRootRequest(root=ranks.root)
        name, message = refused(lambda: ranks.stub.OpenRoot(opening, timeout=SECONDS))
        assert name == "CheckpointError"
        assert "staging" in message
        assert "is not a directory" in message
        staging = caller.status().staging
        assert (staging.path, "is not a directory" in staging.reason) == ("", True)


def test_a_staging_directory_that_was_named_and_cannot_be_used_is_an_error(home: Path) -> None:
    foreign, file = home / "foreign", home / "file"
    foreign.mkdir()
    (foreign / "thesis.txt").touch()
    file.touch()
    says = {foreign: "holds 'thesis.txt' and is no staging directory", file: "is not a directory"}
    for path, message in says.items():
        flags = ("--socket", f"{home}/s", "--cache-dir", f"{home}/c", "--staging-dir", str(path))
        ended = subprocess.run(command(*flags), capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 2
        assert message in ended.stderr
        assert "--staging-dir" in ended.stderr
    assert [path.name for path in foreign.iterdir()] == ["thesis.txt"]


def test_two_daemons_cannot_share_a_staging_directory(home: Path) -> None:
    shared = ("--staging-dir", str(home / "staging"))
    with daemon(home, *shared, name="a"):
        flags = ("--socket", f"{home}/s", "--cache-dir", f"{home}/c", *shared)
        ended = subprocess.run(command(*flags), capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "holds the staging directory" in ended.stderr


def test_what_a_group_shares_is_its_to_write_until_it_is_sealed_and_nobody_elses(home: Path) -> None:
    group = str(os.getgid())
    flags = ("--group", group, "--allow-write", str(home))
    with daemon(home, *flags) as running, node_of(running.socket, home / "root", (0,), 2) as ranks:
        this = attempt(1)
        directory = ranks.stage(this)
        below = [directory, directory / "ranks", directory / "data"]
        assert {path.stat().st_mode & 0o7777 for path in below} == {0o2770}
        ranks.seal(this)
        assert {path.stat().st_mode & 0o7777 for path in below} == {0o2550}
        for path in (running.cache / "staging").rglob("*"):
            if directory not in (path, *path.parents):
                assert path.stat().st_mode & 0o027 == 0, path


def test_what_an_embedded_daemon_stages_is_its_users_alone(home: Path) -> None:
    with daemon(home, "--embedded") as running, node_of(running.socket, home / "root", (0,), 2) as ranks:
        directory = ranks.stage(attempt(1))
        assert directory.stat().st_mode & 0o777 == 0o700
