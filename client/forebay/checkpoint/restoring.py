"""Restores a job: all ranks the same checkpoint, whole and checked, or none.

All ranks choose the same from what all nodes see. Each takes every file from its node's staging directory, else from
the destination, else waits while the node that has it uploads it first. Where one rank finds damage, all give the
checkpoint up: with a good copy at the destination those of the nodes are dropped and it is read again; then the one
before is next, and this one is marked as quarantined unless it is whole at the destination, which every byte of it is
read for: a node that damages what it reads must not take checkpoints from all others. The loader is placed first, so
that its daemon fetches what comes next while the model loads; the random states are put back last. On the trainer's
thread, over `control`.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import nn

from forebay.checkpoint import randomness
from forebay.checkpoint.contents import Contents, Files
from forebay.checkpoint.objects import check_same, put
from forebay.checkpoint.positions import Ranks, advanced, check_loader, is_same_share
from forebay.checkpoint.site import Site
from forebay.checkpoint.state import TrainingState
from forebay.daemon.checkpoint_root import Listing
from forebay.digest import SampleDigest
from forebay_core.checkpoints.candidates import Candidate, Picture, Seen, picture
from forebay_core.checkpoints.documents import State
from forebay_core.checkpoints.names import Attempt
from forebay_core.errors import (
    CheckpointDamaged,
    CheckpointNotFound,
    ConfigurationError,
    ForebayError,
    StateMismatch,
    one_line,
)

_log = logging.getLogger("forebay.checkpoint")
#: What a position of other data takes, in place of what it takes where the user has the state.
_LENIENTLY = (
    "restore() with a Checkpointer without loader=, and loader.load_state_dict(restored.position, strict=False)"
)
#: How often a checkpoint may be cleaned away from under who restores it.
_LISTINGS = 3


@dataclass(frozen=True)
class Restored:
    """What training goes on from.

    step, generation, attempt: of the checkpoint. source: "local" where all that was read was staged on its nodes.
    notes: what a person should know: damage that was passed over, other numbers of ranks, samples left out.
    digest: of all samples handed out up to here since the job began; None where it is not known.
    position: the loader's state; None without a loader.
    """

    step: int
    generation: int
    source: Literal["local", "durable"]
    attempt: str
    notes: tuple[str, ...] = ()
    digest: SampleDigest | None = None
    position: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Parts:
    """What a checkpoint is loaded into."""

    models: Mapping[str, nn.Module]
    state: TrainingState
    loader: Any
    objects: Mapping[str, Any]


class Restorer:
    """For one restore. `skip_samples`: how many the loader leaves out behind the position."""

    def __init__(self, site: Site, parts: Parts, ranks: Ranks, *, skip_samples: int = 0) -> None:
        self._site, self._parts, self._ranks, self._skip_samples = site, parts, ranks, skip_samples
        self._group = site.groups.control
        self._notes: list[str] = []

    def restore(self, step: int | None) -> Restored | None:
        """The newest, or that of a step; None where the root has none. Raises as `Checkpointer.restore` says."""
        damaged: set[Attempt] = set()
        seen, listings = self._look(), 1
        while (chosen := seen.choose(step=step, without=damaged)) is not None:
            try:
                restored = self._go_on_from(chosen)
                return restored if step is not None else self._told(restored, seen.passed_over(chosen.attempt))
            except CheckpointDamaged as error:
                self._give_up(chosen, error)
                damaged.add(chosen.attempt)
            except CheckpointNotFound as error:
                if listings == _LISTINGS:
                    raise
                self._warn("%s has gone meanwhile (%s): looking again", chosen.attempt.name, one_line(error))
                seen, listings = self._look(), listings + 1
        if seen.unfinished:
            self._warn(
                "%d checkpoints here were never finished, the last of step %d: training begins anew",
                *(len(seen.unfinished), seen.unfinished[0].step),
            )
        return None

    def warm_start(self, root: str) -> str:
        """Loads the models of another root's newest checkpoint, and nothing else; gives its name."""
        other = replace(self._site, calls=self._site.calls.of_root(root))
        self._group.together(other.calls.find_staging)  # which is all: it may be somebody else's, and only readable
        chosen = Restorer(other, self._parts, self._ranks)._look().choose(step=None, without=set())
        if chosen is None:
            raise CheckpointNotFound(f"{root} has no checkpoint to start from")
        contents: list[Contents] = []
        files = Files(other.calls, chosen.attempt)
        self._group.together(lambda: contents.append(Contents.read(files, self._ranks)))
        models = TrainingState(self._parts.models, {})
        reader, settings = contents[0].reader, contents[0].settings
        self._group.together(lambda: models.restore(reader, settings, self._group))
        self._group.together(lambda: other.calls.end_reading(chosen.attempt) if other.leads else None)
        return f"{root} {chosen.attempt.name}"

    def _look(self) -> Picture:
        return picture(self._group.together(lambda: _seen(self._site.calls.listing()) if self._site.leads else ()))

    def _go_on_from(self, chosen: Candidate) -> Restored:
        self._hasten(chosen)
        try:
            return self._load(chosen)
        except CheckpointDamaged as error:
            if not chosen.is_durable:
                raise
            self._warn(
                "%s: %s; what this node has of it is dropped, and it is read from the destination",
                *(chosen.attempt.name, one_line(error)),
            )
            self._on_each_node(lambda: self._site.calls.end_reading(chosen.attempt))
            self._on_each_node(lambda: self._site.calls.drop(chosen.attempt))
            return self._load(chosen)
        finally:
            if self._site.leads:
                with suppress(ForebayError):
                    self._site.calls.end_reading(chosen.attempt)

    def _told(self, restored: Restored, unreadable: Sequence[tuple[Attempt, str]]) -> Restored:
        for attempt, why in unreadable:
            self._note(f"step {attempt.step} of generation {attempt.generation} was passed over: {why}")
        return replace(restored, notes=tuple(self._notes))

    def _hasten(self, chosen: Candidate) -> None:
        """What is all at the destination is committed; what is not yet is uploaded first."""
        if chosen.is_durable and not chosen.is_committed:
            decide = self._site.calls.decide
            self._group.together(lambda: self._group.rank == 0 and decide(chosen.attempt, State.COMMITTED))
        elif not chosen.is_durable:
            self._on_each_node(lambda: self._site.calls.expedite(chosen.attempt))

    def _load(self, chosen: Candidate) -> Restored:
        files = Files(self._site.calls, chosen.attempt)
        contents = self._opened(files)
        position = self._place_loader(contents)
        self._group.together(lambda: self._parts.state.restore(contents.reader, contents.settings, self._group))
        for change in self._parts.state.changes(contents.settings):
            self._note(change)
        self._group.together(lambda: put(self._parts.objects, contents.objects))
        self._restore_randomness(chosen.attempt, contents)
        staged = self._group.gather(files.are_staged)
        return Restored(
            step=chosen.attempt.step,
            generation=chosen.attempt.generation,
            source="local" if all(staged) else "durable",
            attempt=chosen.attempt.name,
            notes=tuple(self._notes),
            digest=self._group.from_first(contents.digest),
            position=position,
        )

    def _opened(self, files: Files) -> Contents:
        read: list[Contents] = []

        def open_it() -> None:
            contents = Contents.read(files, self._ranks)
            check_same(self._parts.objects, contents.objects)
            read.append(contents)

        self._group.together(open_it)
        return read[0]

    def _place_loader(self, contents: Contents) -> Mapping[str, Any] | None:
        """Where the loader is now, the same on all ranks that read the same."""
        loader, data = self._parts.loader, contents.data
        placed: list[Mapping[str, Any] | None] = [data.loader]

        def place() -> None:
            if loader is None:
                return
            if data.loader is None:
                raise ConfigurationError(
                    "the checkpoint has no position, as it was saved without loader=: leave it out"
                )
            check_loader(self._ranks, data)
            if self._skip_samples:
                placed[0] = advanced(data.loader, self._skip_samples)
            _go_on_from(loader, placed[0])
            if hasattr(loader, "read_ahead"):
                loader.read_ahead()

        self._group.together(place)
        if loader is None and data.loader is not None:
            self._note("the checkpoint has a position in the data, and there is no loader= that could go on from it")
        if self._skip_samples:
            self._note(f"{self._skip_samples} samples behind the checkpoint's position are left out, as was asked for")
        return placed[0]

    def _restore_randomness(self, attempt: Attempt, contents: Contents) -> None:
        here, data = self._ranks, contents.data
        if all(self._group.gather(is_same_share(here, data))):
            self._group.together(lambda: randomness.restore(data.random))
            return
        randomness.reseed(attempt.name, here.rank, here.world_size)
        self._note(
            f"{data.data_ranks} ranks read before and {here.data.world_size} do now: the random states are derived "
            f"anew on all of them"
        )

    def _give_up(self, chosen: Candidate, error: CheckpointDamaged) -> None:
        attempt, why = chosen.attempt, one_line(error)
        if chosen.is_durable and self._is_whole_there(attempt):
            self._note(
                f"step {attempt.step} of generation {attempt.generation} was passed over and is not marked: it is whole"
                f" at the destination, and damaged where it was read ({why}); look at the nodes' disks and memory"
            )
            return
        self._note(f"step {attempt.step} of generation {attempt.generation} is damaged and was passed over: {why}")
        self._quarantine(attempt, why)

    def _is_whole_there(self, attempt: Attempt) -> bool:
        """Whether every byte at the destination is as it was written."""

        def look() -> bool:
            if self._group.rank != 0:
                return False
            try:
                return not any(step.fault for step in self._site.calls.verify(attempt, deep=True))
            except CheckpointNotFound:
                return False

        return self._group.together(look)[0]

    def _quarantine(self, attempt: Attempt, why: str) -> None:
        try:
            state = self._group.together(
                lambda: self._site.calls.decide(attempt, State.QUARANTINED, why) if self._group.rank == 0 else ""
            )[0]
            self._warn("%s is marked as %s", attempt.name, state or "nothing")
        except ForebayError as refused:
            self._warn("%s could not be marked as quarantined: %s", attempt.name, one_line(refused))

    def _on_each_node(self, action: Callable[[], object]) -> None:
        def act() -> None:
            if self._site.leads:
                action()

        self._group.together(act)

    def _note(self, note: str) -> None:
        """All ranks note the same, and one says it."""
        self._notes.append(note)
        self._warn("restoring: %s", note)

    def _warn(self, message: str, *values: object) -> None:
        """Of what all ranks learn alike: a warning on rank 0."""
        _log.log(logging.WARNING if self._group.rank == 0 else logging.DEBUG, message, *values)


def _go_on_from(loader: Any, position: Mapping[str, Any] | None) -> None:
    """Raises `StateMismatch` with advice that can be followed: nobody but the checkpointer has the state yet."""
    try:
        loader.load_state_dict(position)
    except StateMismatch as error:
        raise StateMismatch(str(error).replace(StateMismatch.LENIENTLY, _LENIENTLY)) from error


def _seen(listing: Listing) -> tuple[Seen, ...]:
    return tuple(
        Seen(
            each.attempt,
            State(each.state) if each.state else None,
            each.world_size,
            frozenset(each.durable_ranks),
            frozenset(each.staged_ranks),
            each.reason if each.is_unreadable else "",
        )
        for each in listing.checkpoints
    )
