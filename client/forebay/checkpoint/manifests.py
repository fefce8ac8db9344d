"""A rank's manifest in a directory: written last, so that what it names is there."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from forebay_core.checkpoints.documents import FileRecord, RankManifest
from forebay_core.checkpoints.names import Attempt, rank_manifest
from forebay_core.errors import CheckpointDamaged

#: Of a checkpoint that was written without a checkpointer, and is no attempt of any job.
ALONE = Attempt(0, 0, "0" * 12)


def write_manifest(
    directory: Path,
    attempt: Attempt,
    rank: int,
    world_size: int,
    *,
    files: Sequence[FileRecord],
    notes: Mapping[str, Any] | None = None,
) -> RankManifest:
    """Writes `ranks/<rank>.json`, which is there whole or not at all. `OSError` on a disk that fails or is full."""
    manifest = RankManifest(attempt, rank, world_size, tuple(files), dict(notes or {}))
    place = directory / rank_manifest(rank)
    place.parent.mkdir(exist_ok=True)
    part = place.with_suffix(".part")
    part.write_bytes(manifest.encode())
    part.rename(place)
    return manifest


def read_manifests(fetch: Callable[[str], Path], where: str) -> tuple[RankManifest, ...]:
    """Those of all ranks. `CheckpointDamaged` where they are not of one checkpoint; what `fetch` raises."""
    first = _read(fetch, 0)
    found = (first, *(_read(fetch, rank) for rank in range(1, first.world_size)))
    for rank, manifest in enumerate(found):
        if (manifest.attempt, manifest.rank, manifest.world_size) != (first.attempt, rank, first.world_size):
            raise CheckpointDamaged(
                f"{where}: {rank_manifest(rank)} is of rank {manifest.rank} of {manifest.world_size} and of "
                f"{manifest.attempt.name}, {rank_manifest(0)} of {first.world_size} ranks and of {first.attempt.name}"
            )
    return found


def _read(fetch: Callable[[str], Path], rank: int) -> RankManifest:
    return RankManifest.decode(fetch(rank_manifest(rank)).read_bytes())
