"""What `restore` goes on from when not all is well: damage, rewinds, other starts of the job, a store that is away."""

import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from forebay.checkpoint.checkpointer import Checkpointer
from forebay.daemon.checkpoint_root import CheckpointRoot
from forebay_core.checkpoints.documents import Decision, State
from forebay_core.checkpoints.names import Attempt, parse_attempt
from forebay_core.errors import CheckpointDamaged, CheckpointFenced, CheckpointNotFound, StateMismatch
from tests.integration.training import Job, Net, alone, assert_same, loader_of, model_of, run
from tests.server.daemons import daemon
from tests.support.data import write_parquet
from tests.support.ranks import Ranks


@pytest.fixture
def job(data: Path, home: Path, address: str) -> Job:
    return Job(f"file://{home}/root", str(data), [address] * 2, steps=4, wrap="plain")


def attempt_of(root: Path, step: int) -> Path:
    (found,) = [each for each in (root / "attempts").iterdir() if (a := parse_attempt(each.name)) and a.step == step]
    return found


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x40
    file.write_bytes(content)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


def states(root: Path) -> dict[int, State]:
    found = [Decision.decode(file.read_bytes()) for file in (root / "commits").iterdir()]
    return {each.attempt.step: each.state for each in found}


FILES = ["__0_0.distcp", ".metadata", "ranks/00000.json", "data/00000.json", "objects.pt"]


def test_damage_in_any_kind_of_file_is_found_and_the_checkpoint_before_is_gone_on_from(job: Job, home: Path) -> None:
    """CASES 46, T5: a bit that is flipped, and an end that is cut off, in every file there is."""
    reference = alone(replace(job, steps=6, saves=[1, 3], restore=None))
    for number, (file, damage) in enumerate((file, damage) for file in FILES for damage in (flip, truncate)):
        root = home / f"damaged-{number}"
        shutil.copytree(home / "root", root)
        damage(attempt_of(root, 3) / file)
        again = alone(replace(job, root=str(root), steps=2))
        assert again.restored is not None, file
        assert again.restored.step == 1, file
        assert "step 3 of generation 1 is damaged" in again.restored.notes[0]
        assert states(root) == {1: State.COMMITTED, 3: State.QUARANTINED}
        assert_same(again, reference)


def test_all_ranks_pass_over_damage_that_one_finds_and_the_step_is_saved_again(
    job: Job, home: Path, ranks: Ranks
) -> None:
    """CASES 45, 46"""
    job = replace(job, wrap="ddp")
    with daemon(home, name="first") as first:
        reference = ranks.run(2, run, replace(job, addresses=[str(first.socket)] * 2, steps=6, saves=[1, 3]))
    flip(attempt_of(home / "root", 3) / "data/00001.json")
    again = ranks.run(2, run, replace(job, steps=2, saves=[3]))
    last = ranks.run(2, run, replace(job, steps=2))
    for rank in range(2):
        assert again[rank].restored is not None
        assert last[rank].restored is not None
        assert again[rank].restored.step == 1
        assert (last[rank].restored.step, last[rank].restored.generation) == (3, 2)
        assert_same(again[rank], reference[rank])
        assert_same(last[rank], reference[rank])


def test_damage_to_what_is_staged_alone_costs_a_read_from_the_destination(job: Job, home: Path) -> None:
    with daemon(home, name="own") as node:
        job = replace(job, addresses=[str(node.socket)])
        reference = alone(replace(job, steps=4, saves=[1]))
        (staged,) = node.cache.rglob("__0_0.distcp")
        staged.chmod(0o600)
        flip(staged)
        again = alone(replace(job, steps=2))
    assert again.restored is not None
    assert (again.restored.step, again.restored.source) == (1, "durable")
    assert states(home / "root") == {1: State.COMMITTED}
    assert_same(again, reference)


