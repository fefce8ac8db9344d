"""`forebay checkpoints`, as users run it, against real daemons over S3 and over a directory."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
import torch

from forebay.checkpoint.bundle import RankData
from forebay.checkpoint.checkpointer import Checkpointer
from forebay.cli import run
from forebay.digest import SampleDigest
from forebay.order import Order
from forebay.progress import Identity, Progress
from forebay_core.checkpoints.documents import FileRecord, Item, RankManifest
from forebay_core.checkpoints.names import METADATA, Attempt, rank_data, rank_manifest
from forebay_core.manifest import Manifest
from forebay_protos.v1 import checkpoints_pb2 as pb
from forebay_protos.v1 import checkpoints_pb2_grpc
from tests.integration import training
from tests.server.daemons import Client, Daemon, client, daemon, token_spec, write_shards
from tests.support.data import write_parquet
from tests.support.ranks import Ranks
from tests.support.seaweedfs import Bucket

CALL_SECONDS = 60
FORMAT = json.dumps(token_spec())
HALF = 1500


def record(name: str, content: bytes) -> FileRecord:
    """Of a file of two items."""
    parts = [(0, content[:HALF]), (HALF, content[HALF:])] if len(content) > HALF else [(0, content)]
    items = tuple(Item(offset, len(part), google_crc32c.value(part)) for offset, part in parts)
    return FileRecord(name, len(content), items)


class Job:
    """Saves to a root as a checkpointer does; its tensors are bytes."""

    def __init__(self, caller: Client, root: str, cache: Path) -> None:
        self.root = root
        self.generation = 0
        self._stub = checkpoints_pb2_grpc.CheckpointServiceStub(caller.channel)  # type: ignore[no-untyped-call]
        opened = self._stub.OpenRoot(pb.OpenRootRequest(root=root), timeout=CALL_SECONDS)
        self.staging = Path(opened.staging_disk.path)

    def start(self, parent: Attempt | None = None) -> None:
        """A new start of the job."""
        request = pb.ClaimGenerationRequest(
            root=self.root,
            token=f"token-{self.generation}",
            parent="" if parent is None else parent.name,
            notes_json=json.dumps({"host": "node0", "world_size": 2}),
        )
        self.generation = self._stub.ClaimGeneration(request, timeout=CALL_SECONDS).generation

    def seal(
        self, step: int, *, ranks: Sequence[int] = (0, 1), data: Mapping[str, Any] | None = None, size: int = 4000
    ) -> Attempt:
        """Stages a checkpoint of two ranks, of which these are on this node, and seals it."""
        attempt = Attempt.draw(self.generation, step)
        begin = pb.BeginAttemptRequest(
            root=self.root, attempt=attempt.name, ranks=ranks, world_size=2, size_bytes=2 * size * len(ranks)
        )
        begun = self._stub.BeginAttempt(begin, timeout=CALL_SECONDS)
        directory = self.staging / begun.directory.path
        for rank in ranks:
            _write_rank(directory, attempt, rank, data or {}, size)
        seal = pb.SealAttemptRequest(root=self.root, attempt=attempt.name, ranks=ranks, world_size=2)
        self._stub.SealAttempt(seal, timeout=CALL_SECONDS)
        return attempt

    def quarantine(self, attempt: Attempt) -> None:
        quarantine(self._stub, self.root, attempt.name)

    def save(self, step: int, **options: Any) -> Attempt:
        """Until it is durable."""
        attempt = self.seal(step, **options)
        for status in self._stub.WatchAttempt(
            pb.WatchAttemptRequest(root=self.root, attempt=attempt.name), timeout=CALL_SECONDS
        ):
            if status.phase == pb.WatchAttemptResponse.PHASE_DURABLE:
                return attempt
            assert status.phase != pb.WatchAttemptResponse.PHASE_FAILED, status.error_message
        raise AssertionError("the watch ended before")


def quarantine(stub: checkpoints_pb2_grpc.CheckpointServiceStub, root: str, attempt: str) -> None:
    request = pb.DecideRequest(root=root, attempt=attempt, state="quarantined", reason="for the test")
    assert stub.Decide(request, timeout=CALL_SECONDS).state == "quarantined"


def _write_rank(directory: Path, attempt: Attempt, rank: int, data: Mapping[str, Any], size: int) -> None:
    files = {f"__{rank}_0.distcp": bytes([rank + 1]) * size}
    position = RankData(attempt.step, rank, 2, rank, 2, data.get("loader"), data.get("digest"), {})
    files[rank_data(rank)] = position.encode()
    if rank == 0:
        files[METADATA] = b"metadata"
    for name, content in files.items():
        (directory / name).write_bytes(content)
    notes = {"host": f"node{rank}", "local_seconds": 1.25}
    manifest = RankManifest(attempt, rank, 2, tuple(record(*file) for file in files.items()), notes)
    (directory / rank_manifest(rank)).write_bytes(manifest.encode())


@dataclass
class Command:
    """Runs commands as a user does."""

    address: str
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Exit status, and the JSON object that was printed."""
        self.capsys.readouterr()
        status = run(["checkpoints", *arguments, "--json", "--address", self.address])
        return status, json.loads(self.capsys.readouterr().out)

    def text(self, *arguments: str) -> str:
        self.capsys.readouterr()
        run(["checkpoints", *arguments, "--address", self.address])
        return self.capsys.readouterr().out

    def fails(self, *arguments: str) -> tuple[int, str]:
        """Exit status, and the one line that was said."""
        self.capsys.readouterr()
        status = run(["checkpoints", *arguments, "--address", self.address])
        said = self.capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1, said.err
        return status, said.err


