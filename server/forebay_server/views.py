"""A dataset as some sessions read it: its pieces under one choice of columns, their cache keys, and who needs them
when.

A view turns piece numbers into jobs and keys and back. Keys are digests, so those of a large dataset are computed in a
thread after the first session opens; single ones are computed when they are asked for. Until that is done some pieces
in the cache cannot be told from those of nobody, and `Views.seconds` says so. Arrays by piece number say what is in the
cache, what cannot be filled, and what is needed when. Everything but the computation of keys happens on the event loop.
"""

import asyncio
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, repeat
from operator import itemgetter
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from forebay_core.errors import ConfigurationError
from forebay_core.eviction import BEYOND, NOBODY, UNKNOWN
from forebay_core.filesystems import filesystem_type, is_network
from forebay_core.identity import SourceIdentity
from forebay_core.manifest import Manifest
from forebay_core.needs import Progress, Seconds, next_use
from forebay_server.concurrency import end_all
from forebay_server.filling.job import Job
from forebay_server.sources.registry import Stores

_log = logging.getLogger(__name__)
#: Keys are computed in the background, so many at a time, with pauses of so many times what that took: most of the time
#: is left to whoever waits for a first batch.
_SLICE = 1000
_PAUSES = 3


class OpenedDataset(Protocol):
    """What a view is made over (`forebay_server.sources.manifests.OpenedDataset`)."""

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
        self,
        opened: OpenedDataset,
        columns: tuple[str, ...],
        stores: Stores,
        *,
        holds: Callable[[str], bool],
        clock: Callable[[], float],
    ) -> None:
        self.opened = opened
        self.columns = columns
        self.manifest = opened.manifest
        self.progress: dict[str, Progress] = {}
        #: By piece: whether the cache has it, as far as the keys are computed.
        self.there: npt.NDArray[np.bool_] = np.zeros(self.manifest.pieces, np.bool_)
        #: By piece: whether its last fill failed. No prefetch tries it again.
        self.failed: npt.NDArray[np.bool_] = np.zeros(self.manifest.pieces, np.bool_)
        #: False while keys are still being computed.
        self.is_indexed = False
        self._stores = stores
        self._holds = holds
        self._clock = clock
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
        target = self._stores.target(self.manifest.root, found.object.key)
        md5 = target.store.md5_of(found.object.version)
        return Job(self.key(piece), self.manifest.root, found, self.columns, self.manifest.format, target.url, md5)

    def arrived(self, key: str, is_there: bool) -> None:
        """Takes in what the cache says of a key."""
        piece = self._piece_of.get(key)
        if piece is not None:
            self.there[piece] = is_there
            self.failed[piece] = False

    def ended(self, key: str, *, has_failed: bool) -> None:
        """Takes in how the fill of a key ended."""
        piece = self._piece_of.get(key)
        if piece is not None:
            self.failed[piece] = has_failed

    async def index(self) -> None:
        """Computes all keys, in slices, in a thread, with pauses."""
        for start in range(0, len(self._keys), _SLICE):
            began = time.monotonic()
            stop = min(start + _SLICE, len(self._keys))
            keys = await asyncio.to_thread(self._compute, range(start, stop))
            for piece, key in zip(range(start, stop), keys, strict=True):
                self._learn(piece, key)
            await asyncio.sleep(_PAUSES * (time.monotonic() - began))

    def pieces_of(self, keys: Sequence[str]) -> npt.NDArray[np.int64]:
        """The piece of each key; -1 where the view has none, or does not know it yet. On any thread."""
        return np.fromiter(map(self._piece_of.get, keys, repeat(-1)), np.int64, len(keys))

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
            self._next_use = next_use(self.manifest.pieces, self.progress.values(), self._clock())
        return self._next_use

    def soonest(self, limit: int) -> Iterator[tuple[float, int]]:
        """The pieces that are needed, not there and not failed, at most `limit`, as (seconds, piece), soonest first."""
        seconds = np.where(self.there | self.failed, np.inf, self.next_use())
        pieces = np.argpartition(seconds, limit)[:limit] if limit < len(seconds) else np.arange(len(seconds))
        for piece in pieces[np.argsort(seconds[pieces], kind="stable")]:
            if not np.isfinite(seconds[piece]):
                return
            yield float(seconds[piece]), int(piece)

    def seconds_until(self, key: str) -> float:
        """Seconds until the next use of a piece; infinite where nobody needs it, or it is not known yet."""
        piece = self._piece_of.get(key)
        return math.inf if piece is None else float(self.next_use()[piece])

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
        manifest, run = self.manifest, slice(pieces.start, pieces.stop)
        arrays = (manifest.piece_object, manifest.piece_start, manifest.piece_stop)
        units = (manifest.piece_first_unit, manifest.piece_units)
        keys: list[str] = []
        for index, group in groupby(zip(*(a[run].tolist() for a in (*arrays, *units)), strict=True), itemgetter(0)):
            source = self._source(index)
            keys += (source.piece_key(*piece) for _, *piece in group)
        return keys

    def _source(self, index: int) -> SourceIdentity:
        obj, form = self.manifest.objects.info(index), self.manifest.format
        target = self._stores.target(self.manifest.root, obj.key)
        store = target.store
        return SourceIdentity(
            scheme=store.scheme,
            endpoint=store.endpoint,
            account=store.account,
            bucket=store.bucket,
            key=target.key.encode("utf-8", "surrogateescape"),
            version=obj.version,
            columns=() if form.ignores_columns() else self.columns,
            layout=form.local_layout(),
        )


