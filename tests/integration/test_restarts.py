"""A trainer rides through whatever restarts of its daemon, and through sessions that the daemon has given up."""

import os
import random
import signal
import sys
import threading
import time
from concurrent import futures
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

import forebay
from forebay.daemon.client import DaemonClient
from forebay_core.anonymous import AnonymousFile
from forebay_protos.v1 import daemon_pb2 as pb
from tests.integration.trainers import EXTRAS, in_order, reference
from tests.server.daemons import Daemon, client, daemon
from tests.support.data import write_parquet
from tests.support.processes import Process, eventually

KILLS = 20
DATASET: dict[str, Any] = {
    "format": forebay.Parquet(piece_bytes=1),
    "order": forebay.OrderOptions(lanes=4, window=60),
}


@pytest.fixture
def data(home: Path) -> Path:
    """60 pieces of 10 samples."""
    write_parquet(home / "data", shards=3, rows=200, row_group_rows=10)
    return home / "data"


class Restarting:
    """A daemon that is killed, and started again, at a random moment after each time that it is told to."""

    def __init__(self, home: Path, seed: int) -> None:
        self._home, self._random = home, random.Random(seed)
        self._daemons = ExitStack()
        self.current: Daemon = self._start()
        self.kills = 0
        self._told = threading.Semaphore(0)
        self._stopped = False
        self._thread = threading.Thread(target=self._run)

    def kill_soon(self) -> None:
        self._told.release()

    def _start(self) -> Daemon:
        return self._daemons.enter_context(daemon(self._home, name="k"))

    def _run(self) -> None:
        while self._told.acquire() and not self._stopped:
            time.sleep(self._random.uniform(0, 0.1))  # the random moment
            os.kill(self.current.process.pid, signal.SIGKILL)
            self.current.process.wait(10)
            self.kills += 1
            self.current = self._start()

    def __enter__(self) -> "Restarting":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        self._told.release()
        self._thread.join(60)
        self._daemons.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_twenty_kills_at_random_times_in_an_epoch_move_and_lose_no_sample(home: Path, data: Path) -> None:
    with daemon(home) as first:
        expected = in_order(reference(str(data), str(first.socket), 1, **DATASET))
    with Restarting(home, seed=7) as restarting:
        stream = forebay.StreamingDataset(
            str(data), columns=["id"], extras=EXTRAS, seed=11, address=str(restarting.current.socket), **DATASET
        )
        loader = forebay.DataLoader(stream, 2, num_workers=2)
        seen: list[tuple[int, int, int]] = []
        for step, batch in enumerate(loader):
            seen += zip([0, 0], batch[forebay.POSITION].tolist(), batch[forebay.SAMPLE_ID].tolist(), strict=True)
            if step % 12 == 0 and step < 12 * KILLS:
                eventually(lambda at=step // 12: restarting.kills == at, 100, "the kill before")  # type: ignore[misc]
                restarting.kill_soon()
        loader.close()
        eventually(lambda: restarting.kills == KILLS, 100, "the last kill")
    assert seen == expected


def test_a_session_that_the_daemon_gave_up_while_the_trainer_was_stopped_goes_on(home: Path, data: Path) -> None:
    with daemon(home, "--session-lapse-seconds", "0.5") as node:
        expected = in_order(reference(str(data), str(node.socket), 1, **DATASET))
        program = [sys.executable, "-c", TRAINER, str(data), str(node.socket)]
        with Process(program, log=home / "trainer.log", limit_seconds=100) as trainer, client(node.socket) as asked:
            eventually(lambda: trainer.output().count("\n") > 5, 60, "the trainer to train")
            trainer.signal(signal.SIGSTOP)
            eventually(lambda: not asked.status().sessions, 60, "its session to lapse")
            trainer.signal(signal.SIGCONT)
            samples = [int(line) for line in trainer.check(90).split()]
    assert samples == [sample for _, _, sample in expected]


TRAINER = """
import sys, time
import forebay
data = forebay.StreamingDataset(
    sys.argv[1], columns=["id"], seed=11, address=sys.argv[2], format=forebay.Parquet(piece_bytes=1),
    order=forebay.OrderOptions(lanes=4, window=60), extras=(forebay.SAMPLE_ID,),
)
loader = forebay.DataLoader(data, 1)
for batch in loader:
    print(int(batch[forebay.SAMPLE_ID][0]), flush=True)
    time.sleep(0.01)
loader.close()
"""


def test_a_daemon_of_a_version_without_a_call_is_named_as_that_and_unknown_fields_do_no_harm(home: Path) -> None:
    class Older(grpc.GenericRpcHandler):  # type: ignore[type-arg]
        """Knows `GetStatus` alone, and says something there that this version has never heard of."""

        def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
            if not details.method.endswith("GetStatus"):
                return None
            answer = pb.GetStatusResponse(version="0.0.1").SerializeToString() + b"\xfa\x3e\x01x"
            return grpc.unary_unary_rpc_method_handler(lambda _request, _context: answer)

    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[Older()])
    server.add_insecure_port(f"unix:{home}/s")
    server.start()
    try:
        asked = DaemonClient(str(home / "s"), reconnect_seconds=20)
        assert asked.status().version == "0.0.1"
        with pytest.raises(forebay.DaemonError, match=r"of another version than this client .*; restart it"):
            asked.open_dataset(["/data"])
        with pytest.raises(forebay.DaemonError, match=r"of another version than this client .*; restart it"):
            asked.read("Read", pb.ReadRequest(), pb.ReadResponse, AnonymousFile())
    finally:
        server.stop(0).wait()
