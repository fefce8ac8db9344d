"""`forebay checkpoints verify` beside a job whose retention goes on: what was retired meanwhile is no damage."""

import json
import os
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from forebay.checkpoint.checkpointer import Checkpointer
from forebay.checkpoints_command.asking import Checkpoints
from forebay.checkpoints_command.verifying import verified
from forebay.cli import run
from forebay.daemon.checkpoint_root import Listing
from forebay.daemon.client import DaemonClient
from forebay_core.checkpoints.documents import State
from forebay_core.errors import CheckpointNotFound
from tests.server.daemons import daemon
from tests.support.proxy import CountingProxy, Fault, Request
from tests.support.seaweedfs import Bucket, SeaweedFS

SECONDS = 60.0


def saved(root: str, address: str) -> None:
    torch.manual_seed(3)
    model = nn.Linear(2, 2)
    with Checkpointer(root, model=model, address=address) as checkpointer:
        for step in (1, 2, 3):
            handle = checkpointer.save(step, force=True)
            assert handle is not None
            handle.wait("durable", timeout=SECONDS)


def test_a_retired_checkpoint_whose_files_are_going_is_not_called_as_written(home: Path, address: str) -> None:
    """It was listed as committed; the sweep, which deletes the manifests first, is under way."""
    root = f"file://{home}/root"
    saved(root, address)
    asked = Checkpoints(DaemonClient(address), root)
    oldest = asked.listing().checkpoints[-1]
    asked.decide(oldest.attempt, State.RETIRED, "not kept by the retention")
    (home / "root" / "attempts" / oldest.attempt.name / "ranks" / "00000.json").unlink()
    with pytest.raises(CheckpointNotFound, match="is retired"):
        verified(asked, oldest, deep=True, quarantine=False)


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_what_is_retired_while_it_is_verified_is_not_called_damaged(
    home: Path, bucket: Bucket, s3: SeaweedFS, method: str
) -> None:
    """Retention deletes its files in the middle of the look at them."""
    root = bucket.uri("r")
    begun = threading.Event()
    with (
        CountingProxy(s3.endpoint) as proxy,
        daemon(home, env={"PATH": os.defpath, **s3.environment(endpoint=proxy.endpoint)}) as node,
    ):
        saved(root, str(node.socket))
        asked, cleaning = (Checkpoints(DaemonClient(str(node.socket)), root) for _ in range(2))
        oldest = asked.listing().checkpoints[-1]

        def clean_once(request: Request) -> Fault | None:
            if request.method == method and request.key.endswith(".distcp") and not begun.is_set():
                begun.set()
                cleaning.collect(keep_last=2, keep_every_steps=0, undecided_seconds=0, dry_run=False)
            return None

        proxy.fault = clean_once
        with pytest.raises(CheckpointNotFound, match="is retired"):
            verified(asked, oldest, deep=True, quarantine=False)
        assert begun.is_set()


def test_of_all_those_that_are_retired_meanwhile_are_passed_over(
    home: Path, address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = f"file://{home}/root"
    saved(root, address)
    oldest = Checkpoints(DaemonClient(address), root).listing().checkpoints[-1]
    listing = Checkpoints.listing

    def and_then_retires(asked: Checkpoints, *, with_manifests: bool = True) -> Listing:
        found = listing(asked, with_manifests=with_manifests)
        asked.decide(oldest.attempt, State.RETIRED, "not kept by the retention")
        (home / "root" / "attempts" / oldest.attempt.name / "ranks" / "00000.json").unlink()
        return found

    monkeypatch.setattr(Checkpoints, "listing", and_then_retires)
    assert run(["checkpoints", "verify", root, "--all", "--deep", "--address", address, "--json"]) == 0
    said = capsys.readouterr()
    assert [each["files"] for each in json.loads(said.out)["verified"]] == [5, 5]
    assert said.err.startswith(f"passed over: {oldest.attempt.name} is retired")
