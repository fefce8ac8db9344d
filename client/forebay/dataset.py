"""A dataset in remote storage, in an exact order: what is read, how it is shuffled, and where the reader is.

Nothing is opened in the constructor: the daemon is asked when something must be known of the data (a length, a state,
the first batch). A `StreamingDataset` can be pickled and sent to other processes; what it has opened stays behind.

Iterated by itself it yields this rank's batches of `batch_size`, or single samples where none is given; in a
`forebay.DataLoader` it lends its one position to the loader.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from forebay import progress, topology
from forebay.iteration import EpochIterator, Playback, Readout
from forebay.loading.ahead import AheadDelivery
from forebay.loading.engine import Engine, Feed
from forebay.loading.reader import ReaderSpec
from forebay.opened import OrderSpec, Stream
from forebay.order import Order, OrderOptions, Split
from forebay.order.options import Shuffle
from forebay.order.steps import Tail
from forebay.progress import Identity, Progress
from forebay_core.errors import ConfigurationError, StateError
from forebay_core.formats import Format, Tokens, from_spec

SourceLike = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Transform = Callable[..., Any]


class StreamingDataset(IterableDataset[Any]):
    """Samples of a remote dataset: each exactly once an epoch over all ranks, resumable anywhere at any world size.

    Args:
        source: a URL prefix, a glob, one object, or a list of those (`s3://`, `file://`, or plain paths).
        format: `"parquet"`, `forebay.Tokens(...)`, `forebay.Parquet(...)`; None finds it by the extension.
        columns: the columns of a sample, in this order; None takes all.
        transform: called with each sample (a dict of its columns); with a parameter `rng` it is also given the sample's
            own `numpy.random.Generator`.
        shuffle: `"window"`; `"global"`, a permutation of all samples, for data that is all in the cache or read in
            place; or False for the order of the objects' names and rows.
        seed: any integer; the order is a function of it, the epoch and the data.
        batch_size: samples of one rank in a step.
        tail: what becomes of the last samples of an epoch: `"even"` spreads them and drops nothing, `"drop"` drops a
            step that is not full, `"pad"` fills it with samples just seen, marked `forebay.IS_PAD`.
        order: lanes, window and stickiness of the shuffle.
        extras: of `forebay.SAMPLE_ID`, `forebay.POSITION`, `forebay.IS_PAD`: what each batch also carries.
        rank, world_size: of the data-parallel group; None takes them from torch.distributed or torchrun, when first
            iterated.
        address: socket of the daemon; None finds the node's, or starts one for this user.

    Raises `ConfigurationError` at once for options that cannot work; errors of the source when it is first opened.
    """

    def __init__(
        self,
        source: SourceLike,
        *,
        format: str | Format | None = None,
        columns: Sequence[str] | None = None,
        transform: Transform | None = None,
        shuffle: Shuffle = "window",
        seed: int = 0,
        batch_size: int | None = None,
        tail: Tail = "even",
        order: OrderOptions | None = None,
        extras: Sequence[str] = (),
        rank: int | None = None,
        world_size: int | None = None,
        address: str | None = None,
    ) -> None:
        self.source = _urls(source)
        self.format = _format(format)
        self.columns = None if columns is None else _names(columns)
        self.transform = transform
        self.shuffle: Shuffle = shuffle
        self.seed = seed
        self.batch_size = checked_batch_size(batch_size)
        self.tail: Tail = tail
        self.order = order or OrderOptions()
        self.extras = tuple(extras)
        self.rank, self.world_size = rank, world_size
        self.address = address
        self._progress = Progress()
        self._stream: Stream | None = None
        self._playback = Playback(self)
        self._check()

    def open(self) -> None:
        """Asks the daemon for the dataset now instead of at the first use, so that what is wrong with it shows.

        Raises `SourceError` and its kinds, `EmptyDataset`, `ColumnNotFound`, `ConfigurationError`, `DaemonError`.
        """
        self._open()

    @property
    def epoch(self) -> int:
        """The epoch of the next sample, from 0."""
        return self._progress.epoch

    @property
    def position(self) -> int:
        """Samples of that epoch already handed out, over all ranks."""
        return self._progress.position

    @property
    def remaining(self) -> int:
        """Steps left in the epoch."""
        return self._split(self.batch_size).steps(self._open().samples, self.position)

    def __len__(self) -> int:
        """Steps of a whole epoch: batches of `batch_size`, or samples of this rank where none is given."""
        return self._split(self.batch_size).steps(self._open().samples)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch that is iterated next; the present epoch keeps its position."""
        self._progress.set_epoch(epoch)

    def state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
        """The position, as JSON values; the same on every rank. Arguments that some frameworks pass are ignored."""
        _refuse_in_worker("state_dict()")
        return self._progress.encode(self._identity())

    def describe(self) -> dict[str, Any]:
        """The position as people read it: for each lane the shard of its next sample, and the sample's row in it.

        `{"epoch", "position", "samples", "lanes": [{"lane", "shard", "row"}, …]}`; lanes that are done are left out.
        """
        stream = self._open()
        places = stream.order.epoch(self.epoch).places(self.position)
        lanes = [{"lane": place.lane, **stream.shard_row(place.piece, place.row)} for place in places]
        return {"epoch": self.epoch, "position": self.position, "samples": stream.samples, "lanes": lanes}

    def load_state_dict(self, state: Mapping[str, Any], *_: Any, strict: bool = True, **__: Any) -> None:
        """Goes on where `state` was taken, at any world size and batch size.

        Raises `StateMismatch` where it is of other data or another order; `strict=False` then takes epoch and position
        all the same. A window that differs is taken over from the state. A state that is refused changes nothing.
        """
        _refuse_in_worker("load_state_dict()")
        saved = progress.decode(state)
        stream = self._open().with_window_of(saved.identity)
        if strict:
            progress.check(saved, stream.identity(self.tail))
        if saved.position > stream.samples:
            raise StateError(
                f"position {saved.position} is beyond the dataset's {stream.samples} samples: start its next epoch"
            )
        self._stream, self.order = stream, stream.order_spec.options
        self._progress.load(saved)

    def __iter__(self) -> Iterator[Any]:
        _refuse_in_worker("iterating a StreamingDataset")
        split = self._split(self.batch_size)
        return EpochIterator(self, self._playback.ensure(split, self._identity(), lambda: self._readout(split)))

    def close(self) -> None:
        """Ends what iterating has started. Iterating again starts it anew."""
        self._playback.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_stream", "_playback")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._stream = None
        self._playback = Playback(self)

    def _open(self) -> Stream:
        """What the daemon knows of the dataset; asked once in a process."""
        if self._stream is None:
            spec = OrderSpec(self.shuffle, self.seed, self.order)
            self._stream = Stream.open(
                self.address, self.source, format=self.format, columns=self.columns, order_spec=spec
            )
        return self._stream

    def _topology(self) -> topology.Topology:
        return topology.resolve(self.rank, self.world_size, os.environ)

    def _split(self, batch_size: int | None = None, global_batch_size: int | None = None) -> Split:
        """How steps are shared out now."""
        world_size = self._topology().world_size
        split = Split(world_size, global_batch_size or (batch_size or 1) * world_size, self.tail)
        split.check(self._open().samples)
        return split

    def _identity(self) -> Identity:
        return self._open().identity(self.tail)

    def _feed(self, split: Split) -> Feed:
        return self._open().feed(split, self._topology(), self.source[0])

    def _reader_spec(self, *, collate_fn: Callable[[list[Any]], Any] | None, batched: bool) -> ReaderSpec:
        stream = self._open()
        return ReaderSpec(
            manifest_path=stream.dataset.manifest_path,
            columns=stream.columns,
            seed=self.seed,
            transform=self.transform,
            collate_fn=collate_fn,
            extras=self.extras,
            batched=batched,
        )

    def _readout(self, split: Split) -> Readout:
        spec = self._reader_spec(collate_fn=None, batched=self.batch_size is not None)
        engine = Engine(self._feed(split), AheadDelivery(spec, pin=False), self._open().depth(split))
        return Readout(engine, self._progress, split, self._identity())

    def _check(self) -> None:
        Split(1, 1, self.tail)
        Order([], seed=self.seed, shuffle=self.shuffle, options=self.order)
        ReaderSpec(Path(), (), self.seed, extras=self.extras)
        topology.resolve(self.rank, self.world_size, {})
        if self.transform is not None and not callable(self.transform):
            raise ConfigurationError(f"transform={self.transform!r} cannot be called: give a function of a sample")


