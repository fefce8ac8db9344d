"""The parts of a checkpointer that there are once the ranks have met, and what a rank keeps of its place."""

from collections.abc import Callable
from typing import Any

from forebay.checkpoint import randomness
from forebay.checkpoint.attempt import Policy, Writer
from forebay.checkpoint.background import Background, Told
from forebay.checkpoint.bundle import RankData
from forebay.checkpoint.failures import Failures
from forebay.checkpoint.place import Place
from forebay.checkpoint.positions import Ranks
from forebay.checkpoint.saving import Saving
from forebay.checkpoint.site import Site, data_topology
from forebay.checkpoint.staging import Stager
from forebay.checkpoint.timing import Looking
from forebay.digest import SampleDigest


class Job:
    """Made on all ranks. Every part is used on the threads that it says."""

    def __init__(self, site: Site, policy: Policy, failures: Failures, told: Told, loader: Any) -> None:
        saving = site.groups.saving
        self.site = site
        self.ranks = Ranks(saving.rank, saving.world_size, data_topology(loader, saving.rank, saving.world_size))
        self.stager = Stager(saving.rank, saving.world_size, saving.gather)
        writer = Writer(site.calls, saving, Saving(saving.process_group), site.node_ranks, policy)
        self.background = Background(writer, site.calls, failures, told, speaks=saving.rank == 0)
        self.looking = Looking(site.groups.control)
        self.is_one_node = len(site.node_leaders) == 1


def data_of(place: Place, step: int, ranks: Ranks, base: SampleDigest | None) -> Callable[[], RankData]:
    """What is kept of a place, made on the thread that writes. base: what rank 0 adds for what was before its start."""

    def make() -> RankData:
        digest = None if place.digest is None or base is None else (place.digest + base).encode()
        return RankData(
            step=step,
            rank=ranks.rank,
            world_size=ranks.world_size,
            data_rank=ranks.data.rank,
            data_ranks=ranks.data.world_size,
            loader=place.loader,
            digest=digest,
            random=randomness.encoded(place.random),
        )

    return make
