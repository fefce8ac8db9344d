"""The manifests of the datasets that were opened: built once, kept as files, found again by what they were built from.

A dataset's id is a digest of everything that its manifest depends on: the root, the endpoint, the format with its
options and cut, and each object's key, size and version. So the file under an id is right for ever, also after a
restart; a source whose objects have changed has another id, and one that has not is only listed.

Listing and cutting run on the event loop, digests and files on threads. Opening the same source at the same time is one
piece of work, and its failure reaches all who wait for it.
"""

import asyncio
import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from forebay_core.errors import BadObject, ConfigurationError, EmptyDataset, PieceGone
from forebay_core.formats import from_spec, infer
from forebay_core.formats.base import Format, ObjectCut, ObjectInfo
from forebay_core.locations import Source
from forebay_core.manifest import Manifest
from forebay_server.concurrency import end_all, gather_bounded
from forebay_server.fetching import Fetcher
from forebay_server.listing import Listing, list_objects
from forebay_server.stores import Stores

#: Objects that are cut at once: each waits for a request or two most of its time.
_CUTS = 32
#: Manifests that stay mapped although no session may use them.
_KEPT = 16
_ID = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class OpenedDataset:
    """A dataset with its manifest and the file that holds it."""

    dataset_id: str
    path: Path
    manifest: Manifest
    #: What was asked for, as people read it; after a restart the root.
    source: str


class Manifests:
    """All manifests of a daemon, as files `<dataset id>.arrow` of one directory, which is made when one is saved."""

    def __init__(self, directory: Path, stores: Stores, fetcher: Fetcher) -> None:
        self._directory = directory
        self._stores = stores
        self._fetcher = fetcher
        self._opening: dict[tuple[tuple[str, ...], str], asyncio.Task[OpenedDataset]] = {}
        self._kept: OrderedDict[str, OpenedDataset] = OrderedDict()

    async def open(self, urls: Sequence[str], format_json: str) -> OpenedDataset:
        """The dataset of these URLs as they are now. `format_json` is a format's spec; empty: found by extension.

        Raises `ConfigurationError` and `UnknownScheme` for what cannot work, the errors of the source while it is
        listed and cut, and `EmptyDataset` where there are no samples.
        """
        source = Source(tuple(urls))
        wanted = (source.urls, format_json)
        task = self._opening.get(wanted)
        if task is None:
            task = asyncio.create_task(self._open(source, _format(format_json)))
            self._opening[wanted] = task
            task.add_done_callback(lambda done: self._opened(wanted, done))
        return await asyncio.shield(task)

    def get(self, dataset_id: str) -> OpenedDataset | None:
        """The dataset of an id that `open` gave, also before a restart; None for one that is not known."""
        kept = self._kept.get(dataset_id)
        if kept is not None:
            self._kept.move_to_end(dataset_id)
            return kept
        return self._load(dataset_id, source=None) if _ID.fullmatch(dataset_id) else None

    async def close(self) -> None:
        """Ends what is being opened; those who wait for it are cancelled."""
        await end_all(list(self._opening.values()))

    def _opened(self, wanted: tuple[tuple[str, ...], str], task: asyncio.Task[OpenedDataset]) -> None:
        del self._opening[wanted]
        if not task.cancelled():
            task.exception()  # seen here, since all who waited may be gone

    async def _open(self, source: Source, format: Format | None) -> OpenedDataset:
        listing = await list_objects(self._stores, source)
        format = format or infer(obj.key for obj in listing.objects)
        endpoint = self._stores.target(listing.source.root).store.endpoint
        dataset_id = await asyncio.to_thread(_dataset_id, listing, format, endpoint)
        if dataset_id in self._kept and self._path(dataset_id).exists():
            return self._kept[dataset_id]
        kept = await asyncio.to_thread(self._read, dataset_id, source.display)
        return self._keep(kept or await self._build(listing, format, dataset_id))

    async def _build(self, listing: Listing, format: Format, dataset_id: str) -> OpenedDataset:
        root, objects = listing.source.root, listing.objects

        async def cut(obj: ObjectInfo) -> ObjectCut:
            return await self._fetcher.drive(root, obj, format.cut(obj))

        cuts = await gather_bounded(_CUTS, cut, objects)
        manifest = await asyncio.to_thread(Manifest.build, root, format, list(zip(objects, cuts, strict=True)))
        if not manifest.samples:
            raise EmptyDataset(f"{listing.source.display} has no samples: its {len(objects)} objects are all empty")
        path = self._path(dataset_id)
        await asyncio.to_thread(_save, manifest, path)
        return OpenedDataset(dataset_id, path, manifest, listing.source.display)

    def _load(self, dataset_id: str, source: str | None) -> OpenedDataset | None:
        found = self._read(dataset_id, source)
        return self._keep(found) if found else None

    def _read(self, dataset_id: str, source: str | None) -> OpenedDataset | None:
        """The dataset of a kept file; None where there is none, or one of another version or damaged."""
        path = self._path(dataset_id)
        try:
            manifest = Manifest.open(path)
        except (BadObject, PieceGone, OSError):
            return None
        return OpenedDataset(dataset_id, path, manifest, source or manifest.root)

    def _keep(self, opened: OpenedDataset) -> OpenedDataset:
        self._kept[opened.dataset_id] = opened
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return opened

    def _path(self, dataset_id: str) -> Path:
        return self._directory / f"{dataset_id}.arrow"


def _format(format_json: str) -> Format | None:
    if not format_json:
        return None
    try:
        spec = json.loads(format_json)
    except ValueError as error:
        raise ConfigurationError(f"the format is not JSON ({error}): give what Format.spec() returns") from error
    if not isinstance(spec, dict):
        raise ConfigurationError(f"the format is not a JSON object: {format_json[:100]!r}")
    return from_spec(spec)


def _save(manifest: Manifest, path: Path) -> None:
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    manifest.save(path)


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
