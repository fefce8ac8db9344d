"""Reading chunks of a mixture from local files: rows of two datasets put together, and what is kept mapped."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forebay.keys import SAMPLE_ID, SOURCE
from forebay.loading.assembly import Assembly
from forebay.loading.chunk import Batch, Chunk, Lost, PieceFile, StepEnd
from forebay.loading.mixture_reader import MixtureReader, MixtureReaderSpec, agreed_columns
from forebay.loading.reader import read
from forebay.loading.stream_reader import StreamReaderSpec
from forebay_core.errors import ConfigurationError
from forebay_core.formats import Parquet
from forebay_core.formats.base import Column
from tests.client.loading.test_stream_reader import Local
from tests.support.data import row, write_parquet

COLUMNS = ("id", "text", "embedding")
FIRST_PIECES = (0, 6)
Step = Sequence[tuple[int, int]]
"""(source, sample id) of each sample."""


@pytest.fixture
def sources(tmp_path: Path) -> list[Local]:
    """6 pieces of 10 samples each; the second's ids begin at 500."""
    made = []
    for name, first_id in (("a", 0), ("b", 500)):
        paths = write_parquet(tmp_path / name / "data", shards=2, rows=30, row_group_rows=10, first_id=first_id)
        made.append(Local(tmp_path / name, paths, Parquet(piece_bytes=1), COLUMNS))
    return made


def reader(sources: Sequence[Local], *, transforms: Sequence[Any] = (None, None), **assembly: Any) -> MixtureReader:
    specs = [
        StreamReaderSpec(local.manifest_path, local.columns, seed, transform=transform)
        for seed, (local, transform) in enumerate(zip(sources, transforms, strict=True))
    ]
    return MixtureReaderSpec(tuple(specs), FIRST_PIECES, 7, Assembly(**assembly)).reader()


def chunk_of(
    sources: Sequence[Local], steps: Sequence[Step], *, begin: int = 0, epochs: tuple[int, int] = (3, 5)
) -> Chunk:
    samples = [sample for step in steps for sample in step]
    source = np.array([number for number, _ in samples], dtype=np.int64)
    ids = np.array([sample for _, sample in samples], dtype=np.int64)
    located = [sources[number].manifest.locate(np.array([sample])) for number, sample in samples]
    piece = np.array(
        [int(pieces[0]) + FIRST_PIECES[number] for number, (pieces, _) in zip(source, located, strict=True)]
    )
    files = [fill(sources, number) for number in sorted(set(piece.tolist()))]
    return Chunk(
        epoch=0,
        offsets=np.cumsum([0, *map(len, steps)]),
        sample_id=ids,
        piece=piece,
        row=np.array([int(rows[0]) for _, rows in located]),
        position=np.arange(len(ids)),
        is_pad=np.zeros(len(ids), dtype=np.bool_),
        ends=tuple(StepEnd(0, number, number, False) for number in range(len(steps))),
        files=tuple(files),
        begin=begin,
        end=begin + len(ids),
        source=source,
        source_epoch=np.array(epochs)[source],
    )


def fill(sources: Sequence[Local], piece: int, until: int = 100) -> PieceFile:
    """The file of a piece of the mixture."""
    number = int(piece >= FIRST_PIECES[1])
    local, own = sources[number], piece - FIRST_PIECES[number]
    if not local.path(own).exists():
        local.fill(own)
    found = local.path(own).stat()
    return PieceFile(piece, str(local.path(own)), found.st_ino, found.st_size, 0, 0, until=until)


def batches(result: Any) -> list[Batch]:
    assert isinstance(result, list), result
    return result


def mapped(path: Path) -> bool:
    return any(line.endswith(str(path)) for line in Path("/proc/self/maps").read_text().splitlines())


STEPS: list[Step] = [[(0, 3), (1, 3), (1, 59), (0, 40)], [(1, 12)], [(0, 0), (0, 9)], [(1, 1), (0, 31), (1, 0)]]


def test_each_sample_is_of_its_source_in_the_order_of_its_step(sources: list[Local]) -> None:
    result = batches(read(reader(sources, extras=(SAMPLE_ID, SOURCE)), chunk_of(sources, STEPS)))
    assert [batch.samples for batch in result] == [4, 1, 2, 3]
    for batch, step in zip(result, STEPS, strict=True):
        expected = [row(sample + 500 * source) for source, sample in step]
        assert list(zip(batch.data[SOURCE].tolist(), batch.data[SAMPLE_ID].tolist(), strict=True)) == list(step)
        assert batch.data["id"].tolist() == [sample["id"] for sample in expected]
        assert batch.data["text"] == [sample["text"] for sample in expected]
        assert batch.data["embedding"].tolist() == [sample["embedding"] for sample in expected]


