"""The threads beside the trainer: they end with the checkpointer, wherever a save is then, and speak on one rank."""

import threading
from collections.abc import Iterator

import pytest

from forebay.checkpoint.attempt import Passed, Work
from forebay.checkpoint.background import Background
from forebay.checkpoint.calling import Fate
from forebay.checkpoint.failures import Failures
from forebay.checkpoint.handle import Point, SaveHandle
from forebay_core.checkpoints.names import Attempt
from forebay_core.errors import CheckpointError
from tests.support.processes import eventually


class Written:
    """A writer that is done at once."""

    def write(self, work: Work) -> None:
        work.handle.reach("staged")
        work.handle.reach("local")


class Watched:
    """A daemon with which every attempt is still on its way."""

    root = "s3://bucket/a"

    def __init__(self) -> None:
        self.asked: list[Attempt] = []

    def watch(self, attempt: Attempt, is_ended: threading.Event) -> Iterator[Fate]:
        self.asked.append(attempt)
        while True:
            yield Fate()


def test_closing_in_the_moment_in_which_a_save_becomes_local_leaves_no_thread() -> None:
    is_local, may_go_on = threading.Event(), threading.Event()

    def told(handle: SaveHandle, point: Point | None) -> None:
        is_local.set()
        assert may_go_on.wait(20)

    daemon, handle = Watched(), SaveHandle(Attempt(1, 10, "0" * 12))
    background = Background(Written(), daemon, Failures("raise"), told)  # type: ignore[arg-type]
    work = Work(handle, staging=None, data=None, objects=None, supersedes=False)  # type: ignore[arg-type]
    background.begin(work)
    assert is_local.wait(20)
    going_on = threading.Timer(0.05, may_go_on.set)
    going_on.start()
    background.close()
    assert daemon.asked == [handle.attempt], "its watch has been begun before the closing was done"
    assert "forebay-upload-watch" not in {thread.name for thread in threading.enumerate()}
    going_on.join()


class Silent(Watched):
    """A daemon that says nothing, and at last that all is durable."""

    def __init__(self) -> None:
        super().__init__()
        self.may_say = threading.Event()

    def watch(self, attempt: Attempt, is_ended: threading.Event) -> Iterator[Fate]:
        assert self.may_say.wait(20)
        yield Fate(is_durable=True)


@pytest.mark.parametrize("daemon", [Watched(), Silent()], ids=["on its way", "silent"])
def test_who_waits_for_a_save_whose_checkpointer_was_closed_is_told_so_and_it_is_no_failure(
    daemon: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    failures, told = Failures("raise"), []
    background = Background(Written(), daemon, failures, lambda _, point: told.append(point))  # type: ignore[arg-type]
    handle = SaveHandle(Attempt(1, 10, "0" * 12))
    background.begin(Work(handle, staging=None, data=None, objects=None, supersedes=False))  # type: ignore[arg-type]
    handle.wait("local", 20)
    background.close()
    with pytest.raises(CheckpointError, match=r"whether step 10 is durable: .* ls s3://bucket/a say how it fares$"):
        handle.wait("durable", 0)
    if isinstance(daemon, Silent):
        daemon.may_say.set()
    eventually(lambda: "forebay-upload-watch" not in {each.name for each in threading.enumerate()}, 20, "its end")
    assert handle.durable.exception() is not None, "what was told is not taken back"
    assert handle.durable_seconds is None
    failures.poll()
    assert failures.total == 0
    assert None not in told
    assert not caplog.records


class Full(Written):
    """A writer that goes without the checkpoint."""

    def write(self, work: Work) -> None:
        raise Passed("is superseded by a newer one")


@pytest.mark.parametrize("speaks", [True, False])
def test_what_all_ranks_learn_alike_is_said_by_one_of_them(speaks: bool, caplog: pytest.LogCaptureFixture) -> None:
    handle = SaveHandle(Attempt(1, 10, "0" * 12))
    background = Background(Full(), Watched(), Failures("raise"), lambda *_: None, speaks=speaks)  # type: ignore[arg-type]
    background.begin(Work(handle, staging=None, data=None, objects=None, supersedes=False))  # type: ignore[arg-type]
    assert background.wait_free(20)
    assert str(handle.durable.exception()) == "is superseded by a newer one"
    background.close()
    assert [each.getMessage() for each in caplog.records] == ["step 10: is superseded by a newer one"] * speaks


@pytest.mark.parametrize("speaks", [True, False])
def test_that_writing_takes_long_is_said_by_one_rank_of_all(speaks: bool, caplog: pytest.LogCaptureFixture) -> None:
    may_go_on = threading.Event()

    class Slow(Written):
        def write(self, work: Work) -> None:
            assert may_go_on.wait(20)
            raise Passed("without room")

    background = Background(Slow(), Watched(), Failures("raise"), lambda *_: None, speaks=speaks)  # type: ignore[arg-type]
    handle = SaveHandle(Attempt(1, 10, "0" * 12))
    background.begin(Work(handle, staging=None, data=None, objects=None, supersedes=False))  # type: ignore[arg-type]
    assert not background.wait_free(0.02)
    assert [each.getMessage()[:36] for each in caplog.records] == ["waiting until the checkpoint of step"] * speaks
    may_go_on.set()
    assert background.wait_free(20)
    background.close()
