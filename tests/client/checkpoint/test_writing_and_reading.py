"""A checkpoint of one process: written by ours and read by torch's, and each kind of damage."""

import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import WriteItem

import forebay
from forebay.checkpoint.holdings import Collected, Entry
from forebay.checkpoint.manifests import read_manifests
from forebay.checkpoint.metadata import decode_metadata
from forebay.checkpoint.reader import CheckpointReader
from forebay.checkpoint.saving import Saving
from forebay.checkpoint.staging import Stager
from forebay.checkpoint.writer import NvmeStagingWriter, check_covered
from forebay_core.checkpoints.names import Attempt
from forebay_core.errors import CheckpointDamaged, CheckpointError, CheckpointNotFound, ConfigurationError, StagingFull
from tests.client.checkpoint.whole import write_whole
from tests.support.filesystems import tmpfs

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def some_state() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    weights = {f"layer{number}.weight": torch.randn(50, 20, generator=generator) for number in range(6)}
    return {
        "model": {**weights, "scalar": torch.tensor(3), "empty": torch.zeros(0, 4), "turned": torch.ones(8, 6).t()},
        "half": torch.arange(9.0).bfloat16(),
        "step": 17,
    }


def template() -> dict[str, Any]:
    state = some_state()
    for tensor in (*state["model"].values(), state["half"]):
        tensor.zero_()
    return {**state, "step": 0}


def assert_loaded(state: dict[str, Any]) -> None:
    wanted = some_state()
    assert state["step"] == wanted["step"]
    assert torch.equal(state["half"], wanted["half"])
    for key, tensor in wanted["model"].items():
        assert torch.equal(state["model"][key], tensor), key


def save(directory: Path, **options: Any) -> NvmeStagingWriter:
    writer = NvmeStagingWriter(directory, **options)
    dcp.save(some_state(), storage_writer=writer)
    return writer


def cause_of(error: CheckpointException) -> BaseException:
    return error.failures[0][0]


def failing(action: Callable[[], Any]) -> BaseException:
    """T15: what is beneath torch's BaseException."""
    with pytest.raises(CheckpointException) as caught:
        action()
    return cause_of(caught.value)


def test_what_is_written_is_read_by_our_reader_and_by_torchs(tmp_path: Path) -> None:
    save(tmp_path / "a", max_file_bytes=9000)
    for reader in (forebay.CheckpointReader(tmp_path / "a"), dcp.FileSystemReader(tmp_path / "a")):
        state = template()
        dcp.load(state, storage_reader=reader)
        assert_loaded(state)


def test_torch_turns_it_into_one_plain_file(tmp_path: Path) -> None:
    save(tmp_path / "a")
    dcp_to_torch_save(tmp_path / "a", tmp_path / "whole.pt")
    assert_loaded(torch.load(tmp_path / "whole.pt"))


def test_files_are_split_and_their_items_cover_them_with_the_checksums_of_what_is_on_the_disk(tmp_path: Path) -> None:
    """T5: size and checksum per item."""
    writer = save(tmp_path / "a", max_file_bytes=9000)
    assert [record.name for record in writer.written][-1] == ".metadata"
    assert len(writer.written) > 3
    assert all(record.size_bytes < 20000 for record in writer.written)
    for record in writer.written:
        content = (tmp_path / "a" / record.name).read_bytes()
        assert len(content) == record.size_bytes
        assert sum(item.size_bytes for item in record.items) == len(content)
        for item in record.items:
            part = content[item.offset : item.offset + item.size_bytes]
            assert google_crc32c.value(part) == item.crc32c
    places = {
        (info.relative_path, info.offset, info.length)
        for info in decode_metadata((tmp_path / "a" / ".metadata").read_bytes()).storage_data.values()
    }
    recorded = {(file.name, item.offset, item.size_bytes) for file in writer.written[:-1] for item in file.items}
    assert places == recorded


def test_parts_of_one_tensor_share_files_by_their_own_size(tmp_path: Path) -> None:
    collected = Collected((Entry(("a",), torch.zeros(64, 256)),))
    staged = Stager(0, 1, lambda value: [value], piece_bytes=4096).start(collected).done.result(60)
    written = Saving(None, max_file_bytes=16384).write(staged, tmp_path / "a")
    assert [len(record.items) for record in written.files] == [4, 4, 4, 4, 1]


