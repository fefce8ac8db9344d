"""`forebay.DataLoader`: torch's DataLoader, with an exact position.

It has torch's signature in torch's order; what is forebay's own is keyword-only. It is a torch `DataLoader`
(`isinstance` and every attribute hold), but plans in the trainer's process and reads with threads or torch's worker
processes, so that neither their number nor their timing can change a batch.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Sampler

from forebay.dataset import StreamingDataset, checked_batch_size
from forebay.iteration import EpochIterator, Playback, Readout
from forebay.loading.ahead import AheadDelivery
from forebay.loading.delivery import Delivery
from forebay.loading.engine import Engine
from forebay.loading.lookahead import Depth
from forebay.loading.processes import ProcessDelivery, WorkerOptions
from forebay.loading.reader import ReaderSpec
from forebay.loading.threads import ThreadDelivery
from forebay.order import Split
from forebay.order.steps import Tail
from forebay.reporting import ReportTo
from forebay.timing import BatchTiming
from forebay_core.errors import ConfigurationError

WorkerType = Literal["thread", "process"]
_TORCH_PREFETCH_FACTOR = 2


class _NotGiven(int):
    """torch's default batch size, told from a 1 that was given."""

    def __repr__(self) -> str:
        return "1"


_BATCH_SIZE = _NotGiven(1)


class DataLoader(TorchDataLoader[Any]):
    """Loads a `StreamingDataset` in batches, exactly once an epoch over all ranks, resumable anywhere.

    The parameters up to `in_order` are torch's, with torch's meaning. A value given here and in the dataset must be
    the same; a batch size that is not given is the dataset's, else 1. `shuffle`, `sampler` and `batch_sampler` belong
    to the dataset's order and are refused where they contradict it; `drop_last=True` is `tail="drop"`.

    Args:
        worker_type: `"process"` (torch's worker processes) or `"thread"`. None: processes. Without workers, a
            background thread reads ahead.
        global_batch_size: samples of a step over all ranks, kept when the world size changes; instead of `batch_size`,
            which is None then.
        report_to: `"auto"` logs `fetch_seconds` and its parts to MLflow when a run is active, `"mlflow"` insists on it,
            None never does.
        address: socket of the daemon, if not given to the dataset.

    Raises `ConfigurationError` for options that cannot work, at once.
    """

    def __init__(  # noqa: PLR0917 - torch's order of positional parameters
        self,
        dataset: StreamingDataset,
        batch_size: int | None = _BATCH_SIZE,
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
        worker_type: WorkerType | None = None,
        global_batch_size: int | None = None,
        report_to: ReportTo = "auto",
        address: str | None = None,
    ) -> None:
        _check_dataset(dataset)
        _check_order(dataset, shuffle, sampler, batch_sampler, in_order)
        if worker_type not in (None, "thread", "process"):
            raise ConfigurationError(f"worker_type={worker_type!r}: give 'thread', 'process' or None")
        tail = _tail(dataset, drop_last)
        shared_address = _address(dataset, address)
        global_batch_size = checked_batch_size(global_batch_size, "global_batch_size")
        batch_size = _batch_size(dataset, batch_size, global_batch_size)
        with warnings.catch_warnings():
            if worker_type == "thread":
                warnings.filterwarnings("ignore", message="This DataLoader will create")  # of processes
            super().__init__(
                dataset,
                batch_size=batch_size,
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
        dataset.tail, dataset.address = tail, shared_address
        self._stream = dataset
        self._collate = collate_fn
        self.worker_type: WorkerType = worker_type or "process"
        self.global_batch_size = global_batch_size
        self.report_to = report_to
        self._playback = Playback(self)

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, from 0."""
        return self._stream.epoch

    @property
    def position(self) -> int:
        """Samples of that epoch already handed out, over all ranks."""
        return self._stream.position

    @property
    def remaining(self) -> int:
        """Steps left in that epoch."""
        return self._split().steps(self._stream._open().samples, self.position)

    @property
    def timings(self) -> list[BatchTiming]:
        """The timings of the latest batches, oldest first; at most 10,000."""
        return self._playback.timings

    def __len__(self) -> int:
        """Steps of a whole epoch, exactly, and the same on every rank."""
        return self._split().steps(self._stream._open().samples)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch that is iterated next; the present epoch keeps its position."""
        self._stream.set_epoch(epoch)

    def state_dict(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        """The position as JSON values, the same on every rank: every batch handed out so far is behind it."""
        return self._stream.state_dict(*arguments, **options)

    def describe(self) -> dict[str, Any]:
        """The position as people read it; see `StreamingDataset.describe`."""
        return self._stream.describe()

    def load_state_dict(self, state: Mapping[str, Any], *arguments: Any, **options: Any) -> None:
        """Goes on where `state` was taken; see `StreamingDataset.load_state_dict`."""
        self._stream.load_state_dict(state, *arguments, **options)

    def __iter__(self) -> EpochIterator:  # type: ignore[override]
        split = self._split()
        readout = self._playback.ensure(split, self._stream._identity(), lambda: self._readout(split))
        readout.report_to(self.report_to)
        return EpochIterator(self, readout)

    def close(self) -> None:
        """Ends workers, threads and the daemon session. Iterating again starts them anew."""
        self._playback.close()

    def _readout(self, split: Split) -> Readout:
        batched = self.batch_size is not None or self.global_batch_size is not None
        spec = self._stream._reader_spec(collate_fn=self._collate, batched=batched)
        engine = Engine(self._stream._feed(split), self._delivery(spec), self._depth(split))
        return Readout(engine, self._stream._progress, split, self._stream._identity())

    def _delivery(self, spec: ReaderSpec) -> Delivery:
        pin = self.pin_memory and torch.accelerator.is_available()
        if self.num_workers == 0:
            return AheadDelivery(spec, pin=pin)
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
                pin_memory=pin,
            ),
        )

    def _depth(self, split: Split) -> Depth:
        """torch asks for prefetch_factor × workers chunks at the start, and for one more before it gives one out."""
        if self.num_workers == 0:
            return self._stream._open().depth(split)
        return Depth(steps=(self.prefetch_factor or _TORCH_PREFETCH_FACTOR) * self.num_workers + 2, chunk_steps=1)

    def _split(self) -> Split:
        return self._stream._split(self.batch_size, self.global_batch_size)


