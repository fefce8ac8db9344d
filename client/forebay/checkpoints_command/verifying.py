"""`forebay checkpoints verify`: the daemon looks at each file, here it is watched and summed up."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from forebay.checkpoints_command.asking import Checkpoints
from forebay.console import make_console, size
from forebay.daemon.checkpoint_root import Checkpoint
from forebay_core.checkpoints.documents import State
from forebay_core.printing import printable


@dataclass(frozen=True)
class Fault:
    """A file that is not what was written, and where."""

    file: str
    fault: str


@dataclass(frozen=True)
class Verified:
    """What was found of one checkpoint. `state` is that after a quarantine, where one was asked for."""

    attempt: str
    files: int
    size_bytes: int
    faults: tuple[Fault, ...]
    state: str


def verified(checkpoints: Checkpoints, chosen: Checkpoint, *, deep: bool, quarantine: bool) -> Verified:
    """Looks at all files of an attempt, with a bar on a terminal while it takes."""
    files = size_bytes = 0
    faults: list[Fault] = []
    console = make_console(sys.stderr)
    columns = (
        f"verifying step {chosen.attempt.step}",
        BarColumn(),
        MofNCompleteColumn(),
        "files",
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None)
        for step in checkpoints.verify(chosen.attempt, deep=deep):
            files, size_bytes = files + bool(step.file), size_bytes + step.size_bytes
            if step.fault:
                faults.append(Fault(step.file, step.fault))
            progress.update(task, completed=step.files_done, total=step.files_total)
    state = chosen.state
    if faults and quarantine:
        reason = f"{faults[0].file}: {faults[0].fault}"
        state = checkpoints.decide(chosen.attempt, State.QUARANTINED, reason)
    return Verified(chosen.attempt.name, files, size_bytes, tuple(faults), state)


def print_verified(console: Console, root: str, found: Sequence[Verified], *, deep: bool) -> None:
    """What was found, and what can be done about it."""
    for each in found:
        for fault in each.faults:
            console.print(printable(f"{each.attempt}: {fault.file}: {fault.fault}"))
        counts = f"{each.attempt}: {each.files:,} files, {size(each.size_bytes)}"
        what = f"{len(each.faults):,} damaged" if each.faults else "as written" if deep else "all there"
        console.print(f"{counts}: {what}")
    if any(each.faults and each.state == State.COMMITTED for each in found):
        console.print(
            "A restore goes back to the one before by itself. So that nobody tries it again: "
            f"forebay checkpoints verify {printable(root)} ATTEMPT --quarantine"
        )
    if any(each.state == State.QUARANTINED for each in found):
        console.print(
            "Quarantined: a restore goes back to the one before. forebay checkpoints gc deletes nothing of it."
        )
