"""How much memory the daemon takes of what there is."""

import pytest

from forebay_server.process.budgets import budgets

MIB, GIB = 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("memory", "flight", "decode"),
    [(256 * MIB, 32 * MIB, 128 * MIB), (4 * GIB, 128 * MIB, 512 * MIB), (1 << 40, 256 * MIB, GIB)],
)
def test_the_daemon_takes_a_small_part_of_the_memory_and_never_more_than_a_little(
    memory: int, flight: int, decode: int
) -> None:
    assert (budgets(memory).flight_bytes, budgets(memory).decode_bytes) == (flight, decode)
