"""The watch of an attempt, through a daemon that is cut off, and one that must ask a store that is away."""

import threading
import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from forebay.checkpoint import attempt as attempts
from forebay.checkpoint.calling import Calls
from forebay.daemon.client import DaemonClient
from forebay_core.checkpoints.names import Attempt
from forebay_core.errors import AccessDenied, CheckpointError, DaemonUnavailable, ForebayError, SourceUnreachable
from forebay_protos.v1 import checkpoints_pb2 as pb
from forebay_protos.v1 import checkpoints_pb2_grpc, daemon_pb2, daemon_pb2_grpc
from forebay_server.rpc import errors as rpc_errors

ATTEMPT = Attempt(1, 7, "0" * 12)
ON_ITS_WAY = pb.WatchAttemptResponse(phase=pb.WatchAttemptResponse.PHASE_UPLOADING)
DURABLE = pb.WatchAttemptResponse(phase=pb.WatchAttemptResponse.PHASE_DURABLE)
AWAY = SourceUnreachable("no answer from the store")
DENIED = AccessDenied("the store refuses")
CUT = DaemonUnavailable("cut off")


class Daemon(
    checkpoints_pb2_grpc.CheckpointServiceServicer,
    daemon_pb2_grpc.DaemonServiceServicer,
):
    """Answers one watch after another as told, the last of them again and again; its store answers nothing."""

    def __init__(self, *answers: ForebayError | pb.WatchAttemptResponse) -> None:
        self._answers = list(answers)
        self.asked: list[float] = []
        self.has_asked = threading.Event()

    def WatchAttempt(
        self, request: pb.WatchAttemptRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.WatchAttemptResponse]:
        self.asked.append(time.monotonic())
        yield ON_ITS_WAY
        self.has_asked.set()
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, ForebayError):
            self._fail(context, answer)
        else:
            yield answer

    def OpenRoot(self, request: pb.OpenRootRequest, context: grpc.ServicerContext) -> pb.OpenRootResponse:
        self._fail(context, AWAY)
        raise AssertionError

    def GetStatus(
        self, request: daemon_pb2.GetStatusRequest, context: grpc.ServicerContext
    ) -> daemon_pb2.GetStatusResponse:
        return daemon_pb2.GetStatusResponse()

    def _fail(self, context: grpc.ServicerContext, error: ForebayError) -> None:
        if error is CUT:
            context.abort(grpc.StatusCode.UNAVAILABLE, "cut off")
        context.set_trailing_metadata(rpc_errors.trailing_metadata(error))
        context.abort(rpc_errors.status_of(type(error)), str(error))


@contextmanager
def serving(daemon: Daemon, socket: Path) -> Iterator[None]:
    pool = futures.ThreadPoolExecutor(8)
    server = grpc.server(pool)
    checkpoints_pb2_grpc.add_CheckpointServiceServicer_to_server(daemon, server)  # type: ignore[no-untyped-call]
    daemon_pb2_grpc.add_DaemonServiceServicer_to_server(daemon, server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()
        pool.shutdown()


def calls_to(socket: Path) -> Calls:
    return Calls(DaemonClient(str(socket), reconnect_seconds=60), "s3://bucket/a")


@pytest.mark.parametrize("cut", [[CUT], [AWAY], [DENIED]], ids=["cut off", "unreachable", "denied"])
def test_a_watch_that_is_cut_off_goes_on_while_the_store_is_away(home: Path, cut: list[ForebayError]) -> None:
    daemon = Daemon(*cut, DURABLE)
    with serving(daemon, home / "s"):
        assert attempts.watch(calls_to(home / "s"), ATTEMPT, threading.Event())
    first, second = daemon.asked
    assert second - first > 1, "a store that is away is not asked all the time"


def test_what_has_become_of_the_attempt_itself_is_raised(home: Path) -> None:
    with (
        serving(Daemon(CheckpointError("it was dropped")), home / "s"),
        pytest.raises(CheckpointError, match="dropped"),
    ):
        attempts.watch(calls_to(home / "s"), ATTEMPT, threading.Event())


@pytest.mark.parametrize("is_there", [True, False], ids=["store away", "daemon away"])
def test_a_watch_that_waits_ends_at_once_when_nobody_wants_to_know_any_more(home: Path, is_there: bool) -> None:
    daemon, is_ended, told = Daemon(AWAY if is_there else CUT), threading.Event(), []
    socket = home / "s"
    thread = threading.Thread(target=lambda: told.append(attempts.watch(calls_to(socket), ATTEMPT, is_ended)))
    with serving(daemon, socket):
        thread.start()
        assert daemon.has_asked.wait(20)
        if is_there:
            is_ended.set()
            thread.join(1.5)
    is_ended.set()
    thread.join(1.5)
    assert not thread.is_alive()
    assert told == [False]
