"""What frameworks that take loaders apart do to ours, and how they are told.

Accelerate's `prepare` rebuilds a loader around its dataset. A stream that is shared out over ranks already is then
shared out again, each rank training on 1/N of its 1/N, or is read on rank 0 alone and handed round, and nothing says
so. It leaves a loader alone that is marked as prepared, which `forebay.DataLoader` is; a dataset that it iterates all
the same finds it among its callers.
"""

import sys
from types import FrameType

from forebay_core.errors import ConfigurationError

_SHARDING = {"IterableDatasetShard.__iter__", "DataLoaderDispatcher.__iter__"}
_MODULE = "accelerate.data_loader"
_DEPTH = 16


def refuse_double_sharding(world_size: int) -> None:
    """Raises `ConfigurationError` where a share of the data is being iterated by what shares it out again."""
    if world_size == 1 or _MODULE not in sys.modules:
        return
    name = _sharding_caller(sys._getframe(1))
    if name is not None:
        raise ConfigurationError(
            f"accelerate's {name.partition('.')[0]} would share this rank's part of the data out over {world_size} "
            f"ranks again: give accelerator.prepare() a forebay.DataLoader(dataset), which it leaves as it is, instead "
            f"of torch's; or leave the loader out of prepare()"
        )


def _sharding_caller(frame: FrameType | None) -> str | None:
    for _ in range(_DEPTH):
        if frame is None:
            return None
        name = frame.f_code.co_qualname
        if name in _SHARDING and frame.f_globals.get("__name__") == _MODULE:
            return name
        frame = frame.f_back
    return None
