"""`forebay.DataLoader`: torch's DataLoader, with an exact position.

It has torch's signature in torch's order; what is forebay's own is keyword-only. It is a torch `DataLoader`
(`isinstance` and every attribute hold), but plans in the trainer's process and reads with threads or worker processes
of its own, so that neither their number nor their timing can change a batch.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Sampler, default_convert

from forebay.adoption import BATCH_SIZE, Wanted, adopt, settle
from forebay.iteration import Length, Pass, Playback
from forebay.loading.assembly import Assembly
from forebay.loading.chunk import Batch
from forebay.loading.delivery import Delivery
from forebay.loading.lookahead import Depth
from forebay.loading.processes import ProcessDelivery, WorkerOptions
from forebay.loading.start_methods import check as check_start_method
from forebay.loading.threads import ThreadDelivery
from forebay.order import Buckets, Split
from forebay.order.steps import Tail
from forebay.ordered import checked_batch_size
from forebay.reporting import ReportTo
from forebay.timing import BatchTiming
from forebay.topology import Ranks
from forebay_core.errors import ConfigurationError

WorkerType = Literal["thread", "process"]
_TORCH_PREFETCH_FACTOR = 2


class DataLoader(TorchDataLoader[Any]):
    """Loads a dataset in batches, each sample exactly once an epoch over all ranks, resumable anywhere.

    The parameters up to `in_order` are torch's, with torch's meaning. The dataset is a `forebay.StreamingDataset`, a
    `forebay.Mixture` of those, or any map-style dataset: `shuffle=True` then is a permutation of all of it, drawn anew
    each epoch from `seed`, and every rank reads its own part. `drop_last=True` is `tail="drop"`. A value given here and
    in the dataset must be the same; a batch size that is not given is the dataset's, else 1.

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
        address: socket of the daemon, if not given to the dataset.

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
            extras=None if extras is None else tuple(extras),
            buckets=buckets,
            address=address,
        )
        assembly = Assembly(batch_transform=batch_transform)
        ordered = adopt(dataset, wanted)
        batch_size = wanted.batch_size_beside(ordered.batch_size)
        with warnings.catch_warnings():
            if worker_type == "thread":
                warnings.filterwarnings("ignore", message="This DataLoader will create")  # of processes
            super().__init__(
                dataset,
                batch_size=batch_size,
                shuffle=None if ordered is dataset else bool(shuffle),
                num_workers=num_workers,
                collate_fn=collate_fn,
                pin_memory=pin_memory,
                drop_last=drop_last and batch_size is not None,
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
        batched = batch_size is not None or global_batch_size is not None
        self._assembly = replace(
            assembly,
            collate_fn=collate_fn or (None if batched else default_convert),
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
        self.address = address
        self._playback = Playback(self)

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, from 0."""
        return self._ordered.epoch

    @property
    def position(self) -> int:
        """Samples of that epoch already handed out, over all ranks."""
        return self._ordered.position

    @property
    def remaining(self) -> int:
        """Steps left in that epoch, or in the pass where `steps` says how long one is."""
        if self.steps is not None:
            return max(0, self.steps - self._ordered._progress.step)
        return self._split().steps(self._ordered.samples, self.position)

    @property
    def timings(self) -> list[BatchTiming]:
        """The timings of the latest batches, oldest first; at most 10,000."""
        return self._playback.timings

    def __len__(self) -> int:
        """Steps of a whole epoch, or of a pass; exactly, and the same on every rank. `TypeError` where it repeats."""
        if self.repeat:
            raise TypeError("a loader with repeat=True has no end and so no length")
        if self.steps is not None:
            return self.steps
        return self._split().steps(self._ordered.samples)

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
        split = self._split()
        return self._ordered._iterate(
            self._playback,
            split,
            self._delivery,
            depth=self._depth(split),
            length=Length(runs_on=self.repeat or self.steps is not None, steps=self.steps),
            owner=self,
            report_to=self.report_to,
        )

    def replay(self, epoch: int, step: int | None = None, *, position: int | None = None) -> Any:
        """This rank's batch of one step, rebuilt: the same samples through the same functions, in this process.

        step: counted from 0 within an epoch that runs with today's batch size and ranks from its start; or
        position: samples of the epoch that all ranks had been handed before, which holds over changes of both.

        Moves nothing: the loader's own position stays. Raises `ConfigurationError` where there is no such step.
        """
        if (step is None) == (position is None):
            raise ConfigurationError("replay() wants a step= or a position=: give one of them")
        return self._ordered._replay(self._split(), self._assembly, epoch, step=step, position=position)

    def close(self) -> None:
        """Ends workers, threads and the daemon session. Iterating again starts them anew."""
        self._playback.close()

    def _delivery(self) -> Delivery:
        pin = self.pin_memory and torch.accelerator.is_available()
        if self.num_workers == 0:
            return self._ordered._in_process(self._assembly, pin=pin)
        spec = self._ordered._reader_spec(self._assembly)
        if self.worker_type == "thread":
            return ThreadDelivery(spec, threads=self.num_workers, pin=pin)
        return ProcessDelivery(
            spec,
            WorkerOptions(
                num_workers=self.num_workers,
                prefetch_factor=self.prefetch_factor,
                timeout=self.timeout,
                worker_init_fn=self.worker_init_fn,
                multiprocessing_context=self.multiprocessing_context,
                generator=self.generator,
                pin=Batch.pin_memory if pin else None,
                dataset=self.dataset,
            ),
        )

    def _depth(self, split: Split) -> Depth:
        """torch asks for prefetch_factor × workers chunks at the start, and for one more before it gives one out."""
        if self.num_workers == 0:
            return self._ordered._depth(split)
        return Depth(steps=(self.prefetch_factor or _TORCH_PREFETCH_FACTOR) * self.num_workers + 2, chunk_steps=1)

    def _split(self) -> Split:
        return self._ordered._split(self.batch_size, self.global_batch_size)


def _checked_steps(steps: int | None, *, repeat: bool) -> int | None:
    if steps is not None and (not isinstance(steps, int) or isinstance(steps, bool) or steps < 1):
        raise ConfigurationError(f"steps={steps!r}: give how many steps a pass has, 1 or more, or None for an epoch")
    if steps is not None and repeat:
        raise ConfigurationError("steps= and repeat=True contradict each other: give one of them")
    return steps