def test_the_same_tensors_under_other_paths_are_laid_out_anew(tmp_path: Path) -> None:
    stager, saving = Stager(0, 1, lambda value: [value]), Saving(None)
    for number, path in enumerate((("a", "b"), ("a.b",), ("a.b",))):
        staged = stager.start(Collected((Entry(path, torch.full((3,), float(number))),))).done.result(60)
        place = tmp_path / str(number)
        assert saving.knows(staged) == (number == 2)
        write_whole(saving, staged, place)
        stager.release()
        (stored,) = CheckpointReader(place).described().values()
        assert stored.path == path
        value = torch.zeros(3)
        dcp.load({"a": {"b": value}} if number == 0 else {"a.b": value}, storage_reader=CheckpointReader(place))
        assert value.tolist() == [number] * 3


def test_a_checkpoint_names_nothing_of_the_machine_that_wrote_it(tmp_path: Path) -> None:
    save(tmp_path / "a")
    assert str(tmp_path).encode() not in (tmp_path / "a" / ".metadata").read_bytes()


def test_nothing_is_synced_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T8: torch's writer syncs each file, some versions the whole machine; the daemon does it behind the training."""
    synced = []
    for name in ("fsync", "fdatasync", "sync"):
        monkeypatch.setattr(os, name, lambda *_, name=name: synced.append(name))
    save(tmp_path / "a")
    assert not synced


def chunk(start: int, rows: int) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size([start]), torch.Size([rows]))


@pytest.mark.parametrize(
    ("chunks", "stored", "wholes", "said"),
    [
        ([chunk(0, 4), chunk(4, 6)], [0, 4], {"a": (10,)}, ""),
        ([chunk(0, 4), chunk(4, 6)], [0], {"a": (10,)}, "a part of a was planned and not written"),
        ([chunk(0, 4)], [0], {"a": (10,)}, "4 elements of a were written"),
        ([chunk(0, 4), chunk(4, 6)], [0, 4], {"a": (11,)}, "10 elements of a were written"),
        ([chunk(0, 4), chunk(4, 6)], [0, 4], {"a": (10,), "b": (1,)}, "no rank wrote b"),
    ],
)
def test_a_save_that_leaves_anything_out_fails(
    chunks: list[ChunkStorageMetadata], stored: list[int], wholes: dict[str, tuple[int, ...]], said: str
) -> None:
    """T1: what was planned was written, and all of it was planned."""
    tensor = TensorStorageMetadata(TensorProperties(), torch.Size([10]), chunks)
    metadata = Metadata({"a": tensor}, storage_data={MetadataIndex("a", (start,)): None for start in stored})
    if not said:
        check_covered(metadata, wholes)
        return
    with pytest.raises(CheckpointError, match=said):
        check_covered(metadata, wholes)


class FailingPlanner(DefaultSavePlanner):
    """Cannot give the value of one item, of several files that are written at once."""

    def resolve_data(self, write_item: WriteItem) -> Any:
        if write_item.index.fqn == "model.layer3.weight":
            raise OSError(5, "Input/output error")
        return super().resolve_data(write_item)


def test_an_error_in_a_writing_thread_is_an_error_of_the_save_and_leaves_no_metadata(tmp_path: Path) -> None:
    """T1: torch's own writer with several threads returns, publishes `.metadata`, and lacks tensors."""
    writer = NvmeStagingWriter(tmp_path / "a", max_file_bytes=5000, threads=4)
    error = failing(lambda: dcp.save(some_state(), storage_writer=writer, planner=FailingPlanner()))
    assert isinstance(error, CheckpointError)
    assert "__0_" in str(error)
    assert "Input/output error" in str(error)
    assert not (tmp_path / "a" / ".metadata").exists()
    assert not (tmp_path / "a" / "ranks").exists()
    with pytest.raises(CheckpointNotFound):
        CheckpointReader(tmp_path / "a").read_metadata()


def test_a_full_disk_is_said_by_name(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "small", "64k") as disk:
        state = {"a": torch.ones(100_000)}
        error = failing(lambda: dcp.save(state, storage_writer=NvmeStagingWriter(disk / "a")))
        assert isinstance(error, StagingFull)
        assert "__0_0.distcp" in str(error)


