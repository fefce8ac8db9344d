"""What one checkpoint holds, put together from its documents (pure): the object that `show --json` prints.

Keys: `root`, `attempt`, `generation`, `step`, `state`, `reason`, `decided_unix_seconds`, `world_size`, `size_bytes`,
`where` (words), `position` (the loader's state, or null), `sample_digest`, `ranks` (a row each), `parent` (the attempt
that its generation went on from), `begun` (what the generation said of itself), `notes` (what could not be said, and
why). `next` is added where the data can be opened.
"""

from collections.abc import Mapping
from typing import Any

from forebay.checkpoint.bundle import RankData
from forebay.daemon.checkpoint_root import Checkpoint
from forebay.digest import NOTHING, SampleDigest
from forebay.order_command.chosen import find_state
from forebay_core.checkpoints.documents import Generation, RankManifest
from forebay_core.errors import CheckpointError, StateError, one_line


def document(
    root: str,
    checkpoint: Checkpoint,
    *,
    manifests: Mapping[int, RankManifest | CheckpointError],
    data: Mapping[int, RankData | CheckpointError],
    generation: Generation | None,
) -> dict[str, Any]:
    """`manifests` and `data` (positions and digests): by rank, or why one cannot be read."""
    position, notes = _position(data)
    digest, digest_notes = _digest(data)
    notes += digest_notes
    read = {rank: found for rank, found in manifests.items() if isinstance(found, RankManifest)}
    notes += [f"rank {rank}: {one_line(error)}" for rank, error in manifests.items() if isinstance(error, Exception)]
    parent = None if generation is None or generation.parent is None else generation.parent.name
    return {
        "root": root,
        "attempt": checkpoint.attempt.name,
        "generation": checkpoint.attempt.generation,
        "step": checkpoint.attempt.step,
        "state": checkpoint.state,
        "reason": checkpoint.reason,
        "decided_unix_seconds": checkpoint.decided_unix_seconds,
        "world_size": checkpoint.world_size or max((found.world_size for found in read.values()), default=0),
        "size_bytes": checkpoint.size_bytes or sum(found.size_bytes for found in read.values()),
        "where": where(checkpoint),
        "position": position,
        "sample_digest": None if digest is None else digest.encode(),
        "ranks": [_rank(found, checkpoint) for _, found in sorted(read.items())],
        "parent": parent,
        "begun": {} if generation is None else dict(generation.notes),
        "notes": notes,
    }


def where(checkpoint: Checkpoint) -> str:
    """In which places it is, in words."""
    ranks, world_size = len(checkpoint.durable_ranks), checkpoint.world_size
    words = []
    if checkpoint.is_committed:
        words.append("durable")
    elif ranks:
        words.append(f"{ranks} of {world_size or '?'} ranks at the destination")
    if checkpoint.staged_ranks:
        words.append("staged here")
    return ", ".join(words)


def ranks_to_read(checkpoint: Checkpoint) -> list[int]:
    """Of whom there is a manifest, here or at the destination."""
    known = {*checkpoint.durable_ranks, *checkpoint.staged_ranks}
    return sorted(known or (range(checkpoint.world_size) if checkpoint.is_committed else ()))


def _position(data: Mapping[int, RankData | CheckpointError]) -> tuple[dict[str, Any] | None, list[str]]:
    """That of the first rank that can be read: they are alike."""
    failures = [one_line(found) for found in data.values() if isinstance(found, CheckpointError)]
    for found in data.values():
        if isinstance(found, RankData):
            try:
                return find_state(found.loader), []
            except StateError:
                return None, ["it holds no position of a forebay loader"]
    return None, [f"the position cannot be read: {failure}" for failure in failures[:1]]


def _digest(data: Mapping[int, RankData | CheckpointError]) -> tuple[SampleDigest | None, list[str]]:
    """The sum over those who read different samples; nothing where one is missing."""
    counted: dict[int, SampleDigest] = {}
    for rank, found in data.items():
        if isinstance(found, CheckpointError):
            return None, [f"the sample digest is not known: rank {rank}: {one_line(found)}"]
        if found.digest is None:
            return None, []
        try:
            counted.setdefault(found.data_rank, SampleDigest.decode(found.digest))
        except StateError as error:
            return None, [f"the sample digest is not known: rank {rank}: {one_line(error)}"]
    return (sum(counted.values(), NOTHING) if counted else None), []


def _rank(manifest: RankManifest, checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "rank": manifest.rank,
        "files": len(manifest.files),
        "size_bytes": manifest.size_bytes,
        "is_durable": checkpoint.is_committed or manifest.rank in checkpoint.durable_ranks,
        "is_staged_here": manifest.rank in checkpoint.staged_ranks,
        "notes": dict(manifest.notes),
    }
