"""Several datasets' leases under one numbering of pieces, and how long the pieces of an epoch are held."""

from collections.abc import Sequence

import numpy as np
import pytest

from forebay.daemon.session import Taken
from forebay.loading.chunk import Int64, PieceFile
from forebay.loading.holdings import Bounds
from forebay.loading.leases import SharedLeases
from forebay.order import Needs


class Recorder:
    """Remembers what it was told, and answers leases with its own name in the path."""

    def __init__(self, name: str, budget_bytes: int = 100) -> None:
        self.name, self.budget_bytes = name, budget_bytes
        self.told: list[object] = []

    def publish(self, pieces: Int64, first: Int64, last: Int64) -> None:
        self.told.append((pieces.tolist(), first.tolist(), last.tolist()))

    def report(self, position: int, positions_per_second: float, taken: Taken) -> None:
        self.told.append((position, positions_per_second, taken))

    def lease(self, pieces: Sequence[int]) -> list[PieceFile]:
        self.told.append(list(pieces))
        return [PieceFile(piece, f"/{self.name}/{piece}", 1, 1, 0, 0) for piece in pieces]

    def release(self, pieces: Sequence[int]) -> None:
        self.told.append(("release", list(pieces)))

    def unreadable(self, piece: int, disk_id: str) -> None:
        self.told.append(("unreadable", piece, disk_id))

    def interrupt(self) -> None:
        self.told.append("interrupt")

    def close(self) -> None:
        self.told.append("close")


def test_that_a_piece_cannot_be_read_and_that_nobody_waits_any_more_is_told_to_whom_it_concerns() -> None:
    web, code = Recorder("web"), Recorder("code")
    shared = SharedLeases([web, code], [0, 10])
    shared.unreadable(12, "d")
    shared.interrupt()
    assert (web.told, code.told) == (["interrupt"], [("unreadable", 2, "d"), "interrupt"])


class Broken(Recorder):
    def close(self) -> None:
        raise OSError("gone")


def test_each_dataset_is_asked_in_its_own_numbers_and_answers_come_in_the_order_asked_for() -> None:
    web, code, books = (Recorder(name) for name in ("web", "code", "books"))
    shared = SharedLeases([web, code, books], [0, 10, 12])
    files = shared.lease([11, 3, 12, 10, 0])
    assert [(file.piece, file.path) for file in files] == [
        (11, "/code/1"),
        (3, "/web/3"),
        (12, "/books/0"),
        (10, "/code/0"),
        (0, "/web/0"),
    ]
    assert [each.told for each in (web, code, books)] == [[[3, 0]], [[1, 0]], [[0]]]
    shared.release([10, 9])
    assert (web.told[1:], code.told[1:], books.told[1:]) == ([("release", [9])], [("release", [0])], [])


def test_needs_are_shared_out_and_the_position_is_everybodys() -> None:
    web, code = Recorder("web"), Recorder("code")
    shared = SharedLeases([web, code], [0, 10])
    shared.publish(np.array([3, 12, 3]), np.array([0, 1, 7]), np.array([5, 6, 9]))
    shared.report(17, 2.5, Taken(80, 9.0, 4.0))
    assert web.told == [([3, 3], [0, 7], [5, 9]), (17, 2.5, Taken(80, 9.0, 4.0))]
    assert code.told == [([2], [1], [6]), (17, 2.5, Taken(0, 0.0, 4.0))], "what was taken is counted once"


def test_the_budget_is_every_sessions_part_as_it_was_last_heard() -> None:
    web, code = Recorder("web", 100), Recorder("code", 60)
    shared = SharedLeases([web, code], [0, 10])
    assert shared.budget_bytes == 0
    shared.lease([1])
    assert shared.budget_bytes == 200
    shared.lease([11])
    assert shared.budget_bytes == 120


def test_all_sessions_are_closed_whatever_becomes_of_one() -> None:
    web, code = Recorder("web"), Recorder("code")
    with pytest.raises(OSError, match="gone"):
        SharedLeases([web, Broken("bad"), code], [0, 1, 2]).close()
    assert web.told == code.told == ["close"]


def test_a_piece_that_is_wanted_again_much_later_is_not_held_in_between() -> None:
    needs = Needs(np.array([0, 1, 0, 0]), np.array([0, 5, 20, 40]), np.array([10, 30, 25, 50]))
    bounds = Bounds(needs, 1000)
    assert bounds.up_to(5).tolist() == [1010, 0]
    assert bounds.up_to(6).tolist() == [1010, 1030]
    assert bounds.up_to(21).tolist() == [1025, 1030]
    assert bounds.up_to(7).tolist() == [1025, 1030]
    assert bounds.up_to(1000).tolist() == [1050, 1030]
    assert Bounds(Needs.nothing(), 0).up_to(5).tolist() == []
