"""A dataset as some sessions read it: its pieces under one choice of columns, their cache keys, and who needs them
when.

A view turns piece numbers into jobs and keys and back. Keys are digests, so those of a large dataset are computed in a
thread after the first session opens; single ones are computed when they are asked for. Arrays by piece number say what
is in the cache and when it is needed next. Everything but the computation of keys happens on the event loop.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from forebay_core.errors import ConfigurationError
from forebay_core.identity import piece_key
from forebay_core.manifest import Manifest
from forebay_server.fill import Job
from forebay_server.mounts import filesystem_type, is_network
from forebay_server.needs import Progress, Seconds, next_use
from forebay_server.stores import Stores

#: Keys are computed in the background, and leave most of the time to whoever waits for a first batch.
_SLICE = 2000
_PAUSE_SECONDS = 0.03


class OpenedDataset(Protocol):
    """What a view is made over (`forebay_server.manifests.OpenedDataset`)."""

    @property
    def dataset_id(self) -> str: ...
    @property
    def manifest(self) -> Manifest: ...


@dataclass(frozen=True, slots=True)
class InPlace:
    """A piece that is read from the user's own file: bytes [offset, offset + length) of a file of `size` bytes."""

    path: Path
    inode: int
    size: int
    offset: int
    length: int


class View:
    """One dataset under one choice of columns."""

    def __init__(
        self, opened: OpenedDataset, columns: tuple[str, ...], stores: Stores, holds: Callable[[str], bool]
    ) -> None:
        self.opened = opened
        self.columns = columns
        self.manifest = opened.manifest
        self.progress: dict[str, Progress] = {}
        #: By piece: whether the cache has it, as far as the keys are computed.
        self.there: npt.NDArray[np.bool_] = np.zeros(self.manifest.pieces, np.bool_)
        self.is_indexed = asyncio.Event()
        self._stores = stores
        self._holds = holds
        self._keys: list[str | None] = [None] * self.manifest.pieces
        self._piece_of: dict[str, int] = {}
        self._next_use: Seconds | None = None

    def check(self, pieces: Iterable[int]) -> None:
        """Raises `ConfigurationError` for a piece that the dataset does not have."""
        for piece in pieces:
            if not 0 <= piece < self.manifest.pieces:
                raise ConfigurationError(
                    f"there is no piece {piece}: the dataset {self.manifest.root} has"
                    f" pieces 0 to {self.manifest.pieces - 1}"
                )

    def key(self, piece: int) -> str:
        known = self._keys[piece]
        if known is None:
            (known,) = self._compute(range(piece, piece + 1))
            self._learn(piece, known)
        return known

    def job(self, piece: int) -> Job:
        found = self.manifest.piece(piece)
        url = self._stores.target(self.manifest.root, found.object.key).url
        return Job(self.key(piece), self.manifest.root, found, self.columns, self.manifest.format, url)

    def arrived(self, key: str, is_there: bool) -> None:
        """Takes in what the store says of a key."""
        piece = self._piece_of.get(key)
        if piece is not None:
            self.there[piece] = is_there

    async def index(self) -> None:
        """Computes all keys, in slices, in a thread, with pauses."""
        for start in range(0, len(self._keys), _SLICE):
            stop = min(start + _SLICE, len(self._keys))
            keys = await asyncio.to_thread(self._compute, range(start, stop))
            for piece, key in zip(range(start, stop), keys, strict=True):
                self._learn(piece, key)
            await asyncio.sleep(_PAUSE_SECONDS)
        self.is_indexed.set()

    def update(self, session: str, progress: Progress | None) -> None:
        """Takes in a session's needs and position; None: it is gone."""
        self._next_use = None
        if progress is None:
            self.progress.pop(session, None)
        else:
            self.progress[session] = progress

    def next_use(self) -> Seconds:
        """By piece: seconds until its next use; infinite where nobody needs it."""
        if self._next_use is None:
            self._next_use = next_use(self.manifest.pieces, self.progress.values())
        return self._next_use

    def soonest(self, limit: int) -> Iterator[tuple[float, int]]:
        """The pieces that are needed and not there, at most `limit`, as (seconds, piece), soonest first."""
        seconds = np.where(self.there, np.inf, self.next_use())
        pieces = np.argpartition(seconds, limit)[:limit] if limit < len(seconds) else np.arange(len(seconds))
        for piece in pieces[np.argsort(seconds[pieces], kind="stable")]:
            if not np.isfinite(seconds[piece]):
                return
            yield float(seconds[piece]), int(piece)

    @cached_property
    def is_in_place(self) -> bool:
        """Whether the pieces lie in local files in the very form in which readers want them."""
        if not self.manifest.format.as_is:
            return False
        target = self._stores.target(self.manifest.root)
        path = target.store.local_path(target.key)
        return path is not None and not is_network(filesystem_type(path))

    async def in_place(self, piece: int) -> InPlace | None:
        """Where the piece lies in the user's own local file; None where it must be copied, or has changed."""
        found = self.manifest.piece(piece)
        target = self._stores.target(self.manifest.root, found.object.key)
        path = target.store.local_path(target.key)
        if path is None or not self.is_in_place:
            return None
        try:
            now = await target.store.head(target.key)
            inode = os.stat(path).st_ino  # noqa: PTH116
        except OSError:
            return None
        if (now.size, now.version) != (found.object.size, found.object.version):
            return None
        return InPlace(path, inode, now.size, found.cut.start, found.cut.stop - found.cut.start)

    def _learn(self, piece: int, key: str) -> None:
        self._keys[piece] = key
        self._piece_of[key] = piece
        self.there[piece] = self._holds(key)

    def _compute(self, pieces: range) -> list[str]:
        """The keys of a run of pieces. On any thread."""
        manifest, form = self.manifest, self.manifest.format
        run = slice(pieces.start, pieces.stop)
        columns = () if form.ignores_columns() else self.columns
        arrays = (manifest.piece_object, manifest.piece_start, manifest.piece_stop)
        units = (manifest.piece_first_unit, manifest.piece_units)
        keys, known, source = [], -1, _Source("", "", "", "", b"", "")
        for index, start, stop, first_unit, count in zip(*(a[run].tolist() for a in (*arrays, *units)), strict=True):
            if index != known:
                known, source = index, self._source(index)
            key = piece_key(
                scheme=source.scheme,
                endpoint=source.endpoint,
                account=source.account,
                bucket=source.bucket,
                key=source.key,
                version=source.version,
                start=start,
                stop=stop,
                first_unit=first_unit,
                units=count,
                columns=columns,
                layout=form.layout,
            )
            keys.append(key)
        return keys

    def _source(self, index: int) -> "_Source":
        obj = self.manifest.objects.info(index)
        target = self._stores.target(self.manifest.root, obj.key)
        store, key = target.store, target.key.encode("utf-8", "surrogateescape")
        return _Source(store.scheme, store.endpoint, store.account, store.bucket, key, obj.version)


