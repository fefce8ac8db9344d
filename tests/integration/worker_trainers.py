"""Trainers that load with worker processes, run as programs: `python -m tests.integration.worker_trainers NAME JSON`.

What a trainer has to say goes to standard output, a JSON value a line.
"""

import json
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import forebay


class Numbers(torch.utils.data.Dataset[dict[str, int]]):
    """`{"id": index}`, each after a while."""

    def __init__(self, length: int, seconds: float = 0.0) -> None:
        self.length, self.seconds = length, seconds

    def __getitem__(self, index: int) -> dict[str, int]:
        time.sleep(self.seconds)
        return {"id": index}

    def __len__(self) -> int:
        return self.length


#: What lives until the interpreter ends.
KEPT: list[Any] = []


def say(value: Any) -> None:
    print(json.dumps(value), flush=True)


def passed_through(sample: Any) -> Any:
    return sample


def worker_pids() -> list[int]:
    """forebay's; torch's loaders in other tests may have left some of theirs."""
    children = multiprocessing.active_children()
    return sorted(child.pid for child in children if child.pid and child.name.startswith("forebay-worker"))


def epochs(options: dict[str, Any]) -> None:
    """Two epochs without workers, so that the daemon has been called, and then two in each of the ways asked for."""
    logging.basicConfig(stream=sys.stderr)

    def stream() -> forebay.StreamingDataset:
        fmt = forebay.Parquet(piece_bytes=1)
        source, address = options["source"], options["address"]
        return forebay.StreamingDataset(
            source, columns=["id"], seed=5, address=address, format=fmt, transform=passed_through
        )

    def two_epochs(**workers: Any) -> list[list[int]]:
        loader = forebay.DataLoader(stream(), 7, **workers)
        seen = [[sample for batch in loader for sample in batch["id"].tolist()] for _ in range(2)]
        loader.close()
        return seen

    say(two_epochs())
    for method in options["methods"]:
        try:
            say(two_epochs(num_workers=2, multiprocessing_context=method))
        except forebay.ConfigurationError as error:
            say(str(error))


def preempted(options: dict[str, Any]) -> None:
    """Reads on after a signal as if to save, then closes; says its workers before and after."""
    told: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: told.append(number))
    loader = forebay.DataLoader(Numbers(2000), 2, num_workers=2, multiprocessing_context=options["method"])
    seen: list[int] = []
    left = 30
    for step, batch in enumerate(loader):
        seen += batch["id"].tolist()
        if step == 3:
            say(worker_pids())
        if told:
            left -= 1
        elif step >= 3:
            time.sleep(0.001)
        if left == 0:
            break
        if step == 900:
            raise RuntimeError("no signal came")
    say(worker_pids())
    say(seen)
    loader.close()
    say(worker_pids())


class Sleeps(Numbers):
    """Indices from 6 on take very long in a worker process."""

    def __getitem__(self, index: int) -> dict[str, int]:
        if index >= 6 and torch.utils.data.get_worker_info() is not None:
            time.sleep(1000)
        return {"id": index}


def leaves_early(options: dict[str, Any]) -> None:
    """Ends in the middle of an epoch of two loaders, of which one has read on; their iterators live."""
    loaders = [forebay.DataLoader(Sleeps(500), 2, **options["loader"]) for _ in range(2)]
    for loader in loaders:
        KEPT.append(iter(loader))
        next(KEPT[-1])
    say(worker_pids())
    if options.get("wait"):
        time.sleep(100)


def leaves_early_in_a_child(options: dict[str, Any]) -> None:
    """The trainer is a process of multiprocessing itself, as under `torch.multiprocessing.spawn`."""
    child = multiprocessing.get_context("fork").Process(target=leaves_early, args=(options,))
    child.start()
    child.join()
    sys.exit(child.exitcode)


def forks_in_mid_epoch(options: dict[str, Any]) -> None:
    """A forked child reads on, then iterates anew and ends the loader; says what it has met, and what its parent has
    left.
    """
    dataset = Counted(400) if options.get("is_stateful") else Numbers(400)
    loader = forebay.DataLoader(dataset, 2, **options["loader"])
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if child == 0:
        signal.alarm(50)
        try:
            next(batches)
        except forebay.StateError as error:
            say(str(error))
        del batches
        say(len(list(loader)))
        loader.close()
        os._exit(0)
    os.waitpid(child, 0)
    say(len(list(batches)))
    loader.close()


class Counted(torch.utils.data.IterableDataset[int]):
    """An iterable that keeps its own position and shares itself out over two workers."""

    def __init__(self, length: int) -> None:
        self.length, self.count = length, 0

    def __iter__(self) -> Iterator[int]:
        mine = range(getattr(torch.utils.data.get_worker_info(), "id", 0), self.length, 2)
        for number in mine[self.count :]:
            self.count += 1
            yield number
        self.count = 0

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def used_obstore(options: dict[str, Any]) -> None:
    """Has used obstore before its workers start, which a forked one would not survive if it did so too."""
    logging.basicConfig(stream=sys.stderr)
    UsesObstore.put()
    say([int(batch["id"]) for batch in forebay.DataLoader(UsesObstore(6), 1, num_workers=1)])


class UsesObstore(Numbers):
    def __getitem__(self, index: int) -> dict[str, int]:
        self.put()
        return {"id": index}

    @staticmethod
    def put() -> None:
        from obstore.store import MemoryStore

        MemoryStore().put("a", b"b")


def large_batches(options: dict[str, Any]) -> None:
    """Reads batches that are larger than /dev/shm."""
    usage = os.statvfs("/dev/shm")
    say(usage.f_frsize * usage.f_blocks)
    loader = forebay.DataLoader(Large(6), 1, num_workers=2)
    say([int(batch["id"]) for batch in loader if batch["large"].shape == (1, 1 << 20)])


class Large(Numbers):
    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"id": index, "large": torch.zeros(1 << 20)}


def stuck(options: dict[str, Any]) -> None:
    """Has workers that never come back, and ends."""
    loader = forebay.DataLoader(Stuck(holds_gil=options["holds_gil"]), 1, num_workers=2, timeout=1)
    try:
        list(loader)
    except forebay.WorkerError as error:
        say(str(error))
    say(worker_pids())


class Stuck(Numbers):
    """Index 3 never comes."""

    def __init__(self, *, holds_gil: bool) -> None:
        super().__init__(8)
        self.holds_gil = holds_gil

    def __getitem__(self, index: int) -> dict[str, int]:
        if index == 3:
            wait_for_ever(holds_gil=self.holds_gil)
        return {"id": index}


def wait_for_ever(*, holds_gil: bool) -> None:
    import ctypes

    library = ctypes.PyDLL(None) if holds_gil else ctypes.CDLL(None)
    while True:
        library.pause()


TRAINERS: dict[str, Callable[[dict[str, Any]], None]] = {
    "epochs": epochs,
    "preempted": preempted,
    "leaves_early": leaves_early,
    "leaves_early_in_a_child": leaves_early_in_a_child,
    "stuck": stuck,
    "forks_in_mid_epoch": forks_in_mid_epoch,
    "used_obstore": used_obstore,
    "large_batches": large_batches,
}

if __name__ == "__main__":
    TRAINERS[sys.argv[1]](json.loads(sys.argv[2]))