@pytest.mark.parametrize("left", [".metadata", "__3_0.distcp", "ranks"])
def test_a_directory_with_a_part_of_a_checkpoint_is_refused(tmp_path: Path, left: str) -> None:
    """T4: an old `.metadata` over new files loads, and is neither."""
    save(tmp_path / "a")
    for name in {".metadata", "__0_0.distcp", "ranks"} - {left}:
        entry = tmp_path / "a" / name
        entry.rename(tmp_path / name)
    (tmp_path / "a" / left).touch()
    error = failing(lambda: save(tmp_path / "a"))
    assert isinstance(error, CheckpointError)
    assert "give an empty one" in str(error)


def test_sizes_and_threads_that_make_no_sense_are_refused() -> None:
    for wrong in ({"max_file_bytes": 0}, {"threads": 0}):
        with pytest.raises(ConfigurationError):
            NvmeStagingWriter("a", **wrong)  # type: ignore[arg-type]


def test_a_save_of_each_rank_for_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="use_collectives"):
        dcp.save({"a": torch.ones(1)}, storage_writer=NvmeStagingWriter(tmp_path / "a"), use_collectives=False)


def read(directory: Path) -> dict[str, Any]:
    state = template()
    dcp.load(state, storage_reader=CheckpointReader(directory))
    return state


def test_every_flipped_byte_of_every_file_is_found(tmp_path: Path) -> None:
    """T5 and CASES 46: torch's own reader loads most of them as if nothing were."""
    save(tmp_path / "a", max_file_bytes=9000)
    for path in sorted((tmp_path / "a").glob("*")):
        if path.is_dir():
            continue
        content = path.read_bytes()
        for at in range(0, len(content), max(1, len(content) // 7)):
            path.write_bytes(content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :])
            with pytest.raises(CheckpointDamaged, match=f"{path.name} is damaged at"):
                CheckpointReader(tmp_path / "a").read_file(path.name)
        path.write_bytes(content)
    assert_loaded(read(tmp_path / "a"))


def test_damaged_metadata_is_not_loaded(tmp_path: Path) -> None:
    """CASES 46"""
    save(tmp_path / "a")
    path = tmp_path / "a" / ".metadata"
    path.write_bytes(path.read_bytes().replace(b"layer0", b"layer1"))
    assert ".metadata is damaged at 0" in str(failing(lambda: read(tmp_path / "a")))


def test_manifests_of_two_checkpoints_are_no_checkpoint(tmp_path: Path) -> None:
    """CASES 38: a directory that two saves have written to."""
    save(tmp_path / "a")
    (manifest,) = read_manifests(lambda name: tmp_path / "a" / name, "")
    others = [
        replace(manifest, rank=1, world_size=2, attempt=Attempt(1, 2, "0" * 12)),
        replace(manifest, rank=1, world_size=3),
        replace(manifest, rank=0, world_size=2),
    ]
    (tmp_path / "a" / "ranks" / "00000.json").write_bytes(replace(manifest, world_size=2).encode())
    for other in others:
        (tmp_path / "a" / "ranks" / "00001.json").write_bytes(other.encode())
        with pytest.raises(CheckpointDamaged, match=r"ranks/00001\.json is of rank"):
            CheckpointReader(tmp_path / "a").read_metadata()


def test_a_flipped_byte_is_named_with_file_and_item_when_it_is_loaded(tmp_path: Path) -> None:
    """CASES 46"""
    writer = save(tmp_path / "a")
    item = writer.written[0].items[2]
    path = tmp_path / "a" / "__0_0.distcp"
    content = bytearray(path.read_bytes())
    content[item.offset + item.size_bytes // 2] ^= 1
    path.write_bytes(content)
    error = failing(lambda: read(tmp_path / "a"))
    assert isinstance(error, CheckpointDamaged)
    assert f"__0_0.distcp is damaged at {item.offset}" in str(error)


def test_only_what_is_read_is_verified(tmp_path: Path) -> None:
    """So that a reshard costs no more than the parts it takes."""
    save(tmp_path / "a")
    place = decode_metadata((tmp_path / "a" / ".metadata").read_bytes()).storage_data
    (weight,) = [info for index, info in place.items() if index.fqn == "model.layer0.weight"]
    path = tmp_path / "a" / weight.relative_path
    content = bytearray(path.read_bytes())
    content[weight.offset + 300] ^= 1
    path.write_bytes(content)
    part = {"model": {"layer1.weight": torch.zeros(50, 20)}}
    dcp.load(part, storage_reader=CheckpointReader(tmp_path / "a"))
    assert torch.equal(part["model"]["layer1.weight"], some_state()["model"]["layer1.weight"])


@pytest.mark.parametrize("kept", [0, 100, -1])
def test_a_truncated_file_is_found(tmp_path: Path, kept: int) -> None:
    """CASES 46"""
    save(tmp_path / "a")
    path = tmp_path / "a" / "__0_0.distcp"
    path.write_bytes(path.read_bytes()[:kept])
    error = failing(lambda: read(tmp_path / "a"))
    assert isinstance(error, CheckpointDamaged)
    assert "it was cut or changed" in str(error)


def rewritten(directory: Path, change: Callable[[Any], None]) -> None:
    """As somebody who also mends the checksums would: digests detect damage, not forgery."""
    path = directory / ".metadata"
    metadata = decode_metadata(path.read_bytes())
    change(metadata)
    path.write_bytes(pickle.dumps(metadata))
    (manifest,) = read_manifests(lambda name: directory / name, "")
    content = manifest.encode().decode()
    for record in manifest.files:
        if record.name == ".metadata":
            found = path.read_bytes()
            (item,) = record.items
            content = content.replace(
                f'"bytes":{record.size_bytes},"items":[[0,{item.size_bytes},{item.crc32c}]],"name":".metadata"',
                f'"bytes":{len(found)},"items":[[0,{len(found)},{google_crc32c.value(found)}]],"name":".metadata"',
            )
    (directory / "ranks" / "00000.json").write_text(content)


@pytest.mark.parametrize("name", ["../secret.distcp", "/etc/hostname", "__9_9.distcp", ""])
def test_a_file_that_no_manifest_names_is_never_opened(tmp_path: Path, name: str) -> None:
    """T16"""
    save(tmp_path / "a")
    (tmp_path / "a" / "__0_0.distcp").rename(tmp_path / "secret.distcp")

    def change(metadata: Any) -> None:
        for info in metadata.storage_data.values():
            info.relative_path = name

    rewritten(tmp_path / "a", change)
    error = failing(lambda: read(tmp_path / "a"))
    assert isinstance(error, CheckpointDamaged)
    assert "is no file of any rank" in str(error)


def test_an_item_that_the_writing_rank_does_not_know_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "a")

    def change(metadata: Any) -> None:
        for info in metadata.storage_data.values():
            info.offset += 1

    rewritten(tmp_path / "a", change)
    assert "says otherwise" in str(failing(lambda: read(tmp_path / "a")))


class Touch:
    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self._path,)


