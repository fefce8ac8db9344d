"""What the order's property tests draw: datasets of odd shapes, options, and ways to share an epoch out."""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from forebay.order import EpochOrder, Order, OrderOptions, Shuffle, Split
from tests.client.order import model

TAILS = ("even", "drop", "pad")


@dataclass(frozen=True)
class Case:
    """An epoch of an order, and the arguments that the model takes for the same one."""

    rows: list[int]
    seed: int
    shuffle: Shuffle
    lanes: int
    window: int
    sticky: bool
    epoch: int

    def order(self) -> Order:
        options = OrderOptions(lanes=self.lanes, window=self.window, sticky=self.sticky)
        return Order(self.rows, seed=self.seed, shuffle=self.shuffle, options=options)

    def engine(self) -> EpochOrder:
        return self.order().epoch(self.epoch)

    def model(self) -> list[model.Sample]:
        arguments: dict[str, Any] = {**vars(self), "window": self.order().window}
        return model.positions(**arguments)

    @property
    def samples(self) -> int:
        return sum(self.rows)


def cases(*, smallest: int = 0, largest: int = 400) -> st.SearchStrategy[Case]:
    sizes = st.one_of(st.integers(0, 4), st.integers(0, largest // 8))
    rows = st.lists(sizes, max_size=12).filter(lambda rows: smallest <= sum(rows) <= largest)
    return st.builds(
        Case,
        rows=rows,
        seed=st.integers(),
        shuffle=st.sampled_from(("window", "window", "window", "global", False)),
        lanes=st.one_of(st.integers(1, 7), st.sampled_from((1, 8, 16, 23))),
        window=st.one_of(st.integers(1, 8), st.integers(1, 200)),
        sticky=st.booleans(),
        epoch=st.integers(0, 2**63),
    )


@st.composite
def splits(draw: st.DrawFn, *, tails: tuple[str, ...] = TAILS, largest_batch: int = 12) -> Split:
    world_size = draw(st.integers(1, 7))
    beyond = draw(st.integers(0, largest_batch * world_size))
    return Split(world_size, world_size + beyond, draw(st.sampled_from(tails)))
