"""The trainer's side of its worker processes: who has which chunk, what comes back, and what becomes of the dead.

Workers are stateless and a chunk says all that it needs, so a worker that dies is replaced and its chunks are read
again: training goes on, and no batch changes. A chunk that costs two workers their lives is an error, as is a worker
that dies before it has begun. All is done on the trainer's thread; closing may also happen at the process's end.
"""

import logging
import select
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any

from forebay.loading.chunk import Batch, Chunk
from forebay.loading.deaths import cause_of_death, place_of, unpicklable
from forebay.loading.desk import Desk
from forebay.loading.link import Link
from forebay.loading.start_methods import start
from forebay.loading.workers import READY, Assignment, Descriptor, Result, main
from forebay_core.errors import WorkerError, one_line

_log = logging.getLogger("forebay")
MOST_UNDER_WAY = 16
"""Tasks that lie with a worker at once; both directions of its socket hold so many messages, so neither end ever waits
for the other to read while the other waits for it."""
_CLOSE_SECONDS = 3.0
_DEATH_SECONDS = 5.0


@dataclass
class Task:
    """A chunk on its way through a worker. `gone`: how often in a row its files were; `deaths`: of its workers."""

    number: int
    chunk: Chunk
    gone: int = 0
    deaths: int = 0
    result: Result | Future[list[Batch]] = None


@dataclass
class _Worker:
    assignment: Assignment
    process: BaseProcess
    link: Link
    desk: Desk
    #: All that it has to do, and of those the ones that it has not been sent yet.
    tasks: dict[int, Task] = field(default_factory=dict)
    unsent: deque[Task] = field(default_factory=deque)
    #: How many it was sent and has not answered, wanted or not.
    under_way: int = 0
    #: The last task that it was given.
    latest: int = -1
    is_ready: bool = False

    @property
    def name(self) -> str:
        return f"worker {self.assignment.number} (pid {self.process.pid})"

    def reads(self) -> tuple[Task | None, str]:
        """The task that the worker is at, or is to begin with, and in words what that is."""
        reading = self.desk.reading()
        task = self.tasks.get(reading.chunk) or next(iter(self.tasks.values()), None)
        if task is None:
            return None, "while it had nothing to read"
        sample = reading.sample if task.number == reading.chunk else -1
        return task, f"at {place_of(self.assignment.spec, task.chunk, sample)}"


