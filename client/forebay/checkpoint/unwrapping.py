"""torch's `CheckpointException` is a BaseException that holds one error per rank (T15): here it becomes one of ours."""

from torch.distributed.checkpoint.api import CheckpointException

from forebay_core.errors import CheckpointError, ForebayError


def unwrapped(error: CheckpointException) -> ForebayError:
    """Of the lowest rank's own error: the same class on every rank, with the rank in the message."""
    failures = [(rank, failure[0]) for rank, failure in sorted(error.failures.items())]
    ours = [(rank, cause) for rank, cause in failures if isinstance(cause, ForebayError)]
    rank, cause = (ours or failures)[0]
    if isinstance(cause, ForebayError):
        return type(cause)(f"rank {rank}: {cause}")
    return CheckpointError(f"rank {rank}: {type(cause).__name__}: {cause}")
