"""The contract of a format: how its objects are cut into pieces, brought into a local layout, and read from it.

A format never does I/O. Where it needs bytes of an object it is a generator that yields the byte ranges it wants and
is sent their bytes (in the order asked for); whoever drives it owns the network, its retries and its caches::

    ranges = steps.send(None)
    ranges = steps.send([fetch(r) for r in ranges])     # until StopIteration carries the result

Four moments, four methods:

* `prepare`, in the daemon: what must be known of an object (a footer, a header) before the two that follow. Whoever
  drives it may keep the result for as long as it likes, and share it between threads.
* `cut`, in the daemon, when a manifest is built: the pieces of one object, and its schema.
* `localise`, in the daemon, when a piece is filled: a `Localiser`, which is pushed the bytes of its ranges in order and
  writes the local layout to a sink. It runs on a worker thread.
* `open`, in a trainer's worker: the rows of a mapped local file.

Formats whose rows are derived from those of another one (`derived`) need two more, both in the daemon: of theirs
`count`, which finds the number of a piece's rows in its content when a manifest is built; of the other one's `decode`.

A format is a frozen dataclass of its options; `spec` is their canonical JSON, part of a dataset's fingerprint.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Buffer: TypeAlias = bytes | bytearray | memoryview
#: Takes bytes that do not change any more, and may keep them.
Sink: TypeAlias = Callable[[Buffer], object]
Rows: TypeAlias = npt.NDArray[np.int64]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes [start, stop) of an object."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start


#: A computation that asks its driver for byte ranges and returns a T.
Steps: TypeAlias = Generator[list[ByteRange], list[Buffer], T]


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object of a dataset: its key relative to the dataset's root, its size in bytes, its version (an ETag)."""

    key: str
    size: int
    version: str


@dataclass(frozen=True, slots=True)
class Cut:
    """A piece as cut: rows, its bytes in the object, and a run of the format's units (row groups, samples)."""

    rows: int
    start: int
    stop: int
    first_unit: int
    units: int
    #: Uncompressed bytes of all columns, as the object itself states them.
    decoded_bytes: int


class Cuts(Sequence[Cut]):
    """Cuts as one table int64 [n, 6], its columns the fields of `Cut` in their order: cheap at a million pieces."""

    __slots__ = ("table",)

    def __init__(self, table: Rows) -> None:
        self.table = table

    @classmethod
    def of(cls, cuts: Iterable[Cut]) -> "Cuts":
        """These cuts as a table; a `Cuts` is returned as it is."""
        if isinstance(cuts, Cuts):
            return cuts
        rows = [(c.rows, c.start, c.stop, c.first_unit, c.units, c.decoded_bytes) for c in cuts]
        return cls(np.array(rows, dtype=np.int64).reshape(-1, 6))

    def __len__(self) -> int:
        return len(self.table)

    @overload
    def __getitem__(self, index: int) -> Cut: ...
    @overload
    def __getitem__(self, index: slice) -> "Cuts": ...
    def __getitem__(self, index: int | slice) -> "Cut | Cuts":
        if isinstance(index, slice):
            return Cuts(self.table[index])
        return Cut(*self.table[index].tolist())


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a format knows of one version of an object. `memory_bytes`: about how much memory that takes."""

    facts: Any
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class ObjectCut:
    """All pieces of one object, in the order of its rows, and the schema of its rows."""

    pieces: Sequence[Cut]
    schema: pa.Schema
    #: Tokens (or other items) at the end of the object that fill no row and belong to no piece.
    dropped: int = 0
    #: What was found in the content, by name, such as the tokens that fill no sequence; see `Counted`.
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece with the object that holds it: what `localise` and `open` are given."""

    index: int
    object: ObjectInfo
    cut: Cut


class Localiser(Protocol):
    """Turns the bytes of one piece into its local layout. Driven by one thread at a time."""

    #: What it wants to be pushed, in order.
    ranges: Sequence[ByteRange]
    #: About what it comes to hold in memory between its first bytes and `finish`; 0 where it passes them on as they
    #: come.
    memory_bytes: int

    def write(self, chunk: Buffer) -> None:
        """Takes the next bytes of the concatenated ranges, of any length, which do not change any more."""

    def finish(self) -> None:
        """Writes what is left. Raises `BadObject` where the bytes are not what they should be."""


