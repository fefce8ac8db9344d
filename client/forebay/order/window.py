"""The sliding window: an exact permutation of a lane that moves each sample by less than the window, at random access.

The sample at offset i of a lane draws the key i + u·H, u uniform in [0, 1), a fixed-point number of 20 fraction bits;
the lane is read in the order of the keys, ties in the order of the offsets. Offsets are cut into *blocks* no shorter
than H. So the keys within one block's range come from that block and the one before alone, and what is read there (a
*stretch*) begins as many turns early as samples of the block before drew a key beyond its end. One stretch costs the
time and memory of two blocks wherever it lies; nothing is replayed.

A block is at least 64 offsets long, so that a narrow window does not cost a generator per sample.

The last stretch of each lane is kept, because plans read on. A stretch is immutable and kept by one assignment, so any
number of threads may ask; at worst two compute the same one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import numpy.typing as npt

from forebay.order import philox
from forebay.order.lanes import Int64, Lanes

_FRACTION_BITS = 20
_SHORTEST_BLOCK = 64

_KeysOf = Callable[[int], npt.NDArray[np.uint64]]


@dataclass(frozen=True, slots=True)
class _Stretch:
    """What a lane reads in the turns [start, stop): the places base + offsets[turn - start]."""

    start: int
    stop: int
    base: int
    offsets: npt.NDArray[np.int32]

    def read(self, turns: Int64, out: Int64) -> None:
        np.add(self.offsets[turns - self.start], self.base, out=out, dtype=np.int64)


class Window:
    """The order in which the lanes of one epoch are read."""

    def __init__(self, digest: int, epoch: int, lanes: Lanes, width: int) -> None:
        self.width = width
        self._digest = digest
        self._epoch = epoch
        self._lane_start = lanes.start
        self._length = lanes.length
        self._block = max(width, _SHORTEST_BLOCK)
        self._kept: dict[int, _Stretch] = {}

    def read(self, lane: int, turns: Int64, out: Int64) -> None:
        """Write to `out` the places (lane's start + offset) that a lane reads at these turns, which are ascending."""
        if self.width == 1:
            np.add(turns, self._lane_start[lane], out=out)
            return
        while len(turns):
            stretch = self._stretch(lane, int(turns[0]))
            inside = len(turns) if turns[-1] < stretch.stop else int(np.searchsorted(turns, stretch.stop))
            stretch.read(turns[:inside], out[:inside])
            turns, out = turns[inside:], out[inside:]

    def _stretch(self, lane: int, turn: int) -> _Stretch:
        kept = self._kept.get(lane)
        if kept is None or not kept.start <= turn < kept.stop:
            keys = cache(partial(self._keys, lane))
            kept = self._sort(lane, self._block_read_at(lane, turn, keys), keys)
            self._kept[lane] = kept
        return kept

    def _last_block(self, lane: int) -> int:
        return (int(self._length[lane]) - 1) // self._block

    def _block_read_at(self, lane: int, turn: int, keys_of: _KeysOf) -> int:
        """The block whose stretch holds a turn: that of the offset of the same number, or the next."""
        block = turn // self._block
        if block == self._last_block(lane):
            return block
        late = int(np.count_nonzero(keys_of(block) >= self._block << _FRACTION_BITS))
        return block + (turn >= (block + 1) * self._block - late)

    def _keys(self, lane: int, block: int) -> npt.NDArray[np.uint64]:
        """The keys of a block's offsets, less that of the block's begin."""
        number = min(self._block, int(self._length[lane]) - block * self._block)
        words = philox.raw_words(self._digest, philox.WINDOW, number, stream=lane, block=block, epoch=self._epoch)
        drawn = ((words >> np.uint64(32)) * np.uint64(self.width)) >> np.uint64(32 - _FRACTION_BITS)
        return (np.arange(number, dtype=np.uint64) << np.uint64(_FRACTION_BITS)) + drawn

    def _sort(self, lane: int, block: int, keys_of: _KeysOf) -> _Stretch:
        end = np.uint64(self._block << _FRACTION_BITS)
        own = keys_of(block)
        offsets = np.arange(len(own)) if block == self._last_block(lane) else np.flatnonzero(own < end)
        keys = own[offsets]
        late = 0
        if block > 0:
            before = keys_of(block - 1)
            spilled = np.flatnonzero(before >= end)
            late = len(spilled)
            offsets = np.concatenate((spilled, offsets + self._block))
            keys = np.concatenate((before[spilled] - end, keys))
        start = block * self._block - late
        base = int(self._lane_start[lane]) + max(0, block - 1) * self._block
        return _Stretch(start, start + len(keys), base, _sorted_by(keys, offsets))


def _sorted_by(keys: npt.NDArray[np.uint64], offsets: Int64) -> npt.NDArray[np.int32]:
    """The offsets (ascending) in the order of their keys, ties in the order given; short keys take the faster way."""
    offset_bits = int(offsets[-1]).bit_length()
    if int(keys.max()).bit_length() + offset_bits > 64:
        return offsets[np.argsort(keys, kind="stable")].astype(np.int32)
    packed = np.sort((keys << np.uint64(offset_bits)) | offsets.astype(np.uint64))
    return (packed & np.uint64((1 << offset_bits) - 1)).astype(np.int32)
