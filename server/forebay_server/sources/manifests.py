"""The manifests of the datasets that were opened: built once, kept as files, found again by what they were built from.

A dataset's id is a digest of everything that its manifest depends on: the root, the endpoint, the format with its
options and cut, and each object's key, size and version. So the file under an id is right for ever, also after a
restart; a source whose objects have changed has another id, and one that has not is only listed. A listing that took
long is not made again for as long as it took, a minute at the most: the ranks of a job open their dataset one after the
other.

Listing runs on the event loop; formats, digests and files on threads. Opening the same source at the same time is one
piece of work, and its failure reaches all who wait for it.
"""

import asyncio
import hashlib
import json
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from forebay_core.errors import BadObject, CapacityError, ConfigurationError, EmptyDataset, ForebayError, PieceGone
from forebay_core.formats import from_spec, resolve
from forebay_core.formats.base import Format, ObjectCut, ObjectInfo
from forebay_core.locations import Source
from forebay_core.manifest import Manifest
from forebay_server.concurrency import OneForAll, gather_bounded
from forebay_server.sources.failures import naming, shown
from forebay_server.sources.fetching import Fetcher
from forebay_server.sources.listing import Listing, list_objects
from forebay_server.sources.registry import Stores

_log = logging.getLogger(__name__)
#: Objects that are cut at once: each waits for a request or two most of its time.
_CUTS = 32
#: Manifests that stay mapped although no session may use them.
_KEPT = 16
#: Objects of one dataset that a warning names.
_NAMED = 5
#: A listing that took less is made anew for whoever asks; one that took longer counts for a while.
_LONG_SECONDS, _MOST_SECONDS = 5.0, 60.0
_ID = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class OpenedDataset:
    """A dataset with its manifest and the file that holds it."""

    dataset_id: str
    path: Path
    manifest: Manifest


#: URLs and the format's spec.
_Asked = tuple[tuple[str, ...], str]


