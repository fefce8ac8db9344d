"""`forebay.DataLoader`: torch's DataLoader, with an exact position.

It has torch's signature in torch's order; what is forebay's own is keyword-only. It is a torch `DataLoader`
(`isinstance` and every attribute hold), but plans in the trainer's process and reads with threads or worker processes
of its own, so that neither their number nor their timing can change a batch.
"""

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Sampler, default_collate, default_convert

from forebay.adoption import BATCH_SIZE, Wanted, adopt, settle
from forebay.daemon.choice import DaemonChoice, Fallback
from forebay.delegated import DelegatedDataset
from forebay.digest import SampleDigest
from forebay.iteration import Handover, Length, Pass, Playback, Watchers
from forebay.loading.assembly import Assembly, checked_extras
from forebay.loading.attempts import OnError
from forebay.loading.carried import Ahead, InTurn, Processes, Source, StreamSpec
from forebay.loading.chunk import Batch
from forebay.loading.delivery import Delivery
from forebay.loading.devices import DeviceDelivery, DeviceLike, checked_device, mover
from forebay.loading.global_seeds import borrowed
from forebay.loading.lookahead import Depth
from forebay.loading.processes import ProcessDelivery, WorkerOptions
from forebay.loading.start_methods import check as check_start_method
from forebay.loading.threads import ThreadDelivery
from forebay.order import Buckets, Split
from forebay.order.steps import Tail
from forebay.ordered import Ordered, checked_batch_size
from forebay.reporting import ReportTo
from forebay.skipping import SkippedSample
from forebay.timing import BatchTiming
from forebay.topology import Ranks, Topology
from forebay_core.errors import ConfigurationError

WorkerType = Literal["thread", "process"]


