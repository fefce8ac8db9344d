"""The name of a piece: equal exactly when everything that it depends on is."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_core.identity import SourceIdentity

BASE: dict[str, Any] = {
    "scheme": "s3",
    "endpoint": "http://127.0.0.1:8333",
    "account": "",
    "bucket": "b",
    "key": b"train/a.parquet",
    "version": '"etag"',
    "start": 4,
    "stop": 1000,
    "first_unit": 0,
    "units": 2,
    "columns": ["x", "y"],
    "layout": "arrow-1",
}


def piece_key(*, start: int, stop: int, first_unit: int, units: int, **source: Any) -> str:
    return SourceIdentity(**source).piece_key(start, stop, first_unit, units)


#: Few letters, so that two examples often differ only in where the bytes lie.
_text = st.text("a/%", max_size=3)
_number = st.integers(0, 12)
_parts = st.fixed_dictionaries(
    {
        **dict.fromkeys(("scheme", "endpoint", "account", "bucket", "version", "layout"), _text),
        **dict.fromkeys(("start", "stop", "first_unit", "units"), _number),
        "key": st.binary(max_size=3),
        "columns": st.lists(_text, max_size=3),
    }
)


@given(_parts, _parts)
def test_two_pieces_share_a_name_only_if_they_are_the_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """CASES 34."""
    assert (piece_key(**one) == piece_key(**other)) == (one == other)


@given(st.lists(_text, min_size=6, max_size=6), st.integers(0, 4))
def test_no_byte_can_move_to_the_next_part_unseen(texts: list[str], at: int) -> None:
    names = ("scheme", "endpoint", "account", "bucket", "version", "layout")
    moved = list(texts)
    moved[at], moved[at + 1] = "", texts[at] + texts[at + 1]
    one, other = ({**BASE, **dict(zip(names, values, strict=True))} for values in (texts, moved))
    assert (piece_key(**one) == piece_key(**other)) == (texts == moved)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("key", b"train%2Fa.parquet"),
        ("key", b"Train/a.parquet"),
        ("key", b"train/a.parquet/"),
        ("key", "train/a\u0308.parquet".encode()),
        ("key", "train/ä.parquet".encode()),
        ("columns", ["y", "x"]),
        ("columns", ["xy"]),
        ("columns", []),
        ("layout", "arrow-2"),
        ("version", ""),
        ("endpoint", "http://127.0.0.1:8333/"),
    ],
)
def test_nothing_is_decoded_or_normalised(part: str, value: Any) -> None:
    """CASES 34."""
    assert piece_key(**{**BASE, part: value}) != piece_key(**BASE)


def test_the_name_is_the_same_in_every_version_of_forebay() -> None:
    assert piece_key(**BASE) == "43fde4efff27be159ae1a9e626eabaff4db4673568c3c9b738eadff0e0b03fe5"