def _batch_size(dataset: StreamingDataset, given: int | None, global_batch_size: int | None) -> int | None:
    """The batch size of a rank; None where the global one decides, or where samples come one by one."""
    theirs = dataset.batch_size
    is_given = given is not _BATCH_SIZE and given is not None
    if global_batch_size is not None:
        if is_given or theirs is not None:
            raise ConfigurationError("batch_size= and global_batch_size= contradict each other: give one of them")
        return None
    if not is_given:
        return theirs if theirs is not None or given is None else 1
    checked_batch_size(given)
    if theirs not in (None, given):
        raise ConfigurationError(f"batch_size={given} here, {theirs} in the StreamingDataset: give it in one place")
    return given


def _address(dataset: StreamingDataset, address: str | None) -> str | None:
    theirs = dataset.address
    if address is None or address == theirs:
        return theirs
    if theirs is not None or dataset._stream is not None:
        raise ConfigurationError(
            f"address={address!r} here, {theirs!r} in the StreamingDataset, or it is open already: give it there"
        )
    return address


def _tail(dataset: StreamingDataset, drop_last: bool) -> Tail:
    if drop_last and dataset.tail == "pad":
        raise ConfigurationError("drop_last=True here, tail='pad' in the StreamingDataset: leave one of them out")
    return "drop" if drop_last else dataset.tail


def _check_dataset(dataset: object) -> None:
    if not isinstance(dataset, StreamingDataset):
        raise ConfigurationError(
            f"forebay.DataLoader loads a forebay.StreamingDataset, not {type(dataset).__name__}: "
            f"make one over the data's URL"
        )


def _check_order(
    dataset: StreamingDataset, shuffle: bool | None, sampler: object, batch_sampler: object, in_order: bool
) -> None:
    if sampler is not None or batch_sampler is not None:
        raise ConfigurationError(
            "a StreamingDataset has an order of its own, shared out over the ranks: leave sampler= and batch_sampler= "
            "out, and choose shuffle= and seed= in the StreamingDataset"
        )
    if shuffle is not None and bool(shuffle) != (dataset.shuffle is not False):
        raise ConfigurationError(
            f"shuffle={shuffle} here, shuffle={dataset.shuffle!r} in the StreamingDataset: give it in the dataset"
        )
    if not in_order:
        raise ConfigurationError("in_order=False would let the workers' timing change the order: leave it out")
