"""How well an order mixes its samples, and how often its pieces are fetched: figures from the order, without data.

Looked at are three *excerpts* of an epoch: consecutive full steps at its start, in its middle and at its end, a third
of the epoch but at most about 16,384 positions each (one step, where that is more). So the cost is that of three
windows whatever the number of samples. Every figure stands beside that of a *true shuffle*: a uniformly random
permutation of the same N samples, handed out to the ranks at random. Pure; any thread. The command line shows it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd, lgamma

import numpy as np
import numpy.typing as npt

from forebay.order.engine import EpochOrder, Located, Order
from forebay.order.lanes import Int64, cut_lanes
from forebay.order.mixture import in_step_order
from forebay.order.needs import Needs
from forebay.order.steps import Split
from forebay_core.errors import ConfigurationError

_EXCERPT_POSITIONS = 1 << 14
_SIMULATED_EPOCHS = 32
_SIMULATION_SEED = 0
_MOST_RANKS = 256
"""Of more ranks the needs of only so many are made, whole nodes spread evenly over the job."""
_MOST_CELLS = 1 << 28
"""The same bound where many lanes make a rank's needs dear, in (step, lane) pairs."""
_POOR = 0.5
_MANY_FETCHES = 1.5


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of the steps of an excerpt; means over its steps where not said otherwise. A shard is an object."""

    shards_per_batch: float
    """Distinct shards in a global batch."""
    pieces_per_batch: float
    shards_per_rank_batch: float
    """Distinct shards in what one rank gets of a step; the mean over steps and ranks."""
    pieces_per_rank_batch: float
    largest_shard_share: float
    """Samples of the most frequent shard in a global batch, as a share of the batch, in (0, 1]."""
    mean_displacement: float
    """How far from its place a sample is read: |turn − offset| as a share of its lane's length, in [0, 1). The turn
    counts the samples that its lane has handed out before it, the offset those that lie before it in its lane."""
    max_displacement: float
    """The largest in the excerpt; of a true shuffle the largest that is possible there."""
    correlation: float | None
    """Between the sample ids at positions q and q + 1, each less the excerpt's mean, as in Pearson's coefficient. They
    are of different lanes where there are several. None where there are fewer than three positions."""
    lane_correlation: float | None
    """Between the sample ids that a lane hands out one after the other, each less the lane's mean in the excerpt, over
    all lanes. None where no lane has three."""
    open_pieces: int
    """Pieces that all ranks together must be able to read from in the excerpt's first step, and in one turn of every
    lane at the least: the window and the lanes make it large."""
    open_pieces_per_node: int
    """The same for the ranks of one node: the largest of the nodes looked at."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The steps [first_step, first_step + steps) of the epoch."""

    first_step: int
    steps: int
    found: Figures
    true_shuffle: Figures


@dataclass(frozen=True, slots=True)
class Quality:
    """What an order does to a dataset in one epoch."""

    algorithm: str
    epoch: int
    samples: int
    shards: int
    """Those with samples."""
    pieces: int
    """Those with samples."""
    lanes: int
    window: int
    world_size: int
    global_batch: int
    nodes: int
    start: Excerpt
    middle: Excerpt
    end: Excerpt
    fetches_per_piece: float
    """How often a piece is fetched in the epoch, in the mean: each node fetches once every piece that one of its ranks
    may want, and finds it in its cache from then on."""


def measure(
    order: Order,
    piece_rows: Int64,
    shard_of_piece: Int64,
    *,
    split: Split,
    epoch: int = 0,
    ranks_per_node: int = 1,
) -> Quality:
    """The figures of one epoch of `order`, which was made over `piece_rows`.

    piece_rows, shard_of_piece: int64[pieces], the rows of each piece, and the number of the shard that it is cut from.
    split: how steps are shared out; ranks r·K to r·K + K − 1 are on node r, K being `ranks_per_node`.

    Raises `ConfigurationError`, `EmptyDataset` where the split does not fit the samples.
    """
    split.check(order.samples)
    if ranks_per_node < 1:
        raise ConfigurationError(f"ranks_per_node={ranks_per_node}: give the number of GPUs of a node, 1 or more")
    rows, shards = np.asarray(piece_rows, dtype=np.int64), np.asarray(shard_of_piece, dtype=np.int64)
    look = _Look(order, order.epoch(epoch), rows, shards, split=split, per_node=ranks_per_node)
    number, firsts = look.excerpts()
    start, middle, end = (look.excerpt(first, number) for first in firsts)
    return Quality(
        algorithm=order.algorithm,
        epoch=epoch,
        samples=order.samples,
        shards=int(np.count_nonzero(look.shard_rows)),
        pieces=look.pieces,
        lanes=order.lanes,
        window=order.window,
        world_size=split.world_size,
        global_batch=split.global_batch,
        nodes=look.nodes,
        start=start,
        middle=middle,
        end=end,
        fetches_per_piece=look.fetches_per_piece(),
    )


