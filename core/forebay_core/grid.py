"""Many mapped pieces as one array: rows of the same size, side by side in one reserved stretch of addresses.

A gather over many small arrays costs a call for each; over a grid it is one `numpy.take` with one index, whichever
pieces the rows lie in. The stretch is reserved without memory (`PROT_NONE`), in slots of equal size; a piece is mapped
into a slot in place of the reservation, and the reservation put back when it goes. A row outside the occupied slots
must never be indexed: there is nothing behind it. Rows are faulted in before they are read (`populate`), so that a
failing disk is an error and no SIGBUS. For one thread at a time.
"""

import ctypes
import math
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from forebay_core.mapping import MAP_FAILED, libc, populate

_PROT_NONE = 0
_RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
_MAP_FIXED = 0x10
_LARGEST_BYTES = 1 << 40
#: In one call for so many bytes a row costs some hundredths of what it costs in calls for a page or two.
_BLOCK_BYTES = 1 << 20
#: Slots begin where the kernel can map large parts of a file with one entry.
_HUGE_PAGE_BYTES = 2 << 20


class Grid:
    """`slots` places for pieces, each of `slot_rows` rows, a row being an array of `dtype` and `shape`."""

    def __init__(
        self, reserved: tuple[int, int], slots: int, slot_rows: int, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> None:
        self._reserved = reserved
        self._address = -(-reserved[0] // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
        self._slot_rows = slot_rows
        self._row_bytes = dtype.itemsize * math.prod(shape)
        self._bytes = slots * slot_rows * self._row_bytes
        self._free = list(range(slots - 1, -1, -1))
        self._stop = [0] * slots
        #: Rows are faulted in by blocks, of which a slot holds a whole number.
        self._block_rows = math.gcd(slot_rows, 1 << max(0, (_BLOCK_BYTES // self._row_bytes).bit_length() - 1))
        self._is_in = np.zeros(slots * slot_rows // self._block_rows, dtype=bool)
        memory = memoryview((ctypes.c_ubyte * self._bytes).from_address(self._address)).cast("B")
        #: [slots × rows of a slot, *shape].
        self.rows: npt.NDArray[Any] = np.frombuffer(memory, dtype).reshape(-1, *shape)

    @classmethod
    def reserve(cls, slots: int, piece_rows: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> "Grid | None":
        """Reserves addresses for pieces of at most `piece_rows` rows; None where there are not so many, or no bytes."""
        row_bytes = dtype.itemsize * math.prod(shape)
        if row_bytes == 0 or piece_rows == 0:
            return None
        step = mmap.PAGESIZE // math.gcd(mmap.PAGESIZE, row_bytes)
        slot_rows = -(-piece_rows // step) * step
        size = slots * slot_rows * row_bytes + _HUGE_PAGE_BYTES
        if size > _LARGEST_BYTES:
            return None
        address = libc.mmap(None, size, _PROT_NONE, _RESERVED, -1, 0)
        return None if address == MAP_FAILED else cls((address, size), slots, slot_rows, dtype, shape)

    @staticmethod
    def takes(offset: int) -> bool:
        """Whether a piece at this offset of its file can be mapped in line with the rows."""
        return offset % mmap.PAGESIZE == 0

    def slot(self, rows: int) -> int | None:
        """A free slot, taken by this for a piece of so many rows; None where all are taken."""
        if not self._free:
            return None
        slot = self._free.pop()
        self._stop[slot] = self.address(slot) + rows * self._row_bytes
        return slot

    def address(self, slot: int) -> int:
        """Where to map a slot's piece."""
        return self._address + self.first_row(slot) * self._row_bytes

    def first_row(self, slot: int) -> int:
        """The row of the grid at which a slot's piece begins."""
        return slot * self._slot_rows

    def populate(self, rows: npt.NDArray[np.int64]) -> tuple[int, int] | None:
        """Faults these rows in, and some beside them. Where the disk fails: the slot, and the error number."""
        blocks = rows // self._block_rows
        is_in = self._is_in[blocks]
        if is_in.all():
            return None
        block_bytes = self._block_rows * self._row_bytes
        for block in set(blocks[~is_in].tolist()):
            start = self._address + block * block_bytes
            slot = block * self._block_rows // self._slot_rows
            code = populate(start, min(start + block_bytes, self._stop[slot]))
            if code:
                return slot, code
            self._is_in[block] = True
        return None

    def vacate(self, slot: int) -> None:
        """Puts the reservation back in place of the slot's piece."""
        blocks = self._slot_rows // self._block_rows
        self._is_in[slot * blocks : (slot + 1) * blocks] = False
        libc.mmap(self.address(slot), self._slot_rows * self._row_bytes, _PROT_NONE, _RESERVED | _MAP_FIXED, -1, 0)
        self._free.append(slot)

    def close(self) -> None:
        """Gives the addresses back. No view of the grid may be used after this."""
        if self._bytes:
            self.rows = np.empty(0, self.rows.dtype)
            libc.munmap(*self._reserved)
            self._bytes = 0