@dataclass(frozen=True, slots=True)
class _Source:
    """An object as the identity of its pieces has it."""

    scheme: str
    endpoint: str
    account: str
    bucket: str
    key: bytes
    version: str


@dataclass(slots=True)
class Views:
    """The views that sessions have open; the store's `NextUse`."""

    stores: Stores
    holds: Callable[[str], bool] = lambda _key: False
    _open: dict[tuple[str, tuple[str, ...]], View] = field(default_factory=dict)
    _indexing: set["asyncio.Task[None]"] = field(default_factory=set)
    _version: int = 0

    def __iter__(self) -> Iterator[View]:
        return iter(self._open.values())

    def open(self, opened: OpenedDataset, columns: Sequence[str]) -> View:
        """The view of a dataset with these columns; none given: all. Raises `ColumnNotFound`."""
        names = tuple(opened.manifest.columns(list(columns) or None))
        key = (opened.dataset_id, names)
        if key not in self._open:
            view = self._open[key] = View(opened, names, self.stores, self.holds)
            task = asyncio.get_running_loop().create_task(view.index(), name="piece keys")
            self._indexing.add(task)
            task.add_done_callback(self._indexing.discard)
        return self._open[key]

    def close(self, view: View) -> None:
        """Forgets a view that no session reads any more."""
        if not view.progress:
            self._open.pop((view.opened.dataset_id, view.columns), None)

    def arrived(self, key: str, is_there: bool) -> None:
        for view in self:
            view.arrived(key, is_there)

    @property
    def version(self) -> int:
        return self._version

    def update(self, view: View, session: str, progress: Progress | None, *, has_other_needs: bool) -> None:
        """Takes in a session's needs and position; None: it is gone."""
        view.update(session, progress)
        self._version += has_other_needs

    async def seconds(self) -> Mapping[str, float]:
        by_view: list[tuple[View, list[int], list[float]]] = []
        for view in list(self):
            await view.is_indexed.wait()
            seconds = view.next_use()
            pieces = np.flatnonzero(view.there & np.isfinite(seconds))
            by_view.append((view, pieces.tolist(), seconds[pieces].tolist()))
        return await asyncio.to_thread(_soonest, by_view)

    async def end(self) -> None:
        for task in list(self._indexing):
            task.cancel()
        await asyncio.gather(*self._indexing, return_exceptions=True)


def _soonest(by_view: list[tuple[View, list[int], list[float]]]) -> dict[str, float]:
    merged: dict[str, float] = {}
    for view, pieces, seconds in by_view:
        for piece, second in zip(pieces, seconds, strict=True):
            key = view.key(piece)
            merged[key] = min(merged.get(key, second), second)
    return merged
