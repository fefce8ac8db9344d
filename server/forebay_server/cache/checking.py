"""One piece read in full and compared with what is known of it; on the event loop, the reading on threads.

Used by what proves, scrubs and verifies. A piece that leaves, or is replaced, while it is read is nobody's damage.
"""

import logging

from forebay_server.cache.cache import Cache
from forebay_server.cache.integrity import Damage, Pacer
from forebay_server.disk.direct import DirectFile
from forebay_server.disk.entry import Entry

_log = logging.getLogger(__name__)


async def damage_of(cache: Cache, entry: Entry, pace: Pacer) -> Damage | None:
    """What is wrong with a piece that the cache holds; None: nothing, or it is held no longer."""
    try:
        reason, is_unreadable = await _difference(cache, entry, pace), False
    except OSError as error:
        reason, is_unreadable = f"cannot be read ({error.strerror})", True
    if reason is None or not cache.is_current(entry):
        return None
    origin = await cache.in_thread(cache.disk.origin, entry.key)
    url, piece = ("", 0) if origin is None else (origin.url, origin.piece)
    return Damage(entry.key, str(cache.disk.root), url, piece, reason, is_unreadable)


def reject(cache: Cache, entry: Entry, damage: Damage) -> None:
    """Takes a damaged piece out of use and says so, unless it has left in the meantime."""
    if cache.reject(entry):
        cache.integrity.damaged += 1
        _log.error("%s; it is not served any more, and is fetched again when it is needed", damage)


async def _difference(cache: Cache, entry: Entry, pace: Pacer) -> str | None:
    file: DirectFile = await cache.in_thread(cache.custody.open, entry.key)
    try:
        while count := await cache.in_thread(file.step):
            cache.integrity.checked_bytes += count
            await pace(count)
    finally:
        file.close()
    cache.integrity.checked += 1
    return file.difference(entry)
