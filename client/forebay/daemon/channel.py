"""The process's gRPC channels to daemons, one per socket, opened on the first call and closed around every fork.

gRPC does not survive a fork with an open channel: children hang or get errors. So before a fork, on the thread that
forks, new calls are held back, calls in flight get `DRAIN_SECONDS` to end and are then cancelled by closing their
channel, and the fork happens with no channel open. Both processes open channels again when they next call; a call that
was cancelled so is made again by `call` itself, so callers see nothing of it. Four things were found by trying:

* When the last channel of a process closes, gRPC shuts itself down on a thread of its own, under a global lock that a
  child may inherit locked. One channel that never connects ("keeper") keeps gRPC alive in each process that calls.
* gRPC's own hooks (`GRPC_ENABLE_FORK_SUPPORT=1`) stop its threads, and calls in flight then never end. Ours must run
  first: hooks before a fork run in reverse order, so ours are registered after gRPC has registered its own.
* Channels share connections process-wide unless told otherwise, and a child shuts down those that it inherited: the
  parent's new channel must not pick up the connection of the one just closed.
* With `GRPC_ENABLE_FORK_SUPPORT=0` a child that calls hangs whatever is done here: it gets an error instead.

`call` may be used from any thread. It imports gRPC: a process that never calls never loads it. Every failure is an
error of `forebay_core.errors`.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from forebay.daemon.reaching import unreachable, unreachable_reason
from forebay_core.errors import DaemonError, DaemonUnavailable, ForebayError, InternalError, by_name
from forebay_core.node_layout import ERROR_KEY

if TYPE_CHECKING:
    import grpc
    from google.protobuf.message import Message

DRAIN_SECONDS = 1.0
_LOOK_SECONDS = 0.1
_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    # The list of many checkpoints with many ranks, and the ledger of a long run, are longer than the usual 4 MiB.
    ("grpc.max_receive_message_length", -1),
)
Reply = TypeVar("Reply", bound="Message")
Answer = TypeVar("Answer")


class Forked(Exception):
    """The call was cancelled because this process forked."""


class Channels:
    """The open channels of one process. `condition` guards all fields; it is held by the forking thread during a fork.

    The condition's lock is re-entrant, so a signal handler that forks inside a call's bookkeeping does not deadlock.
    """

    def __init__(self) -> None:
        self.condition = threading.Condition(threading.RLock())
        self.used = False
        self._open: dict[Path, grpc.Channel] = {}
        self._in_flight = 0
        self._forking = 0
        self._generation = 0

    @contextmanager
    def channel(self, socket: Path) -> Iterator["grpc.Channel"]:
        """The channel to the socket, for one call; a failure of the body after a fork becomes `Forked`."""
        with self.condition:
            self.condition.wait_for(lambda: not self._forking)
            channel = self._open.get(socket) or self._connect(socket)
            generation = self._generation
            self._in_flight += 1
        try:
            yield channel
        except Exception as error:
            if generation != self._generation:
                raise Forked from error
            raise
        finally:
            with self.condition:
                self._in_flight -= 1
                self.condition.notify_all()

    def _connect(self, socket: Path) -> "grpc.Channel":
        import grpc

        if not self.used:
            _process.prepare()
        self.used = True
        channel = grpc.insecure_channel(f"unix:{socket}", options=_OPTIONS)
        self._open[socket] = channel
        return channel

    def before_fork(self) -> None:
        """Closes every channel and keeps new calls out until `after_fork`; several threads may fork at once."""
        self.condition.acquire()
        self._forking += 1
        self.condition.wait_for(lambda: self._in_flight == 0, DRAIN_SECONDS)
        self._generation += 1
        for channel in self._open.values():
            channel.close()
        self._open.clear()
        self.condition.wait_for(lambda: self._in_flight == 0, DRAIN_SECONDS)

    def after_fork(self) -> None:
        """Lets calls in again, in the process that forked."""
        self._forking -= 1
        self.condition.notify_all()
        self.condition.release()


class _Process:
    """This process's channels, and whether an ancestor made calls before it forked."""

    def __init__(self) -> None:
        self.channels = Channels()
        self.ancestor_used = False
        self._keepers: list[grpc.Channel] = []
        self._registered = False
        os.register_at_fork(after_in_child=self._after_fork_in_child)

    def prepare(self) -> None:
        """Keeps gRPC alive in this process; registers what closes channels before a fork after gRPC's own hooks."""
        import grpc

        self._keepers.append(grpc.insecure_channel("unix:/"))
        if not self._registered:
            self._registered = True
            os.register_at_fork(before=self._before_fork, after_in_parent=self._after_fork_in_parent)

    def _before_fork(self) -> None:
        self.channels.before_fork()

    def _after_fork_in_parent(self) -> None:
        self.channels.after_fork()

    def _after_fork_in_child(self) -> None:
        self.ancestor_used |= self.channels.used
        self.channels = Channels()


_process = _Process()


def fork_is_safe() -> bool:
    """Whether a child forked from a process that calls daemons can call them too; spawned ones always can."""
    return os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "").strip().lower() not in ("0", "false", "no", "off")


def call(
    socket: Path, method: str, request: "Message", reply: type[Reply], *, timeout_seconds: float | None = None
) -> Reply:
    """One unary call of the daemon's service; `timeout_seconds` bounds each try.

    Raises `DaemonUnavailable` when there is no answer (it may be tried again), else the error that the daemon raised.
    """

    def run(channel: "grpc.Channel") -> Reply:
        bound = channel.unary_unary(
            _path(method), request_serializer=type(request).SerializeToString, response_deserializer=reply.FromString
        )
        answer: Reply = bound(request, timeout=timeout_seconds)
        return answer

    return _run(socket, run)