def advice(quality: Quality) -> list[str]:
    """What the figures say to a person, one sentence each; none where nothing is to be said."""
    found, true = quality.middle.found, quality.middle.true_shuffle
    said = []
    if found.pieces_per_batch < _POOR * true.pieces_per_batch:
        said.append(
            f"a batch holds {found.pieces_per_batch:.1f} pieces of {found.shards_per_batch:.1f} shards; a true shuffle "
            f"would hold {true.pieces_per_batch:.1f} of {true.shards_per_batch:.1f}: {_remedy(quality)}"
        )
    if quality.fetches_per_piece > _MANY_FETCHES:
        said.append(
            f"each piece is fetched {quality.fetches_per_piece:.1f} times in an epoch, by {quality.nodes} nodes: "
            f"{_cure_of_fetches(quality)}"
        )
    return said


def _remedy(quality: Quality) -> str:
    if quality.algorithm == "sequential-1":
        return "the samples are not shuffled"
    if quality.window * quality.lanes < quality.samples:
        return f"raise the window, which is {quality.window} samples of each lane; more pieces are open then"
    return f"raise the lanes, which are {quality.lanes}; more pieces are open then"


def _cure_of_fetches(quality: Quality) -> str:
    if quality.algorithm == "global-1":
        return "a global shuffle reads all pieces everywhere; take the window shuffle for data that is far away"
    if quality.nodes > quality.lanes:
        return f"raise the lanes, which are {quality.lanes}, to the number of nodes or more"
    return "nodes share lanes; take a number of lanes that is a multiple of the nodes"