def test_a_value_that_would_run_code_is_refused_and_runs_none(tmp_path: Path) -> None:
    """T9: torch's own planner loads values with `weights_only=False`."""
    planted = tmp_path / "planted"
    dcp.save({"value": Touch(str(planted))}, storage_writer=NvmeStagingWriter(tmp_path / "a"))
    error = failing(lambda: dcp.load({"value": None}, storage_reader=CheckpointReader(tmp_path / "a")))
    assert isinstance(error, CheckpointError)
    assert "it can run code" in str(error)
    assert not planted.exists()


def test_a_directory_of_another_writer_and_no_directory_say_what_to_do(tmp_path: Path) -> None:
    dcp.save({"a": torch.ones(3)}, checkpoint_id=tmp_path / "theirs")
    for directory in (tmp_path / "theirs", tmp_path / "none"):
        with pytest.raises(CheckpointNotFound, match="FileSystemReader"):
            CheckpointReader(directory).read_metadata()


def test_files_come_from_who_has_them(tmp_path: Path) -> None:
    save(tmp_path / "a", max_file_bytes=9000)
    elsewhere = tmp_path / "b"
    elsewhere.mkdir()
    asked = []

    def fetch(name: str) -> Path:
        asked.append(name)
        taken = elsewhere / name.replace("/", "-")
        taken.write_bytes((tmp_path / "a" / name).read_bytes())
        return taken

    part = {"model": {"layer1.weight": torch.zeros(50, 20)}}
    dcp.load(part, storage_reader=CheckpointReader("the run", fetch=fetch))
    assert torch.equal(part["model"]["layer1.weight"], some_state()["model"]["layer1.weight"])
    assert sorted(set(asked)) == [".metadata", next(name for name in asked if "distcp" in name), "ranks/00000.json"]
