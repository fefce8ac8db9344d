"""Sources as users name them."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_core.errors import ConfigurationError, UnknownScheme
from forebay_core.locations import Location, Source, parse, redacted


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://b", Location("s3", "b", "")),
        ("s3://b/", Location("s3", "b", "")),
        ("S3://b/k", Location("s3", "b", "k")),
        ("s3://b/a/b.parquet", Location("s3", "b", "a/b.parquet")),
        ("s3://b/a/", Location("s3", "b", "a/")),
        ("s3://b/a%2Fb c+d#e&f=g ü", Location("s3", "b", "a%2Fb c+d#e&f=g ü")),
        ("s3://b/what?", Location("s3", "b", "what?")),
        ("file:///data/a%20b", Location("file", "", "/data/a%20b")),
        ("file:///", Location("file", "", "/")),
        ("/data//x/../a b#c?d", Location("file", "", "/data/a b#c?d")),
        ("/data/x/", Location("file", "", "/data/x/")),
        ("/data/a:b@c", Location("file", "", "/data/a:b@c")),
    ],
)
def test_a_url_is_taken_as_it_is_spelt(url: str, expected: Location) -> None:
    assert parse(url) == expected
    assert parse(expected.url) == expected


def test_unicode_in_either_normal_form_stays_what_it_is() -> None:
    assert parse("s3://b/a\u0308").path != parse("s3://b/ä").path


def test_a_relative_path_is_completed_by_the_working_directory() -> None:
    assert parse("data/train").path == f"{Path.cwd()}/data/train"
    assert parse("./data/").path == f"{Path.cwd()}/data/"
    assert Source(("data",)).urls == (f"file://{Path.cwd()}/data",)


@pytest.mark.parametrize("scheme", ["gs", "az", "http", "https"])
def test_a_scheme_that_comes_later_is_said_to(scheme: str) -> None:
    with pytest.raises(
        UnknownScheme, match=rf"s3://, file:// and plain paths; this version cannot read {scheme}:// yet"
    ):
        parse(f"{scheme}://b/k")


def test_an_unknown_scheme_lists_the_known_ones() -> None:
    with pytest.raises(UnknownScheme, match=r"'hdfs://n/k'.*s3://, file:// and plain paths$"):
        parse("hdfs://n/k")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "empty"),
        ("s3://", "no bucket"),
        ("s3:///key", "no bucket"),
        ("s3://b//k", "empty, '.' or '..'"),
        ("s3://b/a//k", "empty, '.' or '..'"),
        ("s3://b/a/../k", "empty, '.' or '..'"),
        ("s3://b/./k", "empty, '.' or '..'"),
        ("s3://b/k?versionId=3", "query"),
        ("s3://b?x=1", "query"),
        ("file://host/k", "file:///absolute/path"),
        ("file://relative", "file:///absolute/path"),
        ("/a\0b", "null character"),
    ],
)
def test_a_url_that_cannot_be_read_is_refused_with_what_to_write(url: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse(url)


@pytest.mark.parametrize(
    "url",
    [
        "s3://user:hunter2@b/k",
        "s3://b/k?X-Amz-Signature=hunter2&Expires=3",
        "gs://user:hunter2@b/k?token=hunter2",
        "file://user:hunter2@host/k",
    ],
)
def test_a_message_holds_no_secrets(url: str) -> None:
    with pytest.raises((ConfigurationError, UnknownScheme)) as error:
        parse(url)
    assert "hunter2" not in str(error.value)
    assert "hunter2" not in redacted(url)


def test_a_prefix_is_a_directory_and_never_the_beginning_of_a_name() -> None:
    for url in ("s3://b/train", "s3://b/train/"):
        source = Source((url,))
        assert (source.kind, source.root) == ("prefix", "s3://b/train")
        assert source.matches("x.parquet")
        assert source.matches("deep/er/x.parquet")


def test_a_prefix_may_be_one_object_unless_it_is_written_as_a_directory() -> None:
    one = Source(("s3://b/train/x.parquet",)).as_object()
    assert one is not None
    assert (one.kind, one.root) == ("object", "s3://b/train")
    assert one.matches("x.parquet")
    assert not one.matches("y.parquet")
    assert not one.matches("x.parquet/part-0")
    for url in ("s3://b/train/", "s3://b", "s3://b/*.parquet", "/"):
        assert Source((url,)).as_object() is None


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("s3://b", "s3://b"),
        ("s3://b/", "s3://b"),
        ("/", "file:///"),
        ("/data/", "file:///data"),
        ("s3://b/*.parquet", "s3://b"),
        ("s3://b/a/b/*.parquet", "s3://b/a/b"),
        ("s3://b/a/x-[0-3]/b/*.parquet", "s3://b/a"),
        ("s3://b/a/**/c", "s3://b/a"),
        ("/*.parquet", "file:///"),
        ("/data/*/x", "file:///data"),
    ],
)
def test_the_root_is_the_last_directory_that_is_sure(url: str, root: str) -> None:
    assert Source((url,)).root == root


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*.parquet", ["a.parquet", ".parquet", "a\n.parquet"], ["d/a.parquet", "a.parquet.crc", "aparquet"]),
        ("a?c", ["abc", "aüc", "a?c"], ["ac", "a/c", "abbc"]),
        ("x-[0-2a].bin", ["x-0.bin", "x-2.bin", "x-a.bin"], ["x-3.bin", "x--.bin", "x-.bin", "x-[0-2a].bi"]),
        ("x-[!0-2].bin", ["x-3.bin", "x-!.bin"], ["x-0.bin", "x-/.bin", "x-.bin"]),
        ("x-[]a]", ["x-]", "x-a"], ["x-b"]),
        ("x[-a]", ["x-", "xa"], ["xb"]),
        ("x[a^&&|]", ["x^", "x&", "x|"], ["xb"]),
        ("x[[]1]", ["x[1]"], ["x1", "x["]),
        ("x[1].bin", ["x1.bin", "x[1].bin"], ["x2.bin"]),
        ("x[1", ["x[1"], ["x1"]),
        ("**", ["a", "a/b/c"], []),
        ("**/*.bin", ["a.bin", "d/a.bin", "d/e/a.bin"], ["a.npy", "d/a.bin/x"]),
        ("d/**/x", ["d/x", "d/e/x", "d/e/f/x"], ["x", "dx", "d/ex"]),
        ("year=*/**", ["year=2024/a", "year=2024/m/a"], ["month=1/a", "year=2024"]),
        ("train-*/", ["train-0/a", "train-0/b/c"], ["train-0", "test-0/a"]),
        ("a**b", ["ab", "axxb"], ["a/b"]),
        ("%2A+#*", ["%2A+#", "%2A+#x"], ["*+#"]),
    ],
)
def test_a_glob_names_whole_keys(pattern: str, yes: list[str], no: list[str]) -> None:
    source = Source((f"s3://b/root/{pattern}", "s3://b/root/only-here-to-fix-the-root"))
    assert source.root == "s3://b/root"
    assert [key for key in yes if not source.matches(key)] == []
    assert [key for key in no if source.matches(key)] == []


def test_the_keys_of_a_glob_are_relative_to_its_root() -> None:
    source = Source(("s3://b/root/d/x-*/*.bin",))
    assert (source.kind, source.root) == ("glob", "s3://b/root/d")
    assert source.matches("x-1/a.bin")
    assert not source.matches("d/x-1/a.bin")
    assert Source(("/data/*.bin",)).matches("a.bin")


def test_a_pattern_that_cannot_be_is_refused_when_it_is_given() -> None:
    with pytest.raises(ConfigurationError, match=r"s3://b/x\[z-a\].*no pattern"):
        Source(("s3://b/x[z-a]",))


def test_a_list_holds_objects_directories_and_globs_of_one_root() -> None:
    source = Source(("s3://b/d/a.parquet", "s3://b/d/e/", "s3://b/d/f", "s3://b/d/g-*.parquet"))
    assert (source.kind, source.root) == ("list", "s3://b/d")
    for key in ("a.parquet", "e/x", "e/y/z", "f", "f/x", "g-1.parquet"):
        assert source.matches(key), key
    for key in ("b.parquet", "e", "ex", "fx", "g-1.parquet/x", "x/a.parquet"):
        assert not source.matches(key), key


def test_the_root_of_a_list_is_what_its_paths_have_in_common() -> None:
    assert Source(("s3://b/train-a/x", "s3://b/train-b/x")).root == "s3://b"
    assert Source(("/data/a/1", "/data/a/2")).root == "file:///data/a"
    assert Source(("/a", "/b")).root == "file:///"
    assert Source(("/a", "/b")).matches("a")


@pytest.mark.parametrize(
    ("urls", "message"),
    [
        ((), "at least one URL"),
        (("s3://b/a", "s3://b/a"), "'s3://b/a' is given twice"),
        (("s3://b", "s3://b/"), "twice"),
        (("s3://b/a", "s3://c/a"), "one bucket"),
        (("s3://b/a", "/b/a"), "one bucket"),
    ],
)
def test_a_list_that_is_no_dataset_is_refused(urls: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Source(urls)


def test_a_long_list_matches_by_looking_up() -> None:
    source = Source(tuple(f"s3://b/d/{i}.parquet" for i in range(20_000)))
    assert sum(source.matches(f"{i}.parquet") for i in range(30_000)) == 20_000
    assert source.display == "s3://b/d/0.parquet, s3://b/d/1.parquet and 19998 more"


def test_sources_of_the_same_place_are_equal() -> None:
    assert Source((f"{os.curdir}/x",)) == Source((f"{Path.cwd()}/x",)) == Source((f"file://{Path.cwd()}/x",))


def matches_slowly(pattern: list[str], key: list[str]) -> bool:
    """What a pattern of segments means, tried out in every way."""
    if not pattern:
        return not key
    first, *rest = pattern
    if first in ("**", "") and not rest:
        return bool(key)
    if first == "**":
        return any(matches_slowly(rest, key[at:]) for at in range(len(key)))
    return bool(key) and letters_match(first, key[0]) and matches_slowly(rest, key[1:])


def letters_match(pattern: str, text: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(letters_match(pattern[1:], text[at:]) for at in range(len(text) + 1))
    return bool(text) and pattern[0] in ("?", text[0]) and letters_match(pattern[1:], text[1:])


_SEGMENTS = st.one_of(st.just("**"), st.text("ab*?", min_size=1, max_size=5).filter(lambda text: "**" not in text))


@given(
    st.lists(_SEGMENTS, min_size=1, max_size=5), st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=6)
)
def test_a_pattern_matches_what_trying_everything_finds(pattern: list[str], key: list[str]) -> None:
    source = Source((f"s3://b/root/*/{'/'.join(pattern)}",))
    assert source.matches("/".join(["x", *key])) == matches_slowly(["*", *pattern], ["x", *key])


@pytest.mark.parametrize("pattern", ["*a" * 40 + "b", "**/" * 40 + "b", "*/" + "a*" * 60 + "b", "**/a*a*b/" * 20 + "b"])
def test_no_pattern_holds_a_daemon_up(pattern: str) -> None:
    """Whoever names a dataset would otherwise stop all threads, which the expression's engine does not let run."""
    source = Source((f"s3://b/{pattern}",))
    for key in ("a" * 900, "/".join(["a" * 20] * 40), "a/" * 400 + "a"):
        assert not source.matches(key)
