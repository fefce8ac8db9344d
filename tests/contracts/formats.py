"""Driving a format over objects in memory, the way the daemon drives it over a store."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from forebay_core.formats.base import (
    Buffer,
    ByteRange,
    Column,
    Format,
    Localiser,
    ObjectCut,
    ObjectInfo,
    Piece,
    PieceReader,
    Sink,
    Steps,
)
from forebay_core.formats.columns import column_of
from forebay_core.formats.derived import recounted

T = TypeVar("T")


@dataclass
class Stored:
    """One object, and the ranges that were asked of it."""

    key: str
    data: bytes
    asked: list[ByteRange] = field(default_factory=list)

    @property
    def info(self) -> ObjectInfo:
        return ObjectInfo(self.key, len(self.data), "v1")

    def fetch(self, wanted: ByteRange) -> bytes:
        assert 0 <= wanted.start <= wanted.stop <= len(self.data), wanted
        self.asked.append(wanted)
        return self.data[wanted.start : wanted.stop]

    def drive(self, steps: Steps[T]) -> T:
        answers: list[Buffer] | None = None
        while True:
            try:
                ranges = steps.send(answers)  # type: ignore[arg-type]
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            answers = [self.fetch(wanted) for wanted in ranges]

    def push(self, localiser: Localiser, chunk_bytes: int = 10_007) -> None:
        """All ranges end to end, in chunks that know nothing of their borders, each buffer gone after the call."""
        data = b"".join(self.fetch(wanted) for wanted in localiser.ranges)
        for start in range(0, len(data), chunk_bytes):
            chunk = bytearray(data[start : start + chunk_bytes])
            localiser.write(memoryview(chunk))
            chunk[:] = b"\xee" * len(chunk)
        localiser.finish()


def cut(kind: Format, stored: Stored) -> ObjectCut:
    prepared = stored.drive(kind.prepare(stored.info))
    made = kind.cut(stored.info, prepared)
    if not kind.must_count():
        return made
    counters = [kind.count(piece, prepared) for piece in pieces(stored, made)]
    for counter in counters:
        stored.push(counter)
    return recounted(made, [counter.counted() for counter in counters])


def pieces(stored: Stored, made: ObjectCut) -> list[Piece]:
    return [Piece(index, stored.info, one) for index, one in enumerate(made.pieces)]


def localised(kind: Format, stored: Stored, piece: Piece, columns: Sequence[str]) -> bytes:
    local = bytearray()
    stored.push(begin_fill(kind, stored, piece, columns, local.extend))
    return bytes(local)


def begin_fill(kind: Format, stored: Stored, piece: Piece, columns: Sequence[str], sink: Sink) -> Localiser:
    return kind.localise(piece, columns, sink, stored.drive(kind.prepare(stored.info)))


def columns_of(made: ObjectCut, names: Sequence[str] | None = None) -> dict[str, Column]:
    return {name: column_of(made.schema.field(name)) for name in (names or made.schema.names)}


def readers(kind: Format, stored: Stored, names: Sequence[str] | None = None) -> Iterator[PieceReader]:
    """Readers over all pieces of an object, in order: cut, localise, open."""
    made = cut(kind, stored)
    columns = columns_of(made, names)
    for piece in pieces(stored, made):
        yield kind.open(memoryview(localised(kind, stored, piece, list(columns))), piece, columns)
