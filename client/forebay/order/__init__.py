"""The order engine: which sample every rank reads at every step, as pure functions of a seed.

Read in this order: `options` (what may be chosen), `lanes` and `line` (pieces to a track), `window` and `permutation`
(the shuffles), `selection` and `strata` (which samples take part), `sequence` (positions to samples), `steps` and
`share` (positions to ranks), `plan` and `needs` (what the loader asks), `engine` (the surface), `rank_order` (the
surface as one rank sees it), `listed` (epochs over explicit lists of indices), `mixture` (the order of several
datasets), `buckets` (batches of like lengths), `located_plan` and `mixture_plan` (what a rank reads of those). It does
no I/O but for a file of lengths, and knows nothing of torch or the daemon.
"""

from forebay.order.buckets import BucketedSequence, Buckets, shared, spec_of
from forebay.order.engine import EpochOrder, Order
from forebay.order.listed import BatchedOrder, ListedOrder, Listing, Lists
from forebay.order.located_plan import SharedLocated
from forebay.order.mixture import Draws, MixtureOrder, in_step_order
from forebay.order.mixture_plan import MixedSequence
from forebay.order.needs import Needs
from forebay.order.options import OrderOptions, Shuffle
from forebay.order.plan import RankPlan
from forebay.order.rank_order import RankOrder, SharedOrder
from forebay.order.selection import Limit, Pieces, SelectedRows, Selection, SplitBy, portions
from forebay.order.share import runs
from forebay.order.steps import Split, Step, Tail

__all__ = [
    "BatchedOrder",
    "BucketedSequence",
    "Buckets",
    "Draws",
    "EpochOrder",
    "Limit",
    "ListedOrder",
    "Listing",
    "Lists",
    "MixedSequence",
    "MixtureOrder",
    "Needs",
    "Order",
    "OrderOptions",
    "Pieces",
    "RankOrder",
    "RankPlan",
    "SelectedRows",
    "Selection",
    "SharedLocated",
    "SharedOrder",
    "Shuffle",
    "Split",
    "SplitBy",
    "Step",
    "Tail",
    "in_step_order",
    "portions",
    "runs",
    "shared",
    "spec_of",
]
