"""Several remote datasets as one, drawn from in given shares: exact, elastic, with one position.

A `Mixture` has the order, the position and the steps; its sources say where data lies and how it is shuffled, read and
transformed. A source's own position is never moved: which of its samples is next follows from the mixture's position.
Nothing is opened in the constructor; used on the trainer's thread alone.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset

from forebay import progress
from forebay.daemon.choice import DaemonChoice, common
from forebay.dataset import StreamingDataset
from forebay.loading.assembly import Assembly, checked_extras
from forebay.loading.engine import Feed
from forebay.loading.leases import SharedLeases
from forebay.loading.lookahead import Depth
from forebay.loading.mixture_reader import MixtureReaderSpec, agreed_columns
from forebay.opened import Stream, depth_of
from forebay.order import MixedSequence, MixtureOrder, SharedLocated, Split
from forebay.order.mixture import DEFAULT_BLOCK, EpochLength, apportion
from forebay.order.mixture_plan import first_pieces, sources_of
from forebay.order.options import integer
from forebay.order.steps import Tail
from forebay.ordered import Ordered, check_reachable
from forebay.progress import Identity, SavedState
from forebay.topology import Ranks, Topology
from forebay_core.errors import ConfigurationError, EmptyDataset, StateError


class Mixture(Ordered, IterableDataset[Any]):
    """Samples of several datasets in given shares; each dataset's own epochs are exactly once, one after another.

    Every `block` consecutive positions hold exactly each source's share. A source's epochs run on over the mixture's: a
    small one begins anew, in another order, as soon as all of it was read, and none is cut short. Each sample's
    random numbers are those of its source's seed and epoch, as if it were read alone.

    Args:
        sources: for each name a `StreamingDataset` and its weight; weights need not sum to 1. What belongs to the steps
            (batch_size, tail, extras, buckets, rank and world size) is the mixture's and must not be given to a source.
        epoch: the length of an epoch: `"longest"` reads about all of every source, some more than once; `"shortest"`
            ends where the first source would begin anew, about; or a number of samples.
        seed: any integer; the order of the draws is a function of it. The sources keep their own.
        batch_size, tail, rank, world_size, device_mesh, process_group: as in `StreamingDataset`.
        extras: as there, and `forebay.SOURCE`. `SAMPLE_ID` is that of the source, `POSITION` the mixture's.
        block: positions in which the shares are exact.

    Where no source has a transform, and no collate_fn is given, the sources' columns must be the same.
    Raises `ConfigurationError` at once for options that cannot work; errors of the sources when first opened.
    """

    def __init__(
        self,
        sources: Mapping[str, tuple[StreamingDataset, float]],
        *,
        epoch: EpochLength = "longest",
        seed: int = 0,
        batch_size: int | None = None,
        tail: Tail = "even",
        extras: Sequence[str] = (),
        rank: int | None = None,
        world_size: int | None = None,
        device_mesh: Any = None,
        process_group: Any = None,
        block: int = DEFAULT_BLOCK,
    ) -> None:
        ranks = Ranks(rank, world_size, device_mesh, process_group)
        super().__init__(batch_size=batch_size, tail=tail, ranks=ranks, extras=checked_extras(extras))
        checked = {name: _source(name, given) for name, given in _named(sources).items()}
        self.sources = {name: dataset for name, (dataset, _) in checked.items()}
        self.weights = {name: weight for name, (_, weight) in checked.items()}
        self.epoch_length, self.seed, self.block = epoch, seed, integer("block", block)
        self._windows: dict[str, int] = {}
        self._opened: _Opened | None = None
        apportion(list(self.weights.values()), self.block)
        MixtureOrder([1], [1.0], seed=seed, block=1, epoch_length=epoch)

    @property
    def names(self) -> tuple[str, ...]:
        """The sources' names in the order of their numbers, which `forebay.SOURCE` gives."""
        return tuple(self.sources)

    @property
    def daemon(self) -> DaemonChoice:
        """What all sources alike have been told of the daemon."""
        return common([source.daemon for source in self.sources.values()])

    @daemon.setter
    def daemon(self, daemon: DaemonChoice) -> None:
        for source in self.sources.values():
            source.daemon = source.daemon.or_else(daemon)

    @property
    def is_open(self) -> bool:
        """Whether any source is, and so has its daemon."""
        return any(source.is_open for source in self.sources.values())

    def open(self) -> None:
        """Asks the daemon for all sources now instead of at the first use, so that what is wrong with them shows."""
        self._open()

    @property
    def samples(self) -> int:
        """Samples of a whole epoch, over all sources and ranks."""
        return self._open().order.samples

    @property
    def counters(self) -> dict[str, int]:
        """How many samples of each source lie before the position, over all epochs and ranks.

        A function of the position alone, so it is right after any resume. What `tail="drop"` dropped is counted too.
        """
        drawn = self._open().order.epoch(self.epoch).drawn(self.position)
        return dict(zip(self.names, drawn.tolist(), strict=True))

    def describe(self) -> dict[str, Any]:
        """The position as people read it.

        `{"epoch", "position", "samples", "sources": [{"name", "epoch", "position", "samples", "drawn"}, …]}`: the next
        sample of each source is at a position of an epoch of its own, after so many draws.
        """
        opened = self._open()
        sources = []
        for (name, drawn), stream in zip(self.counters.items(), opened.streams, strict=True):
            own_epoch, own_position = divmod(drawn, stream.samples)
            sources.append(
                {
                    "name": name,
                    "epoch": own_epoch,
                    "position": own_position,
                    "samples": stream.samples,
                    "drawn": drawn,
                }
            )
        return {"epoch": self.epoch, "position": self.position, "samples": opened.order.samples, "sources": sources}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_opened": None}

    def _accept(self, saved: SavedState, *, strict: bool) -> None:
        opened = self._open().with_windows_of(saved)
        if strict:
            progress.check(saved, opened.identity(self.tail))
        check_reachable(saved, opened.order.samples)
        self._opened = opened
        self._windows = {name: stream.order.window for name, stream in zip(self.names, opened.streams, strict=True)}

    def _open(self) -> "_Opened":
        """What the daemon knows of the sources; asked once in a process."""
        if self._opened is None:
            streams = [self._opened_source(name, source) for name, source in self.sources.items()]
            self._opened = _Opened(self, streams)
        return self._opened

    def _opened_source(self, name: str, source: StreamingDataset) -> Stream:
        stream = source._open()
        if stream.samples == 0:
            raise EmptyDataset(f"source {name!r} of the mixture has no samples: check its URL, or leave it out")
        window = self._windows.get(name, stream.order.window)
        return stream if window == stream.order.window else stream.with_window(window)

    def _identity(self) -> Identity:
        return self._open().identity(self.tail)

    def _feed(self, split: Split) -> Feed:
        return self._open().feed(split, self._topology())

    def _depth(self, split: Split) -> Depth:
        return self._open().depth(split)

    def _reader_spec(self, assembly: Assembly) -> MixtureReaderSpec:
        opened = self._open()
        if assembly.batched and assembly.collate_fn is None:
            columns = {
                name: stream.manifest.columns(list(stream.columns))
                for (name, source), stream in zip(self.sources.items(), opened.streams, strict=True)
                if source.transform is None
            }
            agreed_columns(columns)
        specs = [source._reader_spec(Assembly()) for source in self.sources.values()]
        return MixtureReaderSpec(tuple(specs), tuple(opened.first_pieces), self.seed, assembly)


