"""What a save says while it waits for room, and on which rank."""

from collections.abc import Callable
from typing import Any

import pytest

from forebay.checkpoint.attempt import Policy, Writer
from forebay.checkpoint.calling import Keep, NoRoom
from forebay.daemon.checkpoint_root import Place
from forebay_core.checkpoints.names import Attempt

FULL = "g000001 needs 9 bytes of /staging, and there is no room now: its disk has 0 bytes free; make room on that disk"


class Alone:
    """The group of a rank whose fellows get the same answers."""

    def __init__(self, rank: int) -> None:
        self.rank, self.world_size = rank, 2

    def together(self, action: Callable[[], Any]) -> list[Any]:
        return [action()] * self.world_size


class Daemon:
    """Has room at the third question."""

    def __init__(self) -> None:
        self.asked = 0

    def begin(self, *_: Any, **__: Any) -> Place | NoRoom:
        self.asked += 1
        return NoRoom(is_skipped=False, why=FULL) if self.asked < 3 else Place("disk", "attempts/a")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_save_that_waits_for_room_says_once_and_on_rank_0_what_has_taken_it(
    rank: int, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = Daemon()
    ranks = {"node_ranks": [rank], "policy": Policy("block", Keep())}
    writer = Writer(daemon, Alone(rank), None, **ranks)  # type: ignore[arg-type]
    assert writer._begun(Attempt(1, 7, "0" * 12), 9) == Place("disk", "attempts/a")
    assert daemon.asked == 3
    said = [each.getMessage() for each in caplog.records]
    assert said == ([f"step 7 waits for room in the staging directory: {FULL}"] if rank == 0 else [])
