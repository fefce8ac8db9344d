"""Models that are unlike most, saved and restored: modules of two names, buffers that cannot be kept, other modes."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import forebay
from tests.integration.training import Net
from tests.server.daemons import daemon
from tests.support.ranks import Ranks

MIB = 1 << 20
SECONDS = 60.0


class Siamese(nn.Module):
    """One layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(3, 3)
        self.right = self.left

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.left(values) + self.right(values * 2)
        return result


def saved_and_restored(rank: int, root: str, address: str, wrap: str) -> bool:
    def made() -> tuple[Any, torch.optim.Optimizer]:
        torch.manual_seed(1)
        model: Any = Siamese()
        if wrap == "ddp":
            model = nn.parallel.DistributedDataParallel(model)
        elif wrap == "compile":
            model = torch.compile(model, backend="eager")
        return model, torch.optim.AdamW(model.parameters(), 0.1)

    model, optimizer = made()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    with forebay.Checkpointer(root, model=model, optimizer=optimizer, address=address, timeout_seconds=60) as saver:
        saver.save(1, force=True)
    again, optimizer = made()
    with forebay.Checkpointer(root, model=again, optimizer=optimizer, address=address, timeout_seconds=60) as saver:
        restored = saver.restore()
        assert restored is not None
    return all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_a_module_of_two_names_is_restored_under_ddp(home: Path, address: str, ranks: Ranks) -> None:
    assert ranks.run(2, saved_and_restored, f"{home}/root", address, "ddp") == [True, True]


@pytest.mark.parametrize("wrap", ["plain", "compile"])
def test_a_module_of_two_names_is_restored_in_one_process(home: Path, address: str, wrap: str) -> None:
    assert saved_and_restored(0, f"{home}/root", address, wrap)


def refused(rank: int, root: str, address: str, with_it: list[int]) -> tuple[str, float]:
    """What a save of a sparse buffer on these ranks says, and in how many seconds."""
    model = nn.Linear(3, 2)
    for parameter in model.parameters():
        nn.init.ones_(parameter)
    if rank in with_it:
        model.register_buffer("adjacency", torch.eye(3).to_sparse())
    began = time.monotonic()
    with forebay.Checkpointer(root, model=model, address=address, timeout_seconds=60, on_failure="warn") as saver:
        handle = saver.save(1, force=True)
        assert handle is not None
        try:
            handle.wait("local", SECONDS)
        except forebay.CheckpointError as error:
            return str(error), time.monotonic() - began
    return "saved", 0


def test_a_sparse_buffer_is_refused_by_its_name(home: Path, address: str) -> None:
    said, _ = refused(0, f"{home}/root", address, [0])
    assert "model.adjacency is a torch.sparse_coo tensor" in said


def test_a_sparse_buffer_on_one_rank_fails_the_save_of_all_at_once(home: Path, address: str, ranks: Ranks) -> None:
    for said, seconds in ranks.run(2, refused, f"{home}/root", address, [1]):
        assert "model.adjacency" in said
        assert seconds < 30


def job() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    model(torch.arange(4.0)).sum().backward()
    optimizer.step()
    return model, optimizer


def local(saver: forebay.Checkpointer, step: int) -> None:
    handle = saver.save(step, force=True)
    assert handle is not None
    handle.wait("local", SECONDS)


def test_a_first_save_under_inference_mode_is_no_end_of_saves(home: Path, address: str) -> None:
    model, optimizer = job()
    with forebay.Checkpointer(f"{home}/root", model=model, optimizer=optimizer, address=address) as saver:
        with torch.inference_mode():
            local(saver, 1)
        optimizer.step()
        local(saver, 2)


def test_a_default_device_is_not_where_copies_are_kept(home: Path, address: str) -> None:
    """`torch.set_default_device("cuda")`; "meta" stands for it."""
    model, optimizer = job()
    saver = forebay.Checkpointer(f"{home}/root", model=model, optimizer=optimizer, address=address)
    with saver, torch.device("meta"):
        local(saver, 1)


@pytest.mark.parametrize("where", ["model", "objects"])
def test_a_checkpoint_larger_than_staging_allows_is_refused_whatever_makes_it_large(where: str, home: Path) -> None:
    large = torch.ones(60 * MIB // 4)
    model = nn.Linear(2, 2)
    objects = {"ema": {"weights": large}} if where == "objects" else {}
    if where == "model":
        model.large = nn.Parameter(large)
    (home / "staging").mkdir()
    with (
        daemon(home, "--staging-dir", f"{home / 'staging'}:40MiB") as node,
        forebay.Checkpointer(
            f"{home}/root",
            model=model,
            objects=objects,
            address=str(node.socket),
            when_full="fail",
            on_failure="warn",
        ) as saver,
        pytest.raises(forebay.StagingFull),
    ):
        local(saver, 1)