class Crew:
    """Worker processes that are started with this object and end with it."""

    def __init__(self, context: BaseContext, assignments: Sequence[Assignment]) -> None:
        self._context = context
        self._wanted_from = 0
        self._poll = select.poll()
        self._workers: list[_Worker] = []
        self._end = Finalize(self, _end, (self._workers,), exitpriority=100)
        try:
            for assignment in assignments:
                self._workers.append(self._start(assignment))
        except BaseException:
            self.close()
            raise

    @property
    def is_sound(self) -> bool:
        """False where a message was cut off by an exception of a signal's handler."""
        return not any(worker.link.is_cut for worker in self._workers)

    def want_from(self, number: int) -> None:
        """Forgets the tasks of smaller numbers; workers skip what they have not begun of them."""
        self._wanted_from = number
        for worker in self._workers:
            worker.desk.want_from(number)
            worker.tasks = {at: task for at, task in worker.tasks.items() if at >= number}
            worker.unsent = deque(task for task in worker.unsent if task.number >= number)

    def send(self, task: Task) -> None:
        """Gives a task to the worker with the least to do, of several in turn: one that rests keeps pieces mapped."""
        worker = min(self._workers, key=lambda worker: (len(worker.tasks), worker.latest))
        worker.latest = task.number
        worker.tasks[task.number] = task
        worker.unsent.append(task)
        try:
            _send_on(worker)
        except EOFError:
            self._replace(worker)

    def receive(self, seconds: float) -> Iterator[tuple[Task, Result]]:
        """What comes back within this time, each with its task; waits for the first only.

        Raises `WorkerError`.
        """
        for file, _ in self._poll.poll(1000 * seconds):
            worker = next(worker for worker in self._workers if worker.link.fileno() == file)
            message = self._message(worker)
            if message is None:
                self._replace(worker)
                continue
            number, result = message
            if number == READY:
                worker.is_ready = True
                continue
            worker.under_way -= 1
            task = worker.tasks.pop(number, None)
            with suppress(EOFError):  # a worker that has died since is noticed when it is next heard
                _send_on(worker)
            if task is not None:
                yield task, result

    def _message(self, worker: _Worker) -> tuple[int, Result] | None:
        """What the worker sent; None where it has ended."""
        try:
            return worker.link.receive()
        except EOFError:
            return None
        except Exception as error:
            raise WorkerError(f"what {worker.name} sent cannot be read here: {one_line(error)}") from error

    def stuck(self, task: Task) -> str:
        """In words, the worker that has this task and what it is at. Any thread."""
        worker = next((worker for worker in list(self._workers) if task.number in worker.tasks), None)
        return "nobody any more" if worker is None else f"{worker.name}, which is {worker.reads()[1]}"

    def close(self) -> None:
        """Ends the workers, within seconds whatever they are doing. Idempotent."""
        self._end()

    def _replace(self, worker: _Worker) -> None:
        """Another worker in the place of one that has died, with the same tasks. Raises where that is no use."""
        cause = self._bury(worker)
        task, place = worker.reads()
        if not worker.is_ready:
            raise WorkerError(f"{worker.name} {cause}")
        if task is not None:
            if task.deaths:
                raise WorkerError(f"{worker.name} {cause} It died {place}, as another worker had before it")
            task.deaths += 1
        _log.warning("%s %s It died %s; another takes its place", worker.name, cause, place)
        index = self._workers.index(worker)
        successor = self._workers[index] = self._start(worker.assignment)
        successor.tasks = worker.tasks
        successor.unsent = deque(worker.tasks.values())
        with suppress(EOFError):  # one that dies at once is noticed when it is next heard
            _send_on(successor)

    def _bury(self, worker: _Worker) -> str:
        self._poll.unregister(worker.link)
        worker.link.close()
        worker.process.join(_DEATH_SECONDS)
        if worker.process.exitcode is None:
            worker.process.kill()
            worker.process.join(_DEATH_SECONDS)
        return cause_of_death(worker.process.exitcode, is_ready=worker.is_ready) + "."

    def _start(self, assignment: Assignment) -> _Worker:
        ours, theirs = socket.socketpair()
        desk = Desk()
        desk.want_from(self._wanted_from)
        arguments = (theirs, Descriptor(desk.file), assignment)
        name = f"forebay-worker-{assignment.number}"
        process: Any = self._context.Process(target=main, name=name, args=arguments, daemon=True)  # type: ignore[attr-defined]
        link = Link(ours)
        try:
            start(process, self._context)
        except Exception as error:
            link.close()
            raise self._refused(assignment, error) from error
        finally:
            theirs.close()
            desk.close()
        self._poll.register(link, select.POLLIN)
        return _Worker(assignment, process, link, desk)

    def _refused(self, assignment: Assignment, error: Exception) -> Exception:
        if self._context.get_start_method() == "fork" or isinstance(error, OSError):
            return WorkerError(f"worker {assignment.number} cannot be started: {one_line(error)}")
        others = {"worker_init_fn": assignment.init, "dataset": assignment.dataset}
        return unpicklable(assignment.spec, others, self._context.get_start_method(), error)


def _send_on(worker: _Worker) -> None:
    """Sends what waits, as far as there is room for it."""
    while worker.unsent and worker.under_way < MOST_UNDER_WAY:
        task = worker.unsent[0]
        worker.link.send(task.number, task.chunk)
        worker.unsent.popleft()
        worker.under_way += 1


def _end(workers: list[_Worker]) -> None:
    """They see their links closed; who has not ended then is killed."""
    for worker in workers:
        worker.link.close()
    deadline = time.monotonic() + _CLOSE_SECONDS
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
    for worker in workers:
        if worker.process.exitcode is None:
            worker.process.kill()
            worker.process.join(_DEATH_SECONDS)
    workers.clear()
