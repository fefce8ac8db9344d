"""A checkpoint that was committed, and retired before this node's daemon looked, was durable: that is no failure."""

import threading
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import forebay
from forebay.checkpoint.calling import Calls
from forebay.checkpoint.checkpointer import Checkpointer
from forebay.daemon.client import DaemonClient
from forebay_core.checkpoints.documents import State
from tests.integration.mortal_nodes import states
from tests.server.daemons import daemon
from tests.support.processes import eventually
from tests.support.proxy import CountingProxy, Fault, Request
from tests.support.ranks import Ranks
from tests.support.seaweedfs import Bucket, SeaweedFS

SECONDS = 60.0
SAVES = 4


class Late:
    """Between a node and the store: the node does not hear of the decision on step 1 before that is retired."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._is_uploaded = threading.Event()
        self.is_held = False

    def __call__(self, request: Request) -> Fault | None:
        if request.method == "PUT" and "-s000000001-" in request.key and request.key.endswith("ranks/00001.json"):
            self._is_uploaded.set()
        is_decision = request.method == "GET" and "commits/" in request.key and "-s000000001-" in request.key
        if is_decision and self._is_uploaded.is_set():
            self.is_held = True
            eventually(self._is_retired, SECONDS, "the retirement of step 1")
        return None

    def _is_retired(self) -> bool:
        keys = [key for key in self._bucket.keys("r/commits/") if "-s000000001-" in key]
        return bool(keys) and b'"retired"' in self._bucket.get(keys[0]).replace(b" ", b"")


def train(rank: int, root: str, addresses: list[str]) -> list[str]:
    torch.manual_seed(3)
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said, handles = [], []
    with Checkpointer(
        root, model=model, optimizer=optimizer, keep_last=1, address=addresses[rank], timeout_seconds=60
    ) as checkpointer:
        checkpointer.restore()
        for step in range(1, 1 + SAVES):
            optimizer.zero_grad()
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            handles.append(checkpointer.save(step, force=True))
            dist.barrier()
        for handle in handles:
            try:
                assert handle is not None
                handle.wait("durable", timeout=SECONDS)
                said.append("durable")
            except Exception as error:
                said.append(f"{type(error).__name__}: {error}")
        try:
            checkpointer.close()
        except forebay.CheckpointError as error:
            said.append(f"close() raised {type(error).__name__}: {error}")
    return said


def test_a_checkpoint_that_is_retired_before_a_node_hears_of_its_commit_fails_no_save_there(
    home: Path, bucket: Bucket, s3: SeaweedFS, ranks: Ranks
) -> None:
    late = Late(bucket)
    path = {"PATH": "/usr/bin:/bin"}
    with (
        CountingProxy(s3.endpoint, fault=late) as proxy,
        daemon(home, name="a", env={**path, **s3.environment()}) as a,
        daemon(home, name="b", env={**path, **s3.environment(endpoint=proxy.endpoint)}) as b,
    ):
        said = ranks.run(2, train, bucket.uri("r"), [str(a.socket), str(b.socket)])
        log = b.process.output()
    assert late.is_held
    assert said == [["durable"] * SAVES] * 2
    assert " is lost" not in log


def test_who_asks_again_after_a_checkpoint_was_retired_hears_that_it_was_durable(home: Path, address: str) -> None:
    """As after a daemon's restart: the watch of a save begins again, and what is staged has gone meanwhile."""
    root = f"file://{home}/root"
    torch.manual_seed(3)
    model = nn.Linear(3, 3)
    with Checkpointer(root, model=model, keep_last=1, address=address) as checkpointer:
        handles = [checkpointer.save(step, force=True) for step in range(1, 1 + SAVES)]
        for handle in handles:
            assert handle is not None
            handle.wait("durable", timeout=SECONDS)
    first = handles[0]
    assert first is not None
    eventually(lambda: states(address, root).get(first.attempt) != State.COMMITTED, SECONDS, "the retention")
    calls = Calls(DaemonClient(address), root)
    eventually(lambda: first.attempt not in staged(address, root), SECONDS, "its staged copy to go")
    *_, fate = calls.watch(first.attempt, threading.Event())
    assert fate.error is None
    assert fate.is_durable


def staged(address: str, root: str) -> set[object]:
    listing = Calls(DaemonClient(address), root).listing()
    return {each.attempt for each in listing.checkpoints if each.staged_ranks}
