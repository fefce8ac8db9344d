"""Saving by time: rank 0's clock decides for all, at steps on which all look."""

from typing import Any

from forebay.checkpoint.cadence import Cadence
from forebay.checkpoint.group import Group, Groups
from forebay.checkpoint.timing import Looking
from tests.support.ranks import Ranks


def saves(rank: int, seconds_per_step: list[float], every_seconds: float) -> list[int]:
    """Steps of 40 at which a rank saves whose clock runs as its place in the list says."""
    groups = Groups.make(60)
    now = [0.0]
    looking = Looking(groups.control, lambda: now[0])
    cadence = Cadence(every_seconds=every_seconds)
    found = []
    for step in range(40):
        now[0] += seconds_per_step[rank]
        if looking.is_due(cadence, step):
            found.append(step)
            looking.saved()
    groups.close()
    return found


def test_all_ranks_save_at_the_same_steps_by_the_first_ones_clock(ranks: Ranks) -> None:
    one, other = ranks.run(2, saves, [1.0, 7.0], 10.0)
    assert one == other == [9, 19, 29, 39]


def test_a_process_that_is_alone_needs_no_group() -> None:
    assert saves(0, [1.0], 10.0) == [9, 19, 29, 39]


def raises_on_one(rank: int) -> tuple[str, str]:
    groups = Groups.make(60)

    def act() -> int:
        if rank == 1:
            raise KeyError("what only rank 1 found")
        return rank

    try:
        groups.saving.together(act)
    except Exception as error:
        return type(error).__name__, str(error)
    finally:
        groups.close()
    return "", ""


def test_what_fails_on_one_rank_is_raised_on_all_with_its_rank(ranks: Ranks) -> None:
    """CASES 41: nobody waits for one that has given up."""
    others = ranks.run(3, raises_on_one)
    assert others[1] == ("KeyError", "'what only rank 1 found'")
    for rank in (0, 2):
        assert others[rank] == ("CheckpointError", "on rank 1: KeyError: 'what only rank 1 found'")


def shared(rank: int) -> Any:
    groups = Groups.make(60)
    control: Group = groups.control
    result = control.gather(rank * 2), control.from_first(f"of {rank}"), control.together(lambda: rank + 1)
    groups.close()
    groups.close()
    return result


def test_values_are_gathered_in_the_order_of_ranks_and_the_first_ones_is_everybodys(ranks: Ranks) -> None:
    assert ranks.run(3, shared) == [([0, 2, 4], "of 0", [1, 2, 3])] * 3
