"""The position of a rank as it is kept: read back as it was, or refused."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.checkpoint.bundle import RankData
from forebay_core.errors import CheckpointDamaged, CheckpointError, ForebayError

DATA = RankData(7, 1, 4, 1, 2, {"epoch": 0, "position": 128}, {"value": "ab", "samples": 3}, {"python": [3, "", None]})


def test_what_was_written_is_read_back() -> None:
    assert RankData.decode(DATA.encode()) == DATA
    assert RankData.decode(replace(DATA, loader=None, digest=None).encode()).loader is None


def test_a_loader_state_that_is_no_json_is_refused_when_it_is_saved() -> None:
    with pytest.raises(CheckpointError, match="JSON"):
        replace(DATA, loader={"generator": object()}).encode()


def test_a_newer_version_says_so() -> None:
    with pytest.raises(CheckpointError, match="version 2"):
        RankData.decode(DATA.encode().replace(b'"version": 1', b'"version": 2'))


values: Any = st.recursive(
    st.none() | st.integers() | st.text() | st.floats(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.binary() | values.map(lambda value: repr(value).encode()))
def test_nothing_else_than_errors_of_checkpoints_comes_of_hostile_bytes(content: bytes) -> None:
    with pytest.raises(ForebayError):
        RankData.decode(content)


@pytest.mark.parametrize("bad", [b'{"version": 1}', b"[]", b"[" * 100_000, b'{"version": 1, "step": -1}'])
def test_documents_that_are_none_are_damage(bad: bytes) -> None:
    with pytest.raises(CheckpointDamaged):
        RankData.decode(bad)
