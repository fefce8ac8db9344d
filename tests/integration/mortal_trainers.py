"""A training job whose ranks a test may kill, stop or hold up at any moment; see `tests.support.mortal`.

A rank does what its script says, and writes what it has seen to `<directory>/said-<rank>`, a JSON value a line. Nothing
of forebay is changed: a rank that is to wait at a file operation is told of it by Python (`sys.addaudithook`).
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import forebay
from forebay.checkpoint.checkpointer import Checkpointer
from forebay.checkpoint.handle import SaveHandle
from tests.integration.training import SEED, Job, loader_of, model_of
from tests.support.mortal import Start
from tests.support.processes import eventually

SECONDS = 60.0


@dataclass(frozen=True)
class Script:
    """What each rank does, after it has restored.

    deeds: "step", "save", "local" and "durable" (wait for the last save), "hold NAME" (until the test lets NAME go),
    "until NAME" (steps, each saved and durable, until then), "close".
    pauses: by rank, a regular expression of paths: from the deed "arm" on, the rank waits before it opens such a file
    for writing, or renames one to it, until the test lets "paused" go.
    """

    job: Job
    directory: str
    deeds: Sequence[str]
    pauses: Mapping[int, str] = field(default_factory=dict)
    timeout_seconds: float = 60.0


class Watching:
    """The test's side of a script: what was said, and letting go."""

    def __init__(self, script: Script, start: Start) -> None:
        self._directory, self.start = Path(script.directory), start

    def said(self, rank: int, what: str) -> list[Any]:
        """All that the rank has said of this, in order."""
        path = self._directory / f"said-{rank}"
        lines = path.read_text().splitlines() if path.exists() else []
        return [value for kind, value in map(json.loads, lines) if kind == what]

    def wait(self, what: str, *, times: int = 1, rank: int = 0) -> Any:
        """Until the rank has said it so often; the last of it."""

        def found() -> list[Any] | None:
            if self.start.ended[rank] not in (None, 0):
                raise AssertionError(f"rank {rank} has ended with {self.start.ended[rank]}: {self.start.output(rank)}")
            said = self.said(rank, what)
            return said if len(said) >= times else None

        try:
            return (eventually(found, SECONDS, f"{what!r} of rank {rank}") or [])[-1]
        except TimeoutError as error:
            raise TimeoutError(f"{error}; it said {self.start.output(rank)[-3000:]}") from error

    def let_go(self, name: str) -> None:
        (self._directory / name).touch()

    def trained(self, rank: int) -> dict[int, Any]:
        """By step, what the rank has seen in it."""
        return {step: seen for step, *seen in self.said(rank, "step")}


def train(rank: int, world_size: int, script: Script) -> None:
    """The script of one rank; a function of `MortalRanks.start`."""
    if world_size > 1:
        store = f"file://{script.directory}/store"
        limit = timedelta(seconds=SECONDS)
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size, timeout=limit)
    torch.manual_seed(SEED + rank)
    job = script.job
    model, optimizer = model_of(job)
    with closing(loader_of(job, rank)) as loader:
        checkpointer = Checkpointer(
            job.root,
            model=model,
            optimizer=optimizer,
            loader=loader,
            address=job.addresses[rank],
            timeout_seconds=script.timeout_seconds,
            **job.options,
        )
        _Rank(rank, script, model, optimizer, loader, checkpointer).run()


class _Rank:
    def __init__(
        self,
        rank: int,
        script: Script,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: forebay.DataLoader,
        checkpointer: Checkpointer,
    ) -> None:
        self.rank, self.script = rank, script
        self.model, self.optimizer, self.loader, self.checkpointer = model, optimizer, loader, checkpointer
        self.step = -1
        self.handle: SaveHandle | None = None

    def say(self, what: str, value: Any = None) -> None:
        with (Path(self.script.directory) / f"said-{self.rank}").open("a") as file:
            file.write(json.dumps([what, value]) + "\n")

    def run(self) -> None:
        restored = self.checkpointer.restore()
        if restored is not None:
            self.step = restored.step
        self.say("restored", None if restored is None else [restored.step, restored.generation, restored.source])
        self.batches = iter(self.loader)
        for deed in self.script.deeds:
            name, _, argument = deed.partition(" ")
            try:
                self.do(name, argument)
            except forebay.ForebayError as error:
                self.say("error", [type(error).__name__, str(error)])

    def do(self, name: str, argument: str) -> None:
        deeds: dict[str, Callable[[], None]] = {
            "step": self.train,
            "save": self.save,
            "local": lambda: self.reach("local"),
            "durable": lambda: self.reach("durable"),
            "hold": lambda: self.hold(argument),
            "until": lambda: self.until(argument),
            "arm": self.arm,
            "close": self.checkpointer.close,
        }
        deeds[name]()

    def train(self) -> None:
        self.step += 1
        self.optimizer.zero_grad()
        if (batch := next(self.batches, None)) is None:
            self.batches = iter(self.loader)
            batch = next(self.batches)
        loss = (self.model(batch["value"]).squeeze(1) - 0.1 * batch["value"]).square().mean()
        loss.backward()
        self.optimizer.step()
        self.say("step", [self.step, float(loss.detach()).hex(), batch[forebay.SAMPLE_ID].tolist()])

    def save(self) -> None:
        self.handle = self.checkpointer.save(self.step, force=True)

    def reach(self, point: Any) -> None:
        assert self.handle is not None
        self.handle.wait(point, timeout=SECONDS)
        self.say(point, [self.step, self.handle.attempt.name])

    def hold(self, name: str) -> None:
        self.say("holds", name)
        _wait_for(Path(self.script.directory) / name)

    def until(self, name: str) -> None:
        while not (Path(self.script.directory) / name).exists():
            for deed in ("step", "save", "durable"):
                self.do(deed, "")

    def arm(self) -> None:
        if (pattern := self.script.pauses.get(self.rank)) is None:
            return
        wanted = re.compile(pattern)
        told: list[Any] = []

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            if event == "open":
                path, mode = arguments[0], str(arguments[1])
                if not isinstance(path, str | os.PathLike) or "r" in mode:
                    return
            elif event == "os.rename":
                path = arguments[1]
            else:
                return
            if not told and wanted.fullmatch(os.fspath(path)):
                told.append(path)
                self.say("pauses", os.fspath(path))
                _wait_for(Path(self.script.directory) / "paused")

        sys.addaudithook(hook)


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + 2 * SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody made {path}")
        time.sleep(0.005)