class Decoder(Protocol):
    """Turns the bytes of one piece into Arrow batches of its rows. Driven by one thread at a time."""

    #: As of a `Localiser`.
    ranges: Sequence[ByteRange]
    memory_bytes: int
    #: About what the largest of the batches takes.
    batch_bytes: int

    def write(self, chunk: Buffer) -> None:
        """As of a `Localiser`."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The piece's rows in the types of the layout "arrow-1", once, after the last byte was written.

        One batch, in which text may be dictionary-encoded, or several, in which nothing is. Raises `BadObject`.
        """

    def counts(self) -> Mapping[str, int]:
        """What it counted by name while it decoded; known when the batches are exhausted."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What was found in a piece's content: its rows, the bytes of their columns, and sums for `ObjectCut.counts`."""

    rows: int
    decoded_bytes: int
    counts: Mapping[str, int]


class Counter(Localiser, Protocol):
    """Is pushed a piece's bytes like a `Localiser`, and writes nothing."""

    def counted(self) -> Counted:
        """After `finish`."""

    def stop(self) -> None:
        """Nobody wants the count any more: lets `finish` end soon, whatever it has come to. On any thread."""


@dataclass(frozen=True, slots=True)
class Column:
    """How a column comes out of a batch, decided by the schema alone and never by the rows.

    `dtype` and `shape` describe one row of a fixed-width column, which becomes an array [n, *shape]; `dtype` is None
    for a column that becomes a list of Python values or arrays (text, bytes, lists of any length, nested values).
    """

    name: str
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...] = ()


class PieceReader(ABC):
    """Rows of one piece over its mapped local file. Safe for several threads: it holds no state but the mapping."""

    rows: int

    @abstractmethod
    def take(self, name: str, rows: Rows, out: npt.NDArray[Any]) -> None:
        """Copies the rows of a fixed-width column into `out` [len(rows), *shape]."""

    @abstractmethod
    def values(self, name: str, rows: Rows) -> list[Any]:
        """The rows of a column that is not fixed-width, as a list of str, bytes, numpy arrays or Python values."""

    @abstractmethod
    def sample(self, row: int, names: Sequence[str]) -> dict[str, Any]:
        """One row: numpy scalars and writable numpy arrays for fixed-width columns, else as `values`."""


class Format(ABC):
    """A file format and its options. Implementations are frozen dataclasses."""

    name: ClassVar[str]
    #: Name and version of the local layout; part of a cached piece's identity.
    layout: ClassVar[str]
    #: Extensions, with the dot, by which it is found.
    extensions: ClassVar[tuple[str, ...]]
    #: True where a piece's local layout is its bytes as they are, so that a local object can be read in place.
    as_is: ClassVar[bool]

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """The format's name, the version of its cut and all options, as JSON."""

    @abstractmethod
    def prepare(self, obj: ObjectInfo) -> Steps[Prepared]:
        """What `cut` and `localise` must know. Raises `BadObject` naming the object's key where it is not of this
        format."""

    @abstractmethod
    def cut(self, obj: ObjectInfo, prepared: Prepared) -> ObjectCut:
        """Cuts an object. Raises `BadObject` naming its key."""

    @abstractmethod
    def localise(self, piece: Piece, columns: Sequence[str], sink: Sink, prepared: Prepared) -> Localiser:
        """Begins the fill of a piece with these columns. Raises `BadObject`, `ColumnNotFound`."""

    @abstractmethod
    def open(self, buffer: memoryview, piece: Piece, columns: Mapping[str, Column]) -> PieceReader:
        """A reader over the mapped local layout."""

    def rows_lie_end_to_end(self) -> bool:
        """True where a piece's local layout is nothing but its rows, in native byte order: one array of one column."""
        return False

    def ignores_columns(self) -> bool:
        """True where the local layout is the same whatever columns are chosen."""
        return self.as_is

    def identity(self) -> dict[str, Any]:
        """The part of the spec that says what the rows are: what a dataset's fingerprint is made of."""
        return self.spec()

    def local_layout(self) -> str:
        """The local layout's name, with all options that the bytes of a given piece depend on."""
        return self.layout

    def decode(self, piece: Piece, columns: Sequence[str], prepared: Prepared) -> Decoder | None:
        """The rows of a piece as Arrow batches; None where they are only to be had by way of the local layout.

        Raises `BadObject`, `ColumnNotFound`.
        """
        return None

    def must_count(self) -> bool:
        """True where the rows of a piece are to be found in its content: then `count` says how many there are, and what
        `cut` says of rows and decoded bytes is of no meaning."""
        return False

    def count(self, piece: Piece, prepared: Prepared) -> Counter:
        """Begins to count a piece's rows, where `must_count` says so.

        Raises `BadObject`, `ColumnNotFound`, `ConfigurationError`.
        """
        raise AssertionError(f"the rows of {self.name} need no counting")

    def why_empty(self, counts: Mapping[str, int]) -> str:
        """Why a dataset of at least one object and with these counts has no samples."""
        return "they are all empty"
