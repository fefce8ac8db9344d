"""The pieces of a cache that may not be what was written: of an unclean boot, or touched by somebody since.

They take room and may be evicted, but are not served. Those that a fill is asked for are set aside, so that nobody
finds them at their path, read in full, and put back where they are right: that costs no download. On the event loop;
files are read on threads.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from forebay_server.cache.capacity import Ledger
from forebay_server.cache.integrity import Damage, IntegrityCounters
from forebay_server.disk.custody import Aside, Custody
from forebay_server.disk.entry import Entry

_log = logging.getLogger(__name__)


class Doubts:
    """Which pieces are in doubt, and those of them that are set aside."""

    def __init__(self, custody: Custody, ledger: Ledger, counters: IntegrityCounters) -> None:
        self._custody = custody
        self._root = str(custody.root)
        self._ledger = ledger
        self._counters = counters
        self._unproven: dict[str, Entry] = {}
        self._aside: dict[str, Aside] = {}
        self.account()

    def __contains__(self, key: str) -> bool:
        return key in self._unproven

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._unproven.values()))

    def add(self, entry: Entry) -> None:
        self._unproven[entry.key] = entry

    def end(self, key: str) -> None:
        """The piece is proven, or gone."""
        self._unproven.pop(key, None)

    def set_aside(self, entry: Entry) -> None:
        """Takes a piece from its path until `proven`, or `forget`. One whose file is gone is only forgotten."""
        try:
            self._aside[entry.key] = self._custody.set_aside(entry)
        except OSError as error:
            _log.debug("%s cannot be set aside: %s", entry.key, error)
        self.account()

    async def proven(self, key: str, in_thread: Callable[..., Awaitable[Any]]) -> Entry | None:
        """The piece that was set aside, at its path again, where it proves to be right; None: there is none."""
        aside = self._aside.get(key)
        if aside is None:
            return None
        try:
            outcome: Entry | str = await in_thread(self._custody.put_back, aside)
        except OSError as error:
            outcome = f"cannot be put back ({error})"
        self._counters.checked += 1
        self._counters.checked_bytes += aside.entry.size
        if isinstance(outcome, Entry):
            del self._aside[key]
            self._counters.proven += 1
            self.account()
            return outcome
        self._counters.damaged += 1
        origin = aside.origin
        damage = Damage(key, self._root, origin.url, origin.piece, outcome)
        _log.error("%s after an unclean boot, or a write from outside; it is fetched again", damage)
        self.forget(key)
        return None

    def forget(self, key: str) -> None:
        """Removes what is left of a piece that was set aside."""
        if (aside := self._aside.pop(key, None)) is not None:
            self._custody.drop_aside(aside)
            self.account()

    def account(self) -> None:
        """Brings the books in line with what is set aside, and in quarantine."""
        aside = sum(aside.entry.blocks for aside in self._aside.values())
        self._ledger.withheld_bytes = aside + self._custody.quarantined_bytes
