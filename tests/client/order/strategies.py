"""What the order's property tests draw: datasets of odd shapes, options, and ways to share an epoch out."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from hypothesis import strategies as st

from forebay.order import (
    EpochOrder,
    Limit,
    Order,
    OrderOptions,
    Pieces,
    Selection,
    Shuffle,
    Split,
    portions,
)
from forebay.order.selection import Stage
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
    selection: Selection | None = None

    def order(self) -> Order:
        options = OrderOptions(lanes=self.lanes, window=self.window, sticky=self.sticky)
        selected = None if self.selection is None else self.selection.over(pieces_of(self.rows))
        return Order(self.rows, seed=self.seed, shuffle=self.shuffle, options=options, selected=selected)

    def engine(self) -> EpochOrder:
        return self.order().epoch(self.epoch)

    def model(self) -> list[model.Sample]:
        names = ("seed", "shuffle", "lanes", "sticky", "epoch")
        arguments: dict[str, Any] = {name: getattr(self, name) for name in names}
        return model.positions(self.rows, **arguments, window=self.order().window, chosen=self.chosen)

    @cached_property
    def chosen(self) -> list[list[int]]:
        pieces = pieces_of(self.rows)
        spec = [] if self.selection is None else self.selection.spec()
        return model.chosen(spec, self.rows, pieces.shard.tolist(), list(pieces.keys))

    @property
    def samples(self) -> int:
        return sum(map(len, self.chosen))


def pieces_of(rows: list[int]) -> Pieces:
    """Shards of 1, 2, 3, 1, 2, 3, … pieces."""
    shard = [number for number in range(len(rows)) for _ in range(number % 3 + 1)][: len(rows)]
    keys = [b"shard-%d" % number for number in range(len(rows))]
    return Pieces(np.array(rows, dtype=np.int64), np.array(shard, dtype=np.int64), keys)


@st.composite
def stages(draw: st.DrawFn) -> Stage:
    if draw(st.booleans()):
        return Limit(draw(st.integers(1, 300)))
    shares = draw(st.lists(st.integers(1, 100), min_size=1, max_size=4))
    whole = sum(shares) + draw(st.sampled_from((0, 0, 7)))
    fractions = {name: share / whole for name, share in zip("dbac", shares, strict=False)}
    made = portions(fractions, seed=draw(st.integers()), by=draw(st.sampled_from(("sample", "sample", "shard"))))
    return made[draw(st.sampled_from(sorted(made)))]


def selections() -> st.SearchStrategy[Selection]:
    return st.builds(Selection, st.lists(stages(), max_size=3).map(tuple))


def selected_cases(**sizes: int) -> st.SearchStrategy[Case]:
    """Cases of which a selection takes part; it may leave nothing."""
    return st.builds(replace, cases(**sizes), selection=selections())


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
