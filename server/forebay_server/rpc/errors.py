"""Errors over gRPC: one status per class, and the class's name in the trailing metadata.

The map is total: a class without a row of its own takes its nearest base's. The client finds the class again by its
name (`forebay_core.errors.by_name`); the status serves tools that know gRPC only. Used by the service alone.
"""

import logging
from typing import NoReturn, Protocol
from urllib.parse import quote

import grpc

from forebay_core import errors
from forebay_core.node_layout import ERROR_KEY

#: Of a message as gRPC sends it, in a header: readers refuse headers of more than some thousand.
_MESSAGE_BYTES = 3000
STATUS: dict[type[errors.ForebayError], grpc.StatusCode] = {
    errors.ForebayError: grpc.StatusCode.UNKNOWN,
    errors.ConfigurationError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.SourceError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.UnknownScheme: grpc.StatusCode.INVALID_ARGUMENT,
    errors.SourceNotFound: grpc.StatusCode.NOT_FOUND,
    errors.AccessDenied: grpc.StatusCode.PERMISSION_DENIED,
    # Not UNAVAILABLE: clients retry that, as the daemon itself being away.
    errors.SourceUnreachable: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ObjectChanged: grpc.StatusCode.ABORTED,
    errors.BadObject: grpc.StatusCode.DATA_LOSS,
    errors.ColumnNotFound: grpc.StatusCode.INVALID_ARGUMENT,
    errors.EmptyDataset: grpc.StatusCode.FAILED_PRECONDITION,
    errors.CapacityError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.StateError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.StateMismatch: grpc.StatusCode.FAILED_PRECONDITION,
    errors.CheckpointError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.CheckpointNotFound: grpc.StatusCode.NOT_FOUND,
    errors.CheckpointDamaged: grpc.StatusCode.DATA_LOSS,
    errors.CheckpointFenced: grpc.StatusCode.ABORTED,
    errors.StagingFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.SampleError: grpc.StatusCode.DATA_LOSS,
    errors.WorkerError: grpc.StatusCode.INTERNAL,
    errors.PieceGone: grpc.StatusCode.NOT_FOUND,
    errors.DaemonError: grpc.StatusCode.INTERNAL,
    errors.DaemonUnavailable: grpc.StatusCode.UNAVAILABLE,
    errors.AlreadyRunning: grpc.StatusCode.ALREADY_EXISTS,
    errors.UnknownSession: grpc.StatusCode.NOT_FOUND,
    errors.InternalError: grpc.StatusCode.INTERNAL,
}


_log = logging.getLogger(__name__)


class Context(Protocol):
    """What of a gRPC context is used to fail a call."""

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: tuple[tuple[str, str], ...] = ()
    ) -> None: ...


async def abort(context: Context, error: Exception) -> NoReturn:
    """Ends a call with the error. One that forebay did not raise on purpose is logged, and an `InternalError`."""
    failure = error if isinstance(error, errors.ForebayError) else _internal(error)
    await context.abort(status_of(type(failure)), fitting(errors.one_line(failure)), trailing_metadata(failure))
    raise failure


def fitting(message: str) -> str:
    """The message, or its two ends where a header cannot hold it all."""
    message = message.encode(errors="replace").decode()
    if len(quote(message)) <= _MESSAGE_BYTES:
        return message
    end = next(size for size in (1000, 300, 100) if len(quote(message[:size] + message[-size:])) <= _MESSAGE_BYTES)
    return f"{message[:end]} … {message[-end:]}"


def error_fields(error: errors.ForebayError | None) -> dict[str, str]:
    """What a message says of an error: `error_class` and `error_message`; nothing where there is none."""
    if error is None:
        return {}
    return {"error_class": type(error).__name__, "error_message": errors.one_line(error)}


def _internal(error: Exception) -> errors.InternalError:
    _log.error("a call failed", exc_info=error)
    name = type(error).__name__
    return errors.InternalError(f"{name}: {errors.one_line(error)}; the daemon's log has the details")


def status_of(kind: type[errors.ForebayError]) -> grpc.StatusCode:
    """The status of a class, or of its nearest base that has one."""
    return next(STATUS[base] for base in kind.__mro__ if base in STATUS)


def trailing_metadata(error: errors.ForebayError) -> tuple[tuple[str, str], ...]:
    return ((ERROR_KEY, type(error).__name__),)
