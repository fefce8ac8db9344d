"""What a user may choose about an order, and what is taken where nothing is chosen.

Read when a dataset is made. The resolved values (lanes, window) go into every state, and a state's values win over the
defaults here, so a default may change without changing a run that has begun. No value may depend on the machine, the
world size or the number of workers: the order would follow it.
"""

import operator
from dataclasses import dataclass
from typing import Literal

from forebay_core.errors import ConfigurationError

Shuffle = Literal["window", "global", False]
"""Mixed within a sliding window over pieces, mixed over all samples whatever their pieces, or not at all."""

MAXIMUM_LANES = 4096
"""More than any useful number of nodes; plans hold a few numbers for each (step, lane)."""
MAXIMUM_WINDOW = 1 << 30
"""Offsets within two windows are kept in 32 bits, and window × 32 random bits fit into 64."""

_WINDOWED_LANES = 16
_MIXED_PIECES_PER_LANE = 4
_LEAST_MIXED_SAMPLES = 1 << 18
_MOST_MIXED_SAMPLES = 1 << 24
"""Rows so small that 4 pieces hold more would gain nothing visible, and sorting them would delay the first batch."""
_MOST_MIXED_BYTES = 4 << 30
"""What a node may have to hold at once when one node reads all lanes."""


@dataclass(frozen=True)
class OrderOptions:
    """Options of the order of a dataset. With `shuffle="global"` none of them has a meaning.

    lanes: how many equal parts of the dataset are read side by side, 1 to 4096. None: 16, or 1 with `shuffle=False`;
        a number given here also splits an unshuffled dataset. A property of the run: at least the number of nodes that
        it may ever have, so that each piece is fetched by few of them.
    window: how far a sample can move within its lane, in samples, 1 to 2**30. None: about 4 pieces, but over all lanes
        at least 2**18 samples, and at most 2**24 samples and 4 GiB of data. 1 mixes pieces, never the rows of one
        piece. Without meaning with `shuffle=False`.
    sticky: True keeps each lane's pieces over the epochs, so that a node finds its own in its cache. False draws them
        anew each epoch. Without meaning with `shuffle=False`.

    Raises `ConfigurationError` for a value outside its range.
    """

    lanes: int | None = None
    window: int | None = None
    sticky: bool = True

    def __post_init__(self) -> None:
        _check_range("lanes", self.lanes, MAXIMUM_LANES)
        _check_range("window", self.window, MAXIMUM_WINDOW)


def integer(name: str, value: int) -> int:
    """The value as an integer, from any type that is one. Raises `ConfigurationError` under this name."""
    try:
        return operator.index(value)
    except TypeError:
        raise ConfigurationError(f"{name}={value!r}: give an integer") from None


def _check_range(name: str, value: int | None, maximum: int) -> None:
    if value is None:
        return
    try:
        valid = 1 <= operator.index(value) <= maximum
    except TypeError:
        valid = False
    if not valid:
        raise ConfigurationError(f"OrderOptions({name}={value!r}): give an integer from 1 to {maximum}, or None")


def resolve_lanes(options: OrderOptions, shuffle: Shuffle) -> int:
    """The number of lanes of an order."""
    if shuffle == "global":
        return 1
    if options.lanes is not None:
        return int(options.lanes)
    return _WINDOWED_LANES if shuffle else 1


def resolve_window(window: int | None, *, samples: int, pieces: int, lanes: int, total_bytes: int) -> int:
    """The window of a shuffled order in samples, at most the longest lane and at least 1.

    `pieces` counts those with rows; `total_bytes` is the data's size as the manifest states it, 0 where it does not.
    """
    longest_lane = max(1, -(-samples // lanes))
    if window is not None:
        return min(int(window), longest_lane)
    rows_of_a_piece = -(-samples // max(1, pieces))
    mixed = max(_LEAST_MIXED_SAMPLES, _MIXED_PIECES_PER_LANE * lanes * rows_of_a_piece)
    mixed = min(mixed, _MOST_MIXED_SAMPLES)
    if total_bytes > 0 and samples > 0:
        mixed = min(mixed, _MOST_MIXED_BYTES // -(-total_bytes // samples))
    return max(1, min(mixed // lanes, longest_lane))
