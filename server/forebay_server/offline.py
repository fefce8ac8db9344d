"""`python -m forebay_server.offline`: verifies a cache directory that no daemon holds (`forebay verify --cache-dir`).

Prints one JSON object a line: steps of `verification`, or at the end `{"error", "message"}`. Exit status: 0 when it ran
to its end, 2 for a directory that cannot be verified, 1 for another failure.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from forebay_core.errors import AlreadyRunning, ConfigurationError, ForebayError, one_line
from forebay_core.node_layout import DISK_ID_FILE
from forebay_server.disk.cache_disk import CacheDisk
from forebay_server.operations.verification import verify_directory


def main(arguments: Sequence[str] | None = None) -> int:
    """Verifies and returns the exit status."""
    parser = argparse.ArgumentParser(prog="forebay_server.offline")
    parser.add_argument("--cache-dir", type=Path, required=True)
    parser.add_argument("--repair", action="store_true")
    given = parser.parse_args(arguments)
    try:
        _verify(given.cache_dir, repair=given.repair)
    except ForebayError as error:
        print(json.dumps({"error": type(error).__name__, "message": one_line(error)}), flush=True)
        return 2 if isinstance(error, ConfigurationError) else 1
    return 0


def _verify(root: Path, *, repair: bool) -> None:
    if not (root / DISK_ID_FILE).is_file():
        raise ConfigurationError(f"{root} is no cache directory: it has no file {DISK_ID_FILE!r} (--cache-dir)")
    try:
        disk = CacheDisk.claim(root)
    except AlreadyRunning as error:
        raise AlreadyRunning(f"{error}; or leave out --cache-dir, so that it verifies what it holds") from None
    try:
        for step in verify_directory(disk, repair=repair, clock=time.monotonic):
            print(json.dumps(asdict(step)), flush=True)
    finally:
        disk.close()


if __name__ == "__main__":
    sys.exit(main())
