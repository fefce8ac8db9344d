"""This start of the job: its generation, claimed once, its ledger, and the names of its attempts.

All ranks name an attempt alike without asking each other: the name follows from the start's token, which is drawn once
for all of them, from the step and from how many saves there were before. The last comes first in it, so that names of
one step sort by age too.
"""

import hashlib
import platform
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

from forebay.checkpoint.handle import POINTS, SaveHandle
from forebay.checkpoint.ledger import Ledger, Standing
from forebay.checkpoint.restoring import Restored
from forebay.checkpoint.site import Site
from forebay_core.checkpoints.names import Attempt, parse_attempt
from forebay_core.errors import one_line


@dataclass
class Start:
    """saves: how many this start has begun. ledger: of rank 0, None elsewhere."""

    generation: int
    token: str
    ledger: Ledger | None
    saves: int = 0

    @classmethod
    def claim(
        cls, site: Site, restored: Restored | None, notes: Mapping[str, Any], standing: Callable[[], Standing]
    ) -> Self:
        """Called by all ranks. The claim, and the begin of the ledger, are durable when it returns."""
        control = site.groups.control
        token = control.from_first(secrets.token_hex(16))
        parent = None if restored is None else parse_attempt(restored.attempt)
        here = Standing() if restored is None else Standing(restored.step, restored.position, restored.digest)
        about = {**_about(restored, control.world_size), **notes}
        said = {**about, **here.encode()}
        generation = control.together(lambda: site.calls.claim(token, parent, said) if control.rank == 0 else 0)[0]
        ledger = _ledger(site, generation, standing) if control.rank == 0 else None

        def begin() -> None:
            if ledger is not None:
                ledger.begin(here, parent=None if parent is None else parent.name, notes=about)

        control.together(begin)
        return cls(generation, token, ledger)

    def attempt(self, step: int) -> Attempt:
        """The next attempt, at a step; it counts more than an earlier one at the same step."""
        self.saves += 1
        drawn = hashlib.sha256(f"{self.token} {step} {self.saves}".encode()).hexdigest()
        return Attempt(self.generation, step, f"{self.saves % (1 << 24):06x}{drawn[:6]}")

    def ended(self, handle: SaveHandle, standing: Standing, error: BaseException | None) -> None:
        """A save has become durable, or failed."""
        if self.ledger is not None:
            seconds: dict[str, float | None] = {point: getattr(handle, f"{point}_seconds") for point in POINTS}
            failed = {} if error is None else {"error": one_line(error)}
            self.ledger.saved(
                standing,
                attempt=handle.attempt.name,
                seconds=seconds,
                blocked_seconds=handle.blocked_seconds,
                **failed,
            )

    def close(self, reason: str) -> None:
        """Says how it ended. Idempotent."""
        if self.ledger is not None:
            self.ledger.close(reason)


def _ledger(site: Site, generation: int, standing: Callable[[], Standing]) -> Ledger:
    return Ledger(lambda part, content: site.calls.append_ledger(generation, part, content), standing=standing)


def _about(restored: Restored | None, world_size: int) -> dict[str, Any]:
    known: dict[str, Any] = {
        "world_size": world_size,
        "host": platform.node(),
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return known if restored is None else {**known, "notes": list(restored.notes)}
