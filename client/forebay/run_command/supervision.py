"""The loop of `forebay run`: start, wait, tidy up, decide, start again. On the main thread, which handles signals.

SIGTERM, SIGINT and SIGHUP are passed on to the job, which may save and leave; after one of them nothing is started any
more. The handlers only make notes and write to a pipe, on which the loop waits beside the job's own end.
"""

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any, Self

from forebay.run_command.decision import Ended, Limits, Stop, decide
from forebay.run_command.processes import Job, end_marked
from forebay.run_progress import ID_VARIABLE
from forebay_core.checkpoints.names import Attempt
from forebay_core.errors import ForebayError, one_line

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LEFTOVERS_SECONDS = 30.0
"""How long killed processes may take to go: those in a call to a file system that hangs do not."""
SAVING_SECONDS = 30.0
"""How long ranks that were told to stop may go on saving without their torchrun: where that gets SIGTERM twice, as from
a scheduler that signals every process itself, it does not wait for them."""
PROGRESS_SECONDS = 120.0
_POLL_SECONDS = 0.1


class Signals:
    """Those that came since the block began. `file` becomes readable with each."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.file, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in PASSED_ON:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.file)
        os.close(self._writer)

    def wait(self, seconds: float | None, *files: int) -> bool:
        """Until a signal comes, one of the files is readable, or so long. Says whether a signal has come by then."""
        poll = select.poll()
        for file in (self.file, *files):
            poll.register(file, select.POLLIN)
        poll.poll(None if seconds is None else 1000 * seconds)
        try:
            os.read(self.file, 4096)
        except BlockingIOError:
            return bool(self.received)
        return True

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.received.append(number)
        try:
            os.write(self._writer, b".")
        except BlockingIOError:
            return


class Supervisor:
    """Runs a command to its end.

    environment: of every start, with the mark `ID_VARIABLE`. newest: the newest attempt that is committed, None without
    one; raises a `ForebayError` where that cannot be said. say: prints a line.
    """

    def __init__(
        self,
        command: Sequence[str],
        limits: Limits,
        *,
        environment: Mapping[str, str],
        newest: Callable[[], Attempt | None],
        say: Callable[[str], None],
    ) -> None:
        self._command, self._limits, self._environment = command, limits, environment
        self._ask, self._say = newest, say
        self._newest: Attempt | None = None

    def run(self) -> int:
        """The exit status of the last start; 128 + the signal that came while none ran."""
        starts: list[Ended] = []
        with Signals() as signals:
            self._progressed(signals)
            while not signals.received:
                status = self._start(signals)
                self._tidy_up(SAVING_SECONDS if signals.received else 0.0)
                progressed = None if status == 0 or signals.received else self._progressed(signals)
                starts.append(Ended(status, progressed))
                decision = decide(self._limits, starts, told_to_stop=bool(signals.received))
                if decision.why:
                    self._say(decision.why)
                if isinstance(decision, Stop):
                    return decision.status
                signals.wait(decision.wait_seconds)
            self._say("told to stop: the job is not started again")
            return 128 + signals.received[0]

    def _start(self, signals: Signals) -> int:
        with Job(self._command, self._environment) as job:
            passed = 0
            while not _has_ended(job):
                signals.wait(None, job.file)
                for number in signals.received[passed:]:
                    job.signal(number)
                    passed += 1
            return job.status()

    def _tidy_up(self, patience_seconds: float) -> None:
        mark = self._environment[ID_VARIABLE]
        ended, left = end_marked(ID_VARIABLE, mark, LEFTOVERS_SECONDS, patience_seconds=patience_seconds)
        if ended:
            self._say(f"{ended} processes that the job has left running were killed")
        if left:
            self._say(f"{left} processes of the job do not end: they may hold devices that the next start needs")

    def _progressed(self, signals: Signals) -> bool | None:
        """Whether there is a newer commit than when this was asked last; asked aside, so that a signal is heeded."""
        answers: list[Attempt | None] = []
        failures: list[str] = []

        def ask() -> None:
            try:
                answers.append(self._ask())
            except ForebayError as error:
                failures.append(one_line(error))

        thread = threading.Thread(target=ask, name="forebay-run-progress", daemon=True)
        thread.start()
        deadline = time.monotonic() + PROGRESS_SECONDS
        while thread.is_alive() and not signals.received and time.monotonic() < deadline:
            thread.join(_POLL_SECONDS)
        if not answers:
            if not signals.received:
                self._say(f"whether the job gets on cannot be said: {' '.join(failures) or 'no answer in time'}")
            return None
        before, self._newest = self._newest, answers[0] or self._newest
        return self._newest is not None and (before is None or self._newest > before)


def _has_ended(job: Job) -> bool:
    return bool(select.select([job.file], [], [], 0)[0])
