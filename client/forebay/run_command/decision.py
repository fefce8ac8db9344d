"""What to do when a start of a job has ended: start it again, after which time, or stop, and why (pure).

A job gets on where a start has committed a checkpoint that is newer, by generation and step, than all before. One that
fails again and again without that would do so for ever: after some restarts it is a crash loop, and stopped.
"""

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forebay_core.errors import ConfigurationError

TORCHRUN_RESTARTS = ("--max-restarts", "--max_restarts")


@dataclass(frozen=True, slots=True)
class Limits:
    """max_restarts: in all. stalled_restarts: in a row without progress; 0: as many as there may be.

    A restart waits `first_wait_seconds`, after each further one without progress twice as long, at most
    `longest_wait_seconds`: a store or a file system that is down gets time.
    """

    max_restarts: int
    stalled_restarts: int = 3
    first_wait_seconds: float = 1.0
    longest_wait_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name, value in (("--max-restarts", self.max_restarts), ("--stalled-restarts", self.stalled_restarts)):
            if value < 0:
                raise ConfigurationError(f"{name} {value}: give a number of restarts, 0 or more")


@dataclass(frozen=True, slots=True)
class Ended:
    """A start that has ended. status: its exit status, 128 + the signal that killed it.

    progressed: whether a newer checkpoint was committed since the end of the start before; None: nobody can say.
    """

    status: int
    progressed: bool | None


@dataclass(frozen=True, slots=True)
class Restart:
    wait_seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class Stop:
    """why: empty where the job has done what it was to do, or was told to stop."""

    status: int
    why: str = ""


def decide(limits: Limits, starts: Sequence[Ended], *, told_to_stop: bool = False) -> Restart | Stop:
    """After the last of these starts, oldest first."""
    status = starts[-1].status
    if status == 0 or told_to_stop:
        return Stop(status)
    restarts, stalled = len(starts) - 1, _stalled(starts)
    said = describe(status)
    if limits.stalled_restarts and stalled >= limits.stalled_restarts:
        return Stop(
            status,
            f"{said}, and no new checkpoint was committed in {_number(stalled, 'restart')}: this is a crash loop; "
            f"repair what the log says, or give --stalled-restarts 0",
        )
    if restarts >= limits.max_restarts:
        return Stop(status, f"{said} after {_number(restarts, 'restart')} of {limits.max_restarts}")
    wait = min(limits.longest_wait_seconds, limits.first_wait_seconds * 2 ** min(stalled, 30))
    return Restart(wait, f"{said}; restart {restarts + 1} of {limits.max_restarts} in {wait:g} s")


def describe(status: int) -> str:
    """An exit status in words."""
    if status <= 128:
        return f"the job has failed with exit status {status}"
    try:
        return f"the job was ended by {signal.Signals(status - 128).name}"
    except ValueError:
        return f"the job has failed with exit status {status}"


def inner_restarts(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """How often torchrun is asked to restart its ranks itself; 0 where it is not, or where it is not torchrun."""
    if not any(os.path.basename(word) == "torchrun" or word.startswith("torch.distributed") for word in command):  # noqa: PTH119
        return 0
    given = environment.get("PET_MAX_RESTARTS", "0")
    for at, word in enumerate(command):
        name, _, value = word.partition("=")
        if name in TORCHRUN_RESTARTS:
            given = value or (command[at + 1] if at + 1 < len(command) else "0")
    return int(given) if given.isdigit() else 0


def _stalled(starts: Sequence[Ended]) -> int:
    """The restarts since the last progress that are known to have made none."""
    stalled = 0
    for start in reversed(starts[1:]):
        if start.progressed:
            break
        stalled += start.progressed is False
    return stalled


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
