"""The planner, over a session that answers from memory."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from forebay.daemon.session import Taken
from forebay.loading.chunk import Chunk, Closed, Int64, PieceFile
from forebay.loading.lookahead import Depth, Lookahead, OnSmallCache
from forebay.order import Order, OrderOptions, SharedOrder, Split
from forebay_core.errors import SourceUnreachable

ROWS = [7, 0, 13, 20, 5, 9, 31, 4, 11]
BYTES = np.array(ROWS) * 10
SPLIT = Split(2, 10)


class Session:
    """Answers every lease at once; counts what is held."""

    budget_bytes = 1 << 40

    def __init__(self, pending: dict[int, Path] | None = None, failing: int | None = None) -> None:
        self.pending = pending or {}
        self.failing = failing
        self.held: set[int] = set()
        self.needs: list[tuple[Int64, Int64, Int64]] = []
        self.closed = threading.Event()

    def publish(self, pieces: Int64, first: Int64, last: Int64) -> None:
        self.needs.append((pieces, first, last))

    def report(self, position: int, positions_per_second: float, taken: Taken) -> None:
        assert position >= 0
        assert positions_per_second >= 0

    def lease(self, pieces: Sequence[int]) -> list[PieceFile]:
        if self.failing in pieces:
            raise SourceUnreachable("the endpoint is down")
        self.held |= set(pieces)
        return [self._file(piece) for piece in pieces]

    def _file(self, piece: int) -> PieceFile:
        if piece in self.pending:
            return PieceFile(piece, str(self.pending[piece]), inode=0, size=0, offset=0, length=0)
        return PieceFile(piece, f"/pieces/{piece}", inode=1, size=int(BYTES[piece]), offset=0, length=0)

    def release(self, pieces: Sequence[int]) -> None:
        self.held -= set(pieces)

    def held_bytes(self) -> int:
        return int(BYTES[list(self.held)].sum())

    def unreadable(self, piece: int, disk_id: str) -> None:
        """Every disk can be read."""

    def interrupt(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        self.closed.set()


@contextmanager
def planning(
    connect: Callable[[], Session],
    *,
    start: tuple[int, int] = (0, 0),
    depth: Depth | None = None,
    rank: int = 0,
    ends_with_epoch: bool = False,
    window: int = 6,
    on_small_cache: OnSmallCache = lambda *_: None,
) -> Iterator[Lookahead]:
    order = SharedOrder(Order(ROWS, seed=3, options=OrderOptions(lanes=4, window=window)), SPLIT, rank)
    lookahead = Lookahead(
        order,
        connect,
        piece_bytes=BYTES,
        start=start,
        depth=depth or Depth(8, 4),
        ends_with_epoch=ends_with_epoch,
        on_small_cache=on_small_cache,
    )
    lookahead.start()
    try:
        yield lookahead
    finally:
        lookahead.close()


def consume(lookahead: Lookahead, steps: int) -> list[Chunk]:
    """Takes chunks as a trainer would, until `steps` steps are delivered."""
    chunks = []
    while steps > 0:
        chunk = lookahead.next_chunk()
        chunks.append(chunk)
        for end in chunk.ends:
            lookahead.delivered(end)
        steps -= len(chunk.ends)
    return chunks


def sample_ids(chunks: list[Chunk]) -> list[int]:
    return [int(sample) for chunk in chunks for sample in chunk.sample_id]


@pytest.mark.parametrize("start", [(0, 0), (0, 30), (2, 95), (1, 99)])
def test_chunks_are_the_orders_steps_on_over_the_epochs(start: tuple[int, int]) -> None:
    order = Order(ROWS, seed=3, options=OrderOptions(lanes=4, window=6))
    epoch, position = start
    expected: list[int] = []
    ends: list[tuple[int, int]] = []
    for number in (epoch, epoch + 1):
        plan = order.epoch(number).plan(position if number == epoch else 0, 100, split=SPLIT, rank=1)
        expected += plan.sample_id.tolist()
        ends += [(number, after) if after < 100 else (number + 1, 0) for after in plan.after.tolist()]
    with planning(Session, start=start, rank=1) as lookahead:
        chunks = consume(lookahead, len(ends))
    assert sample_ids(chunks)[: len(expected)] == expected
    planned = [(end.epoch, end.position) for chunk in chunks for end in chunk.ends]
    assert planned[: len(ends)] == ends
    assert [end.last_of_epoch for chunk in chunks for end in chunk.ends] == [position == 0 for _, position in planned]
    steps = [end.step for chunk in chunks for end in chunk.ends]
    assert all(after == before + 1 for before, after in pairwise(steps))


def test_a_planner_of_one_epoch_has_ended_behind_it() -> None:
    session = Session()
    with planning(lambda: session, start=(1, 50), ends_with_epoch=True) as lookahead:
        chunks = consume(lookahead, 5)
        assert session.closed.wait(20)
        assert lookahead.take_ready() is None
    assert [end.last_of_epoch for chunk in chunks for end in chunk.ends] == [False] * 4 + [True]


def test_every_piece_of_a_chunk_is_leased_while_it_is_read_and_given_back_when_passed() -> None:
    session = Session()
    with planning(lambda: session) as lookahead:
        for _ in range(60):
            chunk = lookahead.next_chunk()
            wanted = {int(piece) for piece in chunk.piece}
            assert wanted == {file.piece for file in chunk.files}
            assert wanted <= session.held
            for end in chunk.ends:
                lookahead.delivered(end)
        assert session.closed.is_set() is False
    assert session.closed.is_set()


def test_each_file_says_how_long_it_is_wanted_and_no_later_chunk_wants_it_without_saying_so() -> None:
    wanted_until: dict[int, int] = {}
    with planning(Session, depth=Depth(3, 1)) as lookahead:
        for _ in range(60):
            (chunk,) = consume(lookahead, 1)
            assert chunk.begin < chunk.end
            for file in chunk.files:
                assert file.until > chunk.begin
                assert file.until >= wanted_until.get(file.piece, 0)
                wanted_until[file.piece] = file.until
            place = chunk.epoch * 100 + chunk.position.max()
            assert chunk.begin <= place < chunk.end


def test_no_more_is_planned_than_the_depth_allows() -> None:
    def ask() -> None:
        with pytest.raises(Closed):
            lookahead.next_chunk()

    with planning(Session, depth=Depth(4, 1)) as lookahead:
        for _ in range(4):
            lookahead.next_chunk()
        waiting = threading.Thread(target=ask)
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        lookahead.close()
        waiting.join(5)
        assert not waiting.is_alive()


def test_a_step_whose_piece_is_in_fill_is_not_read_together_with_those_before_it(tmp_path: Path) -> None:
    order = Order([50, 50], seed=0, shuffle=False)
    session = Session(pending={1: tmp_path / "late"})
    lookahead = Lookahead(
        SharedOrder(order, Split(1, 10), 0), lambda: session, piece_bytes=BYTES, start=(0, 0), depth=Depth(64, 32)
    )
    lookahead.start()
    try:
        chunks = consume(lookahead, 10)
    finally:
        lookahead.close()
    for chunk in chunks:
        pieces = set(chunk.piece.tolist())
        assert pieces == {0} or (pieces == {1} and len(chunk.ends) == 1)


def test_with_a_small_cache_no_more_is_held_than_the_budget_or_the_next_step() -> None:
    session = Session()
    session.budget_bytes = 450
    with planning(lambda: session, depth=Depth(64, 8)) as lookahead:
        for _ in range(80):
            (chunk,) = [lookahead.next_chunk()]
            wanted = {file.piece for file in chunk.files}
            assert session.held >= wanted
            passed = {file.piece for file in chunk.files if file.until > chunk.begin}
            assert passed == wanted
            assert BYTES[list(session.held)].sum() <= max(450, BYTES[list(wanted)].sum() + 450)
            for end in chunk.ends:
                lookahead.delivered(end)


def test_a_cache_smaller_than_what_is_mixed_is_said_and_only_the_steps_under_way_are_held() -> None:
    session, said = Session(), list[tuple[int, int, float]]()
    session.budget_bytes = 300
    with planning(
        lambda: session, depth=Depth(64, 8), window=25, on_small_cache=lambda *told: said.append(told)
    ) as lookahead:
        frugal = 0
        for _ in range(80):
            (chunk,) = consume(lookahead, 1)
            wanted = {file.piece for file in chunk.files}
            frugal += chunk.is_frugal
            if chunk.is_frugal:
                assert {file.until for file in chunk.files} == {chunk.end}
                assert session.held_bytes() <= max(300 + BYTES[list(wanted)].sum(), 2 * BYTES[list(wanted)].sum())
    assert frugal > 60
    assert said[0] == (0, 300, 1.0)


def test_nothing_is_said_of_a_cache_that_holds_what_is_mixed_or_that_is_not_used() -> None:
    class InPlace(Session):
        def lease(self, pieces: Sequence[int]) -> list[PieceFile]:
            return [file._replace(in_place=True) for file in super().lease(pieces)]

    small = InPlace()
    small.budget_bytes = 10
    for session in (Session(), small):
        said: list[tuple[int, int]] = []

        def connect(session: Session = session) -> Session:
            return session

        def tell(epoch: int, budget_bytes: int, _: float, said: list[tuple[int, int]] = said) -> None:
            said.append((epoch, budget_bytes))

        with planning(connect, window=25, on_small_cache=tell) as lookahead:
            assert not any(chunk.is_frugal for chunk in consume(lookahead, 40))
        assert said == []


def test_a_part_of_the_cache_that_grows_is_used_again() -> None:
    session = Session()
    session.budget_bytes = 300
    with planning(lambda: session, depth=Depth(1, 1), window=25) as lookahead:
        assert consume(lookahead, 20)[-1].is_frugal
        session.budget_bytes = 10_000
        assert not consume(lookahead, 20)[-1].is_frugal
        assert session.held_bytes() > 450


def test_a_failure_of_the_session_reaches_whoever_waits_for_a_chunk() -> None:
    def refuse() -> Session:
        raise SourceUnreachable("the endpoint is down")

    with planning(refuse) as lookahead, pytest.raises(SourceUnreachable, match="endpoint is down"):
        lookahead.next_chunk()
    order = Order(ROWS, seed=3, options=OrderOptions(lanes=4, window=6))
    late = int(order.epoch(0).plan(60, 1, split=SPLIT, rank=0).piece[-1])
    with planning(lambda: Session(failing=late)) as lookahead, pytest.raises(SourceUnreachable):
        consume(lookahead, 10)


def test_the_needs_that_are_published_hold_every_piece_of_this_epoch_and_the_next() -> None:
    session = Session()
    with planning(lambda: session, start=(3, 40)) as lookahead:
        chunks = consume(lookahead, 12)
    pieces, first, last = session.needs[0]
    assert first.min() >= 3 * 100
    assert last.max() <= 5 * 100
    for chunk in chunks:
        for piece, position in zip(chunk.piece.tolist(), chunk.position.tolist(), strict=True):
            at = chunk.epoch * 100 + position
            if at < 500:
                assert np.any((pieces == piece) & (first <= at) & (at < last))
