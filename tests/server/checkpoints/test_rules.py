"""The rules of the staging area: pure functions, so each is a table."""

import pytest

from forebay_core.checkpoints.names import Attempt
from forebay_core.errors import AccessDenied, CheckpointDamaged, ForebayError, SourceUnreachable
from forebay_server.checkpoints.rules import (
    Occupant,
    Patience,
    Phase,
    Space,
    default_quota,
    is_final,
    is_lost_to,
    is_superseded,
    outdated,
    to_remove,
    turn,
)

GIB = 1 << 30
ROOMY = Space(1000, 1000)


def occupant(step: int, phase: Phase, *, size: int = 100, root: str = "r", **more: bool) -> Occupant:
    return Occupant(root, Attempt(1, step, "0" * 12), size, phase, **more)


def steps(found: list[Occupant] | None) -> list[int] | None:
    return None if found is None else [each.attempt.step for each in found]


BEGUN, QUEUED, UPLOADED, DURABLE = Phase.BEGUN, Phase.QUEUED, Phase.UPLOADED, Phase.DURABLE
#: What is there, what is wanted, the space, and who goes.
ROOM: list[tuple[list[Occupant], int, Space, list[int] | None]] = [
    ([], 1000, ROOMY, []),
    ([], 1001, ROOMY, None),
    ([], 500, Space(1000, 499), None),
    ([occupant(1, QUEUED)], 900, ROOMY, []),
    ([occupant(1, QUEUED)], 901, ROOMY, None),
    ([occupant(1, DURABLE)], 901, ROOMY, [1]),
    ([occupant(1, DURABLE), occupant(2, DURABLE)], 801, ROOMY, [1]),
    ([occupant(2, DURABLE), occupant(1, DURABLE)], 901, ROOMY, [1, 2]),
    ([occupant(2, DURABLE), occupant(9, DURABLE, root="s"), occupant(3, DURABLE)], 701, ROOMY, [2]),
    ([occupant(2, DURABLE), occupant(1, Phase.FAILED)], 801, ROOMY, [1]),
    ([occupant(1, DURABLE, is_read=True)], 901, ROOMY, None),
    ([occupant(1, UPLOADED)], 901, ROOMY, None),
    ([occupant(1, UPLOADED, is_needed=False)], 901, ROOMY, [1]),
    ([occupant(1, UPLOADED, is_needed=False), occupant(2, DURABLE)], 801, ROOMY, [2]),
    ([occupant(1, DURABLE, size=300), occupant(2, QUEUED)], 500, Space(1000, 200), [1]),
    ([occupant(1, BEGUN), occupant(2, Phase.UPLOADING)], 801, ROOMY, None),
    ([occupant(1, BEGUN, size=0), occupant(2, QUEUED, size=0)], 0, Space(1000, 1000, attempts=2), None),
    ([occupant(1, BEGUN, size=0), occupant(2, DURABLE, size=0)], 0, Space(1000, 1000, attempts=2), [2]),
    ([occupant(1, BEGUN, size=0)], 0, Space(1000, 1000, attempts=2), []),
]


@pytest.mark.parametrize(("there", "wanted", "space", "going"), ROOM)
def test_who_makes_room(there: list[Occupant], wanted: int, space: Space, going: list[int] | None) -> None:
    assert steps(to_remove(wanted, there, space)) == going


def test_of_durable_copies_the_newest_of_each_root_is_kept() -> None:
    there = [occupant(step, DURABLE, root=root) for root in "rs" for step in (1, 2)]
    there += [occupant(0, QUEUED), occupant(0, Phase.FAILED), occupant(3, UPLOADED)]
    assert sorted((each.root, each.attempt.step) for each in outdated(there)) == [("r", 0), ("r", 1), ("s", 1)]


def test_what_a_newer_attempt_supersedes() -> None:
    newer = Attempt(1, 5, "f" * 12)
    assert is_superseded(occupant(4, QUEUED), newer, "r")
    assert not is_superseded(occupant(4, QUEUED), newer, "s")
    assert not is_superseded(occupant(6, QUEUED), newer, "r")
    assert not is_superseded(occupant(4, QUEUED, is_read=True), newer, "r"), "somebody restores from it"
    for phase in set(Phase) - {QUEUED}:
        assert not is_superseded(occupant(4, phase), newer, "r")


def test_what_was_begun_is_lost_to_what_its_writers_begin_later() -> None:
    begun = occupant(4, BEGUN)
    later, restart = Attempt(1, 5, "f" * 12), Attempt(2, 1, "f" * 12)
    assert is_lost_to(begun, "r", later, same_ranks=True)
    assert not is_lost_to(begun, "r", later, same_ranks=False)
    assert is_lost_to(begun, "r", restart, same_ranks=False)
    assert not is_lost_to(begun, "s", restart, same_ranks=True)
    assert not is_lost_to(begun, "r", begun.attempt, same_ranks=True)
    assert not is_lost_to(occupant(4, QUEUED), "r", restart, same_ranks=True)
    assert not is_lost_to(begun, "r", Attempt(1, 3, "f" * 12), same_ranks=True)


def test_whose_turn_it_is() -> None:
    def at(step: int) -> Attempt:
        return Attempt(1, step, "0" * 12)

    assert turn([(False, 2.0, at(1)), (False, 1.0, at(2))]) == 1, "who was sealed first"
    assert turn([(False, 1.0, at(1)), (True, 2.0, at(2))]) == 1, "who is waited for"
    assert turn([(False, 1.0, at(2)), (False, 1.0, at(1))]) == 1


def test_waits_grow_to_a_limit_and_what_a_person_must_put_right_is_asked_for_rarely() -> None:
    patience = Patience()
    away, denied = SourceUnreachable("x"), AccessDenied("x")
    assert [patience.before_retry(count, away) for count in (1, 2, 3, 50)] == [1, 2, 4, 60]
    assert [patience.before_retry(count, denied) for count in (1, 5, 50)] == [5, 16, 60]
    polls = [patience.before_poll(count) for count in range(100)]
    assert polls == sorted(polls)
    assert (polls[0], polls[-1]) == (0.1, 5.0)


@pytest.mark.parametrize(("error", "final"), [(SourceUnreachable("x"), False), (CheckpointDamaged("x"), True)])
def test_what_cannot_heal(error: ForebayError, final: bool) -> None:
    assert is_final(error) is final


def test_the_quota_leaves_the_cache_its_capacity_and_is_never_nothing() -> None:
    assert default_quota(100 * GIB, 80 * GIB) == 10 * GIB
    assert default_quota(100 * GIB, 20 * GIB) == 40 * GIB
    assert default_quota(100 * GIB, 100 * GIB) == 10 * GIB
