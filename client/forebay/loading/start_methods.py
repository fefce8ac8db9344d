"""How worker processes are started: what the user says, or what is safe in this process.

A forked child inherits the state of native runtimes but not their threads. gRPC's channels are closed around a fork
(`forebay.daemon.channel`), which is enough unless `GRPC_ENABLE_FORK_SUPPORT=0`; Rust's tokio, on which obstore and
others run, has no such care: a child that uses it after its parent has used it hangs. Then workers start by forkserver.
"""

import logging
import multiprocessing
import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from forebay.daemon.channel import fork_is_safe
from forebay.loading.workers import OUTLIVED
from forebay_core.errors import ConfigurationError

_log = logging.getLogger("forebay")
_SETTING = "GRPC_ENABLE_FORK_SUPPORT=0"
_END_SECONDS = 5.0
_said: set[str] = set()
_one_at_a_time = threading.Lock()
"""Held while a worker is started: what is open for one must not be inherited by another."""


def check(given: Any) -> None:
    """Raises `ConfigurationError` where the user insists on fork and it cannot be safe."""
    if given is not None and _method(given) == "fork" and not fork_is_safe():
        raise ConfigurationError(
            f"multiprocessing_context='fork' with {_SETTING} makes workers hang: unset that variable, or use "
            f"multiprocessing_context='forkserver' or worker_type='thread'"
        )


def context_for(given: Any) -> BaseContext:
    """The context that workers start in: the given one, by name or as an object, else a safe one.

    Raises `ConfigurationError` as `check` does.
    """
    check(given)
    if given is not None:
        return multiprocessing.get_context(given) if isinstance(given, str) else given
    default: BaseContext = multiprocessing.get_context()
    if default.get_start_method() != "fork":
        return default
    reason = _why_not_fork()
    if reason is None:
        return default
    if reason not in _said:
        _said.add(reason)
        _log.warning(
            "workers start by forkserver, because %s; give multiprocessing_context= to choose another way", reason
        )
    return multiprocessing.get_context("forkserver")


def _why_not_fork() -> str | None:
    if not fork_is_safe():
        return f"{_SETTING} makes forked ones hang"
    if tokio_runs():
        return "this process has used obstore or another library on Rust's tokio, which hangs in forked ones"
    return None


def tokio_runs(tasks: Path = Path("/proc/self/task")) -> bool:
    """Whether this process has threads of Rust's tokio, which it has from the first call of obstore on."""
    return any(_name(task).startswith("tokio-") for task in tasks.glob("*/comm"))


def _name(task: Path) -> str:
    try:
        return task.read_text()
    except OSError:
        return ""


def _method(context: Any) -> str:
    return context if isinstance(context, str) else str(context.get_start_method())


def _run_forkserver() -> None:
    """With torch imported once, in the server, and not in every worker; unless the user has preloads of their own."""
    if forkserver._forkserver._preload_modules == ["__main__"]:  # type: ignore[attr-defined]
        forkserver.set_forkserver_preload(["__main__", "forebay.loading.workers"])
    forkserver.ensure_running()


def start(process: BaseProcess, context: BaseContext) -> None:
    """Starts `process`, which is of `context`; once more where the forkserver was killed and nobody had noticed."""
    with _one_at_a_time, _signals_held(context):
        try:
            process.start()
        except (EOFError, ConnectionError):
            if context.get_start_method() != "forkserver":
                raise
            _await_end_of_forkserver()
            process.start()


def _await_end_of_forkserver() -> None:
    """One that was killed has closed its socket before it can be seen to have ended."""
    server = os.pidfd_open(forkserver._forkserver._forkserver_pid)  # type: ignore[attr-defined]
    try:
        select.select([server], [], [], _END_SECONDS)
    finally:
        os.close(server)


@contextmanager
def _signals_held(context: BaseContext) -> Iterator[None]:
    """For starting a process: signals that would end it before it has its handlers reach it afterwards.

    A process that is started inherits the mask, and a forkserver that is first started here keeps it.
    """
    if context.get_start_method() != "fork":
        resource_tracker.ensure_running()  # it would lift the mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, OUTLIVED)
    try:
        if context.get_start_method() == "forkserver":
            _run_forkserver()
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
