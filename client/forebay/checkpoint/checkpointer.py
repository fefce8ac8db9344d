"""`forebay.Checkpointer`: saves and restores a training job, on all of its ranks.

Everything here runs on the trainer's thread. `save` takes what must be taken before training goes on, and hands it to
the threads of `background`; the hooks on the optimizers wait for the copy. The groups are made, the root opened and the
generation claimed at the first use, all ranks together.
"""

import logging
import operator
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import cache, partial
from types import TracebackType
from typing import Any, NoReturn, Self

from forebay import run_progress
from forebay.checkpoint import exits
from forebay.checkpoint.attempt import Policy, Work
from forebay.checkpoint.cadence import Cadence
from forebay.checkpoint.calling import Calls, Keep, WhenFull
from forebay.checkpoint.failures import Failures, OnFailure
from forebay.checkpoint.group import Groups
from forebay.checkpoint.guarding import Guard
from forebay.checkpoint.handle import Point, SaveHandle
from forebay.checkpoint.hooks import StepHooks
from forebay.checkpoint.job import Job, data_of
from forebay.checkpoint.ledger import Standing
from forebay.checkpoint.objects import checked, taken
from forebay.checkpoint.parting import is_written, say_left, wait_saying
from forebay.checkpoint.place import Place, Places
from forebay.checkpoint.preemption import GRACE_SECONDS, Preemption
from forebay.checkpoint.randomness import capture
from forebay.checkpoint.reports import SaveReports
from forebay.checkpoint.restoring import Parts, Restored, Restorer
from forebay.checkpoint.site import Site, named_modules, named_optimizers
from forebay.checkpoint.staging import Staging
from forebay.checkpoint.start import Start
from forebay.checkpoint.state import TrainingState
from forebay.checkpoint.stopping import of_job
from forebay.daemon.client import DaemonClient
from forebay.digest import SampleDigest
from forebay.reporting import ReportTo
from forebay_core.checkpoints.names import MOST_STEP
from forebay_core.errors import CheckpointError, ConfigurationError

_log = logging.getLogger("forebay.checkpoint")
_WHEN_FULL = ("block", "skip", "fail")
_LEAVING_SECONDS = 30.0
#: As torch's own groups have.
TIMEOUT_SECONDS = 1800.0
_BEHIND = (
    "batches were handed out between two saves, and none of the optimizers given has stepped since before both: the "
    "position saved stays at their last step, or at the start. If something else changes the weights, give as "
    "optimizer= what does, or nothing"
)


def checked_step(step: int) -> int:
    """As a plain number. `ConfigurationError` for what is no step."""
    try:
        found = operator.index(step)
    except TypeError:
        found = -1
    if not 0 <= found <= MOST_STEP:
        raise ConfigurationError(f"save({step!r}): give a whole number from 0 to {MOST_STEP}, the step that was made")
    return found


