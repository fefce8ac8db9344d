"""Reading chunks from local files, against the values that the files were written with."""

import json
import pickle
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from forebay.keys import IS_PAD, POSITION, SAMPLE_ID
from forebay.loading.assembly import Assembly
from forebay.loading.chunk import Batch, Chunk, Failed, Lost, PieceFile, StepEnd
from forebay.loading.reader import read
from forebay.loading.stream_reader import StreamReader, StreamReaderSpec
from forebay_core.errors import ConfigurationError
from forebay_core.formats import Format, Parquet, Tokens
from forebay_core.formats.base import ObjectInfo, Steps
from forebay_core.manifest import Manifest
from tests.support.data import row, tokens, write_parquet, write_tokens

COLUMNS = ("id", "text", "value", "embedding", "blob")


class Local:
    """A dataset brought into its local layout without a daemon."""

    def __init__(self, directory: Path, paths: Sequence[Path], format: Format, columns: Sequence[str]) -> None:
        self.directory = directory
        self.manifest_path = directory / "manifest.arrow"
        self._sources = {path.name: path.read_bytes() for path in paths}
        entries = []
        for name, data in self._sources.items():
            info = ObjectInfo(name, len(data), "v1")
            entries.append((info, format.cut(info, drive(format.prepare(info), data))))
        Manifest.build(directory.as_uri(), format, entries).save(self.manifest_path)
        self.manifest = Manifest.open(self.manifest_path)
        self.columns = tuple(columns)

    def path(self, piece: int) -> Path:
        return self.directory / f"piece-{piece}"

    def fill(self, piece: int) -> PieceFile:
        described = self.manifest.piece(piece)
        data = self._sources[described.object.key]
        temp = self.directory / "temp"
        with temp.open("wb") as file:
            format = self.manifest.format
            prepared = drive(format.prepare(described.object), data)
            localiser = format.localise(described, self.columns, file.write, prepared)
            for part in localiser.ranges:
                localiser.write(data[part.start : part.stop])
            localiser.finish()
        temp.rename(self.path(piece))
        found = self.path(piece).stat()
        return PieceFile(piece, str(self.path(piece)), found.st_ino, found.st_size, 0, 0, until=100)

    def chunk(
        self, steps: Sequence[Sequence[int]], files: Sequence[PieceFile] | None = None, epoch: int = 0, begin: int = 0
    ) -> Chunk:
        ids = np.array([sample for step in steps for sample in step], dtype=np.int64)
        pieces, rows = self.manifest.locate(ids)
        if files is None:
            files = [self.fill(piece) for piece in sorted(set(pieces.tolist()))]
        return Chunk(
            epoch=epoch,
            offsets=np.cumsum([0, *map(len, steps)]),
            sample_id=ids,
            piece=pieces,
            row=rows,
            position=ids + 1000,
            is_pad=ids % 2 == 1,
            ends=tuple(StepEnd(epoch, number, number, False) for number in range(len(steps))),
            files=tuple(files),
            begin=begin,
            end=begin + len(ids),
        )

    def reader(self, **options: Any) -> StreamReader:
        spec = StreamReaderSpec(self.manifest_path, self.columns, 7, **options)
        made: StreamReader = pickle.loads(pickle.dumps(spec)).reader()
        return made


def drive(steps: Steps[Any], data: bytes) -> Any:
    answer: list[Any] | None = None
    while True:
        try:
            wanted = steps.send(answer)  # type: ignore[arg-type]
        except StopIteration as done:
            return done.value
        answer = [data[part.start : part.stop] for part in wanted]


def batches(result: Any) -> list[Batch]:
    assert isinstance(result, list), result
    return result


@pytest.fixture
def parquet(tmp_path: Path) -> Local:
    paths = write_parquet(tmp_path / "data", shards=2, rows=30, row_group_rows=10)
    return Local(tmp_path, paths, Parquet(piece_bytes=1), COLUMNS)


STEPS = [[0, 3, 12, 31, 59], [58, 7], [], [20]]


def test_the_columnar_path_gives_tensors_for_numbers_and_lists_for_text(parquet: Local) -> None:
    first, *_ = batches(read(parquet.reader(), parquet.chunk(STEPS)))
    expected = [row(sample) for sample in STEPS[0]]
    assert list(first.data) == list(COLUMNS)
    assert torch.equal(first.data["id"], torch.tensor(STEPS[0]))
    assert first.data["value"].dtype == torch.float32
    assert first.data["value"].tolist() == [sample["value"] for sample in expected]
    assert first.data["embedding"].tolist() == [sample["embedding"] for sample in expected]
    assert first.data["text"] == [sample["text"] for sample in expected]
    assert first.data["blob"] == [sample["blob"] for sample in expected]


