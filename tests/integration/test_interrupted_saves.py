"""Ctrl-C in `save`, in `close` and at a process's exit: what comes after is right, and ends soon.

In `save` the interrupt is raised where a thread is about to be started: between two instructions, as a signal's handler
would. One in some hundreds of real ones lands there.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import IO, Any

import pytest
import torch

import forebay
from forebay.checkpoint.background import Background
from tests.integration.training import Net


def interrupted_at(name: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The first start of a thread of that name is interrupted; gives what asserts that it was."""
    start = threading.Thread.start
    seen: list[threading.Thread] = []

    def interrupted(thread: threading.Thread) -> None:
        if thread.name == name and not seen:
            seen.append(thread)
            raise KeyboardInterrupt
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted)

    def check() -> None:
        assert seen

    return check


def within(seconds: float, action: Callable[[], Any]) -> Any:
    """Its result, from a thread of its own, so that a test does not hang; raises what it raises."""
    found: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            found.append((action(), None))
        except BaseException as error:
            found.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not found:
        raise TimeoutError(f"not within {seconds} s")
    if found[0][1] is not None:
        raise found[0][1]
    return found[0][0]


@pytest.mark.parametrize("thread", ["forebay-staging", "forebay-save"])
def test_an_interrupt_in_a_save_costs_that_save_alone(
    thread: str, home: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    saver = forebay.Checkpointer(f"{home}/root", model=model, optimizer=optimizer, address=address)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.arange(4.0)).sum().backward()
        optimizer.step()

    step()
    check = interrupted_at(thread, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        saver.save(1, force=True)
    check()
    within(10, step)
    try:
        handle = within(10, lambda: saver.save(2, force=True))
        handle.wait("local", 10)
    finally:
        began = time.monotonic()
        within(10, saver.close)
        assert time.monotonic() - began < 5


def test_an_interrupt_of_close_ends_all_the_same_and_leaves_no_loader_that_refuses(
    home: Path, data: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = forebay.StreamingDataset(str(data), columns=["value"], address=address)
    with closing(forebay.DataLoader(dataset, batch_size=8, report_to=None)) as loader:
        saver = forebay.Checkpointer(f"{home}/root", model=torch.nn.Linear(2, 2), loader=loader, address=address)
        saver.restore()
        batches = iter(loader)
        next(batches)
        close = Background.close

        def interrupted(background: Background) -> None:
            close(background)
            raise KeyboardInterrupt  # it waits here, for 5 s at the most

        monkeypatch.setattr(Background, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            saver.close()
        monkeypatch.undo()
        saver.close()
        next(batches)
        assert "forebay-ledger" not in {thread.name for thread in threading.enumerate()}


PROGRAM = """
import sys
import time
from pathlib import Path
import torch
import forebay
from forebay.checkpoint.saving import Saving
write = Saving.write
def held(self, staged, directory):
    while not Path(sys.argv[3]).exists():
        time.sleep(0.01)
    return write(self, staged, directory)
Saving.write = held
saver = forebay.Checkpointer(sys.argv[1], model=torch.nn.Linear(2, 2), address=sys.argv[2])
saver.restore()
saver.save(1, force=True)
"""


def test_an_interrupt_of_the_wait_at_the_exit_leaves_it_a_last_while(home: Path, address: str) -> None:
    let_go = home / "let-go"
    command = [sys.executable, "-c", PROGRAM, f"{home}/root", address, str(let_go)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = until(process.stderr, "waiting until its last checkpoint is local")
        os.kill(process.pid, signal.SIGINT)
        said += until(process.stderr, "interrupted: what is being written has 5 s more to become local")
        let_go.touch()
        said += process.stderr.read()
    assert process.returncode == 0, said
    assert "is lost" not in said


def test_a_checkpoint_that_is_written_at_the_exit_becomes_local_though_forebay_was_imported_first(
    home: Path, address: str
) -> None:
    """Before Python's thread pools, which are closed at the exit in the reverse order of their import."""
    let_go = home / "let-go"
    program = f"from forebay import Checkpointer\n{PROGRAM}"
    command = [sys.executable, "-c", program, f"{home}/root", address, str(let_go)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = until(process.stderr, "waiting until its last checkpoint is local")
        let_go.touch()
        said += process.stderr.read()
    assert process.returncode == 0, said
    assert "failed" not in said
    assert "is lost" not in said


def until(lines: IO[str], awaited: str) -> str:
    """What is said up to the line that holds this."""
    said = ""
    for line in lines:
        said += line
        if awaited in line:
            return said
    raise AssertionError(f"{awaited!r} was not said: {said}")
