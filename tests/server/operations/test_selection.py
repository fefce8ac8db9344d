"""Which objects a URL means to an operator."""

import pytest

from forebay_core.errors import ForebayError
from forebay_server.operations.selection import Reach, Selection


@pytest.mark.parametrize(
    ("prefix", "url", "is_held"),
    [
        ("s3://b/train", "s3://b/train/x.parquet", True),
        ("s3://b/train/", "s3://b/train/x.parquet", True),
        ("s3://b/train", "s3://b/train", True),
        ("s3://b/train", "s3://b/training/x.parquet", False),
        ("s3://b/train", "s3://c/train/x.parquet", False),
        ("s3://b", "s3://b/anything", True),
        ("s3://b/a%20b", "s3://b/a b/x", False),
        ("s3://b/*", "s3://b/x", False),
        ("/data", "file:///data/x", True),
        ("file:///data/x", "file:///data/x", True),
        ("/data", "file:///database/x", False),
        ("", "s3://b/x", True),
    ],
)
def test_a_url_selects_what_lies_at_or_below_it_by_whole_parts_of_the_key(prefix: str, url: str, is_held: bool) -> None:
    assert Selection.parse(prefix).holds(url) is is_held


@pytest.mark.parametrize(
    ("prefix", "root", "reach"),
    [
        ("s3://b/train", "s3://b/train", Reach.ALL),
        ("s3://b", "s3://b/train", Reach.ALL),
        ("s3://b/train/2024", "s3://b/train", Reach.SOME),
        ("s3://b/train", "s3://b/eval", Reach.NONE),
        ("s3://b/train", "", Reach.SOME),
        ("", "", Reach.ALL),
    ],
)
def test_a_dataset_is_selected_as_a_whole_in_part_or_not(prefix: str, root: str, reach: Reach) -> None:
    assert Selection.parse(prefix).reach(root) is reach


def test_what_is_no_url_is_refused() -> None:
    with pytest.raises(ForebayError, match="gs"):
        Selection.parse("gs://b/x")