def checked_batch_size(batch_size: int | None, name: str = "batch_size") -> int | None:
    """The batch size, if it is one."""
    if batch_size is not None and (not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1):
        raise ConfigurationError(f"{name}={batch_size!r}: give a whole number of samples, 1 or more")
    return batch_size


def _urls(source: SourceLike) -> tuple[str, ...]:
    urls = (source,) if isinstance(source, str | os.PathLike) else tuple(source)
    if not urls:
        raise ConfigurationError("source=[] names no data: give a URL, a path, or a list of them")
    return tuple(_absolute(os.fspath(url)) for url in urls)


def _absolute(url: str) -> str:
    """The daemon has another working directory."""
    if not url:
        raise ConfigurationError("source='' names no data: is a variable unset? give a URL or a path")
    return url if "://" in url else os.path.join(os.getcwd(), os.path.expanduser(url))  # noqa: PTH109, PTH111, PTH118 - keeps a trailing slash


def _format(format: str | Format | None) -> Format | None:
    if format is None or isinstance(format, Format):
        return format
    if format == Tokens.name:
        raise ConfigurationError(
            "format='tokens' does not say how long a sample is: give format=forebay.Tokens(sequence_length=…, dtype=…)"
        )
    return from_spec({"name": format})


def _names(columns: Sequence[str]) -> tuple[str, ...]:
    names = tuple(columns)
    if isinstance(columns, str) or not all(isinstance(name, str) for name in names) or not names:
        raise ConfigurationError(f"columns={columns!r}: give a list of column names, or None for all")
    if len(set(names)) < len(names):
        raise ConfigurationError(f"columns={columns!r} names a column twice")
    return names


def _refuse_in_worker(what: str) -> None:
    if get_worker_info() is not None:
        raise ConfigurationError(
            f"{what} in a worker process of torch's DataLoader would split the data again and leave the position "
            f"behind: use forebay.DataLoader(dataset, num_workers=…), which plans in the trainer's process"
        )
