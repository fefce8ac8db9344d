"""Ranks that a test may kill or stop: forked for each start from one process that has imported torch.

A rank is a call `function(rank, world_size, *arguments)` in a process of its own, with its output in a file. Nothing
comes back but how it has ended; what it has to say it writes to files. Called from the thread that runs the test.
"""

import importlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.processes import eventually


class Start:
    """One start of a job: `pids` by rank. `ended` gives exit codes, as Python counts them: -9 for SIGKILL."""

    def __init__(self, pids: Sequence[int], outputs: Sequence[Path], ask: Callable[[Sequence[int]], list[Any]]) -> None:
        self.pids, self._outputs, self._ask = tuple(pids), outputs, ask

    def signal(self, number: signal.Signals, *ranks: int) -> None:
        """Sends it to these ranks, or to all. None of their numbers is another's before the start is over."""
        for rank in ranks or range(len(self.pids)):
            os.kill(self.pids[rank], number)

    def kill(self, *ranks: int) -> None:
        """SIGKILL, and waits until they are gone; all, where none is named."""
        self.signal(signal.SIGKILL, *ranks)
        wanted = ranks or range(len(self.pids))
        eventually(lambda: all(self.ended[rank] is not None for rank in wanted), 20, "killed ranks to go")

    @property
    def ended(self) -> list[int | None]:
        """The exit code of each rank, None for one that runs."""
        return self._ask(self.pids)

    def wait(self, seconds: float) -> list[int]:
        """The exit codes, once all have ended."""
        eventually(lambda: None not in self.ended, seconds, f"the ranks to end; rank 0 said {self.output(0)[-2000:]}")
        return [int(code) for code in self.ended if code is not None]

    def output(self, rank: int) -> str:
        path = self._outputs[rank]
        return path.read_text(errors="replace") if path.exists() else ""


class MortalRanks:
    """Any number of starts, one after another or at once. `preload`: modules that each rank finds imported."""

    def __init__(self, *, preload: Sequence[str] = ()) -> None:
        self._preload = tuple(preload)
        self._parent: Any = None
        self._pipe: Connection | None = None

    @contextmanager
    def start(
        self, world_size: int, function: Callable[..., None], *arguments: Any, directory: Path
    ) -> Iterator[Start]:
        """Runs the function on so many ranks; what is left of them at the end of the block is killed.

        directory: for their output, `rank-<number>.txt`.
        """
        directory.mkdir(parents=True, exist_ok=True)
        outputs = [directory / f"rank-{rank}.txt" for rank in range(world_size)]
        pids = self._call("start", function, arguments, [str(path) for path in outputs])
        started = Start(pids, outputs, lambda asked: self._call("ended", asked))
        try:
            yield started
        finally:
            self._call("forget", pids)

    def _call(self, *question: Any) -> Any:
        assert self._pipe is not None
        self._pipe.send(question)
        return self._pipe.recv()

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._parent = context.Process(target=_serve, args=(there, self._preload))
        self._parent.start()
        there.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pipe is not None:
            self._pipe.close()
        self._parent.join(10)
        self._parent.kill()
        self._parent.join()


def _serve(pipe: Connection, preload: tuple[str, ...]) -> None:
    import torch._dynamo  # by the first optimizer of each rank otherwise
    import torch.distributed

    for module in preload:
        importlib.import_module(module)
    torch.set_num_threads(1)
    ranks: dict[int, Any] = {}
    deeds: dict[str, Callable[..., Any]] = {"start": _start, "ended": _ended, "forget": _forget}
    try:
        while True:
            what, *details = pipe.recv()
            pipe.send(deeds[what](ranks, *details))
    except EOFError:
        _forget(ranks, list(ranks))


def _start(
    ranks: dict[int, Any], function: Callable[..., None], arguments: tuple[Any, ...], outputs: list[str]
) -> list[int]:
    context = multiprocessing.get_context("fork")
    made = [
        context.Process(target=_run, args=(function, rank, len(outputs), arguments, output))
        for rank, output in enumerate(outputs)
    ]
    for process in made:
        process.start()
        ranks[process.pid or 0] = process
    return [process.pid or 0 for process in made]


def _ended(ranks: dict[int, Any], pids: Sequence[int]) -> list[int | None]:
    return [ranks[pid].exitcode for pid in pids]


def _forget(ranks: dict[int, Any], pids: Sequence[int]) -> None:
    for pid in pids:
        ranks[pid].kill()
    for pid in pids:
        ranks.pop(pid).join()


def _run(function: Callable[..., None], rank: int, world_size: int, arguments: tuple[Any, ...], output: str) -> None:
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    function(rank, world_size, *arguments)