class _Opened:
    """The opened sources of a mixture, and their order."""

    def __init__(self, mixture: Mixture, streams: list[Stream]) -> None:
        self._mixture = mixture
        self.streams = streams
        self.order = MixtureOrder(
            [stream.samples for stream in streams],
            list(mixture.weights.values()),
            seed=mixture.seed,
            block=mixture.block,
            epoch_length=mixture.epoch_length,
        )
        self._sequence = MixedSequence(self.order, tuple(stream.order for stream in streams))
        self.first_pieces = first_pieces(self._sequence.sources)

    def identity(self, tail: Tail) -> Identity:
        """What a state is bound to."""
        sources = [
            {
                "name": name,
                "fingerprint": stream.manifest.fingerprint,
                "samples": stream.samples,
                "order": stream.order.spec(),
            }
            for name, stream in zip(self._mixture.names, self.streams, strict=True)
        ]
        return Identity("mixture", self.order.samples, {**self.order.spec(), "tail": tail, "sources": sources})

    def with_windows_of(self, saved: SavedState) -> "_Opened":
        """These sources with the windows of a state of the same ones; sources that are others stay as they are."""
        theirs = _saved_sources(saved.identity.order)
        if len(theirs) != len(self.streams):
            return self
        streams = [stream.with_window_of(source) for stream, source in zip(self.streams, theirs, strict=True)]
        return _Opened(self._mixture, streams)

    def feed(self, split: Split, here: Topology) -> Feed:
        """What an engine reads from."""
        return Feed(
            order=SharedLocated(self._sequence, split, here.rank),
            connect=lambda: self._connect(here),
            piece_bytes=np.concatenate([stream.manifest.piece_decoded_bytes for stream in self.streams]),
            names=_Names(self.streams, self.first_pieces),
        )

    def depth(self, split: Split) -> Depth:
        """How far a reader in this process runs ahead."""
        slots = self.order.slots
        sizes = [stream.sample_bytes * own for stream, own in zip(self.streams, slots, strict=True)]
        return depth_of(sum(sizes) / sum(slots), split)

    def _connect(self, here: Topology) -> SharedLeases:
        """A session for each source."""
        sources = zip(self._mixture.sources.items(), self.streams, strict=True)
        with ExitStack() as stack:
            leases = []
            for (name, source), stream in sources:
                label = f"rank {here.rank} of {here.world_size}: {name}: {source.source[0]}"
                leases.append(stream.leases(label))
                stack.callback(leases[-1].close)
            stack.pop_all()
        return SharedLeases(leases, self.first_pieces)