class _Look:
    """One order, looked at under one split."""

    def __init__(
        self, order: Order, epoch: EpochOrder, piece_rows: Int64, shard_of_piece: Int64, *, split: Split, per_node: int
    ) -> None:
        self.order, self.epoch, self.split = order, epoch, split
        self.piece_rows = piece_rows
        self.shard_of_piece = shard_of_piece
        self.shard_rows = np.bincount(shard_of_piece, weights=piece_rows).astype(np.int64)
        self.pieces = int(np.count_nonzero(piece_rows))
        self.nodes = -(-split.world_size // per_node)
        self._lanes = cut_lanes(order.samples, order.lanes)
        first = split.step(order.samples, 0)
        assert first is not None
        self._batch = first.take
        self._rank = np.searchsorted(np.cumsum(first.rank_sizes(split.world_size)), np.arange(first.take), side="right")
        self._rank_sizes = np.unique(self._rank, return_counts=True)[1]
        self._true_share = self._simulated_share()
        self._all = epoch.needs(0, split=Split(1, order.lanes), rank=0)
        self._of_nodes = [self._needs_of(node, per_node) for node in self._nodes_looked_at(per_node)]

    def excerpts(self) -> tuple[int, tuple[int, int, int]]:
        """The number of steps of each excerpt, and their first steps."""
        full = max(1, self.split.full_steps(self.order.samples))
        number = max(1, min(full // 3, _EXCERPT_POSITIONS // self._batch))
        return number, (0, (full - number) // 2, full - number)

    def excerpt(self, first: int, number: int) -> Excerpt:
        start, stop = first * self._batch, (first + number) * self._batch
        return Excerpt(first, number, self._found(start, stop), self._true(start, stop))

    def fetches_per_piece(self) -> float:
        wanted = sum(_number_of(needs.pieces) for needs in self._of_nodes)
        return wanted * self.nodes / (len(self._of_nodes) * self.pieces)

    def _found(self, start: int, stop: int) -> Figures:
        located = self.epoch.locate(start, stop)
        shard = self.shard_of_piece[located.piece]
        step = np.repeat(np.arange((stop - start) // self._batch), self._batch)
        by_rank = in_step_order(located.fraction, np.bincount(step))
        rank_batch = step * self.split.world_size + np.tile(self._rank, len(step) // self._batch)
        displacement = self._displacement(start, stop, located)
        return Figures(
            shards_per_batch=_distinct(step, shard),
            pieces_per_batch=_distinct(step, located.piece),
            shards_per_rank_batch=_distinct(rank_batch, shard[by_rank]),
            pieces_per_rank_batch=_distinct(rank_batch, located.piece[by_rank]),
            largest_shard_share=_largest_share(step, shard, self._batch),
            mean_displacement=float(displacement.mean()),
            max_displacement=float(displacement.max()),
            correlation=_correlation(located.sample_id, 1),
            lane_correlation=_correlation(located.sample_id, self.order.lanes),
            open_pieces=self._open(self._all, start),
            open_pieces_per_node=max(self._open(needs, start) for needs in self._of_nodes),
        )

    def _true(self, start: int, stop: int) -> Figures:
        samples = self.order.samples
        place = np.arange(start, stop, dtype=np.float64)
        beyond = samples - 1 - place
        mean = (place * (place + 1) + beyond * (beyond + 1)) / (2 * samples)
        uncorrelated = -1 / (samples - 1) if samples > 1 else None
        return Figures(
            shards_per_batch=expected_distinct(self.shard_rows, self._batch),
            pieces_per_batch=expected_distinct(self.piece_rows, self._batch),
            shards_per_rank_batch=self._over_ranks(lambda size: expected_distinct(self.shard_rows, size)),
            pieces_per_rank_batch=self._over_ranks(lambda size: expected_distinct(self.piece_rows, size)),
            largest_shard_share=self._true_share,
            mean_displacement=float(mean.mean()) / samples,
            max_displacement=float(np.maximum(place, beyond).max()) / samples,
            correlation=uncorrelated,
            lane_correlation=uncorrelated,
            open_pieces=self.pieces,
            open_pieces_per_node=self.pieces,
        )

    def _open(self, needs: Needs, start: int) -> int:
        stop = start + max(self._batch, self.order.lanes)
        return _number_of(needs.pieces[(needs.first < stop) & (start < needs.last)])

    def _displacement(self, start: int, stop: int, located: Located) -> npt.NDArray[np.float64]:
        turn, slot = np.divmod(np.arange(start, stop), self._lanes.count)
        lane = self._lanes.lane_of_slot[slot]
        coordinate = np.rint(located.fraction * self.order.samples)
        displacement: npt.NDArray[np.float64] = np.abs(turn - (coordinate - self._lanes.start[lane]))
        return displacement / self._lanes.length[lane]

    def _over_ranks(self, figure: Callable[[int], float]) -> float:
        sizes, ranks = np.unique(self._rank_sizes, return_counts=True)
        return float(np.average([figure(size) for size in sizes.tolist()], weights=ranks))

    def _simulated_share(self) -> float:
        """The largest share of a shard in batches of a global shuffle with a fixed seed: it has no closed form."""
        steps = max(1, min(self.order.samples, _EXCERPT_POSITIONS) // self._batch)
        epochs = max(1, min(_SIMULATED_EPOCHS, _EXCERPT_POSITIONS // (steps * self._batch)))
        shuffled = Order(self.piece_rows, seed=_SIMULATION_SEED, shuffle="global")
        piece = [shuffled.epoch(epoch).locate(0, steps * self._batch).piece for epoch in range(epochs)]
        step = np.repeat(np.arange(epochs * steps), self._batch)
        return _largest_share(step, self.shard_of_piece[np.concatenate(piece)], self._batch)

    def _nodes_looked_at(self, per_node: int) -> list[int]:
        period = self.order.lanes // gcd(self.split.global_batch, self.order.lanes)
        ranks = min(_MOST_RANKS, _MOST_CELLS // (period * self.order.lanes))
        nodes = max(1, min(self.nodes, ranks // per_node))
        return [node * self.nodes // nodes for node in range(nodes)]

    def _needs_of(self, node: int, per_node: int) -> Needs:
        ranks = range(node * per_node, min((node + 1) * per_node, self.split.world_size))
        each = [self.epoch.needs(0, split=self.split, rank=rank) for rank in ranks]
        return Needs(
            np.concatenate([needs.pieces for needs in each]),
            np.concatenate([needs.first for needs in each]),
            np.concatenate([needs.last for needs in each]),
        )


def expected_distinct(sizes: Int64, drawn: int) -> float:
    """How many groups of these sizes `drawn` samples hold in the mean, drawn without putting back.

    Exact, by the hypergeometric distribution: a group of s of N samples stays out with the probability
    C(N − s, n) / C(N, n).
    """
    size, groups = np.unique(sizes[sizes > 0], return_counts=True)
    samples = int((size * groups).sum())
    pairs = zip(size.tolist(), groups.tolist(), strict=True)
    return float(sum(number * (1 - _missed(samples, of, drawn)) for of, number in pairs))


def _missed(samples: int, size: int, drawn: int) -> float:
    if samples - size < drawn:
        return 0.0
    logarithm = lgamma(samples - size + 1) - lgamma(samples - size - drawn + 1)
    logarithm -= lgamma(samples + 1) - lgamma(samples - drawn + 1)
    return float(np.exp(min(0.0, logarithm)))


def _number_of(values: Int64) -> int:
    """Distinct values. numpy's `unique` of bare integers hashes them, which takes 50 times as long as to sort them."""
    return int(np.count_nonzero(np.diff(np.sort(values), prepend=-1)))


def _distinct(batch: Int64, group: Int64) -> float:
    """Distinct groups in a batch: the mean over the batches that there are. Both are numbers from 0."""
    return _number_of(batch * (int(group.max()) + 1) + group) / _number_of(batch)


def _largest_share(step: Int64, shard: Int64, batch: int) -> float:
    span = int(shard.max()) + 1
    pair, samples = np.unique(step * span + shard, return_counts=True)
    largest = np.zeros(int(step[-1]) + 1, dtype=np.int64)
    np.maximum.at(largest, pair // span, samples)
    return float(largest.mean()) / batch


def _correlation(sample_id: Int64, lanes: int) -> float | None:
    """Of each sample with the next of its lane; consecutive samples are of the lanes in turn."""
    turns = len(sample_id) // lanes
    if turns < 3:
        return None
    by_lane = sample_id[: turns * lanes].reshape(turns, lanes).astype(np.float64)
    by_lane -= by_lane.mean(axis=0)
    one, other = by_lane[:-1], by_lane[1:]
    scale = float(np.sqrt((one * one).sum() * (other * other).sum()))
    return float((one * other).sum()) / scale if scale > 0 else None
