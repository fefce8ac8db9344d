"""What has an exact order over ranks and one position in it: the base of every dataset that a loader reads.

A loader, or the dataset's own iteration, moves the one position (`Progress`), asks for a `Feed` (which samples, from
where) and a `ReaderSpec` (how a worker reads them), and puts an engine between the two. Nothing is opened in the
constructor; used on the trainer's thread alone.
"""

import logging
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch.utils.data import get_worker_info

from forebay import progress
from forebay.daemon.choice import DaemonChoice
from forebay.digest import SampleDigest
from forebay.frameworks import refuse_double_sharding
from forebay.iteration import Handover, Length, Pass, Playback, Readable, Readout
from forebay.loading.ahead import AheadDelivery
from forebay.loading.assembly import Assembly
from forebay.loading.delivery import Delivery
from forebay.loading.engine import Engine, Feed
from forebay.loading.lookahead import Depth
from forebay.loading.reader import ReaderSpec
from forebay.order import Buckets, RankOrder, Split
from forebay.order.options import Shuffle
from forebay.order.steps import Tail
from forebay.progress import Identity, Progress, SavedState
from forebay.reporting import ReportTo
from forebay.topology import Ranks, Topology
from forebay_core.errors import ConfigurationError, StateError

WHOLE = Length()
_log = logging.getLogger("forebay")


def _nothing() -> None:
    """What is called where nobody wants to hear."""


class Ordered(ABC):
    """An order and where its reader stands.

    batch_size: samples of one rank in a step; None where whoever reads it says.
    tail: what becomes of the last samples of an epoch.
    ranks: where rank and world size come from, once they are needed.
    extras: what a batch carries beside its data.
    """

    reads_ahead = True
    """Whether a thread of this process may read while the trainer does something else."""
    seed: int
    shuffle: Shuffle | bool = True
    """What a loader's own `shuffle=` must agree with."""
    buckets: Buckets | None = None
    daemon: DaemonChoice = DaemonChoice()
    """What was said of the daemon."""

    def __init__(self, *, batch_size: int | None, tail: Tail, ranks: Ranks, extras: tuple[str, ...] = ()) -> None:
        Split(1, 1, tail)
        Assembly(extras=extras)
        self.batch_size = checked_batch_size(batch_size)
        self.tail: Tail = tail
        self.extras = extras
        self._ranks = ranks
        self._progress = Progress()
        self._playback = Playback(self)

    @property
    def address(self) -> str | None:
        """Socket of the daemon, as far as it was given."""
        return self.daemon.address

    @property
    def is_open(self) -> bool:
        """Whether a daemon was asked already, so that its address is settled."""
        return False

    @property
    @abstractmethod
    def samples(self) -> int:
        """Samples of a whole epoch, over all ranks."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """The position as people read it."""

    @abstractmethod
    def _identity(self) -> Identity:
        """What a state is bound to."""

    @abstractmethod
    def _feed(self, split: Split) -> Feed:
        """What this rank reads, and from where."""

    @abstractmethod
    def _reader_spec(self, assembly: Assembly) -> ReaderSpec:
        """How it is read."""

    @abstractmethod
    def _depth(self, split: Split) -> Depth:
        """How far a reader in this process runs ahead."""

    @property
    def epoch(self) -> int:
        """The epoch of the next sample, from 0."""
        return self._progress.epoch

    @property
    def position(self) -> int:
        """Samples of that epoch already handed out, over all ranks."""
        return self._progress.position

    @property
    def sample_digest(self) -> SampleDigest:
        """Of what this rank has handed out since it was made, or since a state was loaded; see `forebay.digest`."""
        return self._progress.digest

    @property
    def remaining(self) -> int:
        """Steps left in the epoch."""
        return self._steps(self._split(self.batch_size), self.position)

    def __len__(self) -> int:
        """Steps of a whole epoch: batches of `batch_size`, or samples of this rank where none is given."""
        return self._steps(self._split(self.batch_size))

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch that is iterated next; the present epoch keeps its position."""
        self._progress.set_epoch(epoch)

    def state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
        """The position, as JSON values; the same on every rank. Arguments that some frameworks pass are ignored."""
        refuse_in_worker("state_dict()")
        return self._progress.encode(self._identity())

    def load_state_dict(self, state: Mapping[str, Any], *_: Any, strict: bool = True, **__: Any) -> None:
        """Goes on where `state` was taken, at any world size and batch size.

        Raises `StateMismatch` where it is of other data or another order; `strict=False` then takes epoch and position
        all the same. A window that differs is taken over from the state. A state that is refused changes nothing.
        """
        refuse_in_worker("load_state_dict()")
        saved = progress.decode(state)
        self._accept(saved, strict=strict)
        self._progress.load(saved)

    def _accept(self, saved: SavedState, *, strict: bool) -> None:
        """Raises where the state cannot be gone on from; nothing has changed then."""
        if strict:
            progress.check(saved, self._identity())
        check_reachable(saved, self.samples)

    def __iter__(self) -> Iterator[Any]:
        refuse_in_worker(f"iterating a {type(self).__name__}")
        refuse_double_sharding(self._topology().world_size)
        split = self._split(self.batch_size)
        assembly = Assembly(extras=self.extras, batched=self.batch_size is not None)
        return self._iterate(self._playback, split, lambda: self._in_process(assembly), depth=self._depth(split))

    def close(self) -> None:
        """Ends what iterating has started. Iterating again starts it anew."""
        self._playback.close()

    def _iterate(
        self,
        playback: Playback,
        split: Split,
        delivery: Callable[[], Delivery],
        *,
        depth: Depth,
        length: Length = WHOLE,
        owner: object = None,
        report_to: ReportTo = None,
        handover: Handover | None = None,
        asked: Callable[[], None] = _nothing,
    ) -> Pass:
        """The rest of the epoch, over the machinery that `playback` has running or that is started for it."""
        how = handover or Handover()
        readout = self._readout(playback, split, delivery, depth=depth, length=length, handover=how)
        readout.report_to(report_to)
        return Pass(self if owner is None else owner, readout, length, asked)

    def _readout(
        self,
        playback: Playback,
        split: Split,
        delivery: Callable[[], Delivery],
        *,
        depth: Depth,
        length: Length,
        handover: Handover,
    ) -> Readable:
        """That machinery, before anyone iterates."""
        self._prepare(split, runs_on=length.runs_on)
        identity = self._identity()
        here = weakref.ref(self)  # the readout outlives whoever would hold it, until it is told to end

        def enter() -> None:
            ordered = here()
            if ordered is not None:
                ordered._enter(split)

        def start() -> Readout:
            feed = self._feed(split)
            if feed.note:
                _log.info(feed.note)
            engine = Engine(feed, delivery(), depth, stall_warning_seconds=handover.stall_warning_seconds)
            return Readout(engine, self._progress, feed.order, skips=handover.skips, enter=enter)

        return playback.ensure((split, self._topology(), identity), start)

    def _replay(
        self, split: Split, assembly: Assembly, epoch: int, *, step: int | None = None, position: int | None = None
    ) -> Any:
        """The batch of one step, read by this thread; see `DataLoader.replay`."""
        feed = self._feed(split)
        begin = place_of_step(feed.order, epoch, step=step, position=position)
        delivery = AheadDelivery(self._reader_spec(assembly), pin=False, ahead=False)
        engine = Engine(feed, delivery, Depth(steps=1, chunk_steps=1))
        try:
            engine.seek(epoch, begin)
            batch, _ = engine.next()
        finally:
            engine.close()
        return batch.data

    def _in_process(self, assembly: Assembly, *, pin: bool = False) -> Delivery:
        return AheadDelivery(self._reader_spec(assembly), pin=pin, ahead=self.reads_ahead)

    def _prepare(self, split: Split, *, runs_on: bool) -> None:  # noqa: B027 - most have nothing to prepare
        """An iteration is about to begin: the last chance to say where."""

    def _enter(self, split: Split) -> None:  # noqa: B027
        """The next batch begins an epoch within an iteration that runs on."""

    def _steps(self, split: Split, position: int = 0) -> int:
        """The steps from a position to the end of the epoch."""
        return split.steps(self.samples, position)

    def _topology(self) -> Topology:
        return self._ranks.resolve(os.environ)

    def _split(self, batch_size: int | None = None, global_batch_size: int | None = None) -> Split:
        """How steps are shared out now."""
        world_size = self._topology().world_size
        split = Split(world_size, global_batch_size or (batch_size or 1) * world_size, self.tail)
        split.check(self.samples)
        return split

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_playback"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._playback = Playback(self)