class Manifests:
    """All manifests of a daemon, as files `<dataset id>.arrow`: kept in the first directory that takes them, found in
    any. A directory is made when one is saved."""

    def __init__(
        self,
        directories: Callable[[], Sequence[Path]],
        stores: Stores,
        fetcher: Fetcher,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`directories`: on the disks that are of use at the moment."""
        self._clock = clock
        self._directories = directories
        self._stores = stores
        self._fetcher = fetcher
        self._opening: OneForAll[_Asked, OpenedDataset] = OneForAll()
        #: What was opened by a long listing, and until when that counts.
        self._lately: dict[_Asked, tuple[float, OpenedDataset]] = {}
        self._kept: OrderedDict[str, OpenedDataset] = OrderedDict()

    async def open(self, urls: Sequence[str], format_json: str) -> OpenedDataset:
        """The dataset of these URLs as they are now. `format_json` is a format's spec; empty: found by extension.

        Raises `ConfigurationError` and `UnknownScheme` for what cannot work, the errors of the source while it is
        listed and cut, and `EmptyDataset` where there are no samples.
        """
        source = await asyncio.to_thread(self._permitted, tuple(urls))
        format = _format(format_json)
        asked = (source.urls, format_json)
        until, opened = self._lately.pop(asked, (0.0, None))
        if opened is not None and self._clock() < until and opened.path.exists():
            self._lately[asked] = (until, opened)
            return opened
        return await self._opening.result(asked, lambda: self._open(asked, source, format))

    def get(self, dataset_id: str) -> OpenedDataset | None:
        """The dataset of an id that `open` gave, also before a restart; None for one that is not known."""
        kept = self._kept.get(dataset_id)
        if kept is not None:
            self._kept.move_to_end(dataset_id)
            return kept
        found = self._read(dataset_id) if _ID.fullmatch(dataset_id) else None
        return self._keep(found) if found else None

    async def close(self) -> None:
        """Ends what is being opened; those who wait for it are cancelled."""
        await self._opening.close()

    def _permitted(self, urls: tuple[str, ...]) -> Source:
        source = Source(urls)
        self._stores.permits.check_source(source)
        return source

    async def _open(self, asked: "_Asked", source: Source, format: Format | None) -> OpenedDataset:
        begun = self._clock()
        listing = await list_objects(self._stores, source)
        took = self._clock() - begun
        opened = await self._opened(listing, format)
        if took >= _LONG_SECONDS:
            self._lately[asked] = (self._clock() + min(took, _MOST_SECONDS), opened)
        return opened

    async def _opened(self, listing: Listing, format: Format | None) -> OpenedDataset:
        format = resolve(format, (obj.key for obj in listing.objects))
        endpoint = self._stores.target(listing.source.root).store.endpoint
        dataset_id = await asyncio.to_thread(_dataset_id, listing, format, endpoint)
        if dataset_id in self._kept and self._stands(self._kept[dataset_id]):
            return self._kept[dataset_id]
        kept = await asyncio.to_thread(self._read, dataset_id)
        return self._keep(kept or await self._build(listing, format, dataset_id))

    async def _build(self, listing: Listing, format: Format, dataset_id: str) -> OpenedDataset:
        root, objects = listing.source.root, listing.objects
        schemas = SharedSchemas()

        async def cut(obj: ObjectInfo) -> ObjectCut:
            return schemas.shared(await self._cut(root, obj, format))

        cuts = await gather_bounded(_CUTS, cut, objects)
        self._tell_dropped(root, objects, cuts)
        manifest = await asyncio.to_thread(Manifest.build, root, format, list(zip(objects, cuts, strict=True)))
        if not manifest.samples:
            why = format.why_empty(manifest.counts)
            raise EmptyDataset(f"{listing.source.display} has no samples in its {len(objects)} objects: {why}")
        if manifest.counts:
            _log.info("%s: %s", listing.source.display, ", ".join(f"{n} {what}" for what, n in manifest.counts.items()))
        path = await asyncio.to_thread(_save, manifest, dataset_id, self._directories())
        return OpenedDataset(dataset_id, path, manifest)

    async def _cut(self, root: str, obj: ObjectInfo, format: Format) -> ObjectCut:
        try:
            return await self._fetcher.cut(root, obj, format)
        except ForebayError as error:
            named = naming(error, key=obj.key, url=self._stores.target(root, obj.key).url)
            if named is error:
                raise
            raise named from error

    def _tell_dropped(self, root: str, objects: Sequence[ObjectInfo], cuts: Sequence[ObjectCut]) -> None:
        short = [(obj.key, cut.dropped) for obj, cut in zip(objects, cuts, strict=True) if cut.dropped]
        for key, dropped in short[:_NAMED]:
            url = self._stores.target(root, key).url
            _log.warning("%s: its last %d items fill no sample and are left out", shown(url), dropped)
        if len(short) > _NAMED:
            _log.warning("%s: the same in %d more objects", shown(root), len(short) - _NAMED)

    def _read(self, dataset_id: str) -> OpenedDataset | None:
        """The dataset of a kept file; None where there is none, or those are of another version or damaged."""
        for directory in self._directories():
            path = directory / _name(dataset_id)
            try:
                return OpenedDataset(dataset_id, path, Manifest.open(path))
            except (BadObject, PieceGone, OSError):
                continue
        return None

    def _stands(self, opened: OpenedDataset) -> bool:
        """Whether its file is still there, on a disk of use, and can be read."""
        try:
            with opened.path.open("rb") as file:
                return opened.path.parent in self._directories() and bool(file.read(1))
        except OSError:
            return False

    def _keep(self, opened: OpenedDataset) -> OpenedDataset:
        self._kept[opened.dataset_id] = opened
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return opened


class SharedSchemas:
    """The schemas of many objects, each different one once: a million objects have few, and hold on to them for the
    whole build."""

    def __init__(self) -> None:
        self._known: dict[bytes, pa.Schema] = {}
        self._latest: pa.Schema | None = None

    def shared(self, cut: ObjectCut) -> ObjectCut:
        """The cut with the one schema of its kind."""
        if self._latest is None or not cut.schema.equals(self._latest, check_metadata=True):
            self._latest = self._known.setdefault(cut.schema.serialize().to_pybytes(), cut.schema)
        return replace(cut, schema=self._latest)


def _format(format_json: str) -> Format | None:
    if not format_json:
        return None
    try:
        spec = json.loads(format_json)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"the format is not JSON ({error}): give what Format.spec() returns") from error
    if not isinstance(spec, dict):
        raise ConfigurationError(f"the format is not a JSON object: {format_json[:100]!r}")
    return from_spec(spec)


def _name(dataset_id: str) -> str:
    return f"{dataset_id}.arrow"


def _save(manifest: Manifest, dataset_id: str, directories: Sequence[Path]) -> Path:
    """Where it was saved: in the first directory that takes it."""
    failure: OSError | None = None
    for directory in directories:
        try:
            directory.mkdir(mode=0o750, parents=True, exist_ok=True)
            manifest.save(directory / _name(dataset_id))
        except OSError as error:
            _log.warning("the manifest of %s cannot be kept in %s: %s", manifest.root, directory, error)
            failure = error
        else:
            return directory / _name(dataset_id)
    raise CapacityError(
        f"no disk of the cache takes the manifest of {manifest.root}"
        f" ({failure.strerror if failure else 'all are down'}): make room, or repair one (forebay status shows them)"
    ) from failure


def _dataset_id(listing: Listing, format: Format, endpoint: str) -> str:
    digest = hashlib.sha256()
    for part in _identity(listing, format, endpoint):
        data = part.encode("utf-8", "surrogateescape")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def _identity(listing: Listing, format: Format, endpoint: str) -> Iterator[str]:
    yield "forebay-dataset-1"
    yield listing.source.root
    yield endpoint
    yield json.dumps(format.spec(), sort_keys=True)
    for obj in listing.objects:
        yield obj.key
        yield str(obj.size)
        yield obj.version
