"""Calls against a real gRPC server: errors keep their class, and forks neither hang nor fail on either side."""

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from forebay.daemon import channel
from forebay_core import errors
from forebay_protos.v1 import daemon_pb2 as pb
from tests.support.processes import Process, eventually

FORKS = 20


@pytest.fixture
def server(home: Path) -> Iterator[Path]:
    socket, log = home / "s", home / "answering.log"
    with Process(
        [sys.executable, "-m", "tests.client.daemon.answering", str(socket)], log=log, limit_seconds=110
    ) as process:
        eventually(lambda: "serving" in process.output(), 20, f"the server to serve: {process.output()}")
        yield socket


def ask(socket: Path, url: str, seconds: float = 20) -> str:
    request = pb.OpenDatasetRequest(urls=[url])
    return channel.call(socket, "OpenDataset", request, pb.OpenDatasetResponse, timeout_seconds=seconds).dataset_id


def tree(kind: type[errors.ForebayError]) -> list[type[errors.ForebayError]]:
    return [kind, *(found for child in kind.__subclasses__() for found in tree(child))]


def test_every_error_of_the_tree_comes_back_as_itself(server: Path) -> None:
    for kind in tree(errors.ForebayError):
        with pytest.raises(errors.ForebayError) as caught:
            ask(server, f"raise:{kind.__name__}")
        assert type(caught.value) is kind
        assert str(caught.value) == "what, where, what to do"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("UNAVAILABLE", errors.DaemonUnavailable),
        ("CANCELLED", errors.DaemonUnavailable),
        ("ABORTED", errors.DaemonUnavailable),
        ("DEADLINE_EXCEEDED", errors.DaemonUnavailable),
        ("UNIMPLEMENTED", errors.DaemonError),
        ("INTERNAL", errors.InternalError),
        ("UNKNOWN", errors.InternalError),
        ("RESOURCE_EXHAUSTED", errors.InternalError),
        ("PERMISSION_DENIED", errors.InternalError),
    ],
)
def test_a_bare_status_becomes_an_error_that_names_the_socket(
    server: Path, status: str, kind: type[errors.ForebayError]
) -> None:
    with pytest.raises(errors.ForebayError, match=str(server)) as caught:
        ask(server, f"abort:{status}")
    assert type(caught.value) is kind


def test_a_call_that_takes_too_long_ends_at_its_deadline(server: Path) -> None:
    with pytest.raises(errors.DaemonUnavailable, match="too long"):
        ask(server, "sleep:30", seconds=0.2)


def test_an_answer_may_be_as_long_as_the_ledger_of_a_year(server: Path) -> None:
    assert len(ask(server, f"long:{16 << 20}")) == 16 << 20


def test_no_server_is_an_error_at_once(home: Path) -> None:
    with pytest.raises(errors.DaemonUnavailable, match=str(home / "nobody")):
        ask(home / "nobody", "x")


def forking(server: Path, home: Path, mode: str, setting: str | None) -> dict[str, list[object]]:
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    if setting is not None:
        environment["GRPC_ENABLE_FORK_SUPPORT"] = setting
    program = [sys.executable, "-W", "ignore", "-m", "tests.client.daemon.forking", str(server), mode, str(FORKS)]
    with Process(program, log=home / "forking.log", limit_seconds=100, env=environment) as process:
        result: dict[str, list[object]] = json.loads(process.check(100).splitlines()[-1])
        return result


@pytest.mark.parametrize("setting", [None, "1"])
@pytest.mark.parametrize("mode", ["idle", "busy", "silent"])
def test_twenty_forks_leave_parent_and_children_able_to_call(
    server: Path, home: Path, mode: str, setting: str | None
) -> None:
    assert forking(server, home, mode, setting) == {"children": [0] * FORKS, "failures": []}


def test_without_grpcs_fork_support_a_child_that_calls_is_told_so_and_does_not_hang(server: Path, home: Path) -> None:
    assert forking(server, home, "busy", "0") == {"children": [1] * FORKS, "failures": []}
    assert "GRPC_ENABLE_FORK_SUPPORT=0" in (home / "forking.log").read_text()


def test_without_grpcs_fork_support_children_that_do_not_call_are_fine(server: Path, home: Path) -> None:
    assert forking(server, home, "silent", "0") == {"children": [0] * FORKS, "failures": []}


def test_a_call_that_outlasts_the_patience_of_a_fork_is_made_again(server: Path, home: Path) -> None:
    answers: list[str] = []
    seconds = 2 * channel.DRAIN_SECONDS
    channels = channel.Channels()
    began = threading.Event()

    def run() -> None:
        for _ in range(2):
            try:
                with channels.channel(server) as opened:
                    began.set()
                    bound = opened.unary_unary(
                        "/forebay.v1.DaemonService/OpenDataset",
                        request_serializer=pb.OpenDatasetRequest.SerializeToString,
                        response_deserializer=pb.OpenDatasetResponse.FromString,
                    )
                    answers.append(bound(pb.OpenDatasetRequest(urls=[f"sleep:{seconds}"])).dataset_id)
                    return
            except channel.Forked:
                answers.append("forked")

    thread = threading.Thread(target=run)
    thread.start()
    assert began.wait(20)
    channels.before_fork()
    channels.after_fork()
    thread.join(20)
    channels.before_fork()
    channels.after_fork()
    assert answers == ["forked", f"sleep:{seconds}"]


def test_no_call_gets_in_while_one_of_two_threads_that_fork_at_once_still_forks(home: Path) -> None:
    channels = channel.Channels()
    happened: list[str] = []
    first_has_cancelled, first_has_forked = threading.Event(), threading.Event()

    def call_until_cancelled() -> None:
        with suppress(channel.Forked), channels.channel(home / "nobody") as opened:
            bound = opened.unary_unary(
                "/x",
                request_serializer=pb.OpenDatasetRequest.SerializeToString,
                response_deserializer=pb.OpenDatasetResponse.FromString,
            )
            bound(pb.OpenDatasetRequest(), wait_for_ready=True, timeout=20)
        first_has_cancelled.set()

    def fork_first() -> None:
        channels.before_fork()
        channels.after_fork()
        first_has_forked.set()

    def fork_second() -> None:
        channels.before_fork()
        happened.append("forked")
        channels.after_fork()

    def call() -> None:
        first_has_forked.wait(20)
        with channels.channel(home / "nobody"):
            happened.append("called")

    with channels.channel(home / "another"):  # does not end however often it is cancelled, so both forks wait for it
        threads = [threading.Thread(target=run) for run in (call_until_cancelled, fork_first, call)]
        for thread in threads:
            thread.start()
        assert first_has_cancelled.wait(20)
        threads.append(threading.Thread(target=fork_second))
        threads[-1].start()
        for thread in threads:
            thread.join(20)
    channels.before_fork()
    channels.after_fork()
    assert happened == ["forked", "called"]
