"""What a step hands to each rank: sample ids, and the shards and rows where they lie (pure).

Rows count within a shard, over all its pieces.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from forebay.order import EpochOrder, Split, Step
from forebay.order.lanes import Int64
from forebay_core.errors import ConfigurationError
from forebay_core.manifest import Manifest


@dataclass(frozen=True)
class Found:
    """A step of an epoch."""

    epoch: int
    start: int
    """The position from which steps are counted: 0, or where a run was resumed."""
    number: int
    steps: int
    """Steps from `start` to the end of the epoch."""
    step: Step


@dataclass(frozen=True)
class RankBatch:
    """What one rank gets, in the order in which it is handed out. int64[samples] each."""

    rank: int
    position: Int64
    sample_id: Int64
    shard: Int64
    """The number of the shard among the manifest's objects."""
    row: Int64
    is_pad: npt.NDArray[np.bool_]


def find_step(samples: int, split: Split, *, epoch: int, start: int, number: int) -> Found:
    """The step of that number, counted from 0 at a position. Costs the same for any number.

    Raises `ConfigurationError` where the epoch ends before, saying how many steps there are.
    """
    if start > samples:
        raise ConfigurationError(f"position {start} is beyond the dataset's {samples} samples")
    steps = split.steps(samples, start)
    if number >= steps:
        numbered = f", numbered from 0 to {steps - 1}" if steps else ""
        raise ConfigurationError(
            f"there is no step {number}: epoch {epoch} has {steps} steps of {split.global_batch} samples "
            f"from position {start} on{numbered}"
        )
    step = split.nth(samples, number, start)
    assert step is not None
    return Found(epoch, start, number, steps, step)


def rank_batches(
    manifest: Manifest, epoch: EpochOrder, found: Found, split: Split, ranks: Sequence[int]
) -> list[RankBatch]:
    """What these ranks get in a step."""
    return [_rank_batch(manifest, epoch, found.step.position, split, rank) for rank in ranks]


def as_json(manifest: Manifest, batches: Sequence[RankBatch]) -> list[dict[str, Any]]:
    """Every sample of every rank, as JSON values."""
    shards = np.unique(np.concatenate([batch.shard for batch in batches])).tolist()
    urls = {shard: manifest.object_url(shard) for shard in shards}
    return [{"rank": batch.rank, "samples": _samples(batch, urls)} for batch in batches]


def _samples(batch: RankBatch, urls: dict[int, str]) -> list[dict[str, Any]]:
    columns = (batch.position, batch.sample_id, batch.shard, batch.row, batch.is_pad)
    return [
        {"position": position, "sample_id": sample_id, "shard": urls[shard], "row": row, "is_pad": is_pad}
        for position, sample_id, shard, row, is_pad in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _rank_batch(manifest: Manifest, epoch: EpochOrder, position: int, split: Split, rank: int) -> RankBatch:
    plan = epoch.plan(position, 1, split=split, rank=rank)
    shard = manifest.piece_object[plan.piece]
    first_piece = np.searchsorted(manifest.piece_object, shard)
    row = plan.sample_id - manifest.row_start[first_piece]
    return RankBatch(rank, plan.position, plan.sample_id, shard, row, plan.is_pad)