@dataclass(frozen=True)
class _Names:
    """What a warning calls the pieces of a mixture, and the word of the daemon."""

    streams: Sequence[Stream]
    first_pieces: Sequence[int]

    def piece(self, piece: int) -> str:
        source = int(sources_of(self.first_pieces, piece))
        return self.streams[source].names.piece(piece - self.first_pieces[source])

    def daemon(self) -> str:
        return self.streams[0].names.daemon()


def _named(sources: Mapping[str, tuple[StreamingDataset, float]]) -> Mapping[str, tuple[StreamingDataset, float]]:
    if not isinstance(sources, Mapping) or not sources:
        raise ConfigurationError(
            'a mixture is made of named sources: give {"web": (dataset, 0.7), "code": (dataset, 0.3)}'
        )
    return sources


def _source(name: str, given: Any) -> tuple[StreamingDataset, float]:
    """The dataset and the weight of a source, if they can be."""
    if not isinstance(name, str) or not name:
        raise ConfigurationError(f"source {name!r}: give each source a name")
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise ConfigurationError(f"source {name!r} is {given!r}: give a dataset and its weight, (dataset, 0.7)")
    dataset, weight = given
    if not isinstance(dataset, StreamingDataset):
        raise ConfigurationError(
            f"source {name!r} is a {type(dataset).__name__}: a mixture is made of forebay.StreamingDataset"
        )
    steps = {"batch_size": dataset.batch_size, "extras": dataset.extras or None, "buckets": dataset.buckets}
    given_there = [option for option, value in steps.items() if value is not None]
    given_there += ["tail"] if dataset.tail != "even" else []
    given_there += ["rank, world_size, device_mesh or process_group"] if dataset._ranks != Ranks() else []
    if given_there:
        raise ConfigurationError(
            f"source {name!r} has {' and '.join(given_there)} of its own: steps are the mixture's; give it to the "
            f"Mixture, or to the DataLoader, and leave it out there"
        )
    share = float(weight) if isinstance(weight, Real) and not isinstance(weight, bool) else 0.0
    if not 0 < share < math.inf:
        raise ConfigurationError(
            f"weight {weight!r} of source {name!r}: give a positive number, or leave the source out"
        )
    return dataset, share


def _saved_sources(order: Mapping[str, Any]) -> list[Identity]:
    """The sources as a state has them."""
    try:
        return [
            Identity(str(source["fingerprint"]), int(source["samples"]), dict(source["order"]))
            for source in order.get("sources", [])
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"not a state of a forebay mixture ({type(error).__name__}: {error}): give what state_dict() returned"
        ) from error