def place_of_step(order: RankOrder, epoch: int, *, step: int | None, position: int | None) -> int:
    """The position at which the step begins. Raises `ConfigurationError` where there is no such step."""
    if epoch < 0:
        raise ConfigurationError(f"epoch {epoch}: epochs count from 0")
    if step is not None:
        found = order.position_of(step) if step >= 0 else None
        if found is None:
            raise ConfigurationError(f"step {step} does not exist: an epoch has {order.steps()} steps, counted from 0")
        return found
    if position is None or not 0 <= position < order.samples or order.steps(position) == 0:
        raise ConfigurationError(f"no step begins at position {position} of an epoch of {order.samples} samples")
    return position


def checked_batch_size(batch_size: int | None, name: str = "batch_size") -> int | None:
    """The batch size, if it is one."""
    if batch_size is not None and (not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1):
        raise ConfigurationError(f"{name}={batch_size!r}: give a whole number of samples, 1 or more")
    return batch_size


def checked_buckets(buckets: Any) -> Buckets | None:
    """The buckets, if they are any."""
    if buckets is not None and not isinstance(buckets, Buckets):
        raise ConfigurationError(f"buckets= is a {type(buckets).__name__}: give forebay.Buckets(lengths), or None")
    return buckets


def check_reachable(saved: SavedState, samples: int) -> None:
    """Raises `StateError` where the state's position lies beyond the epoch's end."""
    if saved.position > samples:
        raise StateError(f"position {saved.position} is beyond the dataset's {samples} samples: start its next epoch")


def refuse_in_worker(what: str) -> None:
    """Raises `ConfigurationError` in a worker process of a loader that is not forebay's."""
    if get_worker_info() is not None:
        raise ConfigurationError(
            f"{what} in a worker process of torch's DataLoader would split the data again and leave the position "
            f"behind: use forebay.DataLoader(dataset, num_workers=…), which plans in the trainer's process"
        )
