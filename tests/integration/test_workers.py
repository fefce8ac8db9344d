"""Worker processes: exact however they are started, replaced when they die, with torch's options and random numbers."""

import ctypes
import faulthandler
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import get_worker_info

import forebay
from forebay.loading.chunk import Batch
from tests.integration.worker_trainers import Numbers, worker_pids
from tests.server.daemons import daemon
from tests.support.data import write_parquet, write_tokens
from tests.support.leaks import take_stock
from tests.support.processes import Process, eventually

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

SETTING = "GRPC_ENABLE_FORK_SUPPORT"


def ids(loader: forebay.DataLoader) -> list[int]:
    return [sample for batch in loader for sample in batch["id"].tolist()]


@pytest.fixture
def made() -> Iterator[Callable[..., forebay.DataLoader]]:
    """Loaders with two workers of their own, forked whatever other tests did in this process, and closed at the end."""
    loaders: list[forebay.DataLoader] = []

    def make(dataset: Any, batch_size: int = 2, num_workers: int = 2, **options: Any) -> forebay.DataLoader:
        if num_workers:
            options.setdefault("multiprocessing_context", "fork")
        loaders.append(forebay.DataLoader(dataset, batch_size, num_workers=num_workers, **options))
        return loaders[-1]

    yield make
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize("setting", [None, "0", "1"])
def test_two_epochs_are_exact_under_every_start_method_after_the_trainer_has_called_the_daemon(
    setting: str | None, home: Path
) -> None:
    write_parquet(home / "data", shards=2, rows=50, row_group_rows=10)
    options = {"source": str(home / "data"), "methods": ["fork", "forkserver", "spawn", None]}
    environment = {name: value for name, value in os.environ.items() if name != SETTING}
    if setting is not None:
        environment[SETTING] = setting

    def run(address: str | None) -> list[Any]:
        arguments = json.dumps({**options, "address": address})
        program = [sys.executable, "-m", "tests.integration.worker_trainers", "epochs", arguments]
        with Process(program, log=home / "trainer.log", limit_seconds=110, env=environment) as process:
            lines = process.check(100).splitlines()
        return [json.loads(line) for line in lines if line.startswith(("[", '"'))]

    if setting is None:
        alone, *helped = run(None)  # which starts a daemon of its own
    else:
        with daemon(home) as node:
            alone, *helped = run(str(node.socket))
    assert [sorted(epoch) for epoch in alone] == [list(range(100))] * 2
    forked, *others = helped
    assert others == [alone] * 3
    log = (home / "trainer.log").read_text()
    if setting == "0":
        assert "unset that variable" in forked
        assert log.count("workers start by forkserver, because GRPC_ENABLE_FORK_SUPPORT=0") == 1
    else:
        assert forked == alone
        assert "forkserver, because" not in log


def test_a_trainer_that_has_used_obstore_starts_its_workers_without_a_fork(home: Path) -> None:
    program = [sys.executable, "-m", "tests.integration.worker_trainers", "used_obstore", "{}"]
    with Process(program, log=home / "trainer.log", limit_seconds=110) as process:
        said = process.check(100)
    assert "[0, 1, 2, 3, 4, 5]" in said
    assert "workers start by forkserver, because this process has used obstore" in said


def test_batches_larger_than_dev_shm_are_loaded(home: Path) -> None:
    """As in a container, where it has 64 MB, but in a mount namespace of the test's own and smaller still."""
    alone = ["unshare", "--mount", *(["--map-root-user"] if os.getuid() else []), "sh", "-c"]
    mount = "mount -t tmpfs -o size=64k tmpfs /dev/shm"
    if shutil.which("unshare") is None or subprocess.run([*alone, mount], capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount: no mount namespace (unshare --mount) to have a small /dev/shm in")
    program = f"{mount} && exec {sys.executable} -m tests.integration.worker_trainers large_batches '{{}}'"
    with Process([*alone, program], log=home / "trainer.log", limit_seconds=110) as process:
        assert process.check(100).split("\n")[:2] == ["65536", "[0, 1, 2, 3, 4, 5]"]


def test_a_worker_that_is_killed_is_replaced_and_no_batch_changes(
    made: Callable[..., forebay.DataLoader], caplog: pytest.LogCaptureFixture
) -> None:
    loader = made(Numbers(60))
    seen: list[int] = []
    for step, batch in enumerate(loader):
        seen += batch["id"].tolist()
        if step in (3, 9):
            os.kill(worker_pids()[step % 2], signal.SIGKILL)
    assert seen == list(range(60))
    killed = [record.getMessage() for record in caplog.records if "SIGKILL" in record.getMessage()]
    assert len(killed) == 2
    assert all("out-of-memory" in message and "another takes its place" in message for message in killed)
    assert len(worker_pids()) == 2


def test_workers_that_are_all_killed_between_two_epochs_are_replaced(made: Callable[..., forebay.DataLoader]) -> None:
    loader = made(Numbers(20))
    assert ids(loader) == list(range(20))
    for pid in worker_pids():
        os.kill(pid, signal.SIGKILL)
    assert ids(loader) == list(range(20))


def test_a_forkserver_that_is_killed_between_two_epochs_is_started_again(
    made: Callable[..., forebay.DataLoader],
) -> None:
    for _ in range(2):
        loader = made(Numbers(8), multiprocessing_context="forkserver")
        assert ids(loader) == list(range(8))
        loader.close()
        os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)  # type: ignore[attr-defined]


