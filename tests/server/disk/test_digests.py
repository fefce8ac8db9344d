"""The memory of what left: bounded, kept over restarts, and never in the way where it is damaged."""

from pathlib import Path

import pytest

from forebay_server.disk.digests import Digest, Digests
from tests.server.scripted import key_of


def kept(path: Path, *numbers: int, makers: str = "arrow 1", limit: int = 100) -> Digests:
    digests = Digests(path, makers=makers, limit=limit)
    for number in numbers:
        digests.put(key_of(number), Digest(number, number))
    return digests


def test_what_left_is_remembered_over_a_restart_and_the_latest_word_counts(tmp_path: Path) -> None:
    first = kept(tmp_path / "d", 1, 2)
    first.put(key_of(1), Digest(7, 7))
    first.close()
    second = kept(tmp_path / "d")
    assert [second.get(key_of(number)) for number in (1, 2, 3)] == [Digest(7, 7), Digest(2, 2), None]
    second.close()


def test_the_oldest_are_forgotten_beyond_the_limit(tmp_path: Path) -> None:
    digests = kept(tmp_path / "d", *range(10), limit=4)
    assert [number for number in range(10) if digests.get(key_of(number))] == [6, 7, 8, 9]
    digests.close()


def test_digests_of_other_versions_of_the_decoders_say_nothing(tmp_path: Path) -> None:
    kept(tmp_path / "d", 1).close()
    other = kept(tmp_path / "d", makers="arrow 2")
    assert other.get(key_of(1)) is None
    other.close()


@pytest.mark.parametrize("damage", [b"", b"not a table" * 1000])
def test_a_table_that_is_damaged_is_made_anew(tmp_path: Path, damage: bytes) -> None:
    kept(tmp_path / "d", 1).close()
    (tmp_path / "d").write_bytes(damage)
    digests = kept(tmp_path / "d", 2)
    assert digests.get(key_of(1)) is None
    assert digests.get(key_of(2)) == Digest(2, 2)
    digests.close()


def test_where_no_table_can_be_there_is_none_and_nothing_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    digests = kept(tmp_path / "file" / "d", 1)
    assert digests.get(key_of(1)) is None
    digests.close()
