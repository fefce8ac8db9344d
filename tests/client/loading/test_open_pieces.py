"""Which pieces a reader keeps mapped, and that what it reads is mapped."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forebay.loading.chunk import Batch, Chunk, Lost
from forebay.loading.open_pieces import PROCESS_OPEN_LIMIT, OpenPieces
from forebay.loading.reader import read
from forebay_core.errors import PieceGone
from forebay_core.formats import Tokens
from forebay_core.mapping import is_mapped
from tests.client.loading.test_stream_reader import Local
from tests.support.data import tokens, write_tokens

ROWS, PIECES, LENGTH = 16, 8, 256


@pytest.fixture
def local(tmp_path: Path) -> Local:
    """8 pieces of 16 rows, which are mapped side by side."""
    write_tokens(tmp_path / "a.bin", samples=ROWS * PIECES, sequence_length=LENGTH)
    format = Tokens(sequence_length=LENGTH, dtype="int32", piece_bytes=ROWS * LENGTH * 4)
    return Local(tmp_path, [tmp_path / "a.bin"], format, ("tokens",))


def mapped(local: Local) -> set[int]:
    return {piece for piece in range(PIECES) if is_mapped(local.path(piece))}


def rows_of(pieces: OpenPieces, piece: int) -> bool:
    """Whether the piece's rows are there, and its own."""
    found = pieces.on_grid(np.full(ROWS, piece), np.arange(ROWS))
    assert found is not None
    expected = tokens(samples=ROWS * PIECES, sequence_length=LENGTH)[piece * ROWS : (piece + 1) * ROWS]
    return np.array_equal(found[0][found[1]], expected)


def test_room_is_made_from_what_was_opened_first_and_never_from_what_is_about_to_be_read(local: Local) -> None:
    files = [local.fill(piece) for piece in range(PIECES)]
    pieces = OpenPieces(local.manifest, ("tokens",), wait_seconds=1, most_open=4)
    for wanted in (files[:4], [files[3], files[0], files[4]], files[5:7]):
        pieces.make_room(wanted)
        for file in wanted:
            assert pieces.get(file) is not None or pieces.open(file) is not None
    assert mapped(local) == {3, 4, 5, 6}
    assert all(rows_of(pieces, piece) for piece in mapped(local))
    pieces.close()
    assert mapped(local) == set()


def test_more_pieces_than_may_be_open_are_read_together_where_a_chunk_wants_them(local: Local) -> None:
    files = [local.fill(piece) for piece in range(PIECES)]
    pieces = OpenPieces(local.manifest, ("tokens",), wait_seconds=1, most_open=3)
    pieces.make_room(files)
    opened = [pieces.open(file) for file in files]
    assert mapped(local) == set(range(PIECES))
    for piece, each in enumerate(opened):
        out = np.empty((1, LENGTH), np.int32)
        each.reader.take("tokens", np.array([ROWS - 1]), out)
        assert np.array_equal(out[0], tokens(samples=ROWS * PIECES, sequence_length=LENGTH)[(piece + 1) * ROWS - 1])
    pieces.close()


def test_the_readers_of_a_process_share_what_it_may_map(local: Local) -> None:
    files = [local.fill(piece) for piece in range(PIECES)]
    alone = OpenPieces(local.manifest, ("tokens",), wait_seconds=1, most_open=PIECES)
    others = [
        OpenPieces(local.manifest, ("tokens",), wait_seconds=1, most_open=1) for _ in range(PROCESS_OPEN_LIMIT // 4)
    ]
    for file in files:
        alone.make_room([file])
        alone.open(file)
    assert len(mapped(local)) <= 4
    for other in others:
        other.close()
    for file in files:
        if alone.get(file) is None:
            alone.make_room([file])
            alone.open(file)
    assert mapped(local) == set(range(PIECES))
    alone.close()


def test_a_cached_file_that_its_disk_does_not_give_is_to_be_leased_again_and_named(local: Local) -> None:
    """CASES 31: the disk fails."""
    pieces = OpenPieces(local.manifest, ("tokens",), wait_seconds=1)
    cached, own = local.fill(0), local.fill(1)._replace(in_place=True)
    for file in (cached, own):
        pieces.open(file)
        os.truncate(file.path, 0)
    with pytest.raises(PieceGone, match=f"{cached.path} cannot be read") as gone:
        pieces.on_grid(np.zeros(ROWS, np.int64), np.arange(ROWS))
    assert gone.value.unreadable == cached.path
    with pytest.raises(OSError, match=own.path):
        pieces.on_grid(np.ones(ROWS, np.int64), np.arange(ROWS))
    pieces.close()


def test_what_a_reader_could_not_read_is_named_to_whoever_leases_it_again() -> None:
    class Failing:
        def batches(self, chunk: Chunk) -> Iterator[Batch]:
            gone = PieceGone("broken")
            gone.unreadable = "/there"
            raise gone

        def close(self) -> None:
            """Nothing is open."""

    chunk: Any = object()
    assert read(Failing(), chunk) == Lost(chunk, "broken", gone=True, unreadable="/there")


def test_pieces_are_closed_when_passed_and_kept_as_long_as_the_latest_chunk_says(local: Local) -> None:
    pieces = OpenPieces(local.manifest, ("tokens",), wait_seconds=1)
    files = [local.fill(piece) for piece in range(4)]
    for piece, until in ((0, 10), (1, 30), (2, 20)):
        pieces.open(files[piece]._replace(until=until))
    pieces.pass_by(9)
    assert mapped(local) == {0, 1, 2}
    pieces.open(files[3]._replace(until=5))
    assert pieces.get(files[2]._replace(until=25)) is not None
    pieces.pass_by(5)
    assert mapped(local) == {0, 1, 2}
    pieces.pass_by(20)
    assert mapped(local) == {1, 2}
    pieces.close()


def test_where_the_cache_is_small_nothing_but_the_chunk_stays_mapped_and_nothing_after_it(local: Local) -> None:
    reader = local.reader()
    read(reader, local.chunk([[0, 20], [40]]))
    assert mapped(local) == {0, 1, 2}
    frugal = replace(local.chunk([[100], [120]], files=[local.fill(6), local.fill(7)]), is_frugal=True)
    frugal = frugal.with_files(tuple(file._replace(until=frugal.end) for file in frugal.files))
    batches = reader.batches(frugal)
    first = next(batches)
    assert mapped(local) == {6, 7}
    last = next(batches)
    assert mapped(local) == set()
    for batch, sample in ((first, 100), (last, 120)):
        expected = tokens(samples=ROWS * PIECES, sequence_length=LENGTH)[sample]
        assert np.array_equal(batch.data["tokens"][0].numpy(), expected)
    reader.close()