class Ends(Numbers):
    """Index 7 ends the process that reads it: always, or the first time."""

    def __init__(self, how: str, once: Path | None = None) -> None:
        super().__init__(20)
        self.how, self.once = how, once

    def __getitem__(self, index: int) -> dict[str, int]:
        if index == 7 and (self.once is None or not self.once.exists()):
            if self.once is not None:
                self.once.touch()
            self.end()
        return {"id": index}

    def end(self) -> None:
        faulthandler.disable()
        if self.how == "exit":
            os._exit(5)
        elif self.how == "sys.exit":
            sys.exit(6)
        elif self.how == "segfault":
            ctypes.string_at(0)
        else:
            os.kill(os.getpid(), signal.SIGBUS)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("exit", "exited with status 5"),
        ("sys.exit", "exited with status 6"),
        ("segfault", "killed by SIGSEGV"),
        ("bus", "/dev/shm"),
    ],
)
def test_a_sample_that_ends_every_worker_is_an_error_that_names_it(
    how: str, words: str, made: Callable[..., forebay.DataLoader], caplog: pytest.LogCaptureFixture
) -> None:
    dataset = Ends(how)
    loader = made(dataset)
    with pytest.raises(forebay.WorkerError, match=r"worker \d \(pid \d+\)") as caught:
        ids(loader)
    assert words in str(caught.value)
    assert "epoch 0, step 3, sample 7 (index 7)" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert worker_pids() == []
    assert caplog.text.count("another takes its place") == 1
    assert loader.position <= 6
    dataset.once = Path(__file__)
    assert ids(loader) == list(range(20))


def test_a_sample_that_ends_one_worker_is_read_by_another(
    made: Callable[..., forebay.DataLoader], tmp_path: Path
) -> None:
    assert ids(made(Ends("exit", once=tmp_path / "ended"))) == list(range(20))


def raises(_: Any) -> None:
    raise KeyError("not here")


class Raises(Numbers):
    def __getitem__(self, index: int) -> dict[str, int]:
        if index == 7:
            raises(index)
        return {"id": index}


def test_an_error_of_the_users_code_keeps_its_type_and_says_where_it_came_from(
    made: Callable[..., forebay.DataLoader],
) -> None:
    with pytest.raises(KeyError, match=r"^'not here'\nwhile reading sample 7") as caught:
        ids(made(Raises(20)))
    said = str(caught.value.__cause__)
    assert re.match(r"in worker \d \(pid \d+\), epoch 0, step 3, sample 7:\nTraceback", said)
    assert "in raises" in said
    with pytest.raises(KeyError, match=r"^'not here'\nin worker_init_fn in worker \d \(pid \d+\)$") as caught:
        ids(made(Numbers(20), worker_init_fn=raises))
    assert "in raises" in str(caught.value.__cause__)
    with pytest.raises(TypeError, match=r"sending what the transform or collate_fn gave in worker \d"):
        list(made(Numbers(20), collate_fn=lambda _: threading.Lock()))


def refuses(worker: int) -> None:
    raise forebay.ConfigurationError("no such thing: choose another")


def test_an_error_of_forebays_own_in_worker_init_fn_is_said_in_its_one_line(
    made: Callable[..., forebay.DataLoader],
) -> None:
    with pytest.raises(forebay.ConfigurationError, match=r"^no such thing: choose another$"):
        ids(made(Numbers(20), worker_init_fn=refuses))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_cannot_be_sent_to_a_worker_is_named(method: str, made: Callable[..., forebay.DataLoader]) -> None:
    with pytest.raises(forebay.ConfigurationError, match=rf"^collate_fn=<function .*lambda.*start by {method}"):
        ids(made(Numbers(20), collate_fn=lambda batch: batch, multiprocessing_context=method))
    assert worker_pids() == []