@contextmanager
def served(
    home: Path, capsys: pytest.CaptureFixture[str], *flags: str, env: Mapping[str, str] | None = None
) -> Iterator[tuple[Daemon, Client, Command]]:
    with daemon(home, *flags, env=env) as running, client(running.socket) as caller:
        yield running, caller, Command(f"unix:{running.socket}", capsys)


@pytest.fixture(params=["file", "s3"])
def place(request: pytest.FixtureRequest, home: Path) -> tuple[str, Mapping[str, str] | None]:
    """A root for checkpoints, and the environment of a daemon that may write there."""
    if request.param == "file":
        return str(home / "runs" / "a"), None
    bucket: Bucket = request.getfixturevalue("bucket")

    return bucket.uri("runs/a"), {**os.environ, **bucket.server.environment()}


def state_of(caller: Client, source: Path, *, position: int) -> dict[str, Any]:
    """A loader's state in a dataset of token files."""
    opened = caller.open([str(source)], token_spec())
    location = opened.manifest
    (disk,) = [Path(disk.path) for disk in opened.disks if disk.disk_id == location.disk_id]
    data = Manifest.open(disk / location.path, inode=location.inode, size=location.size_bytes)
    order = Order(data.piece_rows, seed=5, shuffle="window", total_bytes=data.total_bytes)
    progress = Progress()
    progress.commit(0, position, 8)
    return progress.encode(Identity(data.fingerprint, order.samples, {**order.spec(), "tail": "even"}))


def test_checkpoints_are_listed_and_shown_with_position_ranks_sizes_and_parent(
    home: Path, place: tuple[str, Mapping[str, str] | None], capsys: pytest.CaptureFixture[str]
) -> None:
    root, env = place
    write_shards(home / "data", shards=2)
    with served(home, capsys, env=env) as (_, caller, command):
        job = Job(caller, root, home)
        job.start()
        state = state_of(caller, home / "data", position=64)
        digest = SampleDigest(7, 32).encode()
        first = job.save(10, data={"loader": state, "digest": digest})
        job.start(first)
        second = job.save(20, data={"loader": state, "digest": digest})
        begun = job.seal(30, ranks=(0,))

        status, listing = command("ls", root)
        assert (status, listing["newest_generation"]) == (0, 2)
        rows = {row["attempt"]: row for row in listing["checkpoints"]}
        assert list(rows) == [begun.name, second.name, first.name], "the newest first"
        assert [row["state"] for row in rows.values()] == ["", "committed", "committed"]
        assert rows[second.name]["where"] == "durable, staged here"
        assert rows[second.name]["world_size"] == 2
        assert rows[second.name]["size_bytes"] > 8000
        assert rows[begun.name]["staged_ranks"] == [0]
        assert "2 committed of 3" in command.text("ls", root)

        status, shown = command("show", root, "--source", str(home / "data"), "--format", FORMAT)
        assert (status, shown["attempt"], shown["parent"]) == (0, second.name, first.name)
        assert shown["begun"]["host"] == "node0"
        assert (shown["position"]["position"], shown["sample_digest"]["samples"]) == (64, 64)
        assert [(row["rank"], row["notes"]["host"]) for row in shown["ranks"]] == [(0, "node0"), (1, "node1")]
        assert shown["notes"] == []
        assert (shown["next"]["position"], shown["next"]["after"]) == (64, 72)
        assert sum(row["samples"] for row in shown["next"]["shards"]) == 8
        assert all(row["shard"].startswith(f"file://{home}/data/") for row in shown["next"]["shards"])
        text = command.text("show", root, "10", "--source", str(home / "data"), "--format", FORMAT)
        assert first.name in text
        assert "epoch 0, 64 of 512 samples" in text
        assert "00000.bin" in text
        assert command("show", root, begun.name)[1]["ranks"][0]["is_durable"] is False

        misspelt = ("show", root, "--source", str(home / "dta"), "--format", FORMAT)
        status, shown = command(*misspelt)
        assert (status, shown["attempt"]) == (1, second.name), "the rest is shown"
        [note] = shown["notes"]
        assert note.startswith("what is read next cannot be shown: ")
        assert "/dta" in note
        assert run(["checkpoints", *misspelt, "--address", command.address]) == 1
        said = capsys.readouterr()
        assert second.name in said.out
        assert note not in said.out
        assert said.err == f"forebay: {note}\n"


