"""A trainer that waits for long is told for what: the store, the daemon, a transform, a worker; and when it goes on."""

import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.iteration import Readout
from tests.server.daemons import Daemon, daemon
from tests.support.data import write_parquet
from tests.support.proxy import CountingProxy, Fault, Request
from tests.support.seaweedfs import Bucket, SeaweedFS

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

SECONDS = 0.2
HERE = "all its data is here, and it is with"
PIECES = forebay.Parquet(piece_bytes=1)


class Release(logging.Handler):
    """Ends a wait once it was warned of with a reason that matches; keeps all messages."""

    def __init__(self, reason: str, release: Callable[[], object]) -> None:
        super().__init__()
        self.reason, self.end_wait = reason, release
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        self.messages.append(message)
        if message.startswith("no batch for") and re.search(self.reason, message):
            self.end_wait()


@contextmanager
def released(reason: str, release: Callable[[], object]) -> Iterator[list[str]]:
    """What is logged, while a warning with this reason ends the wait. The reason and the end must have come."""
    handler = Release(reason, release)
    logger = logging.getLogger("forebay")
    logger.addHandler(handler)
    try:
        yield handler.messages
    finally:
        logger.removeHandler(handler)
    warned = [index for index, message in enumerate(handler.messages) if re.search(reason, message)]
    assert warned, handler.messages
    assert any(message.startswith("went on after") for message in handler.messages[warned[0] :]), handler.messages


@pytest.fixture(scope="module")
def data(node: Daemon) -> Path:
    """8 pieces of 10 samples."""
    directory = node.socket.parent.parent / "data"
    write_parquet(directory, shards=2, rows=40, row_group_rows=10)
    return directory


def stream(source: str, node: Daemon, **options: Any) -> forebay.StreamingDataset:
    return forebay.StreamingDataset(
        source, columns=["id"], format=PIECES, shuffle=False, address=str(node.socket), **options
    )


def loader(data: Any, **options: Any) -> forebay.DataLoader:
    return forebay.DataLoader(data, 10, stall_warning_seconds=SECONDS, report_to=None, **options)


def read(made: forebay.DataLoader, samples: int = 80) -> None:
    with closing(made):
        assert [int(i) for batch in made for i in batch["id"]] == list(range(samples))


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}], ids=["in process", "1 worker"])
def test_a_store_that_stalls_is_named_by_the_rows_that_are_waited_for(
    options: dict[str, Any], home: Path, bucket: Bucket, s3: SeaweedFS, data: Path, counting_proxy: CountingProxy
) -> None:
    bucket.upload(data, "train/")
    gate = threading.Event()

    def hold(request: Request) -> Fault | None:
        if request.key.endswith("1.parquet"):
            gate.wait(60)
        return None

    environment = {**os.environ, **s3.environment(endpoint=counting_proxy.endpoint)}
    with daemon(home, env=environment) as node:
        dataset = stream(bucket.uri("train"), node)
        dataset.open()
        counting_proxy.fault = hold
        reason = (
            rf"at epoch 0, position 40: waits for rows 0–9 of {bucket.uri('train')}/shard-00001\.parquet.*, which the "
            rf"daemon is filling or has queued; the daemon at {node.socket} runs [1-9]\d* fills"
        )
        with released(reason, gate.set):
            read(loader(dataset, **options))


def test_a_daemon_that_does_not_answer_is_said(data: Path, node: Daemon) -> None:
    dataset = stream(str(data), node)
    dataset.open()
    node.process.signal(signal.SIGSTOP)
    reason = (
        rf"nothing is planned yet: the daemon was asked for a session \d+ s ago and has not answered; "
        rf"the daemon at {node.socket} took too long to answer"
    )
    try:
        with released(reason, lambda: node.process.signal(signal.SIGCONT)):
            read(loader(dataset))
    finally:
        node.process.signal(signal.SIGCONT)


class Blocks:
    """A transform that waits at one sample for an event."""

    def __init__(self, gate: threading.Event, sample: int) -> None:
        self.gate, self.sample = gate, sample

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        if sample["id"] == self.sample:
            assert self.gate.wait(60)
        return sample


@pytest.mark.parametrize("sample", [0, 45], ids=["first batch", "in mid-epoch"])
@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "worker_type": "thread"}], ids=["in process", "2 threads"])
def test_a_transform_that_blocks_is_named_with_its_line(
    sample: int, options: dict[str, Any], data: Path, node: Daemon
) -> None:
    gate = threading.Event()
    reason = (
        rf"at epoch 0, position {sample // 10 * 10}: {HERE} (the reading thread|the trainer's own thread|thread "
        rf"forebay-reader-\d), in Blocks\.__call__ \({__file__}, line \d+\), there in Condition\.wait"
    )
    with released(reason, gate.set):
        read(loader(stream(str(data), node, transform=Blocks(gate, sample)), **options))


class Reads:
    """A map-style dataset that blocks at one index until a file is there."""

    def __init__(self, gate: Path) -> None:
        self.gate = gate

    def __len__(self) -> int:
        return 80

    def __getitem__(self, index: int) -> dict[str, int]:
        while index == 33 and not self.gate.exists():
            time.sleep(0.01)
        return {"id": index}


def test_a_map_style_dataset_that_blocks_is_named_in_the_trainers_own_thread(home: Path) -> None:
    gate = home / "gate"
    reason = rf"at epoch 0, position 30: {HERE} the trainer's own thread, in Reads\.__getitem__ \("
    with released(reason, gate.touch):
        read(loader(Reads(gate)))


def test_a_worker_process_that_is_busy_is_named(home: Path) -> None:
    gate = home / "gate"
    reason = rf"at epoch 0, position 30: {HERE} worker \d \(pid \d+\), which is at epoch 0, step 3, sample 33 "
    with released(reason, gate.touch):
        read(loader(Reads(gate), num_workers=2, multiprocessing_context="fork"))


def test_a_wait_that_ends_in_an_error_leaves_nothing_to_say(home: Path, no_leaks: None) -> None:
    class Fails(Reads):
        def __getitem__(self, index: int) -> dict[str, int]:
            super().__getitem__(index)
            if index == 33:
                raise OSError("broken")
            return {"id": index}

    gate = home / "gate"
    handler = Release("position 30", gate.touch)
    logging.getLogger("forebay").addHandler(handler)
    made = loader(Fails(gate))
    with closing(made):
        with pytest.raises(OSError, match="broken"):
            list(made)
        readout = made._playback._readout
        assert isinstance(readout, Readout)
        assert readout._engine._watch.blocked_from is None
    logging.getLogger("forebay").removeHandler(handler)
    warned = next(index for index, message in enumerate(handler.messages) if "position 30" in message)
    assert not any(message.startswith("went on") for message in handler.messages[warned:])
