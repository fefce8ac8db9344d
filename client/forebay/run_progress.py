"""What a job tells the `forebay run` that started it, and by which marks its processes are known. Any thread.

The supervisor gives each start a directory of its own and an id in the environment. Rank 0's checkpointer puts the name
of each attempt that is committed there, in one small file, replaced whole; nothing is told where nobody supervises.
"""

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from forebay_core.checkpoints.names import Attempt, parse_attempt

DIRECTORY_VARIABLE = "FOREBAY_RUN_DIRECTORY"
ID_VARIABLE = "FOREBAY_RUN_ID"
_FILE = "committed.json"
_log = logging.getLogger("forebay")


def tell(attempt: Attempt, environment: Mapping[str, str]) -> None:
    """The attempt is committed. A directory that cannot be written is said in the log, and no error."""
    directory = environment.get(DIRECTORY_VARIABLE)
    if not directory:
        return
    file = Path(directory) / _FILE
    try:
        fresh = file.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps({"attempt": attempt.name}))
        fresh.replace(file)
    except OSError as error:
        _log.warning("forebay run is not told of %s: %s cannot be written (%s)", attempt.name, file, error.strerror)


def told(directory: Path) -> Attempt | None:
    """The attempt that was told last; None where none was."""
    try:
        return parse_attempt(str(json.loads((directory / _FILE).read_text())["attempt"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def without_marks(environment: Mapping[str, str]) -> dict[str, str]:
    """For what a job starts that belongs to the node, and outlives the job."""
    return {name: value for name, value in environment.items() if name not in (DIRECTORY_VARIABLE, ID_VARIABLE)}