class Checkpointer:
    """Checkpoints of a job in a root: `s3://bucket/prefix`, `file:///directory` or a path.

    ::

        with forebay.Checkpointer(root, model=model, optimizer=optimizer, loader=loader, save_every_steps=100) as saver:
            restored = saver.restore()
            for step, batch in enumerate(loader, start=restored.step + 1 if restored else 0):
                ...
                optimizer.step()
                saver.save(step)

    All ranks make one and call the same methods with the same steps.

    Args:
        model, optimizer: one, or several in a list or a dict by name. Plain, under DDP, fully_shard or HSDP.
        loader: whose position is kept: a forebay loader, or what has `state_dict()` of JSON values. The position is
            that of the last step of an optimizer given; without any, where the loader is at the save.
        objects: what else is kept, by name: schedulers, scalers, dicts. Of rank 0; JSON values and tensors.
        save_every_steps, save_every_seconds: when `save(step)` does save: at the steps that are multiples, and once the
            time has passed since the save before, by rank 0's clock. Neither: only with `force=True`.
        keep_last, keep_every_steps: how many committed checkpoints are kept, and those of which steps besides. The
            newest two always are. None: all.
        on_failure: `"raise"`: a failure in the background is raised by the next `save`, or step of the loader; a
            number: after so many in a row; `"warn"`: never, it is in the log.
        when_full: what a save does that finds no room in the node's staging directory: `"block"` waits for uploads,
            and with it the save after it; `"skip"` goes without that checkpoint; `"fail"` is a failure, as is in all
            three a checkpoint that is larger than the directory may ever hold.
        address: of the daemon, as for `StreamingDataset`.
        timeout_seconds: how long a rank waits for one that does not answer.
        report_to: as for `DataLoader`.

    Raises `ConfigurationError` for what cannot work, at once.
    """

    def __init__(
        self,
        root: str,
        *,
        model: Any,
        optimizer: Any = None,
        loader: Any = None,
        objects: Mapping[str, Any] | None = None,
        save_every_steps: int | None = None,
        save_every_seconds: float | None = None,
        keep_last: int | None = None,
        keep_every_steps: int | None = None,
        on_failure: OnFailure = "raise",
        when_full: WhenFull = "block",
        address: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        report_to: ReportTo = "auto",
    ) -> None:
        if when_full not in _WHEN_FULL:
            raise ConfigurationError(f"when_full={when_full!r}: give one of {', '.join(map(repr, _WHEN_FULL))}")
        for name, value in (("keep_last", keep_last), ("keep_every_steps", keep_every_steps)):
            if value is not None and (type(value) is not int or value < 1):
                raise ConfigurationError(f"{name}={value!r}: give a whole number, 1 or more, or None")
        if loader is not None and not callable(getattr(loader, "state_dict", None)):
            raise ConfigurationError(f"loader={loader!r}: give a forebay loader, or what has state_dict()")
        if not timeout_seconds > 0:
            raise ConfigurationError(f"timeout_seconds={timeout_seconds!r}: give a number of seconds above 0")
        self.root = str(root)
        self._cadence = Cadence(save_every_steps, save_every_seconds)
        self._policy = Policy(when_full, Keep(keep_last, keep_every_steps))
        self._failures = Failures(on_failure)
        models, optimizers = named_modules(model), named_optimizers(optimizer)
        self._parts = Parts(models, TrainingState(models, optimizers), loader, checked(objects))
        self._calls = Calls(DaemonClient(address), self.root)
        self._timeout_seconds = timeout_seconds
        self._places, self._guard = Places(loader, has_optimizers=bool(optimizers)), Guard()
        self._hooks = StepHooks(list(optimizers.values()), before=self._guard.wait, after=self._places.stepped)
        self._unwatch = loader.watch(self._asked) if hasattr(loader, "watch") else lambda: None
        self._reports = SaveReports(report_to)
        self._job: Job | None = None
        self._start: Start | None = None
        self._base: SampleDigest | None = SampleDigest()
        self._standing = Standing()
        self._last_step: int | None = None
        self._forced: list[SaveHandle] = []
        self._preemption: Preemption | None = None
        self._is_closed = False
        self._warn_once = cache(_log.warning)
        exits.opened(self)

    @property
    def generation(self) -> int | None:
        """Of this start of the job; None before it has restored or saved."""
        return None if self._start is None else self._start.generation

    @property
    def pending(self) -> list[SaveHandle]:
        """Saves that are neither durable nor failed yet, oldest first."""
        return [] if self._job is None else self._job.background.pending

    def restore(
        self, *, step: int | None = None, skip_samples: int = 0, warm_start: str | None = None
    ) -> Restored | None:
        """Goes on from the newest checkpoint, by generation and step, that is whole and undamaged; None without any.

        step: from the newest of that step instead; what is saved from now on is newer than all there is.
        skip_samples: leaves out so many samples, over all ranks, behind the position.
        warm_start: a root whose newest checkpoint's model is loaded where this one has no checkpoint; training begins
            at its beginning then, so that None is returned.

        Raises `CheckpointNotFound` for a step that there is none of, `CheckpointDamaged` where all there are are
        damaged, `CheckpointError` for one of another model, `StateMismatch` for other data.
        """
        self._check_open()
        if skip_samples and self._parts.loader is None:
            raise ConfigurationError(f"skip_samples={skip_samples}: there is no loader to skip in, give it as loader=")
        job = self._open()
        job.background.wait_free()
        restorer = Restorer(job.site, self._parts, job.ranks, skip_samples=skip_samples)
        restored = restorer.restore(step)
        notes: dict[str, Any] = {"skipped_samples": skip_samples} if restored is not None and skip_samples else {}
        if restored is None and warm_start is not None:
            notes = {"warm_start": Restorer(job.site, self._parts, job.ranks).warm_start(warm_start)}
        self._places.moved()
        self._begin(job, restored, notes)
        if restored is None:
            _log.info("generation %s begins at the beginning: %s has no checkpoint", self.generation, self.root)
            return None
        self._last_step = restored.step
        _log.info("step %d is restored (%s): generation %s goes on", restored.step, restored.source, self.generation)
        return restored

    def save(self, step: int, *, force: bool = False) -> SaveHandle | None:
        """Begins a checkpoint of the state after `step`, if one is due or it is forced; None otherwise.

        Called by all ranks after `optimizer.step()`. Returns once the module buffers and objects are copied; the rest
        is copied while training goes on, until the next optimizer step. Waits where the save before is not local yet.

        Raises a failure in the background as `on_failure` says, `CheckpointFenced` where another start of the job has
        taken over, `CheckpointError` for what cannot be kept: at once where this process is alone, else on all ranks as
        a failure in the background.
        """
        began = time.monotonic()
        self.poll()
        step = checked_step(step)
        job = self._open()
        is_due = self._is_due(job, step)
        if self._preemption is not None and self._preemption.due(step):
            self._stop(job, self._preemption, step)
        return self._save(job, step, began, force=force) if is_due or force else None

    def on_sigterm(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """From now on SIGTERM to any rank makes all of them save at one step that they agree on, and leave.

        `save(step)` of that step does not return: it saves, waits until that is durable, or local where the grace ends
        before, and raises `SystemExit` with status 143. It has to be called at every step, then. Where training fails
        meanwhile because other ranks have gone, the end of the `with` block leaves likewise.

        Called by all ranks, on the main thread.
        """
        self._check_open()
        if self._preemption is None:
            self._preemption = Preemption(of_job(), grace_seconds=grace_seconds)
        self._preemption.install()

    def poll(self) -> None:
        """Raises what has failed in the background, as `on_failure` says. `save` and the loader's steps call it."""
        self._check_open()
        self._failures.poll()

    def wait_staged(self) -> None:
        """Until the weights may be changed, where something else than `optimizer.step()` does, as in a backward."""
        self._guard.wait()

    def close(self, *, wait: Point | None = None, timeout: float | None = None) -> None:
        """Waits until what was saved is `durable`, or only `local` where a system daemon finishes it; ends everything.

        What is not durable then is said in the log, a line each. wait: until which point instead. timeout: in seconds;
        TimeoutError then. Raises what has failed. Idempotent.
        """
        if self._is_closed:
            return
        try:
            if self._job is not None:
                self._wait(self._job, wait or ("local" if self._job.site.outlives else "durable"), timeout)
            self._failures.poll()
        except BaseException as error:
            self._say_left()
            self._end(type(error).__name__)
            raise
        self._say_left()
        self._end("closed")

    def leave(self, wait_seconds: float) -> None:
        """The process ends, and nobody has called `close`: see `exits`."""
        job = self._job
        if job is not None and job.background.pending:
            if not is_written(job.background, wait_seconds):
                _log.error(
                    "the checkpoint of step %d is lost: it was not local at the exit", job.background.pending[-1].step
                )
            else:
                self._say_left()
        for failure in self._failures.unseen:
            _log.error("a checkpoint failed, and nobody was told by an exception: %s", failure)
        self._end("exit without close()")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif not self._is_closed:
            preemption = self._preemption if self._preemption is not None and self._preemption.is_wanted else None
            seconds = _LEAVING_SECONDS if preemption is None else min(_LEAVING_SECONDS, preemption.remaining_seconds)
            if self._job is not None and not self._job.background.wait_free(seconds):
                _log.error(
                    "the checkpoint being written is lost: it was not local when %s ended the job", kind.__name__
                )
            if preemption is not None and isinstance(error, Exception):
                self._preemption = None
                self._end("preempted")
                preemption.leave_at_once(error)
            self._say_left()
            self._end(kind.__name__)

    def _check_open(self) -> None:
        if self._is_closed:
            raise CheckpointError("the checkpointer is closed")

    def _asked(self) -> None:
        """The loader is asked for its next batch."""
        self.poll()
        self._places.asked()

    def _open(self) -> Job:
        if self._job is None:
            groups = Groups.make(self._timeout_seconds)
            site = Site.open(self._calls, groups)
            self._job = Job(site, self._policy, self._failures, self._told, self._parts.loader)
        self._reports.follow()
        return self._job

    def _begin(self, job: Job, restored: Restored | None, notes: Mapping[str, Any]) -> None:
        if self._start is not None:
            self._start.close("restored again")
        self._base = SampleDigest() if restored is None else restored.digest
        self._standing = Standing()
        self._start = Start.claim(job.site, restored, notes, lambda: self._standing)

    def _begin_unrestored(self, job: Job) -> None:
        if job.site.newest_generation and job.site.groups.control.rank == 0:
            _log.warning(
                "%s has checkpoints of earlier starts, and restore() was not called: this start is newer than they are",
                self.root,
            )
        self._begin(job, None, {})

    def _is_due(self, job: Job, step: int) -> bool:
        by_time = job.looking.is_due(self._cadence, step)
        return step != self._last_step and (by_time or self._cadence.is_due(step))

    def _save(self, job: Job, step: int, began: float, *, force: bool) -> SaveHandle:
        job.background.wait_free()
        self.poll()
        if self._start is None:
            self._begin_unrestored(job)
        handle = self._take(job, step, force=force)
        handle.blocked(time.monotonic() - began)
        return handle

    def _stop(self, job: Job, preemption: Preemption, step: int) -> NoReturn:
        """The last step, as SIGTERM wants it."""
        reached: Point = "local"
        with preemption.leaving_on_failure():
            handle = self._save(job, step, time.monotonic(), force=True)
            handle.wait("local")
            if job.site.leads:
                job.site.calls.expedite(handle.attempt)
            with suppress(TimeoutError):
                handle.wait("durable", preemption.remaining_seconds)
                reached = "durable"
        self._preemption = None
        self._say_left()
        self._end("preempted")
        preemption.leave(f"step {step} is saved, {reached}")

    def _take(self, job: Job, step: int, *, force: bool) -> SaveHandle:
        assert self._start is not None
        place, kept, start = self._looked_at(job)
        if self._places.is_behind and job.ranks.rank == 0:
            self._warn_once(_BEHIND)
        job.stager.release()
        handle = SaveHandle(self._start.attempt(step), position=place.loader)
        staging = start()
        self._guard.take(staging, handle)
        self._forced = [each for each in self._forced if not each.durable.done()]
        supersedes = job.is_one_node and not self._forced
        if force:
            self._forced.append(handle)
        base = self._base if job.ranks.rank == 0 else SampleDigest()
        data = data_of(place, step, job.ranks, base)
        self._standing = Standing(step, place.loader)
        self._last_step = step
        job.looking.saved()
        job.background.begin(Work(handle, staging, data, kept, supersedes))
        return handle

    def _looked_at(self, job: Job) -> tuple[Place, dict[str, Any] | None, Callable[[], Staging]]:
        """What is saved, and how its copy begins. Where this rank cannot save, the others must learn it."""
        try:
            place = self._places.now()
            collected, settings = self._parts.state.collect()
            kept = taken(self._parts.objects, settings) if job.ranks.rank == 0 else None
            return place, kept, partial(job.stager.start, collected)
        except Exception as error:
            if job.ranks.world_size == 1:
                raise
            return Place(None, None, capture()), None, partial(job.stager.start_failed, error)

    def _told(self, handle: SaveHandle, point: Point | None) -> None:
        """On one of the threads."""
        start, job = self._start, self._job
        if point == "local" or start is None or job is None:
            return
        error = None if point else handle.durable.exception()
        start.ended(handle, Standing(handle.step, handle.position, handle.digest), error)
        if point == "durable" and job.ranks.rank == 0:
            run_progress.tell(handle.attempt, os.environ)
        pending = sum(each is not handle for each in job.background.pending)
        self._reports.ended(handle, pending=pending, failures=self._failures.total)

    def _wait(self, job: Job, point: Point, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        say_once = cache(self._say_left)
        for handle in job.background.pending:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                wait_saying(handle, point, left, say_once)
            except TimeoutError:
                raise
            except CheckpointError:
                _log.debug("step %d failed while it was waited for", handle.step)

    def _say_left(self) -> None:
        """What is not durable at the end, before anything of it is taken down."""
        if self._job is not None and self._job.site.leads:
            say_left(self._calls, self._job.background.pending)

    def _end(self, reason: str) -> None:
        self._is_closed = True
        exits.closed(self)
        with ExitStack() as ending:  # all of it, last first, whatever interrupts one
            ending.callback(self._reports.close)
            if self._start is not None:
                ending.callback(self._start.close, reason)
            if self._job is not None:
                ending.callback(self._job.site.groups.close)
                ending.callback(self._job.background.close)
            if self._preemption is not None:
                ending.callback(self._preemption.close)
            ending.callback(self._unwatch)
            ending.callback(self._hooks.remove)
