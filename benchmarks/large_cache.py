"""A cache of very many small pieces, made in seconds: what a daemon finds that was filled for months.

The files are as the daemon writes them (a data file and a sidecar each, and the index), but written straight to their
places. What the pieces were made of does not exist, so they can be listed, counted, verified and evicted, not leased.
"""

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import google_crc32c

from forebay_server.disk.blocks import blocks_of
from forebay_server.disk.cache_disk import CacheDisk
from forebay_server.disk.entry import Entry, Origin
from forebay_server.disk.index import Index
from forebay_server.disk.sidecar import sidecar_of


def make(root: Path, *, pieces: int = 100_000, piece_bytes: int = 1024) -> float:
    """Fills a new cache directory and returns the seconds that it took. It takes some 8 KiB of disk a piece."""
    began = time.perf_counter()
    disk = CacheDisk.claim(root)
    try:
        index = Index.open(disk.index, disk.id)
        index.put_all(_written(disk, pieces, piece_bytes))
        index.close()
    finally:
        disk.close()
    return time.perf_counter() - began


def _written(disk: CacheDisk, pieces: int, piece_bytes: int) -> Iterator[Entry]:
    for number in range(pieces):
        key = hashlib.sha256(number.to_bytes(8)).hexdigest()
        content = (hashlib.sha256(key.encode()).digest() * (piece_bytes // 32 + 1))[:piece_bytes]
        with disk.tree.of(key, create=True) as directory:
            found = _write(key, content, directory)
            entry = Entry(
                key=key,
                size=piece_bytes,
                blocks=blocks_of(found),
                inode=found.st_ino,
                crc32c=google_crc32c.value(content),
                synced=False,
                boot=disk.boot,
                modified_ns=found.st_mtime_ns,
            )
            url = f"s3://bucket/{number // 100:06d}.bin"
            origin = Origin("s3://bucket", url, "v1", 1, ("tokens",), "raw-1", number % 100)
            _write(f"{key}.json", sidecar_of(entry, origin), directory)
        yield entry


def _write(name: str, content: bytes, directory: int) -> os.stat_result:
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640, dir_fd=directory)
    try:
        os.write(descriptor, content)
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)
