"""How fast a cache disk takes bytes and gives them back.

A file without a name is written in large blocks and synced, its pages are dropped from memory, and it is read. It is
gone when it is closed, also when this process is killed. Blocks; on a thread.
"""

import os
import tempfile
import time
from pathlib import Path

from forebay_core.diagnosis import MeasurementFacts

_BLOCK = 8 << 20
#: Of what is free on the disk, at most this part is written.
_SHARE = 4


def measure_disk(disk_id: str, root: Path, seconds: float, most_bytes: int) -> list[MeasurementFacts]:
    """The measurements "write" and "read"; what fails is a measurement with an error."""
    try:
        with tempfile.TemporaryFile(dir=root, buffering=0) as file:
            written = _write(file.fileno(), seconds, min(most_bytes, _free_bytes(file.fileno()) // _SHARE))
            read = _read(file.fileno(), seconds)
    except OSError as error:
        reason = error.strerror or str(error)
        return [MeasurementFacts("write", disk_id, error=type(error).__name__, message=f"{root}: {reason}")]
    return [
        MeasurementFacts(what, disk_id, bytes=moved, seconds=took)
        for what, (moved, took) in (("write", written), ("read", read))
        if moved
    ]


def _free_bytes(descriptor: int) -> int:
    found = os.fstatvfs(descriptor)
    return found.f_bavail * found.f_frsize


def _write(descriptor: int, seconds: float, most_bytes: int) -> tuple[int, float]:
    block = memoryview(os.urandom(_BLOCK))
    written, begun = 0, time.monotonic()
    while written < most_bytes and time.monotonic() - begun < seconds:
        written += os.write(descriptor, block[: min(_BLOCK, most_bytes - written)])
    os.fsync(descriptor)
    return written, time.monotonic() - begun


def _read(descriptor: int, seconds: float) -> tuple[int, float]:
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    buffer = bytearray(_BLOCK)
    read, begun = 0, time.monotonic()
    while time.monotonic() - begun < seconds and (count := os.preadv(descriptor, [buffer], read)):
        read += count
    return read, time.monotonic() - begun
