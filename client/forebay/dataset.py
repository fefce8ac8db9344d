"""A dataset in remote storage, in an exact order: what is read, how it is shuffled, and where the reader is.

Nothing is opened in the constructor: the daemon is asked when something must be known of the data (a length, a state,
the first batch). A `StreamingDataset` can be pickled and sent to other processes; what it has opened stays behind.

Iterated by itself it yields this rank's batches of `batch_size`, or single samples where none is given; in a
`forebay.DataLoader` it lends its one position to the loader.
"""

import copy
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsIndex

from torch.utils.data import IterableDataset

from forebay import progress
from forebay.daemon.choice import DaemonChoice, Fallback
from forebay.daemon.source_urls import absolute
from forebay.loading.assembly import Assembly, checked_extras
from forebay.loading.engine import Feed
from forebay.loading.lookahead import Depth
from forebay.loading.stream_reader import StreamReaderSpec
from forebay.lookup import Lookup
from forebay.opened import OrderSpec, Stream
from forebay.order import Buckets, Limit, Order, OrderOptions, Selection, Split, SplitBy, portions
from forebay.order.options import Shuffle
from forebay.order.selection import Stage
from forebay.order.steps import Tail
from forebay.ordered import Ordered, check_reachable, checked_buckets
from forebay.progress import Identity, Progress, SavedState
from forebay.topology import Ranks
from forebay_core.errors import ConfigurationError
from forebay_core.formats import Format, Packing, Tokens, Where, compose, from_spec

SourceLike = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Transform = Callable[..., Any]


