"""Views: which keys are whose, before and after all of them are known."""

import asyncio
from dataclasses import dataclass

import numpy as np

from forebay_core.eviction import BEYOND, NOBODY, UNKNOWN
from forebay_core.formats import Tokens
from forebay_core.formats.base import ObjectInfo
from forebay_core.manifest import Manifest
from forebay_core.needs import Needs, Progress
from forebay_server.sources.registry import Stores
from forebay_server.sources.remote import RemoteCounters
from forebay_server.views import View, Views
from tests.server.scripted import ManualClock

PIECES = 100_000
LAST = PIECES - 1


@dataclass(frozen=True)
class Opened:
    dataset_id: str
    manifest: Manifest


def opened(pieces: int = PIECES) -> Opened:
    """A dataset of one token file, of which nothing but its manifest is there."""
    format = Tokens(sequence_length=16, dtype="int32", piece_bytes=64)
    info = ObjectInfo("big.bin", 64 * pieces, "v1")
    try:
        next(format.prepare(info))
    except StopIteration as stop:
        cut = format.cut(info, stop.value)
    return Opened("id", Manifest.build("s3://bucket/train", format, [(info, cut)]))


def some_views() -> Views:
    environment = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    return Views(Stores(environment, RemoteCounters()), ManualClock())


def needing(view: View, wanted: dict[int, int]) -> Progress:
    pieces, first = (np.array(list(values), np.int64) for values in (wanted.keys(), wanted.values()))
    return Progress(Needs.build(pieces, first, first + 5, piece_count=view.manifest.pieces), 0, 1.0)


def test_until_all_keys_are_known_it_is_said_of_which_nobody_can_say_when_they_are_needed() -> None:
    async def run() -> None:
        views, is_known = some_views(), asyncio.Event()
        views.listen(is_known.set)
        view = views.open(opened(), [])
        views.update(view, "session", needing(view, {LAST: 10}), has_other_needs=True)
        keys = [view.key(LAST), view.key(LAST - 1), "of another dataset"]
        assert (await views.seconds(keys)).tolist() == [10.0, BEYOND, UNKNOWN]
        before = views.version
        await is_known.wait()
        assert view.is_indexed
        assert (await views.seconds(keys)).tolist() == [10.0, BEYOND, NOBODY]
        assert views.version != before, "what was planned before is planned anew"

    asyncio.run(run())


def test_the_soonest_need_of_all_views_counts() -> None:
    async def run() -> None:
        views = some_views()
        data = opened(5)
        one, other = views.open(data, []), views.open(Opened("other id", data.manifest), [])
        views.update(one, "a", needing(one, {0: 10, 1: 20}), has_other_needs=True)
        views.update(other, "b", needing(other, {1: 5, 2: 30}), has_other_needs=True)
        keys = [one.key(piece) for piece in range(4)]
        assert keys == [other.key(piece) for piece in range(4)]
        assert (await views.seconds(keys)).tolist() == [10.0, 5.0, 30.0, BEYOND]
        await views.end()

    asyncio.run(run())


def test_a_closed_view_computes_no_more_keys() -> None:
    async def run() -> None:
        views, has_ended = some_views(), asyncio.Event()
        views.listen(has_ended.set)
        data = opened()
        view = views.open(data, [])
        views.close(view)
        await has_ended.wait()
        last = views.open(data, []).key(LAST)
        assert view.pieces_of([last]).tolist() == [-1]
        await views.end()

    asyncio.run(run())


def test_a_piece_whose_fill_failed_is_not_offered_again_until_one_succeeds() -> None:
    async def run() -> None:
        views = some_views()
        view = views.open(opened(100), [])
        views.update(view, "session", needing(view, {piece: piece for piece in range(100)}), has_other_needs=True)
        for piece in range(50):
            views.ended(view.key(piece), has_failed=True)
        assert [piece for _, piece in view.soonest(2)] == [50, 51]
        views.ended(view.key(7), has_failed=False)
        assert [piece for _, piece in view.soonest(2)] == [7, 50]
        views.arrived(view.key(7), True)
        views.arrived(view.key(3), False)
        assert [piece for _, piece in view.soonest(2)] == [3, 50]
        await views.end()

    asyncio.run(run())