class Draws(Numbers):
    """Random numbers of all three global generators, drawn by sample and by batch."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"id": index, "drawn": drawn()}

    @staticmethod
    def collated(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [*samples, {"id": -1 - samples[0]["id"], "drawn": drawn()}]


def drawn() -> tuple[float, ...]:
    return random.random(), float(np.random.random()), float(torch.rand(()))


def test_global_generators_give_a_sample_the_same_numbers_in_any_topology_and_others_in_each_epoch(
    made: Callable[..., forebay.DataLoader],
) -> None:
    def epochs(**options: Any) -> list[dict[int, tuple[float, ...]]]:
        loader = made(Draws(24), 4, collate_fn=Draws.collated, shuffle=True, seed=3, **options)
        return [{sample["id"]: sample["drawn"] for batch in loader for sample in batch} for _ in range(2)]

    state = trainer_state()
    first, second = epochs(num_workers=1)
    assert epochs(num_workers=3) == [first, second]
    assert epochs(multiprocessing_context="forkserver") == [first, second]
    halves = [epochs(num_workers=1, rank=rank, world_size=2)[0] for rank in range(2)]
    assert {sample: numbers for half in halves for sample, numbers in half.items() if sample >= 0} == {
        sample: numbers for sample, numbers in first.items() if sample >= 0
    }
    numbers = [number for epoch in (first, second) for drawn in epoch.values() for number in drawn]
    assert len(set(numbers)) == len(numbers) == 2 * 3 * (24 + 6)
    assert trainer_state() == state


class DrawsMany(Numbers):
    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return [{"drawn": drawn()} for _ in indices]


def test_what_reads_a_batch_at_once_draws_the_same_numbers_in_any_worker(
    made: Callable[..., forebay.DataLoader],
) -> None:
    one, three = ([batch["drawn"] for batch in made(DrawsMany(24), 4, num_workers=number)] for number in (1, 3))
    assert str(one) == str(three)
    assert len({str(batch) for batch in one}) == 6


def trainer_state() -> list[Any]:
    return [random.getstate(), [str(part) for part in np.random.get_state()], torch.get_rng_state().tolist()]


@pytest.mark.parametrize("options", [{}, {"worker_type": "thread"}, {"num_workers": 0}], ids=str)
def test_whole_epochs_leave_the_trainers_generators_as_they_were(
    options: dict[str, Any], made: Callable[..., forebay.DataLoader]
) -> None:
    generator = torch.Generator().manual_seed(4)
    before, own = trainer_state(), generator.get_state()
    loader = made(Numbers(20), shuffle=True, generator=generator, **options)
    ids(loader)
    ids(loader)
    assert trainer_state() == before
    assert torch.equal(generator.get_state(), own)


class Informed(Numbers):
    """Says what it knows of the worker that reads it."""

    informed: str = ""

    def __getitem__(self, index: int) -> dict[str, Any]:
        info = get_worker_info()
        assert info is not None
        assert info.dataset is self
        assert torch.initial_seed() != info.seed  # the sample's
        return {"id": index, "worker": info.id, "of": info.num_workers, "seed": info.seed, "init": self.informed}


def inform(number: int) -> None:
    info = get_worker_info()
    assert info is not None
    assert torch.initial_seed() == info.seed
    dataset: Any = info.dataset
    dataset.informed = f"init {number}"


@pytest.mark.parametrize("context", ["fork", multiprocessing.get_context("spawn")], ids=["name", "object"])
def test_workers_are_initialised_and_informed_as_torchs_are(
    context: Any, made: Callable[..., forebay.DataLoader]
) -> None:
    generator = torch.Generator().manual_seed(100)
    loader = made(
        Informed(20), 1, worker_init_fn=inform, multiprocessing_context=context, generator=generator, prefetch_factor=3
    )
    said = list(loader)
    assert {(int(batch["worker"]), int(batch["of"]), int(batch["seed"]), *batch["init"]) for batch in said} == {
        (number, 2, 100 + number, f"init {number}") for number in range(2)
    }


def test_batches_are_pinned_where_asked_on_a_thread_of_its_own_and_in_order() -> None:
    from forebay.indexed import IndexedDataset
    from forebay.loading.assembly import Assembly
    from forebay.loading.engine import Engine
    from forebay.loading.lookahead import Depth
    from forebay.loading.processes import ProcessDelivery, WorkerOptions
    from forebay.topology import Ranks

    threads = set()

    def pin(batch: Batch) -> Batch:
        threads.add(threading.current_thread().name)
        return batch

    dataset = IndexedDataset(Numbers(20), shuffle=False, seed=0, batch_size=2, tail="even", ranks=Ranks())
    delivery = ProcessDelivery(dataset._reader_spec(Assembly()), WorkerOptions(num_workers=2, pin=pin))
    engine = Engine(dataset._feed(dataset._split(2)), delivery, Depth(steps=6, chunk_steps=1))
    engine.seek(0, 0)
    assert [i for _ in range(10) for i in engine.next()[0].data["id"].tolist()] == list(range(20))
    engine.close()
    assert len(threads) == 1
    assert threads.pop().startswith("forebay-pin")


class Counts(Numbers):
    """Writes down each index that is read; the first worker is slow."""

    def __init__(self, length: int, path: Path) -> None:
        super().__init__(length)
        self.path = path

    def __getitem__(self, index: int) -> dict[str, int]:
        info = get_worker_info()
        if info is not None and info.id == 0:
            time.sleep(0.02)
        with self.path.open("a") as file:
            file.write(".")
        return {"id": index}


def test_a_deep_prefetch_with_a_slow_worker_and_a_slow_trainer_keeps_the_order_and_its_bound(
    made: Callable[..., forebay.DataLoader], tmp_path: Path
) -> None:
    counted = tmp_path / "read"
    counted.touch()
    seen: list[int] = []
    for step, batch in enumerate(made(Counts(120, counted), 1, num_workers=3, prefetch_factor=8)):
        seen += batch["id"].tolist()
        if step == 5:
            eventually(lambda: len(counted.read_text()) >= 6 + 12, 20, "the workers to read far ahead")
        assert len(counted.read_text()) <= len(seen) + 3 * 8
    assert seen == list(range(120))


class Blobs:
    """Batches that fit into a message by themselves, so that many of them lie in a socket."""

    def __len__(self) -> int:
        return 1500

    def __getitem__(self, index: int) -> tuple[int, bytes]:
        return index, bytes(3500)


def test_however_many_small_batches_are_asked_for_ahead_neither_side_waits_for_the_other(
    made: Callable[..., forebay.DataLoader],
) -> None:
    loader = made(Blobs(), 1, num_workers=1, prefetch_factor=600, collate_fn=lambda samples: samples[0])
    assert [index for index, _ in loader] == list(range(1500))


def test_nothing_grows_over_thousands_of_batches_of_workers(made: Callable[..., forebay.DataLoader]) -> None:
    loader = made(Numbers(1000), 1, prefetch_factor=8, collate_fn=long_batch)
    trainer = psutil.Process()
    ids_of_workers: list[int] = []

    def resident_bytes() -> int:
        return sum(psutil.Process(pid).memory_info().rss for pid in (trainer.pid, *ids_of_workers))

    for epoch in range(4):
        assert [int(batch["id"]) for batch in loader] == list(range(1000))
        ids_of_workers = ids_of_workers or worker_pids()
        if epoch == 0:
            held, bytes_before = take_stock(), resident_bytes()
    assert take_stock().beyond(held) == []
    assert resident_bytes() - bytes_before < 24 << 20
    assert worker_pids() == ids_of_workers


def long_batch(samples: list[dict[str, int]]) -> dict[str, Any]:
    return {"id": samples[0]["id"], "long": torch.zeros(8192)}


def test_nothing_grows_over_a_hundred_thousand_batches_in_process(home: Path) -> None:
    write_tokens(home / "data" / "a.bin", samples=20_000, sequence_length=8)
    with daemon(home) as node:
        fmt = forebay.Tokens(sequence_length=8, dtype="int32", piece_bytes=64 << 10)
        stream = forebay.StreamingDataset(str(home / "data"), format=fmt, address=str(node.socket))
        loader = forebay.DataLoader(stream, 1, report_to=None)
        batches = sum(1 for _ in loader)
        held, bytes_before = take_stock(), psutil.Process().memory_info().rss
        batches += sum(1 for _ in range(4) for _ in loader)
        eventually(lambda: take_stock().beyond(held) == [], 20, "calls in flight to end, and nothing to be left")
        assert psutil.Process().memory_info().rss - bytes_before < 24 << 20
        loader.close()
    assert batches == 100_000
