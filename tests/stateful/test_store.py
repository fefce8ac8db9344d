"""The cache of one disk against a dict, whatever happens to it and in whatever order.

The cache, its fills and the directory are real, with time and the remote in the test's hand. The model is what each
number's bytes are, and who has what pinned, mapped, read while it was removed, or has tampered with it. After each step
the books say what lies on the disk, in blocks; nothing pinned or mapped was evicted; what is found has the right bytes.
A crash is a copy of the directory, by links, as it is at that moment, and a new daemon over the copy.
"""

import asyncio
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from forebay_core.errors import CapacityError
from forebay_core.eviction import POLICIES
from forebay_core.mapping import MappedFile
from forebay_server.disk.blocks import blocks_of, room_for
from tests.server.scripted import KIB, Rig, content, key_of, rig

T = TypeVar("T")
PIECES = 6
SIZES = (KIB, 9 * KIB, 20 * KIB)
CAPACITY = 3 * room_for(max(SIZES))
pieces = st.integers(0, PIECES - 1)
picks = st.integers(0, 59)
"""One of those there are at the moment: fills at once end differently each time, and what is drawn must not."""


def size_of(number: int) -> int:
    return SIZES[number % len(SIZES)]


class Store(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="store-"))
        self.loop = asyncio.new_event_loop()
        self.generation = 0
        self.pinned: set[int] = set()
        self.mapped: dict[int, MappedFile] = {}
        #: Readers of what was removed.
        self.lingering: defaultdict[int, list[MappedFile]] = defaultdict(list)
        #: Deleted or truncated by others, which the cache need not have noticed.
        self.tampered: set[int] = set()

    # -- what happens ----------------------------------------------------------------------------------------------

    @initialize(policy=st.sampled_from(sorted(POLICIES)))
    def begin(self, policy: str) -> None:
        self.policy = policy
        self._open()
        self.fill_at_once([0, 1, 3, 4])

    @rule(number=pieces, before=st.none() | st.integers(0, 9).map(float))
    def fill(self, number: int, before: float | None) -> None:
        if self.setup.cache.find(key_of(number)) is not None:
            return
        self.tampered.discard(number)
        try:
            entry = self._run(self._filled(number, before))
        except CapacityError:
            assert before is None
            assert self.policy == "never" or self._in_the_way() + room_for(size_of(number)) > CAPACITY
            return
        if entry is None:
            assert before is not None
            assert self.setup.cache.find(key_of(number)) is None
        else:
            assert self.setup.cache.find(key_of(number)) is not None

    @rule(numbers=st.lists(pieces, unique=True, min_size=2, max_size=4))
    def fill_at_once(self, numbers: list[int]) -> None:
        numbers = [number for number in numbers if self.setup.cache.find(key_of(number)) is None]
        self.tampered -= set(numbers)

        async def run() -> None:
            fills = [self.setup.fills.start(self.setup.job(number, size_of(number))) for number in numbers]
            await asyncio.gather(*(fill.task for fill in fills), return_exceptions=True)

        self._run(run())

    @rule(number=pieces)
    def find(self, number: int) -> None:
        found = self.setup.cache.find(key_of(number))
        if found is None:
            self._forget_what_is_gone()
            return
        assert number not in self.tampered
        assert self.setup.disk.path(key_of(number)).read_bytes() == content(number, size_of(number))

    @rule(number=pieces, seconds=st.none() | st.integers(0, 9).map(float))
    def need(self, number: int, seconds: float | None) -> None:
        self.setup.needs.by_key.pop(key_of(number), None)
        if seconds is not None:
            self.setup.needs.by_key[key_of(number)] = seconds
        self.setup.needs.version += 1

    @rule(number=pieces)
    def pin_or_unpin(self, number: int) -> None:
        if number in self.pinned:
            self.pinned.remove(number)
            self.setup.pool.pins.unpin(key_of(number))
        else:
            self.pinned.add(number)
            self.setup.pool.pins.pin(key_of(number))

    @rule(pick=picks)
    def begin_to_read(self, pick: int) -> None:
        unread = sorted(self._held() - self.mapped.keys())
        if unread and self.setup.cache.find(key_of(number := unread[pick % len(unread)])) is not None:
            self.mapped[number] = MappedFile.open(self.setup.disk.path(key_of(number)))

    @rule(pick=picks)
    def end_to_read(self, pick: int) -> None:
        if self.mapped:
            self.mapped.pop(sorted(self.mapped)[pick % len(self.mapped)]).close()

    @rule()
    def end_the_readers_of_what_was_removed(self) -> None:
        self._end_lingering()

    @rule(force=st.booleans())
    def evict_what_is_read(self, force: bool) -> None:
        self.evict(set(self.mapped), force)

    @rule(numbers=st.sets(pieces, min_size=1, max_size=2), force=st.booleans())
    def evict(self, numbers: set[int], force: bool) -> None:
        self.setup.clock.now += 1
        there = self._held() & numbers
        gone = self._run(self.setup.cache.room.evict([key_of(number) for number in sorted(numbers)], force=force))
        expected = there if force else there - self.pinned - self.mapped.keys()
        assert set(gone) == {key_of(number) for number in expected}
        self.tampered -= expected
        for number in expected & self.mapped.keys():
            reader = self.mapped.pop(number)
            self.lingering[number].append(reader)

    @rule(number=pieces)
    def others_delete(self, number: int) -> None:
        path = self.setup.disk.path(key_of(number))
        if number not in self.mapped and path.exists():
            path.unlink()
            self.tampered.add(number)

    @rule(number=pieces)
    def others_truncate(self, number: int) -> None:
        path = self.setup.disk.path(key_of(number))
        if number not in self.mapped and path.exists():
            os.truncate(path, size_of(number) // 2)
            self.tampered.add(number)

    @rule()
    def reconcile(self) -> None:
        self._run(self.setup.cache.reconcile())
        self._forget_what_is_gone()

    @rule(number=pieces, happens=st.sampled_from([False, False, True]))
    def crash(self, number: int, happens: bool) -> None:
        """In the middle of a fill, if that piece is not there. Seldom: it ends what was going on."""
        if not happens:
            return self.fill(number, None)
        self.setup.reader.gate.clear()
        self.setup.reader.started.clear()
        if self.setup.cache.find(key_of(number)) is None:
            self._run(self._begun(number))
            self.tampered.discard(number)
        left, self.generation = self._root(), self.generation + 1
        _copy_by_links(left, self._root())
        self._close()
        shutil.rmtree(left)
        self._end_lingering()
        self.pinned.clear()
        self._open()
        assert not any((self._root() / "tmp").iterdir())
        return None

    # -- what always holds -----------------------------------------------------------------------------------------

    @invariant()
    def the_books_are_what_lies_on_the_disk(self) -> None:
        cache, ledger = self.setup.cache, self.setup.cache.ledger
        entries = {number: cache.entry(key_of(number)) for number in range(PIECES)}
        held = {number: entry for number, entry in entries.items() if entry is not None}
        assert ledger.used_bytes == sum(entry.blocks for entry in held.values())
        assert ledger.reserved_bytes == 0
        assert not ledger.reservations
        for number in set(range(PIECES)) - self.tampered:
            path = self.setup.disk.path(key_of(number))
            assert path.exists() == (number in held)
            if path.exists():
                assert blocks_of(path.stat()) == held[number].blocks

    @invariant()
    def used_and_reserved_and_lingering_are_within_the_capacity(self) -> None:
        self.setup.cache.room.recount_lingering()
        ledger = self.setup.cache.ledger
        assert ledger.lingering_bytes == self._lingering_bytes()
        assert ledger.used_bytes + ledger.reserved_bytes + ledger.lingering_bytes <= ledger.capacity_bytes

    @invariant()
    def nothing_in_use_is_gone(self) -> None:
        for number, reader in self.mapped.items():
            assert self.setup.disk.path(key_of(number)).exists()
            assert bytes(reader.view) == content(number, size_of(number))
        for number, readers in self.lingering.items():
            assert all(bytes(reader.view) == content(number, size_of(number)) for reader in readers)

    # -- how it is done --------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        self._end_lingering()
        for reader in self.mapped.values():
            reader.close()
        if hasattr(self, "setup"):
            self._close()
        self.loop.close()
        shutil.rmtree(self.home)

    def _root(self) -> Path:
        return self.home / str(self.generation)

    def _open(self) -> None:
        self.context: AbstractAsyncContextManager[Rig] = rig(
            self._root(), capacity=CAPACITY, room_wait_seconds=0.0, eviction=self.policy
        )
        self.setup = self._run(self.context.__aenter__())

    def _close(self) -> None:
        self._run(self.context.__aexit__(None, None, None))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    async def _filled(self, number: int, before: float | None) -> object:
        self.setup.clock.now += 1
        return await self.setup.fills.start(self.setup.job(number, size_of(number)), before=before).task

    async def _begun(self, number: int) -> None:
        """A fill in the middle of its bytes, or the end of one that found no room."""
        task = self.setup.fills.start(self.setup.job(number, size_of(number))).task
        started = asyncio.ensure_future(self.setup.reader.started.wait())
        await asyncio.wait([task, started], return_when=asyncio.FIRST_COMPLETED)
        started.cancel()

    def _held(self) -> set[int]:
        return {number for number in range(PIECES) if self.setup.cache.holds(key_of(number))}

    def _end_lingering(self) -> None:
        for readers in self.lingering.values():
            for reader in readers:
                reader.close()
        self.lingering.clear()

    def _lingering_bytes(self) -> int:
        return sum(len(readers) * _blocks(number) for number, readers in self.lingering.items())

    def _in_the_way(self) -> int:
        """Bytes on the disk of what cannot go."""
        kept = self._held() & (self.pinned | self.mapped.keys())
        return sum(room_for(size_of(number)) for number in kept) + self._lingering_bytes()

    def _forget_what_is_gone(self) -> None:
        """What the cache has noticed and does not hold any more."""
        self.tampered = {
            number
            for number in self.tampered
            if self.setup.cache.holds(key_of(number)) or self.setup.disk.path(key_of(number)).exists()
        }


def _blocks(number: int) -> int:
    """Of the data alone."""
    return room_for(size_of(number)) - room_for(0)


def _copy_by_links(source: Path, target: Path) -> None:
    """The same files under another root; databases, which are written in place, are copied, whole or not."""
    for directory, _, names in os.walk(source):
        into = target / Path(directory).relative_to(source)
        into.mkdir(mode=0o750)
        for name in names:
            is_piece = into.parts[len(target.parts) :][:1] in (("pieces",), ("tmp",))
            with suppress(FileNotFoundError):
                (os.link if is_piece else shutil.copy2)(Path(directory) / name, into / name)


TestStore = pytest.mark.slow(Store.TestCase)
TestStore.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