def identity(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def test_both_paths_give_the_same_batches(parquet: Local) -> None:
    fast = batches(read(parquet.reader(), parquet.chunk(STEPS[:2])))
    slow = batches(read(parquet.reader(transform=identity), parquet.chunk(STEPS[:2])))
    for one, other in zip(fast, slow, strict=True):
        for name in COLUMNS:
            if isinstance(one.data[name], torch.Tensor):
                assert one.data[name].dtype == other.data[name].dtype
                assert torch.equal(one.data[name], other.data[name])
            else:
                assert one.data[name] == other.data[name]


def test_a_chunk_of_several_steps_is_cut_where_each_step_ends(parquet: Local) -> None:
    result = batches(
        read(parquet.reader(assembly=Assembly(extras=(SAMPLE_ID, POSITION, IS_PAD))), parquet.chunk(STEPS))
    )
    assert [batch.data["id"].tolist() for batch in result] == STEPS
    assert [batch.samples for batch in result] == [5, 2, 0, 1]
    for batch, step in zip(result, STEPS, strict=True):
        assert batch.data[SAMPLE_ID].tolist() == step
        assert batch.data[POSITION].tolist() == [sample + 1000 for sample in step]
        assert batch.data[IS_PAD].tolist() == [sample % 2 == 1 for sample in step]


def test_keeping_one_batch_of_a_chunk_saves_its_own_bytes_only(parquet: Local) -> None:
    first, *_ = batches(read(parquet.reader(), parquet.chunk(STEPS)))
    assert first.data["id"].untyped_storage().nbytes() == 5 * 8


def test_token_rows_become_one_tensor(tmp_path: Path) -> None:
    write_tokens(tmp_path / "a.bin", samples=50, sequence_length=16)
    local = Local(
        tmp_path, [tmp_path / "a.bin"], Tokens(sequence_length=16, dtype="int32", piece_bytes=640), ("tokens",)
    )
    (batch,) = batches(read(local.reader(), local.chunk([[3, 49, 0, 20]])))
    expected = tokens(samples=50, sequence_length=16)[[3, 49, 0, 20]]
    assert batch.data["tokens"].dtype == torch.int32
    assert np.array_equal(batch.data["tokens"].numpy(), expected)


def augment(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"id": sample["id"], "noise": rng.random()}


def test_a_samples_augmentation_depends_on_seed_epoch_and_sample_and_not_on_its_batch(parquet: Local) -> None:
    reader = parquet.reader(transform=augment)
    (together,) = batches(read(reader, parquet.chunk([[5, 40]], epoch=2)))
    (alone,) = batches(read(reader, parquet.chunk([[40]], epoch=2)))
    (later,) = batches(read(reader, parquet.chunk([[40]], epoch=3)))
    assert together.data["noise"][1] == alone.data["noise"][0]
    assert later.data["noise"][0] != alone.data["noise"][0]


def test_a_transform_leaves_the_trainers_generators_alone(parquet: Local) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    read(parquet.reader(transform=augment), parquet.chunk([[5, 40]]))
    assert torch.equal(before, torch.get_rng_state())


def test_a_transforms_own_error_passes_through_as_it_is(parquet: Local) -> None:
    def fail(sample: dict[str, Any]) -> None:
        raise ZeroDivisionError(sample["id"])

    reader = StreamReaderSpec(parquet.manifest_path, COLUMNS, 7, transform=fail).reader()
    with pytest.raises(ZeroDivisionError):
        read(reader, parquet.chunk([[5]]))


def test_extras_over_a_batch_that_is_no_dict_are_refused(parquet: Local) -> None:
    assembly = Assembly(collate_fn=len, extras=(SAMPLE_ID,))
    result = read(parquet.reader(assembly=assembly), parquet.chunk([[5]]))
    assert isinstance(result, Failed)
    assert result.error == "ConfigurationError"


def test_extras_that_do_not_exist_are_refused_at_once(parquet: Local) -> None:
    with pytest.raises(ConfigurationError, match="sample_ids"):
        Assembly(extras=("sample_ids",))


@pytest.fixture
def filling(parquet: Local) -> tuple[Local, Chunk]:
    return parquet, parquet.chunk([[0, 1]], files=[PieceFile(0, str(parquet.path(0)), 0, 0, 0, 0)])


def test_a_piece_in_fill_is_waited_for_and_counted_as_remote_wait(filling: tuple[Local, Chunk]) -> None:
    local, chunk = filling
    filled_at: list[float] = []

    def asked_while_waiting() -> bool:
        if not filled_at:
            local.fill(0)
            filled_at.append(time.monotonic())
        return False

    reader = StreamReaderSpec(local.manifest_path, local.columns, 7).reader(is_closed=asked_while_waiting)
    waited_from = time.monotonic()
    (batch,) = batches(read(reader, chunk))
    assert batch.data["id"].tolist() == [0, 1]
    (wait,) = [stage for stage in batch.stages if stage.name == "remote_wait"]
    assert waited_from <= wait.start < filled_at[0] < wait.stop


def test_a_fill_that_fails_ends_the_wait_with_its_error(filling: tuple[Local, Chunk]) -> None:
    local, chunk = filling
    failure = {"error": "AccessDenied", "message": "s3://b/k: the key id is unknown"}
    Path(f"{local.path(0)}.error").write_text(json.dumps(failure))
    assert read(local.reader(), chunk) == Failed("AccessDenied", "s3://b/k: the key id is unknown")


def test_a_fill_that_takes_long_is_looked_after_again(filling: tuple[Local, Chunk]) -> None:
    local, chunk = filling
    result = read(local.reader(wait_seconds=0.05), chunk)
    assert isinstance(result, Lost)
    assert result.gone is False


def test_a_file_that_went_or_was_replaced_is_leased_again(parquet: Local) -> None:
    chunk = parquet.chunk([[0, 1]])
    parquet.path(0).unlink()
    result = read(parquet.reader(), chunk)
    assert isinstance(result, Lost)
    assert result.gone is True
    parquet.path(0).write_bytes(b"something else")
    assert isinstance(read(parquet.reader(), chunk), Lost)
    assert isinstance(read(parquet.reader(), chunk.with_files((parquet.fill(0),))), list)


def test_an_open_piece_is_read_on_although_its_file_was_removed_until_nobody_wants_it(parquet: Local) -> None:
    reader = parquet.reader()
    files = [parquet.fill(0)]
    read(reader, parquet.chunk([[0, 1]], files=files))
    parquet.path(0).unlink()
    assert isinstance(read(reader, parquet.chunk([[0, 1]], files=files, begin=97)), list)
    assert isinstance(read(reader, parquet.chunk([[0, 1]], files=files, begin=98)), list)
    assert isinstance(read(reader, parquet.chunk([[0, 1]], files=files, begin=98)), Lost)
