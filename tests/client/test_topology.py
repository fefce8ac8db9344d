"""Which share of each step a process reads."""

from typing import Any

import pytest

from forebay.topology import Ranks, Topology, nodes
from forebay_core.errors import ConfigurationError

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}


def test_numbers_given_explicitly_win() -> None:
    assert Ranks(1, 2).resolve(TORCHRUN) == Topology(1, 2)


def test_torchruns_environment_is_read_when_nothing_is_given() -> None:
    assert Ranks().resolve(TORCHRUN) == Topology(3, 8)


def test_a_process_alone_is_rank_0_of_1() -> None:
    assert Ranks().resolve({}) == Topology(0, 1)


@pytest.mark.parametrize(("rank", "world_size"), [(0, None), (None, 4), (4, 4), (-1, 4), (0, 0)])
def test_half_a_topology_or_one_that_does_not_exist_is_refused(rank: int | None, world_size: int | None) -> None:
    with pytest.raises(ConfigurationError):
        Ranks(rank, world_size).resolve({})


@pytest.mark.parametrize(("rank", "world_size"), [("0", "2"), (0, 2.0), (True, 2)])
def test_what_is_no_whole_number_is_refused_by_its_name(rank: Any, world_size: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"=('0'|2\.0|True): give a whole number"):
        Ranks(rank, world_size)


@pytest.mark.parametrize("environment", [{"RANK": "x", "WORLD_SIZE": "2"}, {"RANK": "2", "WORLD_SIZE": "2"}])
def test_an_environment_that_makes_no_sense_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError):
        Ranks().resolve(environment)


@pytest.mark.parametrize(
    ("world_size", "environment", "expected"),
    [
        (64, {"WORLD_SIZE": "64", "LOCAL_WORLD_SIZE": "8"}, 8),
        (60, {"WORLD_SIZE": "60", "LOCAL_WORLD_SIZE": "8"}, 8),
        (8, {"WORLD_SIZE": "64", "LOCAL_WORLD_SIZE": "8"}, 8),
        (4, {"WORLD_SIZE": "64", "LOCAL_WORLD_SIZE": "8"}, 4),
        (64, {"WORLD_SIZE": "64"}, None),
        (64, {}, None),
        (64, {"WORLD_SIZE": "64", "LOCAL_WORLD_SIZE": "0"}, None),
        (64, {"WORLD_SIZE": "64", "LOCAL_WORLD_SIZE": "many"}, None),
    ],
)
def test_the_nodes_of_a_job_are_counted_where_torchrun_says_how(
    world_size: int, environment: dict[str, str], expected: int | None
) -> None:
    assert nodes(Topology(0, world_size), environment) == expected
