"""The demo's dataset: the same text every time, laid out as the demo promises."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from forebay.demo import corpus
from forebay.demo.corpus import Corpus, Place
from forebay_core.errors import ConfigurationError
from tests.support.seaweedfs import Bucket

SMALL = Corpus(samples=50, sample_bytes=16, shards=7)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A library whose paths sort otherwise than they are made, with what is not part of it beside."""
    home = tmp_path / "library"
    for name, text in {
        "zlib.py": "z" * 500,
        "abc.py": "a" * 24,
        "json/decoder.py": "j" * 500,
        "site-packages/other.py": "o" * 500,
        "test/test_abc.py": "t" * 500,
        "notes.txt": "n" * 500,
    }.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    return home


def test_the_default_corpus_makes_300_to_500_steps_in_at_least_32_shards() -> None:
    shape = Corpus()
    steps = 2 * -(-shape.samples // 64)
    assert 300 <= steps <= 500
    assert shape.shards >= 32
    assert shape.samples % 64, "the last step of an epoch is a short one"


def test_the_text_is_the_librarys_files_in_the_order_of_their_paths(library: Path) -> None:
    text = corpus.read_text(SMALL, library)
    assert text.data == (b"a" * 24 + b"j" * 500 + b"z" * 500)[: 50 * 16]
    assert text.files[:3] == ["abc.py", "abc.py", "json/decoder.py"]
    assert len(text.files) == 50


def test_this_machines_library_has_text_enough_and_gives_it_twice_alike() -> None:
    first, second = corpus.read_text(Corpus()), corpus.read_text(Corpus())
    assert first == second
    assert len(first.data) == Corpus().samples * Corpus().sample_bytes
    assert len(first.files) == Corpus().samples


def test_a_library_without_sources_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=str(tmp_path)):
        corpus.read_text(SMALL, tmp_path)


def test_shards_hold_every_sample_once_with_its_number_and_one_row_group_each(library: Path, tmp_path: Path) -> None:
    text = corpus.read_text(SMALL, library)
    written = corpus.write(SMALL, text, Place.local(tmp_path / "bucket"))
    shards = sorted(Path(written.url).iterdir())
    assert len(shards) == 7
    assert {pq.ParquetFile(shard).num_row_groups for shard in shards} == {1}
    rows = [row for shard in shards for row in pq.read_table(shard).to_pylist()]
    assert [row["number"] for row in rows] == list(range(50))
    assert b"".join(bytes(row["text"]) for row in rows) == text.data


def test_a_corpus_is_written_under_a_name_of_its_own_and_removed_alone(library: Path, tmp_path: Path) -> None:
    place = Place.local(tmp_path / "bucket")
    one = corpus.write(SMALL, corpus.read_text(SMALL, library), place)
    other_shape = Corpus(samples=40, sample_bytes=16, shards=2)
    other = corpus.write(other_shape, corpus.read_text(other_shape, library), place)
    assert one.url != other.url
    corpus.remove(place, one)
    assert not Path(one.url).exists()
    assert len(list(Path(other.url).iterdir())) == 2


@pytest.mark.parametrize("prefix", ["", "/pre fix", "/pre/fix"])
def test_nothing_of_a_removed_corpus_stays_in_a_bucket(library: Path, bucket: Bucket, prefix: str) -> None:
    place = Place.bucket(f"s3://{bucket.name}{prefix}", bucket.server.environment())
    written = corpus.write(SMALL, corpus.read_text(SMALL, library), place)
    assert len(bucket.keys()) == 7
    corpus.remove(place, written)
    assert bucket.keys() == []


@pytest.mark.parametrize("other", ["pre fix/", "pre fix/theirs", "pre fix/theirs/deeper"])
def test_what_others_have_below_the_prefix_stays(library: Path, bucket: Bucket, other: str) -> None:
    place = Place.bucket(f"s3://{bucket.name}/pre fix", bucket.server.environment())
    bucket.put(other, b"")
    written = corpus.write(SMALL, corpus.read_text(SMALL, library), place)
    corpus.remove(place, written)
    assert other in bucket.keys("pre fix")


def test_what_came_below_the_prefix_meanwhile_stays(library: Path, bucket: Bucket) -> None:
    place = Place.bucket(f"s3://{bucket.name}/pre fix", bucket.server.environment())
    written = corpus.write(SMALL, corpus.read_text(SMALL, library), place)
    bucket.put("pre fix/theirs/deeper", b"x")
    corpus.remove(place, written)
    assert "pre fix/theirs/deeper" in bucket.keys("pre fix")


@pytest.mark.parametrize("url", ["gs://bucket", "s3://", "/tmp/bucket", "bucket"])
def test_a_bucket_that_is_none_is_refused_by_its_url(url: str) -> None:
    with pytest.raises(ConfigurationError, match="s3://BUCKET"):
        Place.bucket(url, {})


def test_more_shards_than_samples_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="cannot make"):
        Corpus(samples=3, shards=4)
