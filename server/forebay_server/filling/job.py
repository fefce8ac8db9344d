"""What there is to bring: a piece with everything that its local file depends on, and what reads it. Pure values."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from forebay_core.formats.base import ByteRange, Format, ObjectInfo, Piece, Prepared
from forebay_server.disk.blocks import room_for
from forebay_server.disk.entry import Origin
from forebay_server.sources.remote import Caller, Received


class Reader(Protocol):
    """What reads remote objects (`forebay_server.sources.fetching.Fetcher`)."""

    async def head(self, root: str, obj: ObjectInfo) -> ObjectInfo: ...

    async def prepare(self, root: str, obj: ObjectInfo, format: Format) -> Prepared: ...

    async def stream(
        self,
        root: str,
        obj: ObjectInfo,
        ranges: Sequence[ByteRange],
        on_part: Callable[[Received], Awaitable[None]],
        caller: Caller,
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Job:
    """One piece to fill: everything that its local file depends on."""

    key: str
    root: str
    piece: Piece
    columns: tuple[str, ...]
    format: Format
    #: The object's URL.
    url: str
    #: Of the whole object, in hexadecimal, where its version says it.
    md5: str | None = None

    @property
    def name(self) -> str:
        return f"piece {self.piece.index} of {self.url} ({self.piece.cut.rows} rows)"

    @property
    def fetched_bytes(self) -> int:
        """What is fetched for it, at the most: not all columns may be wanted."""
        return self.piece.cut.stop - self.piece.cut.start

    @property
    def expected_bytes(self) -> int:
        """On the disk, as far as one can know before it is decoded."""
        return room_for(self.piece.cut.stop - self.piece.cut.start)

    def origin(self, read: ObjectInfo) -> Origin:
        """Of a piece that was made of the object as `read` says."""
        named = self.piece.object.version
        return Origin(
            dataset=self.root,
            url=self.url,
            version=read.version,
            rows=self.piece.cut.rows,
            columns=self.columns,
            layout=self.format.local_layout(),
            piece=self.piece.index,
            instead_of="" if read.version == named else named,
        )
