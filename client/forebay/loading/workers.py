"""What runs inside a worker process: it receives chunks over its link, reads them, and sends the batches back.

It outlives the signals that tell a job to stop, so that the trainer can go on reading while it saves; it ends when the
trainer closes the link or is gone, in the middle of a transform if need be. Here, and in no other kind of reader, the
process's global random generators follow the sample that is transformed.
"""

import multiprocessing.reduction
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data._utils import collate as torch_collate
from torch.utils.data._utils import worker as torch_worker

from forebay.loading.chunk import Batch, Chunk, Closed, Failed, Lost
from forebay.loading.desk import NO_SAMPLE, Desk
from forebay.loading.global_seeds import GlobalSeeds, seed_all
from forebay.loading.link import Link
from forebay.loading.raised import Raised
from forebay.loading.reader import Reader, ReaderSpec, read
from forebay.sampling import follow
from forebay_core.errors import ForebayError

OUTLIVED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""What schedulers and terminals send to a job's whole process group."""
BUSY_SECONDS = 0.5
"""How long a reader that is at work when the trainer closes may take to end by itself."""
READY = -1
"""The number of a worker's first message."""

Result = list[Batch] | Lost | Failed | Raised | None
"""What comes back for a chunk; None where it was not wanted any more."""


@dataclass(frozen=True)
class Assignment:
    """What a worker process is started with."""

    spec: ReaderSpec
    number: int
    workers: int
    seed: int
    dataset: Any
    init: Callable[[int], None] | None


class Descriptor:
    """A file that is handed to a process that is being started, under any start method."""

    def __init__(self, file: int) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return _received, (multiprocessing.reduction.DupFd(self.file),)


def _received(duplicate: Any) -> Descriptor:
    return Descriptor(duplicate.detach())


def main(end: socket.socket, desk: Descriptor, assignment: Assignment) -> None:
    """The life of a worker."""
    _outlive_signals()
    threading.Thread(target=_end_with_trainer, args=(end.fileno(),), name="forebay-watch", daemon=True).start()
    opened = Desk(desk.file)
    opened.close()
    worker = _Worker(Link(end), opened, assignment)
    try:
        worker.prepare()
        while True:
            worker.serve()
    except EOFError:
        return


class _Worker:
    def __init__(self, link: Link, desk: Desk, assignment: Assignment) -> None:
        self._link, self._desk, self._assignment = link, desk, assignment
        self._seeds = GlobalSeeds(assignment.spec.seed)
        self._reader: Reader | None = None
        self._chunk = READY
        self._failure: Failed | Raised | None = None

    def prepare(self) -> None:
        """As torch's workers are: one thread, seeds of their own, `get_worker_info()`, the user's own function."""
        here = self._assignment
        torch.set_num_threads(1)
        seed_all(here.seed)
        info = torch_worker.WorkerInfo(id=here.number, num_workers=here.workers, seed=here.seed, dataset=here.dataset)
        torch_worker._worker_info = info
        _collate_in_own_memory()
        try:
            if here.init is not None:
                here.init(here.number)
        except Exception as error:
            self._failure = _noted(error, f"in worker_init_fn {self._at}")
        self._link.send(READY, None)

    def serve(self) -> None:
        """Answers one message."""
        number, chunk = self._link.receive()
        self._chunk = number
        self._desk.begin(number)
        result = self._read(chunk) if self._desk.is_wanted(number) else None
        try:
            self._link.send(number, result)
        except EOFError:
            raise
        except Exception as error:
            self._link.send(number, _noted(error, f"sending what the transform or collate_fn gave {self._at}"))

    def _read(self, chunk: Chunk) -> Result:
        if self._failure is not None:
            return self._failure
        try:
            if self._reader is None:
                self._reader = self._assignment.spec.reader(is_closed=self._is_unwanted)
                follow(self._begin_sample)
            return read(self._reader, chunk)
        except Closed:
            return None
        except Exception as error:
            return _raised(error, f"{self._at}, epoch {chunk.epoch}, step {chunk.ends[0].step}{self._sample}")

    def _is_unwanted(self) -> bool:
        return not self._desk.is_wanted(self._chunk)

    def _begin_sample(self, epoch: int, sample_id: int, draw: int) -> None:
        self._desk.begin(self._chunk, max(sample_id, NO_SAMPLE))
        self._seeds.seed(epoch, sample_id, draw)

    @property
    def _at(self) -> str:
        return f"in worker {self._assignment.number} (pid {os.getpid()})"

    @property
    def _sample(self) -> str:
        sample = self._desk.reading().sample
        return "" if sample == NO_SAMPLE else f", sample {sample}"


def _raised(error: Exception, where: str) -> Failed | Raised:
    """What crosses processes of an error that is being handled."""
    if isinstance(error, ForebayError):
        return Failed.of(error)
    return Raised.of(error, where)


def _noted(error: Exception, where: str) -> Failed | Raised:
    """The same where no sample is noted."""
    if not isinstance(error, ForebayError):
        error.add_note(where)
    return _raised(error, where)


def _collate_in_own_memory() -> None:
    """In a worker torch's collation makes tensors in /dev/shm, for a pipe of torch's; here they would be copied on."""
    stack: Any = torch_collate.default_collate_fn_map[torch.Tensor]

    def collate(batch: list[torch.Tensor], **options: Any) -> Any:
        info, torch_worker._worker_info = torch_worker._worker_info, None
        try:
            return stack(batch, **options)
        finally:
            torch_worker._worker_info = info

    torch_collate.default_collate_fn_map[torch.Tensor] = collate


def _outlive_signals() -> None:
    """Handlers that do nothing, not `SIG_IGN`: that would pass on to programs that a transform starts."""
    for number in OUTLIVED:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, OUTLIVED)


def _end_with_trainer(file: int) -> None:
    """Ends this process soon after the link was closed at the other end, whatever it is doing."""
    poll = select.poll()
    poll.register(file, select.POLLRDHUP)
    poll.poll()
    time.sleep(BUSY_SECONDS)
    os._exit(0)
