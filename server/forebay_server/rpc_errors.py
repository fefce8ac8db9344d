"""Errors over gRPC: one status per class, and the class's name in the trailing metadata.

The map is total: a class without a row of its own takes its nearest base's. The client finds the class again by its
name (`forebay_core.errors.by_name`); the status serves tools that know gRPC only. Used by the service alone.
"""

import grpc

from forebay_core import errors
from forebay_core.node_layout import ERROR_KEY

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
    errors.SampleError: grpc.StatusCode.DATA_LOSS,
    errors.WorkerError: grpc.StatusCode.INTERNAL,
    errors.PieceGone: grpc.StatusCode.NOT_FOUND,
    errors.DaemonError: grpc.StatusCode.INTERNAL,
    errors.DaemonUnavailable: grpc.StatusCode.UNAVAILABLE,
    errors.AlreadyRunning: grpc.StatusCode.ALREADY_EXISTS,
    errors.UnknownSession: grpc.StatusCode.NOT_FOUND,
    errors.InternalError: grpc.StatusCode.INTERNAL,
}


def status_of(kind: type[errors.ForebayError]) -> grpc.StatusCode:
    """The status of a class, or of its nearest base that has one."""
    return next(STATUS[base] for base in kind.__mro__ if base in STATUS)


def trailing_metadata(error: errors.ForebayError) -> tuple[tuple[str, str], ...]:
    return ((ERROR_KEY, type(error).__name__),)
