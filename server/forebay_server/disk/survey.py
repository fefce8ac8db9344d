"""A cache directory read through: what is whole in it, and what an earlier daemon left in the middle of its work.

Once at start, and again when a disk comes back; on a thread, while pieces come and go. What came since this daemon
began is nobody's leaving.
"""

import logging
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress

from forebay_core.node_layout import ERROR_SUFFIX
from forebay_server.disk.cache_disk import KEY, CacheDisk
from forebay_server.disk.entry import Entry
from forebay_server.disk.root import TEMP_NAME
from forebay_server.disk.tree import names_in, unlink

_log = logging.getLogger(__name__)
_PIECE_NAME = re.compile(rf"{KEY.pattern}(\.json|{re.escape(ERROR_SUFFIX)})?")


def survey(disk: CacheDisk, known: Mapping[str, Entry]) -> list[Entry]:
    """All whole pieces, from their files; those that are as `known` says are taken at its word.

    Removes what an earlier daemon left in the middle of its work: temp files, errors, and halves of pieces.
    """
    for name in names_in(disk.tree.tmp):
        if TEMP_NAME.fullmatch(name) and not name.startswith(disk.tree.token):
            _sweep(disk, name, disk.tree.tmp)
    whole: list[Entry] = []
    began = time.monotonic()
    for directory, names in disk.tree.prefixes():
        time.sleep(time.monotonic() - began)  # as long as it worked: others want the interpreter too
        began = time.monotonic()
        pairs = {name for name in names if f"{name}.json" in names and KEY.fullmatch(name)}
        found = {key: entry for key in pairs if (entry := _known_or_read(disk, key, directory, known)) is not None}
        whole += found.values()
        for name in names:
            if _PIECE_NAME.fullmatch(name) and _is_left_over(disk, name, found, directory):
                _sweep(disk, name, directory)
    return whole


def _sweep(disk: CacheDisk, name: str, directory: int) -> None:
    try:
        unlink(name, directory)
    except OSError as error:
        _log.warning("what an earlier daemon left in %s stays there: %s: %s", disk.root, name, error)


def _is_left_over(disk: CacheDisk, name: str, whole: Mapping[str, Entry], directory: int) -> bool:
    if not name.endswith(ERROR_SUFFIX) and name.removesuffix(".json") in whole:
        return False
    return _is_older(disk, name, directory)


def _is_older(disk: CacheDisk, name: str, directory: int) -> bool:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False).st_ctime_ns < disk.started_ns
    except FileNotFoundError:
        return False


def _known_or_read(disk: CacheDisk, key: str, directory: int, known: Mapping[str, Entry]) -> Entry | None:
    entry = known.get(key)
    if entry is not None:
        with suppress(OSError):
            if entry.is_of(os.stat(key, dir_fd=directory, follow_symlinks=False)):
                return entry
    return disk.read_entry(key, directory)
