"""Roots that can only be read."""

from pathlib import Path

import torch
from torch import nn

from forebay.checkpoint.checkpointer import Checkpointer
from forebay.checkpoints_command.asking import Checkpoints
from forebay.daemon.client import DaemonClient
from tests.server.daemons import daemon
from tests.support.filesystems import seen_read_only
from tests.support.seaweedfs import Bucket, SeaweedFS

SECONDS = 60.0
PATH = {"PATH": "/usr/bin:/bin"}


def saved(root: str, address: str, value: float = 3.0) -> None:
    model = nn.Linear(2, 2)
    torch.nn.init.constant_(model.weight, value)
    with Checkpointer(root, model=model, address=address) as checkpointer:
        for step in (1, 2, 3):
            handle = checkpointer.save(step, force=True)
            assert handle is not None
            handle.wait("durable", timeout=SECONDS)


def warmed(own: str, other: str, address: str) -> float:
    model = nn.Linear(2, 2)
    with Checkpointer(own, model=model, address=address) as checkpointer:
        assert checkpointer.restore(warm_start=other) is None
    return float(model.weight[0, 0].detach())


def test_a_warm_start_needs_no_right_to_write_to_the_other_bucket(home: Path, bucket: Bucket, s3: SeaweedFS) -> None:
    """A bucket of pretrained models is somebody else's: nothing but reading it is asked for."""
    with daemon(home, name="w", env={**PATH, **s3.environment()}) as writer:
        saved(bucket.uri("pretrained"), str(writer.socket))
    with daemon(home, name="r", env={**PATH, **s3.environment(identity="reader")}) as reader:
        assert warmed(f"file://{home}/own", bucket.uri("pretrained"), str(reader.socket)) == 3.0


def test_a_warm_start_reads_a_directory_that_is_mounted_read_only(home: Path, address: str) -> None:
    saved(f"file://{home}/pretrained", address)
    with seen_read_only(home / "pretrained", home / "mounted") as mounted:
        assert warmed(f"file://{home}/own", f"file://{mounted}", address) == 3.0


def test_what_gc_would_delete_is_said_without_the_right_to_write(home: Path, bucket: Bucket, s3: SeaweedFS) -> None:
    with daemon(home, name="w", env={**PATH, **s3.environment()}) as writer:
        saved(bucket.uri("r"), str(writer.socket))
    with daemon(home, name="r", env={**PATH, **s3.environment(identity="reader")}) as reader:
        asked = Checkpoints(DaemonClient(str(reader.socket)), bucket.uri("r"))
        removed = asked.collect(keep_last=2, keep_every_steps=0, undecided_seconds=0, dry_run=True)
        assert len(removed) == 1
