"""`data/<rank>.json`: where a rank stands, beside the tensors. One encoding, read without running code (pure).

What belongs to one rank never goes through torch's checkpoints, which keep one rank's value for all (T3).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from forebay_core.errors import CheckpointDamaged, CheckpointError

VERSION = 1


@dataclass(frozen=True, slots=True)
class RankData:
    """Of one rank at the last optimizer step.

    data_rank, data_ranks: among those that read different samples. loader: its state; None without a loader.
    digest: of all samples handed out up to here, as far as this rank counts; None where it is not known.
    random: `randomness.encoded`.
    """

    step: int
    rank: int
    world_size: int
    data_rank: int
    data_ranks: int
    loader: Mapping[str, Any] | None
    digest: Mapping[str, Any] | None
    random: Mapping[str, Any]

    def encode(self) -> bytes:
        """`CheckpointError` where the loader's state is not of JSON values."""
        values = {name: getattr(self, name) for name in _FIELDS}
        try:
            return json.dumps({"version": VERSION, **values}, sort_keys=True, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise CheckpointError(
                f"the loader's state cannot be kept, it must be of JSON values ({error}): use a dataset whose state is"
            ) from error

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """`CheckpointDamaged` where it is none, `CheckpointError` for a newer version."""
        try:
            found = json.loads(content)
            version = found["version"]
            values = {name: found[name] for name in _FIELDS}
            numbers = [values[name] for name in _NUMBERS]
            if version == VERSION and any(type(number) is not int or number < 0 for number in numbers):
                raise ValueError("a number in it is none")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointDamaged(f"not a rank's position ({type(error).__name__}: {error})") from error
        if version != VERSION:
            raise CheckpointError(f"the position has version {version!r}, this forebay reads version {VERSION}")
        return cls(**values)


_NUMBERS = ("step", "rank", "world_size", "data_rank", "data_ranks")
_FIELDS = (*_NUMBERS, "loader", "digest", "random")
