"""Free memory that a machine has at hand, for what is measured to begin with.

A virtual machine's host takes back what was free for some seconds. To get it again for the page cache costs more than
to write there: who begins after the files of the turn before were removed long ago, or keeps its own, pays for that.
"""

import tempfile
from pathlib import Path

_BLOCK = bytes(8 << 20)


def touch(directory: Path, size: int) -> None:
    """Writes twice so many bytes, for files and for what is in memory meanwhile, and removes them.

    Called right before a turn is measured.
    """
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(-(-2 * size // len(_BLOCK))):
            file.write(_BLOCK)
