"""What one job saves, a job of another shape restores: real ranks, real DDP, FSDP2 and HSDP on the CPU."""

from pathlib import Path
from typing import Any

import pytest
import torch

from forebay.checkpoint.loading import Target, load_into
from forebay.checkpoint.reader import CheckpointReader
from tests.client.checkpoint.rank_programs import (
    reshape,
    restore,
    restore_damaged,
    restore_where_rank_one_fails,
    save_again_and_again,
    save_before_and_after_a_change_of_type,
    save_stages,
    save_where_rank_two_differs,
    train_and_save,
)
from tests.support.ranks import Ranks


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found["tensors"].keys() == wanted["tensors"].keys()
    for key, tensor in wanted["tensors"].items():
        if "norm.running" not in key and "num_batches" not in key:
            assert torch.equal(found["tensors"][key], tensor), key
    assert found["settings"] == wanted["settings"]


@pytest.mark.parametrize(("kind", "other"), [("ddp", "fsdp"), ("fsdp", "fsdp"), ("hsdp", "ddp"), ("fsdp", "hsdp")])
def test_every_tensor_is_restored_under_another_kind_of_parallelism(
    ranks: Ranks, tmp_path: Path, kind: str, other: str
) -> None:
    saved = ranks.run(4, train_and_save, kind, tmp_path / "a", 3)
    found = ranks.run(4, restore, other, tmp_path / "a", saved[0]["saved"])
    for rank in found:
        assert_same(rank, saved[0])


def test_four_ranks_two_three_and_four_again_keep_every_tensor(ranks: Ranks, tmp_path: Path) -> None:
    """CASES 44: Adam's state too, and a dimension of 10 that divides by neither 3 nor 4."""
    saved = ranks.run(4, train_and_save, "fsdp", tmp_path / "0", 2)[0]
    for number, world_size in enumerate([2, 3, 4]):
        place = (tmp_path / str(number), saved["saved"], tmp_path / str(number + 1))
        found = ranks.run(world_size, reshape, "fsdp", *place)
        assert_same(found[0]["restored"], saved)
        saved = found[0]["saved"]


def test_a_parameter_of_one_rank_that_is_not_the_others_is_an_error_on_all(ranks: Ranks, tmp_path: Path) -> None:
    said = ranks.run(3, save_where_rank_two_differs, tmp_path)
    assert all(error.startswith("optimizer.state.model.") for error in said)
    assert all("is not the same on ranks 0 and 2" in error for error in said)


def test_stages_of_a_pipeline_are_saved_by_those_that_have_them(ranks: Ranks, tmp_path: Path) -> None:
    saved = ranks.run(4, save_stages, tmp_path / "a")
    stored = CheckpointReader(tmp_path / "a").described()
    tied = {f"model.stage{stage}.tied.weight": f"model.stage{stage}.first.weight" for stage in (0, 1)}
    assert {key for each in saved for key in each["tensors"]} | set(tied) == set(stored)
    for rank in (0, 3):
        wanted = dict(saved[rank]["tensors"])
        wanted |= {name: wanted[key] for name, key in tied.items() if key in wanted}
        state = {key: torch.zeros_like(tensor) for key, tensor in wanted.items()}
        load_into([Target((key,), tensor) for key, tensor in state.items()], CheckpointReader(tmp_path / "a"), None)
        assert all(torch.equal(state[key], tensor) for key, tensor in wanted.items())


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_saves_back_to_back_each_hold_their_step_also_after_one_that_failed(
    ranks: Ranks, tmp_path: Path, kind: str
) -> None:
    """T1, CASES 40: what is known of a layout is not that of a state before, or of a failed save."""
    outcomes = ranks.run(3, save_again_and_again, kind, tmp_path)
    for rank, (failures, again, _) in enumerate(outcomes):
        assert again == [False, False, False, True, True, True]
        assert len(failures) == 2
        assert failures[0].startswith("rank 2: ")
        assert failures[1].startswith("on rank 2: ") == (rank != 2)
        assert all("__2_0.distcp cannot be written: File exists" in failure for failure in failures)
    assert not (tmp_path / "1" / ".metadata").exists()
    for number, settings, wanted in outcomes[0][2]:
        for found in ranks.run(2, restore, kind, tmp_path / str(number), settings):
            assert_same(found, wanted)


def test_a_layout_is_not_used_again_for_tensors_of_another_type(ranks: Ranks, tmp_path: Path) -> None:
    """torch compares names and sizes alone, where it keeps a plan."""
    ranks.run(2, save_before_and_after_a_change_of_type, tmp_path)
    found = [CheckpointReader(tmp_path / name).described()["model.weight"].dtype for name in ("before", "after")]
    assert found == [torch.float32, torch.bfloat16]


def test_a_fault_that_one_rank_alone_meets_is_raised_on_all_and_none_hangs(ranks: Ranks, tmp_path: Path) -> None:
    saved = ranks.run(2, train_and_save, "ddp", tmp_path / "a", 1)
    said = ranks.run(2, restore_where_rank_one_fails, "ddp", tmp_path / "a", saved[0]["saved"])
    assert all("its node is gone" in error for error in said)


def test_damage_in_what_one_rank_reads_is_raised_on_all(ranks: Ranks, tmp_path: Path) -> None:
    """CASES 46, T15"""
    saved = ranks.run(2, train_and_save, "fsdp", tmp_path / "a", 1)
    path = tmp_path / "a" / "__1_0.distcp"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    said = ranks.run(2, restore_damaged, "fsdp", tmp_path / "a", saved[0]["saved"])
    assert all("rank 1: " in error and "__1_0.distcp is damaged at" in error for error in said)
