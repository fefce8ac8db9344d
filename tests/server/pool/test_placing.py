"""Which disk gets a piece, and how much each may hold: rules by table."""

from pathlib import Path

import pytest

from forebay_core.capacity import Capacity
from forebay_core.errors import ConfigurationError
from forebay_server.pool.placing import Candidate, choose
from forebay_server.pool.shares import Claim, capacities


def disk(name: str, free: int, *, capacity: int = 100, held: int = 0, **more: int | bool) -> Candidate:
    most = int(more.pop("most", capacity))
    return Candidate(name, capacity, free, most, lambda: held, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("disks", "chosen"),
    [
        ([], None),
        ([disk("a", 0, most=1)], "a"),
        ([disk("a", 30), disk("b", 40)], "b"),
        ([disk("a", 90, capacity=100), disk("b", 500, capacity=1000)], "b"),
        ([disk("a", 30, most=5), disk("b", 0)], "b"),
        ([disk("a", 30, most=5), disk("b", 0, most=9)], "b"),
        ([disk("a", 90, is_unstable=True), disk("b", 0)], "b"),
        ([disk("a", 90, is_unstable=True), disk("b", 0, is_unstable=True)], "a"),
        ([disk("a", 90, is_slow=True, fills=1), disk("b", 20)], "b"),
        ([disk("a", 90, is_slow=True, fills=0), disk("b", 20)], "a"),
        ([disk("a", 0, held=100), disk("b", 0, held=80)], "b"),
        ([disk("a", 0, held=80), disk("b", 0, held=100)], "a"),
    ],
)
def test_a_piece_of_ten_bytes_goes_where_there_is_room_and_health(disks: list[Candidate], chosen: str | None) -> None:
    found = choose(disks, "key", 10)
    assert (found and found.id) == chosen


def test_where_all_are_full_each_disk_gets_its_part_by_capacity_and_a_key_always_the_same() -> None:
    full = [disk("a", 0, capacity=100), disk("b", 0, capacity=300)]
    picks = [choose(full, str(number), 10) for number in range(2000)]
    assert [choose(full[::-1], str(number), 10) for number in range(2000)] == picks
    assert 1400 < sum(pick is full[1] for pick in picks) < 1600


def claim(name: str, own: Capacity | None = None, *, device: int = 1) -> Claim:
    return Claim(Path("/") / name, own, device, 1000)


def test_a_share_of_one_file_system_is_divided_among_the_directories_on_it() -> None:
    claims = [claim("a"), claim("b"), claim("c", device=2), claim("d", Capacity(bytes=100))]
    assert capacities(claims, Capacity(share=0.8)) == [400, 400, 800, 100]
    assert capacities(claims, Capacity(bytes=250)) == [250, 250, 250, 100]
    assert capacities([claim("a")], Capacity(bytes=1000)) == [1000], "one is taken at its word"


def test_directories_that_add_up_to_more_than_their_file_system_are_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match=r"/a, /b lie on one file system of 1000 bytes and would hold 1200"):
        capacities([claim("a"), claim("b", Capacity(share=0.4)), claim("c", device=2)], Capacity(share=0.8))


@pytest.mark.parametrize("own", [None, Capacity(bytes=1001)])
def test_one_directory_that_is_to_hold_more_than_its_file_system_is_refused_as_several_are(
    own: Capacity | None,
) -> None:
    says = r"directory /a lies on a file system of 1000 bytes and would hold 1001: .*--capacity, FOREBAY_CAPACITY"
    with pytest.raises(ConfigurationError, match=says):
        capacities([claim("a", own), claim("b", Capacity(bytes=9), device=2)], Capacity(bytes=1001))
