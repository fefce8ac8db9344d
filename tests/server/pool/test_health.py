"""What follows from what happens to a disk, by table: CASES 31 without a disk."""

import errno
import os

import pytest

from forebay_server.pool.health import (
    GOOD_PROBES,
    PROBE_SECONDS,
    Allowance,
    Health,
    Speed,
    State,
    Trouble,
    slow_ones,
    trouble_of,
)

FAULT, REFUSES, FULL, OK = Trouble.FAULT, Trouble.REFUSES_WRITES, Trouble.FULL, None


def after(*events: tuple[str, Trouble | None], start: Health | None = None) -> Health:
    """The health after these events, one each second."""
    health = start or Health()
    for number, (kind, trouble) in enumerate(events):
        now = 100.0 + number
        if kind == "use":
            assert trouble is not None
            health = health.failed(trouble, "said", now)
        else:
            health = health.probed(trouble, "said", now)
    return health


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([], State.NORMAL),
        ([("use", FULL)], State.NORMAL),
        ([("use", FAULT)], State.UNSTABLE),
        ([("use", FAULT), ("probe", OK)], State.NORMAL),
        ([("use", FAULT), ("probe", FULL)], State.NORMAL),
        ([("use", FAULT), ("use", FULL)], State.UNSTABLE),
        ([("use", FAULT), ("use", FAULT)], State.DOWN),
        ([("use", FAULT), ("probe", FAULT)], State.DOWN),
        ([("use", FAULT), ("use", REFUSES)], State.READ_ONLY),
        ([("use", REFUSES)], State.READ_ONLY),
        ([("use", REFUSES), ("probe", REFUSES)], State.READ_ONLY),
        ([("use", REFUSES), ("probe", OK)], State.NORMAL),
        ([("use", REFUSES), ("use", FAULT)], State.DOWN),
        ([("probe", FAULT)], State.DOWN),
        ([("probe", FAULT), ("use", REFUSES)], State.DOWN),
        ([("probe", FAULT), ("probe", OK)], State.DOWN),
        ([("probe", FAULT), *[("probe", OK)] * GOOD_PROBES], State.NORMAL),
        ([("probe", FAULT), *[("probe", REFUSES)] * GOOD_PROBES], State.READ_ONLY),
        ([("probe", FAULT), ("probe", OK), ("probe", FAULT), ("probe", OK), ("probe", OK)], State.DOWN),
    ],
)
def test_a_disk_goes_and_comes_back_step_by_step(events: list[tuple[str, Trouble | None]], state: State) -> None:
    """CASES 31: what fails is taken out, and comes back by itself."""
    health = after(*events)
    assert health.state is state
    assert (health.reason == "") == (state is State.NORMAL)
    assert (health.probe_at is None) == (state is State.NORMAL)
    assert health.is_readable == (state is not State.DOWN)
    assert health.is_writable == (state in (State.NORMAL, State.UNSTABLE))


def test_a_disk_that_goes_down_again_and_again_is_left_alone_for_longer_each_time() -> None:
    health, rests = Health(), []
    for now in (0.0, 100.0, 200.0):
        health = health.probed(FAULT, "said", now)
        rests.append((health.probe_at or 0.0) - now)
        for good in range(GOOD_PROBES):
            health = health.probed(OK, "", now + 50 + good * PROBE_SECONDS)
    assert rests == [5.0, 10.0, 20.0]
    assert health.probed(FAULT, "said", 10_000.0).downs == 1, "after a good hour all is forgotten"
    for _ in range(50):
        health = health.probed(FAULT, "said", 300.0)
    assert (health.probe_at or 0.0) - 300.0 == 1800.0


def test_an_operators_word_makes_one_good_probe_enough() -> None:
    health = after(("probe", FAULT), ("probe", FAULT)).admitted(500.0)
    assert health.probe_at == 500.0
    assert health.probed(OK, "", 501.0).state is State.NORMAL
    assert health.probed(FAULT, "said", 501.0).state is State.DOWN
    assert Health().admitted(1.0) == Health()


@pytest.mark.parametrize(
    ("number", "trouble"),
    [
        (errno.EIO, FAULT),
        (errno.ENODEV, FAULT),
        (errno.EUCLEAN, FAULT),
        (errno.EROFS, REFUSES),
        (errno.ENOSPC, FULL),
        (errno.EDQUOT, FULL),
        (errno.EMFILE, None),
        (errno.ENOTDIR, None),
        (errno.ENOENT, None),
    ],
)
def test_an_error_number_says_what_it_says_of_the_disk(number: int, trouble: Trouble | None) -> None:
    assert trouble_of(OSError(number, os.strerror(number))) is trouble


def test_a_full_disk_may_hold_what_it_held_and_after_a_while_more_again_up_to_what_was_configured() -> None:
    """CASES 31: ENOSPC is no failure, it shrinks the cache."""
    whole = Allowance(1600)
    assert whole.bytes(0.0) == 1600
    full = whole.shrunk(400, 100.0)
    assert [full.bytes(now) for now in (100.0, 129.0, 130.0, 140.0)] == [400, 400, 500, 600]
    assert full.bytes(1000.0) == 1600
    assert full.shrunk(2000, 130.0).bytes(130.0) == 500, "what held more than it may is not let hold more"
    assert Allowance(1600).shrunk(-5, 0.0).bytes(0.0) == 0


def test_a_disk_is_slow_beside_a_faster_one_only_and_not_before_it_was_written_to() -> None:
    """CASES 31: slowness throttles, and does not take a disk out."""
    mib = 1 << 20
    fast, slow = Speed().after(64 * mib, 0.1), Speed().after(64 * mib, 1.0)
    assert slow_ones({"a": fast, "b": slow}) == {"b"}
    assert slow_ones({"b": slow}) == slow_ones({"b": slow, "c": slow}) == frozenset()
    assert slow_ones({"a": fast, "b": Speed().after(mib, 9.0)}) == frozenset(), "a megabyte says nothing"
    again = slow
    for _ in range(8):
        again = again.after(64 * mib, 0.1)
    assert slow_ones({"a": fast, "b": again}) == frozenset(), "what was long ago counts no more"