def drawn(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"id": sample["id"], "drawn": rng.integers(1 << 60)}


def doubled(sample: dict[str, Any]) -> dict[str, Any]:
    return {"id": sample["id"], "drawn": np.int64(2 * sample["id"])}


def test_each_source_has_its_own_transform_seed_and_epoch(sources: list[Local]) -> None:
    chunk = chunk_of(sources, STEPS)
    first, *_ = batches(read(reader(sources, transforms=(drawn, doubled)), chunk))
    assert first.data["drawn"].tolist()[1:3] == [2 * 503, 2 * 559]
    both = reader(sources, transforms=(drawn, drawn))
    mixed, *_ = batches(read(both, chunk))
    alone = StreamReaderSpec(sources[1].manifest_path, COLUMNS, 1, transform=drawn).reader()
    (own,) = batches(read(alone, sources[1].chunk([[3, 59]], epoch=5)))
    assert mixed.data["drawn"].tolist()[1:3] == own.data["drawn"].tolist()
    assert mixed.data["drawn"][0] == first.data["drawn"][0]
    later, *_ = batches(read(both, chunk_of(sources, STEPS, epochs=(3, 6))))
    assert (later.data["drawn"] == mixed.data["drawn"]).tolist() == [True, False, False, True]


def test_single_samples_are_handed_over_as_they_are(sources: list[Local]) -> None:
    one, other = batches(read(reader(sources, batched=False), chunk_of(sources, [[(1, 3)], [(0, 3)]])))
    assert (int(one.data["id"]), int(other.data["id"])) == (503, 3)


def test_where_a_file_went_all_of_the_chunk_is_let_go_of_and_leased_again(sources: list[Local]) -> None:
    chunk = chunk_of(sources, STEPS)
    sources[1].path(0).unlink()
    made = reader(sources)
    result = read(made, chunk)
    assert isinstance(result, Lost)
    assert result.gone
    assert result.chunk is chunk
    assert not any(mapped(local.path(piece)) for local in sources for piece in range(6))
    again = chunk.with_files(tuple(fill(sources, file.piece) for file in chunk.files))
    assert len(batches(read(made, again))) == 4
    assert mapped(sources[0].path(0))
    made.close()
    assert not mapped(sources[0].path(0))


def test_what_nobody_wants_any_more_is_closed_also_where_a_chunk_has_none_of_its_source(sources: list[Local]) -> None:
    made = reader(sources)
    chunk = chunk_of(sources, [[(0, 0), (1, 0)]])
    read(made, replace(chunk, files=tuple(file._replace(until=30) for file in chunk.files)))
    assert mapped(sources[1].path(0))
    batch = next(made.batches(chunk_of(sources, [[(0, 21)]], begin=30)))
    assert batch.data["id"].tolist() == [21]
    assert not mapped(sources[1].path(0))
    made.close()


def test_a_samples_place_is_said_by_the_shard_of_its_source(sources: list[Local]) -> None:
    specs = tuple(StreamReaderSpec(local.manifest_path, local.columns, 0) for local in sources)
    spec = MixtureReaderSpec(specs, FIRST_PIECES, 7)
    assert spec.place(5, 3) == f"row 23 of {sources[0].directory.as_uri()}/shard-00001.parquet"
    assert spec.place(6, 3) == f"row 3 of {sources[1].directory.as_uri()}/shard-00000.parquet"


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"x": Column("x", np.dtype("int32"))}, r"'x' is int64\[n\] in 'a' and int32\[n\] in 'b'"),
        ({"x": Column("x", np.dtype("int64"), (4,))}, r"'x' is int64\[n\] in 'a' and int64\[n, 4\] in 'b'"),
        ({"x": Column("x", None)}, r"'x' is int64\[n\] in 'a' and a list of values in 'b'"),
        ({}, r"'x' is int64\[n\] in 'a' and missing in 'b'"),
        ({"x": Column("x", np.dtype("int64")), "y": Column("y", None)}, "'y' is missing in 'a' and a list of values"),
    ],
)
def test_columns_that_do_not_fit_into_one_batch_are_named(other: dict[str, Column], says: str) -> None:
    ours = {"x": Column("x", np.dtype("int64"))}
    with pytest.raises(ConfigurationError, match=says):
        agreed_columns({"a": ours, "b": other})
    agreed_columns({"a": ours, "b": dict(ours)})
    agreed_columns({})
