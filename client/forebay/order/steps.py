"""Steps: how an epoch of N positions is cut into global batches, and each of those into ranks.

A step takes the next positions, G of them but for the tail. The only inputs are N, the position, G, the world size W
and the tail, so a change of W or G in mid-epoch takes effect from the position on and on nothing else. All ranks make
the same number of steps, always. With `rem` positions left:

- `even` drops nothing: rem <= G takes all; 0 < rem - G < W takes half of it, rounded up (all of it if rem < 2 W), so
  that no rank is left empty in the last step; else G. Only where a resize left rem < W, pads fill up to W.
- `drop` drops a last step shorter than G.
- `pad` fills the last step up to G.

Pads are samples consumed before, planned again and marked; they never move the position. Pure integers, any thread.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from forebay.order.lanes import Int64
from forebay_core.errors import ConfigurationError, EmptyDataset

Tail = Literal["even", "drop", "pad"]


@dataclass(frozen=True, slots=True)
class Step:
    """One step: it takes the positions [position, position + take) and adds `pads` samples consumed before."""

    position: int
    take: int
    pads: int
    after: int
    """The position once the step is done; N if it is the epoch's last, also where the tail drops samples."""

    def rank_sizes(self, world_size: int) -> list[int]:
        """Samples of each rank, pads included; they differ by at most one, the first ranks have more."""
        base, larger = divmod(self.take + self.pads, world_size)
        return [base + (rank < larger) for rank in range(world_size)]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Consecutive steps; int64[steps] each, as in `Step`. Only the last may have pads."""

    position: Int64
    take: Int64
    pads: Int64
    after: Int64

    def __len__(self) -> int:
        return len(self.position)


@dataclass(frozen=True)
class Split:
    """How positions are shared out.

    world_size: the number of (data-parallel) ranks.
    global_batch: samples in a full step over all ranks, at least `world_size`; need not be divisible by it.
    tail: what becomes of the last samples of an epoch.

    Raises `ConfigurationError` for values that cannot work.
    """

    world_size: int
    global_batch: int
    tail: Tail = "even"

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise ConfigurationError(f"world_size={self.world_size}: give the number of ranks, 1 or more")
        if self.global_batch < self.world_size:
            raise ConfigurationError(
                f"a global batch of {self.global_batch} samples leaves some of {self.world_size} ranks without any: "
                f"give a batch size of at least 1 per rank"
            )
        if self.tail not in get_args(Tail):
            raise ConfigurationError(f"tail={self.tail!r}: give one of {', '.join(map(repr, get_args(Tail)))}")

    def check(self, samples: int) -> None:
        """Raise where a whole epoch of this many samples cannot be shared out, before training starts."""
        if samples == 0:
            raise EmptyDataset("the dataset has no samples: check its URL and that its shards have rows, or its length")
        if samples < self.world_size:
            raise ConfigurationError(
                f"the dataset's {samples} samples are fewer than the {self.world_size} ranks: "
                f"use at most {samples} ranks"
            )
        if self._take(samples) == 0:
            raise ConfigurationError(
                f"tail='drop' drops the whole epoch: the dataset's {samples} samples are fewer than the global batch "
                f"of {self.global_batch}: use a smaller batch size, or tail='even'"
            )

    def step(self, samples: int, position: int) -> Step | None:
        """The step that begins at a position, 0 <= position <= samples; None where the epoch has no further step."""
        take = self._take(samples - position)
        if take == 0:
            return None
        after = position + take
        if self._take(samples - after) == 0:
            after = samples
        return Step(position, take, self._pads(take), after)

    def full_steps(self, samples: int, position: int = 0) -> int:
        """How many steps from a position on take exactly G whatever the tail; the tail has at most two more."""
        remaining = samples - position
        kept_for_tail = self.world_size if self.tail == "even" else 0
        return max(0, remaining - kept_for_tail) // self.global_batch

    def steps(self, samples: int, position: int = 0) -> int:
        """The exact number of steps from a position to the end of its epoch, in constant time."""
        steps = self.full_steps(samples, position)
        remaining = samples - position - steps * self.global_batch
        while take := self._take(remaining):
            steps += 1
            remaining -= take
        return steps

    def nth(self, samples: int, number: int, position: int = 0) -> Step | None:
        """The step of that number, counted from 0 at a position; None beyond the epoch's last. In constant time."""
        full = min(number, self.full_steps(samples, position))
        found = self.step(samples, position + full * self.global_batch)
        for _ in range(number - full):
            if found is None:
                return None
            found = self.step(samples, found.after)
        return found

    def position_of(self, samples: int, step: int) -> int | None:
        """The position at which a step of a whole epoch begins, steps counted from 0; None beyond the last."""
        found = self.nth(samples, step)
        return None if found is None else found.position

    def schedule(self, samples: int, position: int, limit: int) -> Schedule:
        """The steps from a position on, at most `limit`, none beyond the end of the epoch."""
        full = min(limit, self.full_steps(samples, position))
        tail: list[Step] = []
        step = self.step(samples, position + full * self.global_batch)
        while step is not None and full + len(tail) < limit:
            tail.append(step)
            step = self.step(samples, step.after)
        columns = np.zeros((4, full + len(tail)), dtype=np.int64)
        columns[0, :full] = position + self.global_batch * np.arange(full)
        columns[1, :full] = self.global_batch
        columns[3] = columns[0] + columns[1]
        if tail:
            columns[:, full:] = np.array([[each.position, each.take, each.pads, each.after] for each in tail]).T
        elif full and step is None:
            columns[3, -1] = samples
        return Schedule(*columns)

    def _take(self, remaining: int) -> int:
        batch, ranks = self.global_batch, self.world_size
        if self.tail == "drop" and remaining < batch:
            return 0
        if self.tail == "even" and 0 < remaining - batch < ranks:
            return remaining if remaining < 2 * ranks else -(-remaining // 2)
        return min(remaining, batch)

    def _pads(self, take: int) -> int:
        wanted = {"even": self.world_size, "drop": 0, "pad": self.global_batch}[self.tail]
        return max(0, wanted - take)
