"""Which position a rank takes over, and what was handed out before."""

from typing import Any

import pytest

from forebay.checkpoint.bundle import RankData
from forebay.checkpoint.positions import Ranks, advanced, check_loader, data_of, is_same_share, total_digest
from forebay.digest import SampleDigest
from forebay.topology import Topology
from forebay_core.errors import ConfigurationError, StateMismatch


def data(
    rank: int, world_size: int, *, data_rank: int | None = None, data_ranks: int | None = None, **values: Any
) -> RankData:
    return RankData(
        step=1,
        rank=rank,
        world_size=world_size,
        data_rank=rank if data_rank is None else data_rank,
        data_ranks=data_ranks or world_size,
        loader=values.get("loader", {"rank": rank}),
        digest=values.get("digest"),
        random={},
    )


def here(rank: int, world_size: int, data_rank: int | None = None, data_ranks: int | None = None) -> Ranks:
    return Ranks(rank, world_size, Topology(rank if data_rank is None else data_rank, data_ranks or world_size))


def test_with_the_same_ranks_each_takes_over_its_own() -> None:
    found = data_of(here(2, 4), 4, lambda rank: data(rank, 4))
    assert found.rank == 2
    assert is_same_share(here(2, 4), found)


@pytest.mark.parametrize(("before", "now"), [(4, 2), (2, 3), (3, 4), (1, 4)])
def test_with_other_ranks_all_take_over_the_first_ones_position_and_no_random_states(before: int, now: int) -> None:
    for rank in range(now):
        found = data_of(here(rank, now), before, lambda rank: data(rank, before))
        assert found.rank == 0
        assert not is_same_share(here(rank, now), found)


def test_with_as_many_ranks_that_read_different_samples_each_takes_over_its_share() -> None:
    """Tensor parallelism over two ranks before, over one now: two shares of data as before."""

    def saved(rank: int) -> RankData:
        return data(rank, 4, data_rank=rank // 2, data_ranks=2)

    found = data_of(here(1, 2), 4, saved)
    assert found.data_rank == 1
    assert is_same_share(here(1, 2), found)


def test_a_position_that_is_each_ranks_own_cannot_be_taken_over_by_others() -> None:
    mine = data(0, 4, loader={"delegated": "some.Dataset"})
    check_loader(here(0, 4), mine)
    with pytest.raises(StateMismatch, match=r"4 ranks.*2.*some\.Dataset"):
        check_loader(here(0, 2), mine)


def digests(ranks: list[RankData]) -> list[Any]:
    return [(each.data_rank, each.digest) for each in ranks]


def test_the_digest_of_all_ranks_counts_those_that_read_the_same_once() -> None:
    one, other = SampleDigest(5, 2), SampleDigest(7, 3)
    ranks = [
        data(rank, 4, data_rank=rank // 2, data_ranks=2, digest=(one if rank < 2 else other).encode())
        for rank in range(4)
    ]
    assert total_digest(digests(ranks)) == SampleDigest(12, 5)


def test_one_digest_that_is_not_known_makes_the_sum_unknown() -> None:
    known = data(0, 2, digest=SampleDigest(5, 2).encode())
    assert total_digest(digests([known, data(1, 2)])) is None
    assert total_digest(digests([known, data(1, 2, digest={"algorithm": "another"})])) is None


@pytest.mark.parametrize(
    ("samples", "expected"), [(0, (3, 90)), (9, (3, 99)), (10, (4, 0)), (15, (4, 5)), (210, (6, 0))]
)
def test_samples_are_left_out_over_the_borders_of_epochs(samples: int, expected: tuple[int, int]) -> None:
    state = {"epoch": 3, "position": 90, "dataset": {"samples": 100, "fingerprint": "x"}, "order": {}}
    later = advanced(state, samples)
    assert (later["epoch"], later["position"]) == expected
    assert later["dataset"] == state["dataset"]


def test_a_position_that_is_not_known_cannot_be_advanced() -> None:
    with pytest.raises(ConfigurationError, match="skip_samples"):
        advanced({"delegated": "x", "epoch": 0, "steps": 3}, 5)
    with pytest.raises(ConfigurationError, match="skip_samples=-1"):
        advanced({"epoch": 0, "position": 0, "dataset": {"samples": 5}}, -1)
