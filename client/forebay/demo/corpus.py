"""The demo's dataset: real text that every machine has, as Parquet shards in a directory or a bucket.

The text is the Python standard library's sources in the order of their paths, cut into samples of a fixed number of
bytes, so that the same Python gives the same dataset. Every row carries its own number, so that what a trainer was
given can be checked by what it read and not only by what it was told. Called by the demo's own process alone.
"""

import hashlib
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from forebay_core.errors import ConfigurationError, SourceError

__all__ = ["COLUMNS", "Corpus", "Place", "Written", "read_text", "remove", "write"]

#: What the trainer reads; the shards also name the file that each sample starts in.
COLUMNS = ("number", "text")
_CREDENTIALS = {
    "access_key": "AWS_ACCESS_KEY_ID",
    "secret_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
}
_NOT_TEXT_OF_THE_LIBRARY = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib"})


@dataclass(frozen=True, slots=True)
class Corpus:
    """How much text, and how it is laid out.

    10,300 samples are 161 steps of 64 with a short last one: two epochs are 322 steps, and the tail is put to the test.
    """

    samples: int = 10_300
    sample_bytes: int = 128
    shards: int = 36

    def __post_init__(self) -> None:
        if not 0 < self.shards <= self.samples:
            raise ConfigurationError(f"{self.samples} samples cannot make {self.shards} shards")

    def shard_starts(self) -> list[int]:
        """Where each shard starts, and the end: shards + 1 sample numbers. Sizes differ by at most one."""
        return [self.samples * shard // self.shards for shard in range(self.shards + 1)]


@dataclass(frozen=True, slots=True)
class Text:
    """The corpus's bytes, and for every sample the file that its first byte is from."""

    data: bytes
    files: list[str]


@dataclass(frozen=True, slots=True)
class Place:
    """Where shards go: a file system of pyarrow's, a directory on it, and the URL that a dataset names."""

    filesystem: Any
    directory: str
    url: str

    @classmethod
    def local(cls, directory: Path) -> "Place":
        from pyarrow import fs

        directory.mkdir(parents=True, exist_ok=True)
        return cls(fs.LocalFileSystem(), str(directory), str(directory))

    @classmethod
    def bucket(cls, url: str, environment: Mapping[str, str]) -> "Place":
        """A prefix of an S3 bucket, with the endpoint, region and keys that the daemon also takes from `AWS_*`."""
        from pyarrow import fs

        parts = urlsplit(url)
        if parts.scheme != "s3" or not parts.netloc:
            raise ConfigurationError(f"--bucket {url!r} is not a bucket: give s3://BUCKET or s3://BUCKET/PREFIX")
        options: dict[str, Any] = {
            option: environment[name] for option, name in _CREDENTIALS.items() if environment.get(name)
        }
        region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
        endpoint = environment.get("AWS_ENDPOINT_URL")
        if endpoint:
            options["endpoint_override"] = endpoint
            region = region or "us-east-1"
        if region:
            options["region"] = region
        directory = f"{parts.netloc}{parts.path}".rstrip("/")
        retries = fs.AwsStandardS3RetryStrategy(max_attempts=3)
        filesystem = fs.S3FileSystem(connect_timeout=10, retry_strategy=retries, **options)
        return cls(filesystem, directory, f"s3://{directory}")

    def below(self, name: str) -> "Place":
        return Place(self.filesystem, f"{self.directory}/{name}", f"{self.url}/{name}")


@dataclass(frozen=True, slots=True)
class Written:
    """The shards at `url`, and the directories that were not there before them, the shards' own first."""

    url: str
    directory: str
    made: tuple[str, ...]


def read_text(corpus: Corpus, library: Path | None = None) -> Text:
    """The first bytes of the library's sources. Raises `ConfigurationError` where there are too few."""
    library = library or Path(sysconfig.get_paths()["stdlib"])
    wanted = corpus.samples * corpus.sample_bytes
    data = bytearray()
    files: list[str] = []
    for path in _sources(library):
        data += path.read_bytes()
        name = path.relative_to(library).as_posix()
        starts = min(-(-len(data) // corpus.sample_bytes), corpus.samples)
        files += [name] * (starts - len(files))
        if len(data) >= wanted:
            return Text(bytes(data[:wanted]), files)
    raise ConfigurationError(
        f"the demo trains on the sources of Python's standard library, and {library} holds {len(data):,} bytes of them "
        f"where {wanted:,} are needed: use a Python that is installed with its sources"
    )


def _sources(library: Path) -> Iterator[Path]:
    for path in sorted(library.rglob("*.py")):
        if _NOT_TEXT_OF_THE_LIBRARY.isdisjoint(path.relative_to(library).parts):
            yield path


def write(corpus: Corpus, text: Text, place: Place) -> Written:
    """Writes the shards below `place`, in a directory that is named by their content.

    So a prefix that holds another demo's shards does not mix with these. Raises `SourceError` where it cannot write.
    """
    home = place.below("text-" + hashlib.sha256(text.data).hexdigest()[:12])
    try:
        written = Written(home.url, home.directory, tuple(_missing(home)))
        if not home.url.startswith("s3:"):
            home.filesystem.create_dir(home.directory)
        starts = corpus.shard_starts()
        for shard, (start, stop) in enumerate(pairwise(starts)):
            table = _table(corpus, text, start, stop)
            path = f"{home.directory}/shard-{shard:05d}.parquet"
            pq.write_table(table, path, filesystem=home.filesystem, row_group_size=max(1, table.num_rows))
    except OSError as error:
        reason = str(error).partition("\n")[0]
        raise SourceError(
            f"cannot write the demo's shards to {home.url}: {reason} (the bucket must exist; AWS_ENDPOINT_URL, "
            f"AWS_REGION and AWS_ACCESS_KEY_ID say where and as whom)"
            if home.url.startswith("s3:")
            else f"cannot write the demo's shards to {home.url}: {reason}"
        ) from error
    return written


def remove(place: Place, written: Written, *others: Place) -> None:
    """Removes what `write` made, and other places below the same: the shards, and the directories that are empty now.

    In a bucket pyarrow marks a directory from which it removes something by an empty object `PREFIX/`, so removing the
    directory removes the mark. It stays where other objects have come to lie below the prefix, or lay there before.
    Some stores list directories in which there is nothing any more for a while.
    """
    from pyarrow import fs

    for directory in (*(other.directory for other in others), written.directory):
        place.filesystem.delete_dir(directory)
    for directory in written.made:
        if directory != written.directory:
            below = place.filesystem.get_file_info(fs.FileSelector(directory, allow_not_found=True, recursive=True))
            if any(info.type == fs.FileType.File for info in below):
                return
            place.filesystem.delete_dir(directory)


def _missing(place: Place) -> Iterator[str]:
    """The directories of this place that are not there, deepest first; a bucket itself is none."""
    from pyarrow import fs

    path = place.directory
    while "/" in path and place.filesystem.get_file_info(path).type == fs.FileType.NotFound:
        yield path
        path = path.rpartition("/")[0]


def _table(corpus: Corpus, text: Text, start: int, stop: int) -> pa.Table:
    size = corpus.sample_bytes
    flat = pa.array(memoryview(text.data)[start * size : stop * size], type=pa.uint8())
    return pa.table(
        {
            "number": pa.array(range(start, stop), type=pa.int64()),
            "file": pa.array(text.files[start:stop]),
            "text": pa.FixedSizeListArray.from_arrays(flat, size),
        }
    )