def stream(
    socket: Path,
    method: str,
    requests: Sequence["Message"],
    reply: type[Reply],
    *,
    timeout_seconds: float | None = None,
) -> Reply:
    """Like `call`, with a stream of at least one request."""

    def run(channel: "grpc.Channel") -> Reply:
        bound = channel.stream_unary(
            _path(method),
            request_serializer=type(requests[0]).SerializeToString,
            response_deserializer=reply.FromString,
        )
        answer: Reply = bound(iter(requests), timeout=timeout_seconds)
        return answer

    return _run(socket, run)


def answers(
    socket: Path, method: str, request: "Message", reply: type[Reply], *, timeout_seconds: float | None = None
) -> Iterator[Reply]:
    """The stream of replies to one request, as they come; `timeout_seconds` bounds it as a whole. Not across a fork."""
    _refuse_unsafe_child()
    import grpc

    try:
        with _process.channels.channel(socket) as channel:
            bound = channel.unary_stream(
                _path(method),
                request_serializer=type(request).SerializeToString,
                response_deserializer=reply.FromString,
            )
            replies = bound(request, timeout=timeout_seconds)
            try:
                yield from replies
            finally:
                replies.cancel()  # type: ignore[no-untyped-call]
    except Forked:
        raise DaemonUnavailable("a fork of this process cut off what the daemon had to say; ask again") from None
    except grpc.RpcError as error:
        raise translate(error, socket) from None


def receive(
    socket: Path,
    method: str,
    request: "Message",
    reply: type[Reply],
    consume: Callable[[Iterator[Reply]], Answer],
    *,
    is_ended: Callable[[], bool],
    stall_seconds: float,
) -> Answer:
    """One call with a stream of answers, which `consume` takes; from the begin again after a fork.

    It is cancelled once `is_ended`, and where no answer comes for so long. Raises as `call` does.
    """

    def run(channel: "grpc.Channel") -> Answer:
        bound = channel.unary_stream(
            _path(method), request_serializer=type(request).SerializeToString, response_deserializer=reply.FromString
        )
        answers: Any = bound(request)
        watch = _Watch(answers.cancel, is_ended, stall_seconds)
        try:
            return consume(watch.seen(answers))
        finally:
            watch.end()
            answers.cancel()

    return _run(socket, run)


class _Watch:
    """Cancels a stream that says nothing any more, or that nobody wants any more, on a thread of its own."""

    def __init__(self, cancel: Callable[[], object], is_ended: Callable[[], bool], stall_seconds: float) -> None:
        self._cancel, self._is_ended, self._stall_seconds = cancel, is_ended, stall_seconds
        self._heard = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="forebay-stream-watch", daemon=True)
        self._thread.start()

    def seen(self, answers: Iterator[Reply]) -> Iterator[Reply]:
        """The answers, noted as they come."""
        for answer in answers:
            self._heard = time.monotonic()
            yield answer

    def end(self) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(_LOOK_SECONDS):
            if self._is_ended() or time.monotonic() - self._heard > self._stall_seconds:
                self._cancel()
                return


def _path(method: str) -> str:
    """Of a method of the trainers' service, of another as `Service/Method`, or of any as `package.Service/Method`."""
    service, _, name = method.rpartition("/")
    if "." in service:
        return f"/{method}"
    return f"/forebay.v1.{service or 'DaemonService'}/{name}"


def _refuse_unsafe_child() -> None:
    if _process.ancestor_used and not fork_is_safe():
        raise DaemonError(
            "this process was forked from one that had called the daemon, and GRPC_ENABLE_FORK_SUPPORT=0 makes that "
            "hang; unset it, or start processes with forkserver or spawn"
        )


def _run(socket: Path, attempt: Callable[["grpc.Channel"], Answer]) -> Answer:
    _refuse_unsafe_child()
    import grpc

    while True:
        try:
            with _process.channels.channel(socket) as channel:
                return attempt(channel)
        except Forked:
            continue
        except grpc.RpcError as error:
            raise translate(error, socket) from None


def translate(error: Any, socket: Path) -> ForebayError:
    """The error that a failed call stands for: the daemon's own class where it named one."""
    details = " ".join(str(error.details() or "").split())
    for key, value in error.trailing_metadata() or ():
        if key == ERROR_KEY:
            return by_name(value if isinstance(value, str) else value.decode())(details)
    return _by_status(error.code().name, details, socket)


def _by_status(status: str, details: str, socket: Path) -> ForebayError:
    if status in ("UNAVAILABLE", "CANCELLED", "ABORTED"):
        silent = DaemonUnavailable(f"no answer from the daemon at {socket} ({details or status})")
        return unreachable(socket, unreachable_reason(socket)) or silent
    if status == "RESOURCE_EXHAUSTED" and "Concurrent RPC limit" in details:
        return DaemonUnavailable(f"the daemon at {socket} has as many calls at once as it takes; try again")
    if status == "DEADLINE_EXCEEDED":
        error = DaemonUnavailable(f"the daemon at {socket} took too long to answer; its log says what it does")
        error.is_silent = True
        return error
    if status == "UNIMPLEMENTED":
        return DaemonError(f"the daemon at {socket} is of another version than this client ({details}); restart it")
    return InternalError(f"the daemon at {socket} failed: {details or status}; its log has the details")
