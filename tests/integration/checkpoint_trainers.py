"""Trainers that save and end badly, run as programs: `python -m tests.integration.checkpoint_trainers NAME JSON`.

What a trainer has to say goes to standard output, a JSON value a line.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import forebay
from tests.integration.training import Net


def say(value: Any) -> None:
    print(json.dumps(value), flush=True)


class Trainer:
    """A model, and a checkpointer that nobody has closed yet."""

    def __init__(self, options: dict[str, Any], **more: Any) -> None:
        torch.manual_seed(3)
        self.model = Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        self.checkpointer = forebay.Checkpointer(
            options["root"], model=self.model, optimizer=self.optimizer, address=options["address"], **more
        )

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.arange(4.0)).sum().backward()
        self.optimizer.step()

    def save(self, step: int) -> Any:
        self.step()
        return self.checkpointer.save(step, force=True)


def killed_when_local(options: dict[str, Any]) -> None:
    """Is gone as soon as its checkpoint is local."""
    handle = Trainer(options).save(5)
    handle.wait("local", timeout=60)
    say("local")
    os.kill(os.getpid(), signal.SIGKILL)


def leaves_at_once(options: dict[str, Any]) -> None:
    """Ends after a save, and never asks what became of it."""
    trainer = Trainer(options, on_failure=options.get("on_failure", "raise"))
    trainer.save(7)
    say("saved")


def rank(options: dict[str, Any]) -> None:
    """One of two ranks. `dies`: rank 1 is gone before it saves. Rank 0 says what it was told, and when."""
    number = int(os.environ["RANK"])
    dist.init_process_group(
        "gloo", init_method=options["store"], rank=number, world_size=2, timeout=timedelta(seconds=90)
    )
    trainer = Trainer(options, timeout_seconds=60)
    trainer.checkpointer.restore()
    if options.get("dies") and number == 1:
        os._exit(9)
    if options.get("stops"):
        train_until_told(trainer, number)
    try:
        trainer.save(1).wait("local", timeout=80)
    except forebay.CheckpointError as error:
        say(str(error))


def train_until_told(trainer: Trainer, number: int) -> None:
    """SIGTERM ends it. The ranks keep pace by a collective of their own in every step, as training does."""
    with trainer.checkpointer as checkpointer:
        checkpointer.on_sigterm(grace_seconds=60)
        for step in range(100_000):
            trainer.step()
            dist.all_reduce(torch.ones(1))
            if step == 3 and number == 0:
                say("trains")
            checkpointer.save(step)
            time.sleep(0.002)


TRAINERS: dict[str, Callable[[dict[str, Any]], None]] = {
    "killed_when_local": killed_when_local,
    "leaves_at_once": leaves_at_once,
    "rank": rank,
}

if __name__ == "__main__":
    TRAINERS[sys.argv[1]](json.loads(sys.argv[2]))
