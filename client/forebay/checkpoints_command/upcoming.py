"""What a restored checkpoint reads next: shards, rows and samples of the step after its position (pure but for asking).

The order is worked out from the saved state and the dataset's manifest; no data is read.
"""

from dataclasses import dataclass
from typing import Any

from forebay import progress
from forebay.order_command import contents
from forebay.order_command.chosen import Choice, check
from forebay_core.manifest import Manifest


@dataclass(frozen=True)
class Upcoming:
    """The next step of all ranks, as those that saved it would read it."""

    manifest: Manifest
    found: contents.Found
    batches: list[contents.RankBatch]
    world_size: int

    def as_json(self) -> dict[str, Any]:
        """A row for each rank and shard: rows count within a shard, from `first_row` to `last_row`."""
        return {
            "epoch": self.found.epoch,
            "position": self.found.step.position,
            "after": self.found.step.after,
            "dataset": self.manifest.root,
            "shards": [row for batch in self.batches for row in self._rows(batch)],
        }

    def _rows(self, batch: contents.RankBatch) -> list[dict[str, Any]]:
        rows = []
        for shard in sorted(set(batch.shard.tolist())):
            inside = batch.row[batch.shard == shard]
            span = {"first_row": int(inside.min()), "last_row": int(inside.max()), "samples": len(inside)}
            rows.append({"rank": batch.rank, "shard": self.manifest.object_url(shard), **span})
        return rows


def upcoming(state: dict[str, Any], manifest: Manifest, world_size: int) -> Upcoming:
    """The step after the position.

    Raises `StateMismatch` for other data, `StateError` for an order of several datasets, `ConfigurationError` where the
    state says no batch size.
    """
    saved = progress.decode(state)
    choice = Choice().resumed(saved)
    split, order = choice.split(world_size), choice.order(manifest)
    check(saved, manifest, order, choice.tail)
    epoch, start = choice.place(split, order.samples, is_loaded=True)
    found = contents.find_step(order.samples, split, epoch=epoch, start=start, number=0)
    batches = contents.rank_batches(manifest, order.epoch(found.epoch), found, split, range(world_size))
    return Upcoming(manifest, found, batches, world_size)
