"""How sealed attempts fare, for who asks and who watches. On the event loop."""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from forebay_core.checkpoints.documents import SUPERSEDED, WERE_COMMITTED
from forebay_core.checkpoints.names import Attempt
from forebay_core.checkpoints.protocol import read_decision
from forebay_core.errors import CheckpointError, CheckpointNotFound, ForebayError
from forebay_server.checkpoints.destinations.base import Destination
from forebay_server.checkpoints.destinations.driving import drive
from forebay_server.checkpoints.rules import Phase
from forebay_server.checkpoints.staged import Staged

_STATUS_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Status:
    """How a sealed attempt fares."""

    root: str
    attempt: Attempt
    phase: Phase
    total_bytes: int
    uploaded_bytes: int
    error: ForebayError | None
    #: Since the seal.
    seconds: float

    @property
    def said_phase(self) -> str:
        """For people: what a newer checkpoint has taken the place of has not failed."""
        is_superseded = self.phase is Phase.FAILED and SUPERSEDED in str(self.error)
        return "superseded" if is_superseded else self.phase.value


def status_of(staged: Staged, now_unix_seconds: float) -> Status:
    """Of an attempt that is staged here."""
    return Status(
        staged.root,
        staged.attempt,
        staged.phase,
        staged.size_bytes,
        min(staged.uploaded_bytes, staged.size_bytes),
        staged.error,
        max(0.0, now_unix_seconds - staged.since_unix_seconds),
    )


async def status_elsewhere(root: Destination, attempt: Attempt) -> Status:
    """Of one that is not staged here, by its decision. Raises `CheckpointNotFound` where there is none."""
    decision = await drive(read_decision(attempt), root)
    if decision is None:
        raise CheckpointNotFound(f"{attempt.name} is not sealed here, and nothing is decided on it at {root.url}")
    if decision.state in WERE_COMMITTED:
        return Status(root.url, attempt, Phase.DURABLE, 0, 0, None, 0.0)
    error = CheckpointError(f"{attempt.name} is {decision.state}: {decision.reason}")
    return Status(root.url, attempt, Phase.FAILED, 0, 0, error, 0.0)


async def watched(staged: Staged, wall_clock: Callable[[], float]) -> AsyncGenerator[Status, None]:
    """At once, at each change, and every second, until it is durable or has failed. wall_clock: seconds since 1970.

    Raises `CheckpointError` for one that is not sealed.
    """
    if staged.phase is Phase.BEGUN:
        raise CheckpointError(f"{staged.attempt.name} is not sealed: there is nothing to watch yet")
    while True:
        status = status_of(staged, wall_clock())
        yield status
        if status.phase.is_final:
            return
        if staged.phase is status.phase:
            await staged.change.wait(_STATUS_SECONDS)
