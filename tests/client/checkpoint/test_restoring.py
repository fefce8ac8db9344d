"""What a restore says, and on which rank."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from forebay.checkpoint.restoring import Restorer
from forebay.daemon.checkpoint_root import Checkpoint, Listing
from forebay_core.checkpoints.names import Attempt

UNFINISHED = Checkpoint(Attempt(1, 40, "0" * 12), world_size=2, durable_ranks=(0,))


class Control:
    """The group of a rank whose fellows get the same answers."""

    def __init__(self, rank: int) -> None:
        self.rank, self.world_size = rank, 2

    def together(self, action: Callable[[], Any]) -> list[Any]:
        return [action()] * self.world_size


@pytest.mark.parametrize("rank", [0, 1])
def test_checkpoints_that_were_never_finished_are_said_by_rank_0(rank: int, caplog: pytest.LogCaptureFixture) -> None:
    calls = SimpleNamespace(listing=lambda: Listing("file:///root", (UNFINISHED,), 1))
    site: Any = SimpleNamespace(groups=SimpleNamespace(control=Control(rank)), calls=calls, leads=True)
    nothing: Any = None
    assert Restorer(site, nothing, nothing).restore(None) is None
    said = [each.getMessage() for each in caplog.records]
    expected = "1 checkpoints here were never finished, the last of step 40: training begins anew"
    assert said == ([expected] if rank == 0 else [])
