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
_MIXED_PIECES = 1024
"""What counts for the mix is pieces, over all lanes, whatever their rows: of data that is stored class after class, one
class to a piece, a batch of 256 of 1000 classes then holds 0.91 of those that a permutation of all samples would give
it; with 512 pieces 0.84, with 128 pieces 0.52."""
_MIXED_PIECES_PER_LANE = 4
"""With very many lanes: so that what one of them hands out in a row is mixed too."""
_MOST_MIXED_SAMPLES = 1 << 21
"""Two windows of samples are drawn and sorted before a first batch in mid-epoch, which is a seventh of a second for so
many. Of smaller samples than 4 KB fewer pieces are mixed: of 2 KB 512, which is 0.84 of what a permutation would give.
"""
_MOST_MIXED_BYTES = 16 << 30
"""What a node may have to hold at once when one node reads all lanes, where pieces are large."""


@dataclass(frozen=True)
class OrderOptions:
    """Options of the order of a dataset. With `shuffle="global"` none of them has a meaning.

    lanes: how many equal parts of the dataset are read side by side, 1 to 4096. None: 16, or 1 with `shuffle=False`;
        a number given here also splits an unshuffled dataset. A property of the run: at least the number of nodes that
        it may ever have, so that each piece is fetched by few of them.
    window: how far a sample can move within its lane, in samples, 1 to 2**30. None: as many as 1024 pieces hold, over
        all lanes (8 GiB of pieces of the default size), 4 a lane at the least; but no more than 2**21 samples and 16
        GiB. 1 mixes pieces, never the rows of one piece. Without meaning with `shuffle=False`.
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

    The default may change from one version to the next: "window-1" names how samples are mixed within the window that a
    state records.

    `pieces` counts those with rows; `total_bytes` is the data's size as the manifest states it, 0 where it does not.
    """
    longest_lane = max(1, -(-samples // lanes))
    if window is not None:
        return min(int(window), longest_lane)
    mixed_pieces = max(_MIXED_PIECES, _MIXED_PIECES_PER_LANE * lanes)
    mixed = min(-(-mixed_pieces * samples // max(1, pieces)), _MOST_MIXED_SAMPLES)
    if total_bytes > 0 and samples > 0:
        mixed = min(mixed, _MOST_MIXED_BYTES // -(-total_bytes // samples))
    return max(1, min(mixed // lanes, longest_lane))
