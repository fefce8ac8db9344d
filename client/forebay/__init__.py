"""forebay keeps GPUs fed and restarts exact.

The public names are those in `__all__`. Importing this package loads neither torch nor mlflow nor grpc: a name that
needs one of them loads it when it is first used.
"""

from importlib import import_module
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

from forebay.keys import IS_PAD, POSITION, SAMPLE_ID, SOURCE
from forebay_core.errors import (
    AccessDenied,
    BadObject,
    CapacityError,
    CheckpointDamaged,
    CheckpointError,
    CheckpointFenced,
    CheckpointNotFound,
    ColumnNotFound,
    ConfigurationError,
    DaemonError,
    DaemonUnavailable,
    EmptyDataset,
    ForebayError,
    InternalError,
    ObjectChanged,
    SampleError,
    SourceError,
    SourceNotFound,
    SourceUnreachable,
    StagingFull,
    StateError,
    StateMismatch,
    UnknownScheme,
    WorkerError,
)

if TYPE_CHECKING:
    from forebay.checkpoint.checkpointer import Checkpointer
    from forebay.checkpoint.reader import CheckpointReader
    from forebay.checkpoint.writer import NvmeStagingWriter
    from forebay.dataset import StreamingDataset
    from forebay.loader import DataLoader
    from forebay.mixture import Mixture
    from forebay.order import Buckets, OrderOptions
    from forebay.sampling import sample_rng
    from forebay.skipping import SkippedSample
    from forebay.timing import BatchTiming
    from forebay_core.formats import Packing, Parquet, Tokens

__all__ = [
    "IS_PAD",
    "POSITION",
    "SAMPLE_ID",
    "SOURCE",
    "AccessDenied",
    "BadObject",
    "BatchTiming",
    "Buckets",
    "CapacityError",
    "CheckpointDamaged",
    "CheckpointError",
    "CheckpointFenced",
    "CheckpointNotFound",
    "CheckpointReader",
    "Checkpointer",
    "ColumnNotFound",
    "ConfigurationError",
    "DaemonError",
    "DaemonUnavailable",
    "DataLoader",
    "EmptyDataset",
    "ForebayError",
    "InternalError",
    "Mixture",
    "NvmeStagingWriter",
    "ObjectChanged",
    "OrderOptions",
    "Packing",
    "Parquet",
    "SampleError",
    "SkippedSample",
    "SourceError",
    "SourceNotFound",
    "SourceUnreachable",
    "StagingFull",
    "StateError",
    "StateMismatch",
    "StreamingDataset",
    "Tokens",
    "UnknownScheme",
    "WorkerError",
    "__version__",
    "sample_rng",
]

__version__ = _version("forebay")

_LAZY = {
    "BatchTiming": "forebay.timing",
    "Buckets": "forebay.order",
    "Checkpointer": "forebay.checkpoint.checkpointer",
    "CheckpointReader": "forebay.checkpoint.reader",
    "DataLoader": "forebay.loader",
    "Mixture": "forebay.mixture",
    "NvmeStagingWriter": "forebay.checkpoint.writer",
    "OrderOptions": "forebay.order",
    "Packing": "forebay_core.formats",
    "Parquet": "forebay_core.formats",
    "SkippedSample": "forebay.skipping",
    "StreamingDataset": "forebay.dataset",
    "Tokens": "forebay_core.formats",
    "sample_rng": "forebay.sampling",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'forebay' has no attribute {name!r}")
    try:
        module = import_module(_LAZY[name])
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(f"forebay.{name} needs torch: pip install 'forebay[torch]'") from error
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
