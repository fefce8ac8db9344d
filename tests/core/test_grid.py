"""Pieces mapped side by side."""

import errno
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from forebay_core.grid import Grid
from forebay_core.mapping import MappedFile, is_mapped

WIDTH = 500
ROW = np.dtype(np.uint16)


@pytest.fixture
def grid() -> Iterator[Grid]:
    made = Grid.reserve(slots=4, piece_rows=300, dtype=ROW, shape=(WIDTH,))
    assert made is not None
    yield made
    made.close()


def write(path: Path, rows: int, first: int = 0) -> np.ndarray:
    values = (np.arange(rows * WIDTH) + first).astype(ROW).reshape(rows, WIDTH)
    values.tofile(path)
    return values


def place(grid: Grid, path: Path, rows: int) -> int:
    slot = grid.slot(rows)
    assert slot is not None
    MappedFile.open(path, address=grid.address(slot))
    return slot


def test_one_take_gathers_rows_of_many_pieces(grid: Grid, tmp_path: Path) -> None:
    written = [write(tmp_path / str(number), 300 - number, number * 1000) for number in range(4)]
    first = [grid.first_row(place(grid, tmp_path / str(number), 300 - number)) for number in range(4)]
    assert grid.slot(1) is None
    wanted = [(0, 0), (3, 296), (1, 5), (2, 150), (0, 299)]
    rows = np.array([first[piece] + row for piece, row in wanted])
    assert grid.populate(rows) is None
    assert np.array_equal(grid.rows.take(rows, axis=0), [written[piece][row] for piece, row in wanted])


def test_a_vacated_slot_lets_the_file_go_and_takes_another(grid: Grid, tmp_path: Path) -> None:
    write(tmp_path / "old", 300)
    slot = place(grid, tmp_path / "old", 300)
    assert grid.populate(np.array([grid.first_row(slot) + 299])) is None
    assert is_mapped(tmp_path / "old")
    grid.vacate(slot)
    assert not is_mapped(tmp_path / "old")
    expected = write(tmp_path / "new", 200, 77)
    assert place(grid, tmp_path / "new", 200) == slot
    rows = np.arange(200) + grid.first_row(slot)
    assert grid.populate(rows) is None
    assert np.array_equal(grid.rows[rows], expected)


def test_a_page_that_cannot_be_read_is_an_error_number_and_no_signal(grid: Grid, tmp_path: Path) -> None:
    write(tmp_path / "short", 300)
    slot = place(grid, tmp_path / "short", 300)
    with (tmp_path / "short").open("r+b") as file:
        file.truncate(0)
    assert grid.populate(np.array([grid.first_row(slot) + 10])) == (slot, errno.EFAULT)


@pytest.mark.parametrize(("piece_rows", "width"), [(0, 8), (10, 0), (1 << 40, 8)])
def test_what_cannot_be_laid_out_is_not(piece_rows: int, width: int) -> None:
    assert Grid.reserve(4, piece_rows, ROW, (width,)) is None


@pytest.mark.parametrize("width", [1, 3, 64, 2048, 5000, 70_001])
def test_rows_of_any_size_stay_in_line(width: int, tmp_path: Path) -> None:
    grid = Grid.reserve(3, 7, np.dtype(np.int32), (width,))
    assert grid is not None
    values = np.arange(7 * width, dtype=np.int32).reshape(7, width)
    values.tofile(tmp_path / "piece")
    for _ in range(3):
        slot = place_any(grid, tmp_path / "piece")
        rows = np.arange(7) + grid.first_row(slot)
        assert grid.populate(rows) is None
        assert np.array_equal(grid.rows[rows], values)
    grid.close()
    grid.close()


def place_any(grid: Grid, path: Path) -> int:
    slot = grid.slot(7)
    assert slot is not None
    MappedFile.open(path, address=grid.address(slot))
    return slot


def test_a_piece_off_the_page_border_is_not_taken() -> None:
    assert Grid.takes(0)
    assert Grid.takes(8192)
    assert not Grid.takes(128)
