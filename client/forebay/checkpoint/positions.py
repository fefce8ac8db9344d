"""Which of a checkpoint's positions a rank goes on from, when there may be other ranks now (pure)."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from forebay.checkpoint.bundle import RankData
from forebay.digest import SampleDigest
from forebay.topology import Topology
from forebay_core.errors import ConfigurationError, StateError, StateMismatch


@dataclass(frozen=True, slots=True)
class Ranks:
    """This rank among all, and among those that read different samples."""

    rank: int
    world_size: int
    data: Topology


def data_of(here: Ranks, saved_world_size: int, read: Callable[[int], RankData]) -> RankData:
    """The position that this rank takes over: its own, or where the number of ranks has changed, that of a rank that
    read the same share, or of the first."""
    if saved_world_size == here.world_size:
        return read(here.rank)
    first = read(0)
    if first.data_ranks != here.data.world_size:
        return first
    return next(data for rank in range(saved_world_size) if (data := read(rank)).data_rank == here.data.rank)


def is_same_share(here: Ranks, data: RankData) -> bool:
    """Whether it is of a rank that read what this one will read, so that its random states are this rank's."""
    return (data.data_rank, data.data_ranks) == (here.data.rank, here.data.world_size)


def check_loader(here: Ranks, data: RankData) -> None:
    """Raises `StateMismatch` for a position that is each rank's own, and is of other ranks."""
    if data.loader is not None and "delegated" in data.loader and not is_same_share(here, data):
        raise StateMismatch(
            f"the checkpoint is of {data.data_ranks} ranks and this job has {here.data.world_size}: a "
            f"{data.loader['delegated']} keeps a position of its own on each rank, which no other number can go on from"
        )


Digest = tuple[int, Mapping[str, Any] | None]
"""A rank's place among those that read different samples, and its encoded sample digest."""


def total_digest(of_ranks: Iterable[Digest]) -> SampleDigest | None:
    """Of all samples handed out before the checkpoint; ranks that read the same count once. None where not known."""
    by_share: dict[int, SampleDigest] = {}
    for data_rank, digest in of_ranks:
        if digest is None:
            return None
        try:
            by_share.setdefault(data_rank, SampleDigest.decode(digest))
        except StateError:
            return None
    return sum(by_share.values(), SampleDigest())


def advanced(state: Mapping[str, Any], samples: int) -> dict[str, Any]:
    """A loader's state that many samples later, over all ranks. `ConfigurationError` where that cannot be said."""
    if samples < 0:
        raise ConfigurationError(f"skip_samples={samples}: give how many samples to leave out, 0 or more")
    try:
        epoch, position, total = int(state["epoch"]), int(state["position"]), int(state["dataset"]["samples"])
    except (KeyError, TypeError) as error:
        raise ConfigurationError(
            "skip_samples= needs a loader whose position forebay knows: this one keeps its own"
        ) from error
    later, position = divmod(position + samples, total)
    return {**state, "epoch": epoch + later, "position": position}
