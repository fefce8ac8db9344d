"""The checkpoint service of a real daemon, over its socket: all calls, and those that cannot be right."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from forebay_core.checkpoints.names import METADATA, Attempt, rank_manifest
from forebay_core.node_layout import ERROR_KEY
from forebay_protos.v1 import checkpoints_pb2 as pb
from tests.server.checkpoints.calls import DURABLE, FAILED, SECONDS, Ranks, node_of
from tests.server.checkpoints.desks import attempt, files_of
from tests.server.daemons import Daemon, client, daemon
from tests.support.processes import HOME_VARIABLE, end_processes_of


@pytest.fixture(scope="module")
def node() -> Iterator[Daemon]:
    """A daemon of this module."""
    with tempfile.TemporaryDirectory(prefix="fb-") as directory:
        home = Path(directory)
        with daemon(home, env={**os.environ, HOME_VARIABLE: str(home)}) as started:
            yield started
        end_processes_of(home)


@pytest.fixture
def ranks(node: Daemon, home: Path) -> Iterator[Ranks]:
    """The two ranks of a job, with a root of the test's own."""
    with node_of(node.socket, home / "root", (0, 1), 2) as made:
        yield made


def refused(call: Callable[[], object]) -> tuple[str, str]:
    """The class and the message of the error that the call gets."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error = caught.value
    assert isinstance(error, grpc.Call)
    names = [str(value) for key, value in error.trailing_metadata() or () if key == ERROR_KEY]
    return names[0], str(error.details())


def durable(ranks: Ranks, this: Attempt) -> None:
    last = ranks.watch(this)[-1]
    assert last.phase == DURABLE, last


def test_a_root_is_opened_claimed_saved_to_and_listed(ranks: Ranks, home: Path, node: Daemon) -> None:
    opened = ranks.opened()
    assert (opened.root, opened.newest_generation) == (f"file://{home}/root", 0)
    assert (opened.has_put_if_absent, opened.embedded) == (True, False)
    assert (Path(opened.staging_disk.path) / "disk-id").read_text() == opened.staging_disk.disk_id == opened.node_id
    assert opened.staging_disk.path == str(node.cache / "staging")
    claiming = pb.ClaimGenerationRequest(root=ranks.root, token="mine", notes_json='{"host": "a"}')
    assert ranks.stub.ClaimGeneration(claiming, timeout=SECONDS).generation == 1
    assert ranks.stub.ClaimGeneration(claiming, timeout=SECONDS).generation == 1, "a repeated claim is the same"
    this = ranks.save(attempt(100), retention=pb.Retention(keep_last=2), supersedes=True)
    seen = ranks.watch(this)
    assert seen[-1].phase == DURABLE
    assert (
        seen[-1].uploaded_bytes
        == seen[-1].total_bytes
        == sum(len(content) for rank in (0, 1) for content in files_of(this, rank).values())
    )
    listed = ranks.list(with_manifests=True)
    assert listed.newest_generation == 1
    [found] = listed.checkpoints
    assert (found.attempt, found.state, found.world_size) == (this.name, "committed", 2)
    assert list(found.durable_ranks) == list(found.staged_ranks) == [0, 1]


def test_the_status_tells_of_staging_and_uploads(ranks: Ranks, node: Daemon) -> None:
    this = ranks.save(attempt(100))
    durable(ranks, this)
    with client(node.socket) as caller:
        staging = caller.status().staging
    assert staging.path == str(node.cache / "staging")
    assert 0 < staging.used_bytes <= staging.quota_bytes
    [upload] = [upload for upload in staging.uploads if upload.attempt == this.name]
    assert (upload.root, upload.phase) == (f"file://{ranks.root}", "durable")
    assert upload.uploaded_bytes == upload.total_bytes


def test_staged_files_and_fetched_ones_are_files_here(ranks: Ranks, home: Path) -> None:
    this = ranks.save(attempt(100))
    durable(ranks, this)
    disk = Path(ranks.opened().staging_disk.path)
    staged = ranks.fetch(this, METADATA)
    assert staged.staged
    assert (disk / staged.file.path).stat().st_ino == staged.file.inode
    ranks.stub.DropAttempt(pb.DropAttemptRequest(root=ranks.root, attempt=this.name), timeout=SECONDS)
    fetched = ranks.fetch(this, "__1_0.distcp")
    assert not fetched.staged
    path = disk / fetched.file.path
    assert path.read_bytes() == files_of(this, 1)["__1_0.distcp"]
    assert (path.stat().st_ino, path.stat().st_size) == (fetched.file.inode, fetched.file.size_bytes)
    ranks.stub.EndReading(pb.EndReadingRequest(root=ranks.root, attempt=this.name), timeout=SECONDS)
    assert ranks.watch(this)[-1].phase == DURABLE, "known from the destination"


def test_decisions_and_their_sweeping(ranks: Ranks, home: Path) -> None:
    saved = []
    for step in (1, 2, 3, 4):
        saved.append(ranks.save(attempt(step)))
        durable(ranks, saved[-1])
    assert ranks.decide(saved[3], "quarantined", "a test says so").state == "quarantined"
    assert ranks.decide(saved[2], "abandoned", "too late").state == "committed"
    retention = pb.Retention(keep_last=1)
    request = pb.CollectGarbageRequest(root=ranks.root, retention=retention, dry_run=True)
    foreseen = ranks.stub.CollectGarbage(request, timeout=SECONDS)
    assert (home / "root" / saved[0].key(METADATA)).exists()
    request.dry_run = False
    done = ranks.stub.CollectGarbage(request, timeout=SECONDS)
    assert foreseen == done
    assert [each.attempt for each in done.removed] == [saved[0].name], "the newest two that are committed stay"
    assert not (home / "root" / saved[0].key(METADATA)).exists()
    states = {found.attempt: found.state for found in ranks.list().checkpoints}
    assert states[saved[3].name] == "quarantined"
    assert states[saved[2].name] == states[saved[1].name] == "committed"


def test_verification_reads_every_file_and_names_the_damaged_one(ranks: Ranks, home: Path) -> None:
    """CASES 46."""
    this = ranks.save(attempt(100))
    durable(ranks, this)

    def faults(*, deep: bool) -> dict[str, str]:
        request = pb.VerifyCheckpointRequest(root=ranks.root, attempt=this.name, deep=deep)
        steps = list(ranks.stub.VerifyCheckpoint(request, timeout=SECONDS))
        assert steps[-1].files_done == steps[-1].files_total == len(steps)
        return {step.file: step.fault for step in steps if step.fault}

    assert faults(deep=True) == {}
    path = home / "root" / this.key("__1_0.distcp")
    content = bytearray(path.read_bytes())
    content[2000] ^= 1
    path.write_bytes(content)
    assert faults(deep=False) == {}, "its size is right"
    assert faults(deep=True).keys() == {"__1_0.distcp"}


def test_the_ledger_is_appended_to_once_and_read(ranks: Ranks) -> None:
    claiming = pb.ClaimGenerationRequest(root=ranks.root, token="mine")
    generation = ranks.stub.ClaimGeneration(claiming, timeout=SECONDS).generation
    part = pb.AppendLedgerRequest(root=ranks.root, generation=generation, part=0, content=b'[{"event":"begin"}]')
    ranks.stub.AppendLedger(part, timeout=SECONDS)
    ranks.stub.AppendLedger(part, timeout=SECONDS)
    part.content = b"[]"
    assert refused(lambda: ranks.stub.AppendLedger(part, timeout=SECONDS))[0] == "CheckpointError"
    [read] = ranks.stub.ReadLedger(pb.ReadLedgerRequest(root=ranks.root), timeout=SECONDS).generations
    assert (read.generation, list(read.parts)) == (generation, [b'[{"event":"begin"}]'])
    assert json.loads(read.document)["token"] == "mine"


def test_an_older_start_of_the_job_is_fenced(ranks: Ranks) -> None:
    """CASES 45."""
    for token in ("older", "newer"):
        ranks.stub.ClaimGeneration(pb.ClaimGenerationRequest(root=ranks.root, token=token), timeout=SECONDS)
    old = attempt(100, generation=1)
    name, message = refused(lambda: ranks.begin(old, check_fenced=True))
    assert (name, "generation 2" in message) == ("CheckpointFenced", True)
    ranks.begin(attempt(100, generation=2), check_fenced=True)


def test_a_dropped_attempt_is_abandoned_and_says_so(node: Daemon, home: Path) -> None:
    with node_of(node.socket, home / "root", (0,), 2) as half:
        this = half.save(attempt(100))
        half.stub.DropAttempt(pb.DropAttemptRequest(root=half.root, attempt=this.name), timeout=SECONDS)
        last = half.watch(this)[-1]
    assert last.phase == FAILED
    assert "was given up on a node" in last.error_message


@pytest.mark.parametrize(
    "name", ["../x", "", "g000001-s000000001-0000000000FF", "commits/g000001-s000000001-0000000000ff"]
)
def test_names_that_no_attempt_has_are_refused(ranks: Ranks, name: str) -> None:
    request = pb.SealAttemptRequest(root=ranks.root, attempt=name, ranks=[0], world_size=1)
    assert refused(lambda: ranks.stub.SealAttempt(request, timeout=SECONDS))[0] == "ConfigurationError"


@pytest.mark.parametrize(
    "name", ["../../disk-id", "/etc/passwd", "ranks/../ranks/00000.json", "x", "ranks/00000.jsonx", ""]
)
def test_files_that_no_checkpoint_has_are_refused(ranks: Ranks, name: str) -> None:
    this = ranks.save(attempt(100))
    assert refused(lambda: ranks.fetch(this, name))[0] == "ConfigurationError"


def test_calls_that_cannot_be_right_are_refused_with_a_reason(ranks: Ranks, node: Daemon) -> None:
    this, root = attempt(100), ranks.root
    calls = ranks.stub
    begin = pb.BeginAttemptRequest(root=root, attempt=this.name, ranks=[0], world_size=1)

    def begun(**changes: object) -> tuple[str, str]:
        request = pb.BeginAttemptRequest()
        request.CopyFrom(begin)
        request.MergeFrom(pb.BeginAttemptRequest(**changes))  # type: ignore[arg-type]
        return refused(lambda: calls.BeginAttempt(request, timeout=SECONDS))

    assert begun(ranks=[0])[0] == "ConfigurationError", "a rank twice"
    assert begun(ranks=[7])[0] == "ConfigurationError", "a rank beyond the world"
    assert begun(world_size=1_000_000)[0] == "ConfigurationError"
    assert begun(size_bytes=1 << 60)[0] == "StagingFull"
    for url in ("gs://bucket/x", "s3://", "", "x" * 10_000, str(node.cache / "staging" / "x"), "/"):
        name, _ = refused(lambda url=url: calls.OpenRoot(pb.OpenRootRequest(root=url), timeout=SECONDS))  # type: ignore[misc]
        assert name in ("ConfigurationError", "UnknownScheme"), url
    claims = [("", "{}"), ("t", "[]"), ("t", "{"), ("t", "[" * 100_000), ("t", '{"a": 1e999}'), ("t" * 10_000, "{}")]
    for token, notes in claims:
        claim = pb.ClaimGenerationRequest(root=root, token=token, notes_json=notes)
        assert refused(lambda claim=claim: calls.ClaimGeneration(claim, timeout=SECONDS))[0] == "ConfigurationError"  # type: ignore[misc]
    assert refused(lambda: ranks.decide(this, "fine"))[0] == "ConfigurationError"
    assert refused(lambda: ranks.seal(this))[0] == "CheckpointNotFound"
    assert refused(lambda: ranks.watch(this))[0] == "CheckpointNotFound"
    assert refused(lambda: ranks.fetch(this, rank_manifest(0)))[0] == "CheckpointNotFound"
    ledger = pb.AppendLedgerRequest(root=root, generation=0, part=0, content=b"[]")
    assert refused(lambda: calls.AppendLedger(ledger, timeout=SECONDS))[0] == "ConfigurationError"
