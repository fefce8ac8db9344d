"""The moment at which the daemon takes responsibility for what the ranks of this node have written.

From then on nobody can change the files, and the seal is on the disk. Blocking; one thread at a time for one attempt.
"""

from collections.abc import Sequence
from dataclasses import replace

from forebay_core.checkpoints.names import MOST_RANKS
from forebay_core.errors import CheckpointError, ConfigurationError
from forebay_server.checkpoints.area import StagingArea
from forebay_server.checkpoints.inspection import inspect
from forebay_server.checkpoints.records import Seal
from forebay_server.checkpoints.staged import Staged, sealed


def check_ranks(ranks: Sequence[int], world_size: int) -> None:
    """Raises `ConfigurationError` for what cannot be the ranks of a node."""
    if not 0 < world_size <= MOST_RANKS:
        raise ConfigurationError(f"a world of {world_size} ranks: give 1 to {MOST_RANKS}")
    if not ranks or list(ranks) != sorted(set(ranks)) or ranks[-1] >= world_size:
        raise ConfigurationError(f"give the ranks of this node, ascending, each below the world size {world_size}")


def take_over(area: StagingArea, record: Seal, *, boot: str) -> Staged:
    """Looks at what was written, and writes the seal, with the size that the manifests say.

    boot: of the machine, now. Raises `CheckpointError` where not all of it is there as it should be; the ranks may
    write on then.
    """
    directory = area.directory(record.root, record.attempt)
    try:
        area.freeze(record.root, record.attempt)
        found = inspect(directory, record.attempt, record.ranks, record.world_size)
        record = replace(record, size_bytes=sum(each.manifest.size_bytes for each in found))
        contents = tuple(each.content for each in found)
        area.seal(record, contents)
    except OSError as error:
        area.thaw(record.root, record.attempt)
        raise CheckpointError(f"{record.attempt.name} cannot be sealed: {error}") from error
    except BaseException:
        area.thaw(record.root, record.attempt)
        raise
    return sealed(record, contents, boot=boot)