@dataclass(slots=True)
class Views:
    """The views that sessions have open; the cache's `NextUse`."""

    stores: Stores
    #: That of the sessions.
    clock: Callable[[], float]
    holds: Callable[[str], bool] = lambda _key: False
    _open: dict[tuple[str, tuple[str, ...]], View] = field(default_factory=dict)
    _indexing: "dict[View, asyncio.Task[None]]" = field(default_factory=dict)
    _listeners: list[Callable[[], None]] = field(default_factory=list)
    _version: int = 0

    def __iter__(self) -> Iterator[View]:
        return iter(self._open.values())

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls `listener()` each time that all keys of a view have come to be known, from now on."""
        self._listeners.append(listener)

    def open(self, opened: OpenedDataset, columns: Sequence[str]) -> View:
        """The view of a dataset with these columns; none given: all. Raises `ColumnNotFound`."""
        names = tuple(opened.manifest.columns(list(columns) or None))
        key = (opened.dataset_id, names)
        if key not in self._open:
            view = self._open[key] = View(opened, names, self.stores, holds=self.holds, clock=self.clock)
            task = asyncio.get_running_loop().create_task(view.index(), name="piece keys")
            self._indexing[view] = task
            task.add_done_callback(lambda done: self._indexed(view, done))
        return self._open[key]

    def close(self, view: View) -> None:
        """Forgets a view that no session reads any more."""
        if not view.progress:
            self._open.pop((view.opened.dataset_id, view.columns), None)
            if task := self._indexing.get(view):
                task.cancel()

    def arrived(self, key: str, is_there: bool) -> None:
        for view in self:
            view.arrived(key, is_there)

    def ended(self, key: str, *, has_failed: bool) -> None:
        for view in self:
            view.ended(key, has_failed=has_failed)

    def seconds_until(self, key: str, *, otherwise: float | None) -> float | None:
        """Seconds until the next use of a piece by anybody; `otherwise` where nobody is known to need it."""
        soonest = min((view.seconds_until(key) for view in self), default=math.inf)
        return soonest if soonest < math.inf else otherwise

    @property
    def version(self) -> int:
        return self._version

    def update(self, view: View, session: str, progress: Progress | None, *, has_other_needs: bool) -> None:
        """Takes in a session's needs and position; None: it is gone."""
        view.update(session, progress)
        self._version += has_other_needs

    async def seconds(self, keys: Sequence[str]) -> Seconds:
        """For each key its next use, as in `forebay_core.eviction.Residents`."""
        views = [(view, view.next_use()) for view in self]
        is_whole = all(view.is_indexed for view, _ in views)
        return await asyncio.to_thread(_soonest, views, keys, is_whole)

    async def end(self) -> None:
        await end_all(list(self._indexing.values()))

    def _indexed(self, view: View, task: "asyncio.Task[None]") -> None:
        del self._indexing[view]
        view.is_indexed = True  # also after a failure: room must be made all the same
        self._version += 1
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the keys of %s cannot be computed: %s", view.manifest.root, error, exc_info=error)
        for listener in self._listeners:
            listener()


def _soonest(views: Sequence[tuple[View, Seconds]], keys: Sequence[str], is_whole: bool) -> Seconds:
    soonest = np.full(len(keys), NOBODY if is_whole else UNKNOWN)
    for view, seconds in views:
        pieces = view.pieces_of(keys)
        known = np.flatnonzero(pieces >= 0)
        needed = seconds[pieces[known]]
        needed[np.isinf(needed)] = BEYOND
        soonest[known] = np.where(soonest[known] < UNKNOWN, np.minimum(soonest[known], needed), needed)
    return soonest