@pytest.mark.parametrize("file", ["__0_0.distcp", ".metadata"])
def test_a_node_that_damages_what_it_reads_takes_no_checkpoint_from_the_others(
    job: Job, home: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """CASES 46."""
    reference = alone(replace(job, steps=6, saves=[1, 3]))
    root = home / "elsewhere"
    shutil.copytree(home / "root", root)
    fetch = CheckpointRoot.fetch

    def damaging(self: CheckpointRoot, attempt: Attempt, name: str, **options: Any) -> tuple[Path, bool]:
        path, is_staged = fetch(self, attempt, name, **options)
        if name == file and attempt.step == 3:
            path.chmod(0o600)
            path.write_bytes(bytes(path.stat().st_size))
        return path, is_staged

    with monkeypatch.context() as damaged:
        damaged.setattr(CheckpointRoot, "fetch", damaging)
        here = alone(replace(job, root=str(root), steps=2, saves=[]))
    assert here.restored is not None
    assert here.restored.step == 1
    assert "was passed over and is not marked: it is whole at the destination" in here.restored.notes[0]
    assert states(root) == {1: State.COMMITTED, 3: State.COMMITTED}
    there = alone(replace(job, root=str(root), steps=2, saves=[]))
    assert there.restored is not None
    assert there.restored.step == 3
    assert_same(there, reference)


def test_where_all_checkpoints_are_damaged_training_is_not_begun_anew_in_silence(job: Job, home: Path) -> None:
    alone(replace(job, steps=2, saves=[1]))
    copy = home / "copy"
    shutil.copytree(home / "root", copy)
    flip(attempt_of(copy, 1) / "__0_0.distcp")
    for _ in range(2):
        with pytest.raises(CheckpointDamaged, match="all checkpoints here are damaged"):
            alone(replace(job, root=str(copy)))


def test_a_rewind_makes_what_is_saved_after_it_the_newest(job: Job) -> None:
    """CASES 45: an older step of a newer start counts more than a newer step of an older one."""
    reference = alone(replace(job, steps=8, saves=[1, 3, 5]))
    again = alone(replace(job, restore={"step": 1}, steps=2, saves=[3]))
    last = alone(replace(job, steps=2))
    assert again.restored is not None
    assert last.restored is not None
    assert (again.restored.step, again.generation) == (1, 2)
    assert (last.restored.step, last.restored.generation, last.generation) == (3, 2, 3)
    assert_same(again, reference)
    assert_same(last, reference)
    with pytest.raises(CheckpointNotFound, match=r"step 4.*1, 3, 5"):
        alone(replace(job, restore={"step": 4}))


def test_a_save_amid_accumulated_gradients_goes_on_from_the_last_optimizer_step(job: Job) -> None:
    """The batch that was not in the weights yet is handed out again, with the random numbers that it had."""
    reference = alone(replace(job, accumulate=3, steps=5, amid=1))
    again = alone(replace(job, accumulate=3, steps=3))
    assert again.restored is not None
    assert again.restored.step == 1
    assert_same(again, reference)


def test_samples_behind_the_position_are_left_out_where_that_is_wanted(job: Job, home: Path) -> None:
    reference = alone(replace(job, root=f"{home}/reference", steps=6))
    alone(replace(job, steps=2, saves=[1]))
    again = alone(replace(job, restore={"skip_samples": 24}, steps=2))
    assert again.restored is not None
    assert "24 samples" in again.restored.notes[-1]
    assert [again.samples[2], again.samples[3]] == [reference.samples[4], reference.samples[5]]


def test_a_warm_start_takes_the_weights_and_nothing_else_and_only_in_an_empty_root(job: Job, home: Path) -> None:
    reference = alone(replace(job, steps=3, saves=[2]))
    warm = {"warm_start": job.root}
    other = replace(job, root=f"{home}/other", restore=warm)
    first = alone(replace(other, steps=2, saves=[1]))
    assert first.restored is None
    assert first.samples[0] == reference.samples[0]
    assert first.losses[0] != reference.losses[0]
    second = alone(replace(other, steps=1))
    assert second.restored is not None
    assert second.restored.step == 1


def test_an_older_start_of_the_job_is_fenced_and_says_so_at_its_next_save(job: Job) -> None:
    """CASES 45"""
    with started(job) as (older, step), started(job) as (newer, newer_step):
        assert older.restore() is None
        step()
        handle = older.save(0, force=True)
        assert handle is not None
        handle.wait("durable", timeout=30)
        assert newer.restore() is not None
        step()
        fenced = older.save(1, force=True)
        assert fenced is not None
        with pytest.raises(CheckpointFenced):
            fenced.wait("local", timeout=30)
        with pytest.raises(CheckpointFenced):
            older.save(2, force=True)
        newer_step()
        handle = newer.save(1, force=True)
        assert handle is not None
        handle.wait("durable", timeout=30)


class started:
    """A checkpointer over a model of its own, and what makes an optimizer step of it."""

    def __init__(self, job: Job, **options: Any) -> None:
        self.model = Net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.checkpointer = Checkpointer(
            job.root, model=self.model, optimizer=self.optimizer, address=job.addresses[0], **options
        )

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.arange(4.0)).sum().backward()
        self.optimizer.step()

    def __enter__(self) -> tuple[Checkpointer, Callable[[], None]]:
        return self.checkpointer, self.step

    def __exit__(self, *_: object) -> None:
        try:
            self.checkpointer.close()
        except CheckpointFenced:
            return


def test_after_a_change_of_the_data_what_the_refusal_advises_works_and_later_starts_restore_as_always(
    job: Job, home: Path
) -> None:
    alone(replace(job, steps=2, saves=[1]))
    other = home / "other"
    write_parquet(other, shards=2, rows=90, row_group_rows=10)
    job = replace(job, data=str(other))
    with pytest.raises(StateMismatch, match="another sequence") as refused:
        alone(replace(job, steps=1))
    assert "restore() with a Checkpointer without loader=, and loader.load_state_dict(restored.position" in str(
        refused.value
    )
    assert "load_state_dict(state" not in str(refused.value)
    model, optimizer = model_of(job)
    objects = {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)}
    options: dict[str, Any] = {"model": model, "optimizer": optimizer, "objects": objects}
    with Checkpointer(job.root, address=job.addresses[0], **options) as before:
        restored = before.restore()
    assert restored is not None
    with closing(loader_of(job, 0)) as loader:
        assert restored.position is not None
        loader.load_state_dict(restored.position, strict=False)
        with Checkpointer(job.root, address=job.addresses[0], loader=loader, **options) as checkpointer:
            handle = checkpointer.save(restored.step, force=True)
            assert handle is not None
            handle.wait("durable", timeout=60)
    ran = alone(replace(job, steps=1))
    assert ran.restored is not None
    assert (ran.restored.step, ran.restored.generation, ran.generation) == (1, 3, 4)
    assert ran.restored.position is not None
    assert ran.restored.position["position"] == restored.position["position"] == 24


def test_another_optimizer_and_a_position_that_nobody_takes_up_are_said(job: Job, home: Path) -> None:
    """Either would go on from something else than the checkpoint in silence."""
    alone(replace(job, steps=2, saves=[1]))
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    objects = {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)}
    with Checkpointer(job.root, model=net, optimizer=optimizer, objects=objects, address=job.addresses[0]) as other:
        restored = other.restore()
    assert restored is not None
    data, changed = restored.notes
    assert data == "the checkpoint has a position in the data, and there is no loader= that could go on from it"
    assert changed.startswith("the optimizer optimizer was Adam")
    assert "and is SGD now" in changed
