"""Real ranks of a gloo group, kept for many tests, because to import torch takes seconds.

`run` has each rank call a function of a module with (rank, *arguments) inside a process group that is made for the
call, and gives what they returned. An exception on a rank is raised here, with that rank's traceback; a call that does
not end in time ends the processes. Called from the thread that runs the test.
"""

import importlib
import multiprocessing
import pickle
import tempfile
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_LIMIT_SECONDS = 100


class Ranks:
    """Up to `most` ranks: all forked from one process that has imported torch, and the modules of `preload`."""

    def __init__(self, most: int = 4, *, preload: Sequence[str] = ()) -> None:
        self._most, self._preload = most, tuple(preload)
        self._parent: Any = None
        self._pipes: list[Connection] = []

    def run(self, world_size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What `function(rank, *arguments)` returned on each of the ranks; raises what the first of them raised."""
        assert 1 <= world_size <= self._most
        called = self._pipes[:world_size]
        with tempfile.TemporaryDirectory(prefix="fb-") as directory:
            for rank, pipe in enumerate(called):
                pipe.send((function, rank, world_size, str(Path(directory) / "store"), arguments))
            answers = self._answers(called)
        for rank, (error, trace, _) in enumerate(answers):
            if error is not None:
                error.add_note(f"on rank {rank}:\n{trace}")
                raise error
        return [result for _, _, result in answers]

    def _answers(self, pipes: list[Connection]) -> list[tuple[BaseException | None, str, Any]]:
        answers: dict[int, Any] = {}
        while len(answers) < len(pipes):
            ready = wait([pipe for rank, pipe in enumerate(pipes) if rank not in answers], _LIMIT_SECONDS)
            try:
                answers |= {rank: pickle.loads(pipe.recv_bytes()) for rank, pipe in enumerate(pipes) if pipe in ready}
            except EOFError:
                ready = []
            if not ready:
                self.close()
                raise RuntimeError(f"ranks {sorted(set(range(len(pipes))) - answers.keys())} died, or did not answer")
        return [answers[rank] for rank in range(len(pipes))]

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        pairs = [context.Pipe() for _ in range(self._most)]
        self._parent = context.Process(target=_fork_ranks, args=([there for _, there in pairs], self._preload))
        self._parent.start()
        for here, there in pairs:
            there.close()
            self._pipes.append(here)

    def close(self) -> None:
        """Ends the processes, which they do by themselves when nothing can call them any more."""
        pipes, self._pipes = self._pipes, []
        for pipe in pipes:
            pipe.close()
        if self._parent is not None:
            self._parent.join(5)
            self._parent.terminate()
            self._parent.join()

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _fork_ranks(pipes: list[Connection], preload: tuple[str, ...]) -> None:
    import torch._dynamo  # by the first optimizer of each rank otherwise
    import torch.distributed.fsdp
    import torch.distributed.tensor

    for module in preload:
        importlib.import_module(module)
    torch.set_num_threads(1)
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_serve, args=(rank, pipes), daemon=True) for rank in range(len(pipes))]
    for process in ranks:
        process.start()
    for pipe in pipes:
        pipe.close()
    for process in ranks:
        process.join()


def _serve(which: int, pipes: list[Connection]) -> None:
    for other in [pipe for pipe in pipes if pipe is not pipes[which]]:
        other.close()
    while True:
        try:
            function, rank, world_size, store, arguments = pipes[which].recv()
        except EOFError:
            return
        # Not `send`, with which torch would share the memory of tensors instead of copying it.
        pipes[which].send_bytes(pickle.dumps(_call(function, rank, world_size, store, arguments)))


def _call(
    function: Callable[..., Any], rank: int, world_size: int, store: str, arguments: tuple[Any, ...]
) -> tuple[BaseException | None, str, Any]:
    import torch.distributed as dist

    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=_LIMIT_SECONDS - 20),
        )
        return None, "", function(rank, *arguments)
    except BaseException as error:
        return error, traceback.format_exc(), None
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