class StreamingDataset(Ordered, IterableDataset[Any]):
    """Samples of a remote dataset: each exactly once an epoch over all ranks, resumable anywhere at any world size.

    Args:
        source: a URL prefix, a glob, one object, or a list of those (`s3://`, `file://`, or plain paths).
        format: `"parquet"`, `forebay.Tokens(...)`, `forebay.Parquet(...)`; None finds it by the extension.
        columns: the columns of a sample, in this order; None takes all.
        where: a row filter, as pyarrow's: `[("lang", "==", "en"), ("score", ">", 0.5)]`, all of which must hold, or a
            list of such lists, of which one must. Nulls never match. Rows that do not match are no samples at all.
        packing: makes the samples sequences of tokens of equal length; see `forebay.Packing`. After `where`.
        transform: called with each sample (a dict of its columns); with a parameter `rng` it is also given the sample's
            own `numpy.random.Generator`.
        shuffle: `"window"`; `"global"`, a permutation of all samples, for data that is all in the cache or read in
            place; or False for the order of the objects' names and rows.
        seed: any integer; the order is a function of it, the epoch and the data.
        batch_size: samples of one rank in a step.
        tail: what becomes of the last samples of an epoch: `"even"` spreads them and drops nothing, `"drop"` drops a
            step that is not full, `"pad"` fills it with samples just seen, marked `forebay.IS_PAD`.
        order: lanes, window and stickiness of the shuffle.
        limit: only the first so many samples, in the order of their ids, take part; for a share of all, see `split`.
        buckets: groups samples of like lengths into batches, see `forebay.Buckets`. A rank then reads from everywhere.
        extras: of `forebay.SAMPLE_ID`, `forebay.POSITION`, `forebay.IS_PAD`: what each batch also carries.
        rank, world_size: of the data-parallel group; None takes them from torch.distributed or torchrun, when first
            iterated.
        device_mesh, process_group: the data-parallel mesh or group instead, see `forebay.topology.Ranks`.
        address: socket of the daemon; None finds the node's, or starts one for this user.
        fallback: what becomes of the trainer while that daemon does not answer. `"wait"`, the default, rides through a
            restart and raises `DaemonUnavailable` after `daemon_wait_seconds`. `"embedded"` then goes on, with the same
            samples, with a daemon of this user's own, and at once where none was there to begin with. `"error"` raises
            at once, and never starts one. None: `FOREBAY_FALLBACK`.
        daemon_wait_seconds: None: `FOREBAY_DAEMON_WAIT_SECONDS`, else 60.

    Raises `ConfigurationError` at once for options that cannot work; errors of the source when it is first opened.
    """

    def __init__(
        self,
        source: SourceLike,
        *,
        format: str | Format | None = None,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        packing: Packing | None = None,
        transform: Transform | None = None,
        shuffle: Shuffle = "window",
        seed: int = 0,
        batch_size: int | None = None,
        tail: Tail = "even",
        order: OrderOptions | None = None,
        limit: int | None = None,
        buckets: Buckets | None = None,
        extras: Sequence[str] = (),
        rank: int | None = None,
        world_size: int | None = None,
        device_mesh: Any = None,
        process_group: Any = None,
        address: str | None = None,
        fallback: Fallback | None = None,
        daemon_wait_seconds: float | None = None,
    ) -> None:
        ranks = Ranks(rank, world_size, device_mesh, process_group)
        super().__init__(batch_size=batch_size, tail=tail, ranks=ranks, extras=checked_extras(extras))
        self.source = _urls(source)
        self.format = compose(_format(format), where=where, packing=packing)
        self.columns = None if columns is None else _names(columns)
        self.transform = transform
        self.shuffle: Shuffle = shuffle
        self.seed = seed
        self.order = order or OrderOptions()
        self.limit = limit
        self.buckets = checked_buckets(buckets)
        self.daemon = DaemonChoice(address, fallback, daemon_wait_seconds)
        self._selection = Selection() if limit is None else Selection((Limit(limit),))
        self._stream: Stream | None = None
        self._lookup: Lookup | None = None
        Order([], seed=seed, shuffle=shuffle, options=self.order)
        if transform is not None and not callable(transform):
            raise ConfigurationError(f"transform={transform!r} cannot be called: give a function of a sample")

    def open(self) -> None:
        """Asks the daemon for the dataset now instead of at the first use, so that what is wrong with it shows.

        Raises `SourceError` and its kinds, `EmptyDataset`, `ColumnNotFound`, `ConfigurationError`, `DaemonError`.
        """
        self._open()

    @property
    def is_open(self) -> bool:
        """Whether the daemon was asked already, so that its address is settled."""
        return self._stream is not None

    @property
    def samples(self) -> int:
        """Samples of a whole epoch, over all ranks."""
        return self._open().samples

    @property
    def counts(self) -> dict[str, int]:
        """What was found in the data while it was filtered and packed, over the whole dataset: `rows` and
        `matching_rows`; `documents`, `tokens` (separators too), `dropped_tokens` and `padded_tokens`."""
        return dict(self._open().manifest.counts)

    def split(
        self, fractions: Mapping[str, float], *, seed: int = 0, by: SplitBy = "sample"
    ) -> "dict[str, StreamingDataset]":
        """Disjoint datasets by name, as in `split({"train": 0.99, "eval": 0.01})`, with the options of this one.

        What a sample belongs to follows from `seed`, the fractions, its shard's name and its row there: not from the
        dataset's own seed, and shards that are added later move no sample of the others. Together they are all of this
        dataset, which may be limited or split itself, where the fractions sum to 1.

        by: "sample" takes each share of every shard, spread evenly; "shard" gives each shard to one of them, whole,
            so that an evaluation need not fetch them all.

        Each begins at position 0. Raises `ConfigurationError`; a dataset that gets no sample raises `EmptyDataset`
        when it is opened.
        """
        return {name: self._narrowed(stage) for name, stage in portions(fractions, seed=seed, by=by).items()}

    def __getitem__(self, index: SupportsIndex) -> Any:
        """One sample by its number in the order of the sample ids, counted from the end where it is negative.

        It is what iterating without a batch size yields, with the random numbers of epoch 0, and moves no position. Of
        a dataset that is limited or split, the index-th of the samples that take part. `samples` says how many there
        are; `len` counts steps. Raises `IndexError` beyond them.
        """
        number = operator.index(index)
        if not -self.samples <= number < self.samples:
            raise IndexError(f"sample {number} of {self.source[0]}: there are {self.samples}")
        return self._lookups().sample(*self._open().nth(number % self.samples))

    __reversed__ = None
    """Python would count down from `len`, which counts steps and not samples."""

    def close(self) -> None:
        """Ends what iterating and looking up samples have started. Either starts it anew."""
        super().close()
        if self._lookup is not None:
            self._lookup.close()
            self._lookup = None

    def describe(self) -> dict[str, Any]:
        """The position as people read it: for each lane the shard of its next sample, and the sample's row in it.

        `{"epoch", "position", "samples", "lanes": [{"lane", "shard", "row"}, …]}`; lanes that are done are left out.
        With buckets, where the lanes stand at the begin of the present window: all before it is read.
        """
        stream = self._open()
        at = self.position if self.buckets is None else self.buckets.window_begin(self.position)
        places = stream.order.epoch(self.epoch).places(at)
        lanes = [{"lane": place.lane, **stream.shard_row(place.piece, place.row)} for place in places]
        return {"epoch": self.epoch, "position": self.position, "samples": stream.samples, "lanes": lanes}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_stream": None, "_lookup": None}

    def _narrowed(self, stage: Stage) -> "StreamingDataset":
        narrowed = copy.copy(self)
        narrowed._selection = self._selection.then(stage)
        narrowed._progress = Progress()
        return narrowed

    def _lookups(self) -> Lookup:
        if self._lookup is None:
            stream = self._open()
            spec = self._reader_spec(Assembly(batched=False))
            self._lookup = Lookup(spec, stream.leases(f"dataset[index]: {self.source[0]}"), self)
        return self._lookup

    def _accept(self, saved: SavedState, *, strict: bool) -> None:
        stream = self._open().with_window_of(saved.identity)
        if strict:
            progress.check(saved, stream.identity(self.tail))
        check_reachable(saved, stream.samples)
        self._stream, self.order = stream, stream.order_spec.options

    def _open(self) -> Stream:
        """What the daemon knows of the dataset; asked once in a process."""
        if self._stream is None:
            spec = OrderSpec(self.shuffle, self.seed, self.order, self._selection, self.buckets)
            self._stream = Stream.open(
                self.daemon, self.source, format=self.format, columns=self.columns, order_spec=spec
            )
        return self._stream

    def _identity(self) -> Identity:
        return self._open().identity(self.tail)

    def _feed(self, split: Split) -> Feed:
        return self._open().feed(split, self._topology(), self.source[0])

    def _depth(self, split: Split) -> Depth:
        return self._open().depth(split)

    def _reader_spec(self, assembly: Assembly) -> StreamReaderSpec:
        stream = self._open()
        return StreamReaderSpec(
            manifest_path=stream.dataset.manifest_path,
            find_manifest=stream.manifest_path,
            columns=stream.columns,
            seed=self.seed,
            transform=self.transform,
            assembly=assembly,
        )


def _urls(source: SourceLike) -> tuple[str, ...]:
    urls = (source,) if isinstance(source, str | os.PathLike) else tuple(source)
    if not urls:
        raise ConfigurationError("source=[] names no data: give a URL, a path, or a list of them")
    given = [os.fspath(url) for url in urls]
    if not all(given):
        raise ConfigurationError("source='' names no data: is a variable unset? give a URL or a path")
    return tuple(absolute(url) for url in given)


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