class DataLoader(TorchDataLoader[Any]):
    """Loads a dataset in batches, each sample exactly once an epoch over all ranks, resumable anywhere.

    The parameters up to `in_order` are torch's, with torch's meaning. The dataset is

    - a `forebay.StreamingDataset`, or a `forebay.Mixture` of those. A value given here and in it must be the same; a
      batch size that is not given is the dataset's, else 1;
    - any map-style dataset: `shuffle=True` is a permutation of all of it, drawn anew each epoch from `seed`, and every
      rank reads its own part. `drop_last=True` is `tail="drop"`. Samplers are kept, see below;
    - any iterable dataset with torchdata's `state_dict` and `load_state_dict`, which has its own order and shares
      itself out: it is read as torch reads it, and its state is kept with the position.

    Samplers on a map-style dataset. torch's `SequentialSampler`, `RandomSampler`, `DistributedSampler`,
    `SubsetRandomSampler` and plain lists come to an order of forebay's over the same indices, shared out over the
    ranks: seeded by `seed` (or the `DistributedSampler`'s; never by a generator), with `tail` instead of torch's
    padding by repetition. `WeightedRandomSampler`, and `RandomSampler` with replacement or another number of samples,
    draw each epoch's list from (seed, epoch), which is shared out too. Any other sampler or batch sampler is asked for
    its whole list as the epoch begins, after `set_epoch(epoch)` where it has that, and the list is this rank's own; a
    position within it can be gone back to if it draws the same list again, which is checked. An epoch that is set on
    the sampler is followed. torch's `BatchSampler` is what its arguments are.

    Args:
        seed, tail, extras, rank, world_size, device_mesh, process_group: as in `StreamingDataset`; for a dataset that
            has none of its own.
        buckets: groups samples of like lengths into batches, see `forebay.Buckets`; for a map-style dataset.
        batch_transform: called with each whole batch, after collation; its value is what is handed out.
        worker_type: `"process"` (worker processes, with torch's options) or `"thread"`. None: processes. Without
            workers, a background thread reads a stream ahead; a map-style dataset is read by the trainer's own thread.
        global_batch_size: samples of a step over all ranks, kept when the world size changes; instead of `batch_size`,
            which is None then.
        steps: a pass of `for batch in loader` is so many steps, over the epochs' borders, and the next one goes on
            where it ended; a resumed pass hands out what was left of it. Without it a pass is an epoch.
        repeat: a pass has no end.
        report_to: `"auto"` logs `fetch_seconds` and its parts to MLflow when a run is active, `"mlflow"` insists on it,
            None never does.
        address, fallback, daemon_wait_seconds: of the daemon, as in `StreamingDataset`, if not given to the dataset.
        on_error: what becomes of a sample whose transform, `__getitem__` or stored row raises. `"raise"`: the exception
            passes, with a note that says which sample it was. `"skip"`: the next good sample of the same batch stands
            in its place once more, as a pad does: with its own id and position, marked `forebay.IS_PAD`. `skipped`
            lists what was missed. The position counts it as handed out. Errors of a collate function are always raised,
            and so is a `SampleError` where no sample of a batch is good.
        stall_warning_seconds: where one `next()` is blocked for so long, the log says which piece it waits for and why,
            or who is busy with it; again each time the wait has doubled, and once more when it goes on. None: never.
        device: where batches are handed out. Tensors in dicts, lists, tuples and dataclasses, and objects with a `to`
            method, are moved there, one batch ahead where the next one has been read by then; on CUDA from pinned
            memory, on a stream of its own. The position counts a batch when it is handed out.

    Raises `ConfigurationError` for options that cannot work, at once.
    """

    def __init__(  # noqa: PLR0917 - torch's order of positional parameters
        self,
        dataset: Any,
        batch_size: int | None = BATCH_SIZE,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        tail: Tail | None = None,
        extras: Sequence[str] | None = None,
        buckets: Buckets | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        device_mesh: Any = None,
        process_group: Any = None,
        batch_transform: Callable[[Any], Any] | None = None,
        worker_type: WorkerType | None = None,
        global_batch_size: int | None = None,
        steps: int | None = None,
        repeat: bool = False,
        report_to: ReportTo = "auto",
        address: str | None = None,
        fallback: Fallback | None = None,
        daemon_wait_seconds: float | None = None,
        on_error: OnError = "raise",
        stall_warning_seconds: float | None = 60.0,
        device: DeviceLike | None = None,
    ) -> None:
        if not in_order:
            raise ConfigurationError("in_order=False would let the workers' timing change the order: leave it out")
        if worker_type not in (None, "thread", "process"):
            raise ConfigurationError(f"worker_type={worker_type!r}: give 'thread', 'process' or None")
        if num_workers > 0 and worker_type != "thread":
            check_start_method(multiprocessing_context)
        steps = _checked_steps(steps, repeat=repeat)
        wanted = Wanted(
            batch_size=batch_size,
            global_batch_size=checked_batch_size(global_batch_size, "global_batch_size"),
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            drop_last=drop_last,
            seed=seed,
            tail=tail,
            ranks=Ranks(rank, world_size, device_mesh, process_group),
            extras=None if extras is None else checked_extras(extras),
            buckets=buckets,
            daemon=DaemonChoice(address, fallback, daemon_wait_seconds),
            processes=0 if worker_type == "thread" else num_workers,
            runs_on=repeat or steps is not None,
        )
        handover = Handover(stall_warning_seconds)
        self._device = None if device is None else checked_device(device)
        assembly = Assembly(batch_transform=batch_transform, on_error=on_error)
        ordered = adopt(dataset, wanted)
        if isinstance(ordered, DelegatedDataset) and (device is not None or on_error != "raise"):
            raise ConfigurationError(
                f"{type(dataset).__name__} keeps its own position, so device= and on_error='skip' have no samples to "
                f"go by: leave them out"
            )
        batch_size = wanted.batch_size_beside(ordered.batch_size)
        with warnings.catch_warnings():
            if worker_type == "thread":
                warnings.filterwarnings("ignore", message="This DataLoader will create")  # of processes
            super().__init__(
                dataset,
                batch_size=1 if batch_sampler is not None else batch_size,
                shuffle=None if ordered is dataset else bool(shuffle),
                sampler=sampler,
                batch_sampler=batch_sampler,
                num_workers=num_workers,
                collate_fn=default_collate if collate_fn is None and global_batch_size is not None else collate_fn,
                pin_memory=pin_memory,
                drop_last=drop_last and global_batch_size is None,
                timeout=timeout,
                worker_init_fn=worker_init_fn,
                multiprocessing_context=multiprocessing_context,
                generator=generator,
                prefetch_factor=prefetch_factor,
                persistent_workers=persistent_workers,
                pin_memory_device=pin_memory_device,
            )
        settle(ordered, wanted)
        self._ordered = ordered
        self._rank_batch = batch_size
        batched = batch_size is not None or global_batch_size is not None
        self._assembly = replace(
            assembly,
            collate_fn=_own_collate(collate_fn, batched),
            extras=ordered.extras,
            batched=batched,
        )
        self.shuffle, self.seed, self.tail, self.extras = shuffle, seed, ordered.tail, extras
        self.buckets = buckets
        self.rank, self.world_size = rank, world_size
        self.device_mesh, self.process_group = device_mesh, process_group
        self.batch_transform = batch_transform
        self.worker_type: WorkerType = worker_type or "process"
        self.global_batch_size = global_batch_size
        self.steps, self.repeat = steps, repeat
        self.report_to: ReportTo = report_to
        self.address, self.fallback, self.daemon_wait_seconds = address, fallback, daemon_wait_seconds
        self.on_error: OnError = on_error
        self.stall_warning_seconds = stall_warning_seconds
        self._handover = handover
        self.device = device
        # Marks for Accelerate: `prepare` shares nothing out again, `save_state` keeps this loader's state.
        self._is_accelerate_prepared = self.use_stateful_dataloader = isinstance(ordered, Ordered)
        self._playback = Playback(self)
        self._watchers = Watchers()

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, from 0."""
        return self._place()[0]

    @property
    def position(self) -> int:
        """Samples of that epoch already handed out, over all ranks."""
        return self._place()[1]

    @property
    def topology(self) -> Topology:
        """Which of the ranks that read different samples this one is."""
        ordered = self._ordered
        if isinstance(ordered, Ordered):
            return ordered._topology()
        return Ranks(self.rank, self.world_size, self.device_mesh, self.process_group).resolve(os.environ)

    @property
    def sample_digest(self) -> SampleDigest | None:
        """Of the samples that this rank has handed out since it was made, or since a state was loaded.

        The sum over all ranks says which sample was at every position between; `forebay.digest.expected` says which
        should have been. It moves with the position. None for a dataset that keeps its own position.
        """
        return self._ordered.sample_digest

    @property
    def remaining(self) -> int:
        """Steps left in that epoch, or in the pass where `steps` says how long one is."""
        if self.steps is not None:
            return max(0, self.steps - self._ordered._progress.step)
        return self._ordered._steps(self._split(), self.position)

    @property
    def timings(self) -> list[BatchTiming]:
        """The timings of the latest batches, oldest first; at most 10,000."""
        return self._playback.timings

    @property
    def skipped(self) -> list[SkippedSample]:
        """The samples that `on_error="skip"` left out of the batches handed out so far, oldest first; the latest
        10,000 since this loader was made. A batch that is handed out again after a restart counts again."""
        return list(self._handover.skips.latest)

    @property
    def skipped_total(self) -> int:
        """How many they were in all."""
        return self._handover.skips.total

    def __len__(self) -> int:
        """Steps of a whole epoch, or of a pass; exactly, and the same on every rank. `TypeError` where it repeats."""
        if self.repeat:
            raise TypeError("a loader with repeat=True has no end and so no length")
        if self.steps is not None:
            return self.steps
        return self._ordered._steps(self._split())

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch that is iterated next; the present epoch keeps its position."""
        self._ordered.set_epoch(epoch)

    def state_dict(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        """The position as JSON values, the same on every rank: every batch handed out so far is behind it."""
        return self._ordered.state_dict(*arguments, **options)

    def describe(self) -> dict[str, Any]:
        """The position as people read it; see the dataset's `describe`."""
        return self._ordered.describe()

    def load_state_dict(self, state: Mapping[str, Any], *arguments: Any, **options: Any) -> None:
        """Goes on where `state` was taken; see `StreamingDataset.load_state_dict`."""
        self._ordered.load_state_dict(state, *arguments, **options)

    def __iter__(self) -> Pass:  # type: ignore[override]
        ordered = self._ordered
        if isinstance(ordered, DelegatedDataset):
            return ordered.iterate(
                *(self._playback, self._source, self._assembly),
                owner=self,
                report_to=self.report_to,
                asked=self._watchers,
            )
        split = self._split()
        return ordered._iterate(
            self._playback,
            split,
            lambda: self._delivery(ordered),
            depth=self._depth(ordered, split),
            length=self._length,
            owner=self,
            report_to=self.report_to,
            handover=self._handover,
            asked=self._watchers,
        )

    def watch(self, told: Callable[[], None]) -> Callable[[], None]:
        """Calls `told` on the trainer's thread before each batch is read; gives what ends that.

        What it raises comes out of `next()`, and no batch is handed out then.
        """
        return self._watchers.add(told)

    def read_ahead(self) -> None:
        """Begins to fetch and read where the position is, before anybody iterates. Moves nothing; costs nothing twice.

        For what is read from a daemon; nothing for other datasets.
        """
        ordered = self._ordered
        if isinstance(ordered, DelegatedDataset) or not ordered.reads_ahead:
            return
        split = self._split()
        readout = ordered._readout(
            self._playback,
            split,
            lambda: self._delivery(ordered),
            depth=self._depth(ordered, split),
            length=self._length,
            handover=self._handover,
        )
        readout.read_ahead(runs_on=self._length.runs_on)

    @property
    def _length(self) -> Length:
        return Length(runs_on=self.repeat or self.steps is not None, steps=self.steps)

    def replay(self, epoch: int, step: int | None = None, *, position: int | None = None) -> Any:
        """This rank's batch of one step, rebuilt: the same samples through the same functions, in this process.

        step: counted from 0 within an epoch that runs with today's batch size and ranks from its start; or
        position: samples of the epoch that all ranks had been handed before, which holds over changes of both.

        Where worker processes read, the process's own random generators are what they are there, and as before
        afterwards. Moves nothing: the loader's own position stays. Raises `ConfigurationError` where there is no such
        step.
        """
        if (step is None) == (position is None):
            raise ConfigurationError("replay() wants a step= or a position=: give one of them")
        ordered = self._ordered
        reads: AbstractContextManager[None] = nullcontext()
        if self.num_workers > 0 and self.worker_type == "process" and isinstance(ordered, Ordered):
            reads = borrowed(ordered._reader_spec(self._assembly).seed)
        with reads:
            return ordered._replay(self._split(), self._assembly, epoch, step=step, position=position)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_playback", "_watchers")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._playback = Playback(self)
        self._watchers = Watchers()

    def close(self) -> None:
        """Ends workers, threads and the daemon session. Iterating again starts them anew."""
        self._playback.close()

    def _delivery(self, ordered: Ordered) -> Delivery:
        delivery = self._read_delivery(ordered)
        return delivery if self._device is None else DeviceDelivery(delivery, mover(self._device))

    def _read_delivery(self, ordered: Ordered) -> Delivery:
        if self.num_workers == 0:
            return ordered._in_process(self._assembly, pin=self._pins)
        spec = ordered._reader_spec(self._assembly)
        if self.worker_type == "thread":
            return ThreadDelivery(spec, threads=self.num_workers, pin=self._pins)
        return ProcessDelivery(spec, self._worker_options())

    def _source(self, spec: StreamSpec) -> Source:
        """What reads a dataset that keeps its own position: it is one stream, so one thread, however many are given."""
        if self.num_workers == 0:
            return InTurn(spec, pin=self._pins)
        if self.worker_type == "thread":
            return Ahead(spec, depth=self._worker_options().prefetched, pin=self._pins)
        return Processes(spec, self._worker_options(), persistent=self.persistent_workers)

    @property
    def _pins(self) -> bool:
        is_copied_aside = self._device is not None and self._device.type == "cuda"
        return (self.pin_memory or is_copied_aside) and torch.accelerator.is_available()

    def _worker_options(self) -> WorkerOptions:
        return WorkerOptions(
            num_workers=self.num_workers,
            prefetch_factor=self.prefetch_factor,
            timeout=self.timeout,
            worker_init_fn=self.worker_init_fn,
            multiprocessing_context=self.multiprocessing_context,
            generator=self.generator,
            pin=Batch.pin_memory if self._pins else None,
            dataset=self.dataset,
        )

    def _place(self) -> tuple[int, int]:
        """Epoch and position of the next batch; in the next epoch where a resumed one has no whole step left."""
        ordered = self._ordered
        epoch, position = ordered.epoch, ordered.position
        may_be_over = position > 0 and self.tail == "drop"
        if not may_be_over or not isinstance(ordered, Ordered) or not ordered._progress.resuming:
            return epoch, position
        is_over = ordered._steps(self._split(), position) == 0
        return (epoch + 1, 0) if is_over else (epoch, position)

    def _depth(self, ordered: Ordered, split: Split) -> Depth:
        """With readers beside the trainer: what lies with them, the step being handed out, and one for its place."""
        if self.num_workers == 0:
            return ordered._depth(split)
        return Depth(steps=self._worker_options().prefetched + 2, chunk_steps=1)

    def _split(self) -> Split:
        return self._ordered._split(self._rank_batch, self.global_batch_size)


def _checked_steps(steps: int | None, *, repeat: bool) -> int | None:
    if steps is not None and (not isinstance(steps, int) or isinstance(steps, bool) or steps < 1):
        raise ConfigurationError(f"steps={steps!r}: give how many steps a pass has, 1 or more, or None for an epoch")
    if steps is not None and repeat:
        raise ConfigurationError("steps= and repeat=True contradict each other: give one of them")
    return steps


def _own_collate(collate_fn: Callable[[Any], Any] | None, batched: bool) -> Callable[[Any], Any] | None:
    """A function for `Assembly`: None for torch's own, which whoever rebuilds a loader from its attributes passes."""
    theirs = default_collate if batched else default_convert
    if collate_fn is None or collate_fn is theirs:
        return None if batched else default_convert
    return collate_fn
