"""`.metadata` is read without running what it names."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta

from forebay.checkpoint.metadata import decode_metadata, encode_metadata
from forebay_core.errors import CheckpointDamaged

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


class _Runs:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self._reduced = (function, arguments)

    def __reduce__(self) -> Any:
        return self._reduced


def metadata_with(planted: Any) -> bytes:
    return pickle.dumps(Metadata({}, planner_data=planted, storage_data={}, storage_meta=StorageMeta()))


@pytest.mark.parametrize("function", [os.mkdir, Path.mkdir, eval, getattr, torch.load, torch.hub.load, pickle.loads])
def test_metadata_that_would_run_code_is_refused_and_runs_none(tmp_path: Path, function: Any) -> None:
    """T9"""
    planted = tmp_path / "planted"
    argument = planted if function is Path.mkdir else str(planted)
    with pytest.raises(CheckpointDamaged, match="describes no checkpoint"):
        decode_metadata(metadata_with(_Runs(function, argument)))
    assert not planted.exists()


def test_the_same_pickle_runs_code_when_plain_pickle_reads_it(tmp_path: Path) -> None:
    """What the test above holds off."""
    pickle.loads(metadata_with(_Runs(os.mkdir, str(tmp_path / "planted"))))
    assert (tmp_path / "planted").exists()


@given(st.binary(max_size=200))
def test_what_is_no_pickle_is_damage(content: bytes) -> None:
    with pytest.raises(CheckpointDamaged):
        decode_metadata(content)


@pytest.mark.parametrize("value", [None, {}, torch.Size([3]), Metadata(3)])  # type: ignore[arg-type]
def test_what_is_another_object_is_damage(value: Any) -> None:
    with pytest.raises(CheckpointDamaged, match="metadata"):
        decode_metadata(pickle.dumps(value))


def test_what_torch_writes_for_tensors_and_values_of_all_kinds_is_read(tmp_path: Path) -> None:
    dtypes = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool, torch.complex64]
    state = {f"t{number}": torch.zeros(3, 2).to(dtype) for number, dtype in enumerate(dtypes)}
    dcp.save({"model": state, "step": 4, "list": [1, {"a": torch.ones(())}]}, checkpoint_id=tmp_path, no_dist=True)
    content = (tmp_path / ".metadata").read_bytes()
    with pytest.raises(CheckpointDamaged, match="pathlib"):
        decode_metadata(content)  # names the directory it was written to
    metadata = pickle.loads(content)
    metadata.storage_meta = StorageMeta()
    assert decode_metadata(encode_metadata(metadata)) == metadata


def test_a_copy_is_pickled_to_the_same_bytes_as_the_original() -> None:
    """T17: every node writes `.metadata`, from the object that torch broadcast; rank 0's checksum holds for all."""
    # The name of a parameter that is also an attribute's of the classes: unpickling does not keep the two one object.
    original = Metadata(
        {},
        planner_data={"model.offset": ("model", "offset")},
        storage_data={MetadataIndex("model.offset", (0,)): _StorageInfo("__0_0.distcp", 0, 4)},
    )
    broadcast = pickle.loads(pickle.dumps(original))
    assert pickle.dumps(original) != pickle.dumps(broadcast)
    assert encode_metadata(original) == encode_metadata(broadcast)
