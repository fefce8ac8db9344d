"""What one rank alone gets wrong in a save is told to all, and the next save is as if it had not been."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch

import forebay
from forebay.daemon.disks import Disks
from forebay_core.node_layout import ATTEMPTS_DIRECTORY, DISK_ID_FILE
from tests.client.checkpoint.rank_programs import Trainer
from tests.support.ranks import Ranks


def saves_badly_and_well(rank: int, root: str, address: str, bad: int) -> list[str]:
    """What the two saves came to; the first is of an object, or an optimizer's state, that rank `bad` cannot keep."""
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objects: dict[str, Any] = {"mine": {}}
    told = []
    with forebay.Checkpointer(
        root, model=model, optimizer=optimizer, objects=objects, address=address, on_failure="warn", timeout_seconds=60
    ) as checkpointer:
        checkpointer.restore()
        objects["mine"]["bad"] = optimizer.state[model.weight]["bad"] = [object()] if rank == bad else None
        for step in range(2):
            handle = checkpointer.save(step, force=True)
            assert handle is not None
            error = handle.local.exception(60)
            told.append("" if error is None else str(error))
            objects["mine"].clear()
            optimizer.state[model.weight].clear()
    return told


@pytest.mark.parametrize("bad", [0, 1])
def test_what_one_rank_cannot_save_fails_on_all_and_the_next_save_is_whole(
    home: Path, address: str, ranks: Ranks, bad: int
) -> None:
    """CASES 41: the others would wait for it until the timeout."""
    for rank, (first, second) in enumerate(ranks.run(2, saves_badly_and_well, f"{home}/root", address, bad)):
        assert "weight.bad is a list" in first, rank
        assert not second


def saves_where_one_sees_no_staging(
    rank: int, root: str, address: str, blind: int, seen: str
) -> tuple[str, float, list[str]]:
    """What the first of two saves came to, after how long, and what is left of it.

    Rank `blind` takes the directory `seen` for the staging disk, until the second.
    """
    told, began = "", time.monotonic()
    with forebay.Checkpointer(
        root, model=torch.nn.Linear(2, 2), address=address, on_failure="warn", timeout_seconds=60
    ) as checkpointer:
        checkpointer.restore()
        staging, client = checkpointer._calls.open().staging, checkpointer._calls._client
        if rank == blind:
            (Path(seen) / DISK_ID_FILE).write_text(staging.disk_id)
            client.disks.learn([(staging.disk_id, seen)])
        first = checkpointer.save(1, force=True)
        assert first is not None
        told, seconds = str(first.local.exception(80)), time.monotonic() - began
        torch.distributed.barrier()
        left = [str(each) for each in Path(staging.path).rglob(f"*{first.attempt.name}*")]
        client.disks = Disks({})
        client.disks.learn([(staging.disk_id, staging.path)])
        second = checkpointer.save(2, force=True)
        assert second is not None
        second.wait("durable", timeout=60)
    return told, seconds, left


@pytest.mark.parametrize("blind", [0, 1])
@pytest.mark.parametrize(
    ("has_attempts", "said"), [(False, "is not visible here"), (True, "cannot be written: No such")]
)
def test_a_rank_that_does_not_see_the_staging_directory_fails_the_save_of_all_at_once(
    home: Path, address: str, ranks: Ranks, blind: int, has_attempts: bool, said: str
) -> None:
    """As one whose container lacks it, or that has no descriptors left; the others would wait until the timeout."""
    seen = home / "seen"
    (seen / (ATTEMPTS_DIRECTORY if has_attempts else "nothing")).mkdir(parents=True)
    for told, seconds, left in ranks.run(2, saves_where_one_sees_no_staging, f"{home}/root", address, blind, str(seen)):
        assert said in told
        assert seconds < 30
        assert not left


def test_a_step_that_is_no_whole_number_is_refused_before_anything_begins(home: Path, address: str) -> None:
    with forebay.Checkpointer(f"{home}/root", model=torch.nn.Linear(1, 1), address=address) as checkpointer:
        for step in (-1, 1.5, "3", None):
            with pytest.raises(forebay.ConfigurationError, match="whole number"):
                checkpointer.save(step, force=True)  # type: ignore[arg-type]
        handle = checkpointer.save(torch.tensor(3), force=True)  # type: ignore[arg-type]
        assert handle is not None
        assert type(handle.step) is int
        handle.wait("durable", timeout=60)


def test_what_cannot_work_is_refused_by_name_and_a_closed_checkpointer_restores_nothing(
    home: Path, address: str
) -> None:
    model: Any = torch.nn.Linear(1, 1)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"loader": 3}, "loader=3"),
        ({"objects": [1]}, "objects= is a list"),
        ({"timeout_seconds": 0}, "timeout_seconds=0"),
        ({"model": None}, "model= is wrong: a NoneType"),
        ({"model": {"a": 3}}, r"model\['a'\]= is wrong: a int"),
    ]
    for options, said in wrong:
        with pytest.raises(forebay.ConfigurationError, match=said):
            forebay.Checkpointer(f"{home}/root", **{"model": model, "address": address, **options})
    with forebay.Checkpointer(f"{home}/root", model=model, address=address) as checkpointer:
        with pytest.raises(forebay.ConfigurationError, match="no loader to skip in"):
            checkpointer.restore(skip_samples=3)
        assert checkpointer.generation is None
    for refused in (checkpointer.restore, checkpointer.on_sigterm):
        with pytest.raises(forebay.CheckpointError, match="closed"):
            refused()


def test_a_relative_root_is_relative_to_the_trainer_and_not_to_its_daemon(
    home: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    with forebay.Checkpointer("runs/a", model=torch.nn.Linear(1, 1), address=address) as checkpointer:
        checkpointer.restore()
    assert (home / "runs/a/generations").is_dir()


def goes_on(rank: int, root: str, address: str, kind: str, steps: int) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """The step that was restored (0: none), and what there was of all tensors then, and at the last save."""
    trainer = Trainer(kind, seed=3)
    with forebay.Checkpointer(
        root, model=trainer.model, optimizer=trainer.optimizer, address=address, timeout_seconds=60
    ) as checkpointer:
        restored = checkpointer.restore()
        before, first = whole(trainer), restored.step if restored else 0
        for step in range(first + 1, first + 1 + steps):
            trainer.step(step)
            checkpointer.save(step, force=True)
            checkpointer.wait_staged()
    return first, before, whole(trainer)


def whole(trainer: Trainer) -> dict[str, Any]:
    """The bytes of every tensor, put together from all ranks; this rank's own where each has its own."""
    collected, _ = trainer.state.collect()
    found = {}
    for entry in collected.entries:
        tensor: Any = entry.tensor.detach()
        tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        if not entry.is_buffer:  # BatchNorm's differ between ranks, and rank 0's are kept
            found[entry.key] = tensor.contiguous().view(-1).view(torch.uint8).tolist()
    return found


def test_a_job_that_is_sharded_and_replicated_goes_on_in_every_other_shape(
    home: Path, address: str, ranks: Ranks
) -> None:
    step, expected = 0, None
    for kind, world_size in (("hsdp", 4), ("fsdp", 2), ("ddp", 3), ("hsdp", 4)):
        told = ranks.run(world_size, goes_on, f"{home}/root", address, kind, 2)
        for restored, before, _ in told:
            assert restored == step
            assert expected is None or before == expected
        step, expected = step + 2, told[0][2]
