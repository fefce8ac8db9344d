"""Objects that are not any more what the manifest says, and whether they are read all the same (`--allow-changed`).

Without leave a changed object is an error. With it a piece is read at the object's present version, where that is as
large as the manifest says: every request of one fill names that version, so that a piece is never a mixture, but the
pieces of a dataset then are of several versions. Such pieces say so in their sidecars, and a daemon without leave does
not use them. On the event loop.
"""

import logging
from typing import Protocol

from forebay_core.errors import ObjectChanged
from forebay_core.formats.base import ObjectInfo

_log = logging.getLogger(__name__)


class Heads(Protocol):
    """What looks objects up (`forebay_server.sources.fetching.Fetcher`)."""

    async def head(self, root: str, obj: ObjectInfo) -> ObjectInfo:
        """The object as it is now."""


class Changes:
    """What the objects that changed are now."""

    def __init__(self, heads: Heads, *, are_allowed: bool) -> None:
        self._heads = heads
        self._are_allowed = are_allowed
        self._said: set[str] = set()

    @property
    def objects(self) -> int:
        """How many objects were read at another version than their manifests name."""
        return len(self._said)

    async def present(
        self, root: str, named: ObjectInfo, tried: ObjectInfo, *, url: str, error: ObjectChanged
    ) -> ObjectInfo:
        """The object as it is to be read, after reading it as `tried` has raised `error`: which is raised again where
        that is not allowed, or does not help. `named` is the object as the manifest has it.
        """
        if not self._are_allowed:
            raise error
        now = await self._heads.head(root, named)
        if now.version == tried.version:
            raise error
        if now.size != named.size:
            raise ObjectChanged(
                f"{url} has changed since it was listed and is {now.size} bytes long now, not {named.size} (version"
                f" {named.version}, {now.version} now): open the dataset again; --allow-changed is for the same size"
            ) from error
        if url not in self._said:
            self._said.add(url)
            _log.warning(
                "%s has changed: it is read at version %s, not %s as its manifest says (--allow-changed)",
                url,
                now.version,
                named.version,
            )
        return now
