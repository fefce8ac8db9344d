"""How a format is found."""

from typing import Any

import pytest

from forebay_core.errors import ConfigurationError
from forebay_core.formats import Parquet, Tokens, by_extension, from_spec, infer, is_data_key
from forebay_core.formats.base import Cut, Cuts


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("a/part-0.snappy.parquet", Parquet),
        ("A.PARQUET", Parquet),
        ("x.pq", Parquet),
        ("x.bin", Tokens),
        ("x.npy", Tokens),
        ("x.parquet.gz", None),
        ("parquet", None),
        ("x.csv", None),
    ],
)
def test_a_format_is_found_by_the_extension(key: str, kind: Any) -> None:
    assert by_extension(key) is kind


def test_keys_of_one_format_infer_it() -> None:
    assert infer(["a.parquet", "b/c.parquet", "d.pq"]) == Parquet()


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        (["a.parquet", "b.csv", "c.csv"], r"parquet: 'a\.parquet'; unknown: 'b\.csv', 'c\.csv'"),
        (["a.parquet", "b.bin"], r"parquet: 'a\.parquet'; tokens: 'b\.bin'"),
        (["README"], "unknown: 'README'"),
        ([f"{i}.x" for i in range(100)], r"unknown: '0\.x', '1\.x', '2\.x'\)"),
        ([], "no objects"),
    ],
)
def test_keys_of_no_one_format_are_an_error_that_says_what_was_found(keys: list[str], found: str) -> None:
    with pytest.raises(ConfigurationError, match=f"found {found}.*format="):
        infer(keys)


def test_token_files_need_their_options() -> None:
    with pytest.raises(ConfigurationError, match=r"'a\.bin'.*format=forebay\.Tokens\(sequence_length=…, dtype=…\)"):
        infer(["a.bin"])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, "unknown format None: there are parquet, tokens"),
        ({"name": "csv"}, "unknown format 'csv'"),
        ({"name": "parquet", "rows": 3}, "does not take these options"),
        ({"name": "tokens"}, "sequence_length"),
        ({"name": "parquet", "cut": "parquet-9"}, "'parquet-1' here, not by 'parquet-9'"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        from_spec(spec)


@pytest.mark.parametrize("key", ["a.parquet", "year=2024/month=01/a.parquet", "a b/c_d.e/ü.bin", "x_/y.parquet"])
def test_data_is_listed(key: str) -> None:
    assert is_data_key(key)


@pytest.mark.parametrize(
    "key",
    [
        "_SUCCESS",
        "a/_SUCCESS",
        "_delta_log/00000.json",
        "_forebay/manifest.arrow",
        "_temporary/0/a.parquet",
        "_metadata",
        "_common_metadata",
        ".DS_Store",
        "a/.part-0.parquet.crc",
        "part-0.parquet.crc",
        ".hidden/a.parquet",
        "a/",
        "a//b.parquet",
        "",
    ],
)
def test_hidden_and_bookkeeping_names_are_not(key: str) -> None:
    assert not is_data_key(key)


def test_cuts_are_the_sequence_that_they_were_made_of() -> None:
    made = [Cut(i, 2 * i, 3 * i, 4 * i, 5 * i, 6 * i) for i in range(1, 6)]
    cuts = Cuts.of(iter(made))
    assert list(cuts) == made
    assert list(cuts[1:3]) == made[1:3]
    assert cuts[-1] == made[-1]
    assert Cuts.of(cuts) is cuts
    assert list(Cuts.of([])) == []
    with pytest.raises(IndexError):
        cuts[5]
