"""An order as one rank reads it: what the planner, and whoever counts steps, asks.

`RankOrder` is the contract. `SharedOrder` is an `Order` that a `Split` shares out; `SharedLocated` shares out what only
says what lies at its positions: mixtures, batches of like lengths. Pure, immutable; any thread.
"""

from dataclasses import dataclass
from typing import Protocol

from forebay.order.engine import Order
from forebay.order.needs import Needs
from forebay.order.plan import RankPlan
from forebay.order.steps import Split


class RankOrder(Protocol):
    """Epochs of steps. Positions count the samples of an epoch over all ranks."""

    @property
    def samples(self) -> int:
        """The positions of an epoch."""

    @property
    def split(self) -> Split:
        """How a step is shared out."""

    @property
    def has_pieces(self) -> bool:
        """False where rows are had without any piece, so that nothing has to be leased."""

    def steps(self, position: int = 0) -> int:
        """The exact number of steps from a position to the end of its epoch."""

    def position_of(self, step: int) -> int | None:
        """The position at which a step of a whole epoch begins, steps counted from 0; None beyond the last."""

    def plan(self, epoch: int, position: int, steps: int) -> RankPlan:
        """What this rank reads in the next steps: `steps` of them, fewer where the epoch ends.

        An order may end a plan earlier where more would take long; at least one step is planned if there is any.
        """

    def needs(self, epoch: int, position: int) -> Needs:
        """Every piece that this rank may still want in the epoch, with bounds of the positions at which."""


@dataclass(frozen=True)
class SharedOrder:
    """An order, shared out over ranks."""

    order: Order
    split: Split
    rank: int

    @property
    def samples(self) -> int:
        return self.order.samples

    @property
    def has_pieces(self) -> bool:
        return self.order.has_pieces

    def steps(self, position: int = 0) -> int:
        return self.split.steps(self.samples, position)

    def position_of(self, step: int) -> int | None:
        return self.split.position_of(self.samples, step)

    def plan(self, epoch: int, position: int, steps: int) -> RankPlan:
        return self.order.epoch(epoch).plan(position, steps, split=self.split, rank=self.rank)

    def needs(self, epoch: int, position: int) -> Needs:
        return self.order.epoch(epoch).needs(position, split=self.split, rank=self.rank)


def rank_samples(order: RankOrder) -> int:
    """Samples of one rank in a full step, at most."""
    return -(-order.split.global_batch // order.split.world_size)
