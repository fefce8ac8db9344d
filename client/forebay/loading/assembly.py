"""How samples become a batch: collation, the extras that a batch carries, and the user's function over the whole.

One `Assembly` serves every kind of reader, so a batch looks the same whatever the samples come from.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from forebay.keys import EXTRAS, IS_PAD, POSITION, SAMPLE_ID, SOURCE
from forebay.loading.attempts import OnError
from forebay.loading.chunk import Chunk
from forebay.timing import Stage, StageName
from forebay_core.errors import ConfigurationError


@dataclass(frozen=True)
class Assembly:
    """Makes batches.

    collate_fn: makes a batch from a list of samples; None is torch's own.
    batch_transform: called last, with the batch and its extras; what it returns is handed out.
    extras: of `SAMPLE_ID`, `POSITION`, `IS_PAD`, `SOURCE`, added to a batch that is a dict.
    batched: False hands single samples over, one a step, each passed through `collate_fn` where there is one.
    on_error: what becomes of a sample that cannot be read, see `attempts`.

    Raises `ConfigurationError` for extras that do not exist.
    """

    collate_fn: Callable[[Any], Any] | None = None
    batch_transform: Callable[[Any], Any] | None = None
    extras: tuple[str, ...] = ()
    batched: bool = True
    on_error: OnError = "raise"

    def __post_init__(self) -> None:
        unknown = [name for name in self.extras if name not in EXTRAS]
        if unknown:
            raise ConfigurationError(f"extras={unknown!r}: a batch can carry {', '.join(EXTRAS)}")
        if self.on_error not in ("raise", "skip"):
            raise ConfigurationError(f"on_error={self.on_error!r}: give 'raise' or 'skip'")
        if self.batch_transform is not None and not callable(self.batch_transform):
            raise ConfigurationError(f"batch_transform={self.batch_transform!r} cannot be called: give a function")

    def collated(self, samples: list[Any]) -> Any:
        """The samples of a step as one batch."""
        if not self.batched:
            return samples[0] if self.collate_fn is None else self.collate_fn(samples[0])
        return default_collate(samples) if self.collate_fn is None else self.collate_fn(samples)

    def with_extras(self, batch: Any, chunk: Chunk, cut: slice) -> Any:
        """The batch of the chunk's samples `cut` with what else it should carry."""
        if not self.extras:
            return batch
        if not isinstance(batch, dict):
            raise ConfigurationError(
                f"extras={self.extras!r} need a batch that is a dict, but the transform or collate_fn gives "
                f"{type(batch).__name__}: return a dict, or leave extras out"
            )
        extras = _extras(self.extras, chunk, cut)
        return {**batch, **(extras if self.batched else {name: value[0] for name, value in extras.items()})}

    def transformed(self, batch: Any, clock: "Clock") -> Any:
        """The batch as the user's function over whole batches returns it, if there is one."""
        if self.batch_transform is None:
            return batch
        batch = self.batch_transform(batch)
        clock.lap("transform")
        return batch


def checked_extras(extras: Sequence[str]) -> tuple[str, ...]:
    """The names, if they are several: the letters of one are none."""
    if isinstance(extras, str):
        raise ConfigurationError(f"extras={extras!r} is one name: give a list, [{extras!r}]")
    return tuple(extras)


class Clock:
    """Collects the stages of a step."""

    def __init__(self) -> None:
        self._stages: list[Stage] = []
        self._at = time.monotonic()

    def lap(self, name: StageName) -> None:
        """What ran since the last lap was this stage."""
        now = time.monotonic()
        self._stages.append(Stage(name, self._at, now))
        self._at = now

    def begin(self) -> None:
        """What ran since the last lap belongs to no stage."""
        self._at = time.monotonic()

    def take(self) -> tuple[Stage, ...]:
        """The stages since the last call."""
        stages = tuple(self._stages)
        self._stages.clear()
        return stages


def _extras(names: Sequence[str], chunk: Chunk, cut: slice) -> dict[str, torch.Tensor]:
    source = np.zeros_like(chunk.sample_id) if chunk.source is None else chunk.source
    columns = {SAMPLE_ID: chunk.sample_id, POSITION: chunk.position, IS_PAD: chunk.is_pad, SOURCE: source}
    return {name: torch.from_numpy(columns[name][cut].copy()) for name in names}
