"""The sliding window at sizes where it has many blocks."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.order import philox
from forebay.order.lanes import Int64, cut_lanes
from forebay.order.window import Window


def whole_lane(window: Window, length: int) -> Int64:
    places = np.empty(length, dtype=np.int64)
    window.read(0, np.arange(length), places)
    return places


def keys(blocks: range, width: int, epoch: int = 0) -> npt.NDArray[np.uint64]:
    """The keys of these blocks' offsets, less the begin of the first, with the seed digest 5."""
    block = max(64, width)
    words = np.concatenate([philox.raw_words(5, philox.WINDOW, block, block=number, epoch=epoch) for number in blocks])
    drawn = (words >> np.uint64(32)) * np.uint64(width) >> np.uint64(12)
    return (np.arange(len(words), dtype=np.uint64) << np.uint64(20)) + drawn


def sorted_at_once(length: int, width: int, epoch: int = 0) -> Int64:
    blocks = range(-(-length // max(64, width)))
    return np.argsort(keys(blocks, width, epoch)[:length], kind="stable")


@pytest.mark.parametrize(("length", "width"), [(100_000, 3000), (100_000, 50), (65_536, 4096), (4097, 4096), (10, 10)])
def test_reading_block_by_block_equals_sorting_all_keys_at_once(length: int, width: int) -> None:
    places = whole_lane(Window(5, 2, cut_lanes(length, 1), width), length)
    assert np.array_equal(places, sorted_at_once(length, width, epoch=2))


@settings(max_examples=60, deadline=None)
@given(length=st.integers(1, 3000), width=st.integers(1, 700), data=st.data())
def test_no_sample_moves_as_far_as_the_window(length: int, width: int, data: st.DataObject) -> None:
    window = Window(data.draw(st.integers(0, 2**64 - 1)), 0, cut_lanes(length, 1), width)
    places = whole_lane(window, length)
    assert sorted(places.tolist()) == list(range(length))
    assert np.abs(places - np.arange(length)).max() < width


@settings(max_examples=60, deadline=None)
@given(length=st.integers(1, 3000), width=st.integers(2, 700), data=st.data())
def test_any_turns_read_what_reading_from_the_start_reads(length: int, width: int, data: st.DataObject) -> None:
    lanes = cut_lanes(length, 1)
    whole = whole_lane(Window(9, 1, lanes, width), length)
    window = Window(9, 1, lanes, width)
    for turns in data.draw(st.lists(st.sets(st.integers(0, length - 1), min_size=1), min_size=1, max_size=5)):
        wanted = np.array(sorted(turns))
        places = np.empty_like(wanted)
        window.read(0, wanted, places)
        assert np.array_equal(places, whole[wanted])


def test_keys_too_long_to_pack_are_sorted_to_the_same_order() -> None:
    length = 2_500_000
    places = whole_lane(Window(5, 0, cut_lanes(length, 1), length), length)
    assert np.array_equal(places, sorted_at_once(length, length))


def test_a_key_exactly_on_the_border_of_two_blocks_is_read_once() -> None:
    first, block = 978_222, 64
    near = keys(range(first, first + 6), block)
    assert np.flatnonzero(near[2 * block : 3 * block] == np.uint64(3 * block << 20)).tolist() == [43]
    turns = np.arange(first * block + 100, first * block + 300)
    places = np.empty_like(turns)
    Window(5, 0, cut_lanes((first + 6) * block, 1), block).read(0, turns, places)
    assert np.array_equal(places, np.argsort(near, kind="stable")[100:300] + first * block)


def test_threads_that_read_far_apart_disturb_each_other_not_at_all() -> None:
    length = 20_000
    lanes = cut_lanes(length, 1)
    whole = whole_lane(Window(5, 0, lanes, 500), length)
    shared = Window(5, 0, lanes, 500)

    def reads(thread: int) -> bool:
        places = np.empty(64, dtype=np.int64)
        for turn in np.random.Generator(np.random.PCG64(thread)).integers(0, length - 64, 300):
            shared.read(0, np.arange(turn, turn + 64), places)
            if not np.array_equal(places, whole[turn : turn + 64]):
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(reads, range(4)))
