"""What a file takes on a disk: bytes as blocks, its sidecar included. Pure."""

import os

_BLOCK = 4096


def blocks_of(found: os.stat_result) -> int:
    """Bytes on the disk of a data file and its sidecar. Never less than the length: some file systems allocate late."""
    return max(found.st_blocks * 512, room_for(found.st_size) - _BLOCK) + _BLOCK


def room_for(size: int) -> int:
    """Bytes on the disk that a piece of that length takes, with its sidecar, as far as one can know beforehand."""
    return -(-size // _BLOCK) * _BLOCK + _BLOCK