def test_verify_names_the_damaged_file_and_item_and_quarantine_takes_it_out_of_use(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """CASES 46."""
    root = home / "runs" / "a"
    with served(home, capsys) as (_, caller, command):
        job = Job(caller, str(root), home)
        job.start()
        attempts = [job.save(step) for step in (10, 20, 30)]
        assert command("verify", str(root), "--all", "--deep")[0] == 0
        path = root / attempts[2].key("__1_0.distcp")
        content = bytearray(path.read_bytes())
        content[HALF + 5] ^= 1
        path.write_bytes(content)

        status, found = command("verify", str(root))
        assert (status, found["verified"][0]["faults"]) == (0, []), "names and sizes are as they were"
        status, found = command("verify", str(root), "30", "--deep")
        [fault] = found["verified"][0]["faults"]
        assert (status, fault["file"]) == (1, "__1_0.distcp")
        assert str(HALF) in fault["fault"], "which item it is"
        text = command.text("verify", str(root), "--deep")
        assert "__1_0.distcp" in text
        assert "--quarantine" in text
        (root / attempts[1].key("__0_0.distcp")).unlink()
        assert command("verify", str(root), "--all")[0] == 1

        status, found = command("verify", str(root), "30", "--deep", "--quarantine")
        assert (status, found["verified"][0]["state"]) == (1, "quarantined")
        states = {row["step"]: row["state"] for row in command("ls", str(root))[1]["checkpoints"]}
        assert states == {10: "committed", 20: "committed", 30: "quarantined"}
        assert command("show", str(root))[1]["step"] == 20, "the newest that is committed"

        status, found = command("verify", str(root), "30", "--deep")
        assert (status, found["verified"][0]["faults"][0]["file"]) == (1, "__1_0.distcp"), "people may look at it"
        path.write_bytes(bytes([content[0]]) * len(content))
        assert command("verify", str(root), attempts[2].name, "--deep")[0] == 0
        half = job.seal(40, ranks=(0,))
        job.quarantine(half)
        status, said = command.fails("verify", str(root), "40", "--deep")
        assert (status, "was never committed" in said) == (1, True), said


def test_gc_keeps_what_is_asked_for_and_the_newest_two_whatever_is_asked_for(
    home: Path, place: tuple[str, Mapping[str, str] | None], capsys: pytest.CaptureFixture[str]
) -> None:
    """CASES 43."""
    root, env = place
    with served(home, capsys, env=env) as (_, caller, command):
        job = Job(caller, root, home)
        job.start()
        attempts = {step: job.save(step) for step in (10, 20, 30, 40, 50)}
        status, planned = command("gc", root, "--keep-last", "1", "--keep-every", "20", "--dry-run")
        assert (status, planned["dry_run"]) == (0, True)
        assert {row["attempt"] for row in planned["removed"]} == {attempts[10].name, attempts[30].name}
        assert all(row["objects"] and row["size_bytes"] for row in planned["removed"])
        assert all(row["state"] == "committed" for row in command("ls", root)[1]["checkpoints"]), "nothing went"

        assert "would delete" in command.text("gc", root, "--keep-last", "1", "--keep-every", "20", "--dry-run")
        status, done = command("gc", root, "--keep-last", "1", "--keep-every", "20")
        assert (status, done["removed"]) == (0, planned["removed"])
        states = {row["step"]: row["state"] for row in command("ls", root)[1]["checkpoints"]}
        assert states == {20: "committed", 40: "committed", 50: "committed"}
        assert command("verify", root, "--all", "--deep")[0] == 0
        for name in ("verify", "show"):
            status, said = command.fails(name, root, "10")
            assert (status, "committed are the steps 50, 40, 20" in said) == (1, True), said
        assert "nothing had to go" in command.text("gc", root)


def test_what_waits_for_an_upload_that_can_never_succeed_is_discarded_on_the_users_word(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """CASES 39."""
    root = home / "runs" / "a"
    with served(home, capsys) as (_, caller, command):
        job = Job(caller, str(root), home)
        job.start()
        durable = job.save(10)
        (hidden := home / "aside").mkdir()
        root.rename(hidden / "a")
        root.write_text("in the way")
        lost, other = job.seal(20), job.seal(30)
        wrong = {
            ("20",): "say --yes",
            ("25", "--yes"): "no checkpoint 25 of file://",
            ("newest", "--yes"): "neither a step nor an attempt",
            ("g", "--yes"): "neither a step nor an attempt",
            ("g000001", "--yes"): "give more of the name",
            ("9" * 5000, "--yes"): "neither a step nor an attempt",
            ("10", "--yes"): f"{durable.name} is durable",
        }
        for arguments, words in wrong.items():
            status, said = command.fails("discard", str(root), *arguments)
            assert (status in (1, 2), words in said) == (True, True), said
        assert command.fails("discard", str(home / "other"), "20", "--yes")[0] == 1
        status, said = command.fails("discard", str(home / "other"), lost.name, "--yes")
        assert (status, f"waits for file://{root}: give that root" in said) == (2, True)

        status, done = command("discard", f"{root}/", "20", "--yes")
        assert (status, done["attempt"], done["root"]) == (0, lost.name, f"file://{root}")
        assert done["size_bytes"] > 8000
        assert not list(job.staging.glob(f"*/*/{lost.name}"))
        assert len(list(job.staging.glob(f"*/*/{other.name}"))) == 2
        assert command.fails("discard", str(root), "20", "--yes")[0] == 1
        assert "discarded" in command.text("discard", str(root), other.name, "--yes")

        root.unlink()
        (hidden / "a").rename(root)
        later = job.save(40)
        states = {row["step"]: row["state"] for row in command("ls", str(root))[1]["checkpoints"]}
        assert states[10] == states[later.step] == "committed"
        assert "committed" not in {states.get(20), states.get(30)}


def test_what_was_discarded_is_not_taken_up_again_and_what_was_not_is(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = home / "runs" / "a"
    with served(home, capsys) as (_, caller, command):
        job = Job(caller, str(root), home)
        job.start()
        shutil.rmtree(root)
        root.write_text("in the way")
        job.seal(20)
        kept = job.seal(30)
        assert command("discard", str(root), "20", "--yes")[0] == 0
    with served(home, capsys) as (_, _caller, command):
        status, said = command.fails("discard", str(root), "30")
        assert (status, kept.name in said) == (2, True), "what is there is known, however soon it is asked for"
        status, said = command.fails("discard", str(root), "20", "--yes")
        assert (status, "no checkpoint 20 of" in said) == (1, True)


def test_what_is_no_root_of_checkpoints_is_said_in_one_line(
    home: Path, capsys: pytest.CaptureFixture[str], bucket: Bucket
) -> None:

    write_shards(home / "data", shards=1)
    (home / "empty").mkdir()
    env = {**os.environ, **bucket.server.environment()}
    with served(home, capsys, env=env) as (_, _caller, command):
        for root in (home / "nowhere", home / "empty", home / "data", bucket.uri("nothing")):
            for arguments in (("ls",), ("show",), ("verify",), ("gc",), ("export", "--to", str(home / "x.pt"))):
                status, said = command.fails(arguments[0], str(root), *arguments[1:])
                assert (status, "there are no checkpoints of forebay at" in said) == (1, True), said
        for root, expected in (("ftp://x/y", "UnknownScheme"), ("s3://no-such-bucket-here/a", "SourceNotFound")):
            status, found = command("ls", root)
            assert (status in (1, 2), found["error"]) == (True, expected), found
        assert command("ls", "")[0] == 2
        assert not (home / "nowhere").exists(), "asking makes nothing"
        assert list((home / "data").iterdir()) == [home / "data" / "00000.bin"]


def test_documents_of_a_newer_version_are_said_to_be_of_one(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = home / "runs" / "a"
    with served(home, capsys) as (_, caller, command):
        job = Job(caller, str(root), home)
        job.start()
        attempt = job.save(10)
        decision = root / attempt.decision
        decision.write_bytes(decision.read_bytes().replace(b'"version":1', b'"version":2'))
        for arguments in (("verify",), ("export", "--to", str(home / "x.pt"))):
            status, said = command.fails(arguments[0], str(root), *arguments[1:])
            assert (status, "version 2" in said, "newer" in said) == (1, True, True), said
        assert "unreadable: " in command.text("ls", str(root))
        assert "version 2" in command.text("show", str(root))


def test_wrong_calls_are_told_from_failures(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = str(home / "runs" / "a")
    with served(home, capsys) as (_, caller, command):
        job = Job(caller, root, home)
        job.start()
        job.save(10)
        wrong = [
            ("show", root, "last"),
            ("verify", root, "10", "--all"),
            ("gc", root, "--keep-every", "5"),
            ("gc", root, "--keep-last", "99999999999"),
            ("gc", root, "--keep-last", "-1"),
            ("export", root),
            ("export", root, "--to", str(home / "x.h5")),
            ("export", root, "--to", str(home / "x.pt"), "--full", "--model", "m"),
            ("nonsense", root),
        ]
        for arguments in wrong:
            assert command(*arguments)[0] == 2, arguments
        assert command.fails("show", root, "11")[0] == 1
        assert command.fails("show", root, "g000009")[0] == 1


def restored_weights(job: training.Job) -> dict[str, torch.Tensor]:
    """What one process without a group restores."""
    model, optimizer = training.model_of(replace(job, wrap="plain"))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "objects": {"scheduler": scheduler}}
    with Checkpointer(job.root, address=job.addresses[0], **parts) as checkpointer:
        assert checkpointer.restore() is not None
        return model.state_dict()


def test_a_real_jobs_checkpoint_is_shown_verified_and_exported_whatever_its_ranks_were(
    home: Path, bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two ranks with sharded parameters save; one process reads. The data position is that of the loader."""
    write_parquet(home / "data", shards=2, rows=60, row_group_rows=10)
    env = {**os.environ, **bucket.server.environment()}
    with served(home, capsys, env=env) as (running, caller, command), Ranks(2) as ranks:
        root = bucket.uri("runs/a")
        job = training.Job(root, str(home / "data"), [str(running.socket)] * 2, steps=3, saves=[2], wrap="fsdp")
        ran = ranks.run(2, training.run, job)
        weights = restored_weights(job)

        status, shown = command("show", root, "--source", str(home / "data"))
        assert (status, shown["step"], shown["world_size"], shown["notes"]) == (0, 2, 2, [])
        total = ran[0].digest + ran[1].digest
        assert shown["sample_digest"] == total.encode()
        assert shown["position"]["position"] == shown["next"]["position"] == total.samples
        assert sum(row["samples"] for row in shown["next"]["shards"]) == shown["position"]["last_global_batch"]
        assert command("verify", root, "--deep")[0] == 0

        status, found = command("export", root, "--to", str(home / "model.pt"))
        assert (status, found["models"]) == (0, ["model"])
        state = torch.load(home / "model.pt", weights_only=True)
        assert state.keys() == weights.keys()
        assert all(torch.equal(state[name], value) for name, value in weights.items())
        command("export", root, "2", "--to", str(home / "all.pt"), "--full")
        everything = torch.load(home / "all.pt", weights_only=True)
        assert everything["objects"]["scheduler"]["last_epoch"] == 3
        assert everything["optimizers"]["optimizer"]["param_groups"]
        assert "model.pt: " in command.text("export", root, "--to", str(home / "model.pt"), "--force")

        quarantine(checkpoints_pb2_grpc.CheckpointServiceStub(caller.channel), root, found["attempt"])  # type: ignore[no-untyped-call]
        assert "is quarantined" in command.fails("export", root, "--to", str(home / "none.pt"))[1]
        assert command("export", root, found["attempt"], "--to", str(home / "kept.pt"))[0] == 0
        kept = torch.load(home / "kept.pt", weights_only=True)
        assert all(torch.equal(kept[name], value) for name, value in weights.items())
