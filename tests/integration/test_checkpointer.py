"""`forebay.Checkpointer` on real ranks, with real daemons and destinations: save, local, durable, restore."""

import logging
import os
import platform
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from forebay import SAMPLE_ID, Checkpointer
from forebay.checkpoint.ledger import events_of
from forebay.digest import SampleDigest
from forebay_core.checkpoints.documents import RankManifest
from tests.integration.training import Job, alone, assert_same, loader_of, run
from tests.server.daemons import daemon
from tests.support.ranks import Ranks
from tests.support.seaweedfs import Bucket


@pytest.fixture
def job(data: Path, home: Path, address: str) -> Job:
    return Job(f"file://{home}/root", str(data), [address] * 4, steps=4, saves=[1])


def test_one_process_goes_on_bit_for_bit_as_if_it_had_not_stopped(job: Job, home: Path) -> None:
    reference = alone(replace(job, wrap="plain", root=f"{home}/reference", steps=6, saves=[]))
    first = alone(replace(job, wrap="plain", steps=3, saves=[1]))
    assert first.restored is None
    again = alone(replace(job, wrap="plain", steps=4, saves=[]))
    assert again.restored is not None
    assert (again.restored.step, again.restored.source, again.generation) == (1, "local", 2)
    assert_same(first, reference)
    assert_same(again, reference)
    (staged, local, durable, blocked), *_ = first.seconds
    assert 0 < (staged or 0) < (local or 0) < (durable or 0)
    assert blocked < (local or 0)
    manifest = RankManifest.decode(next(Path(home, "root").glob("attempts/*/ranks/00000.json")).read_bytes())
    assert manifest.notes["host"] == platform.node(), "what `forebay checkpoints show` says of a rank"
    assert manifest.notes["staged_seconds"] > 0


def test_ranks_on_two_nodes_go_on_bit_for_bit_from_a_bucket_with_accumulated_gradients(
    job: Job, data: Path, home: Path, bucket: Bucket, ranks: Ranks
) -> None:
    """T3, T17, T18: each node has the files of its own rank alone; random numbers and BatchNorm differ by rank."""
    with ExitStack() as stack:
        environment = {**os.environ, **bucket.server.environment()}
        nodes = [stack.enter_context(daemon(home, name=name, env=environment)) for name in ("a", "b")]
        addresses = [str(node.socket) for node in nodes]
        cold = stack.enter_context(daemon(home, name="c", env=environment))
        job = replace(job, root=bucket.uri("runs/a"), addresses=addresses, accumulate=2)
        reference = ranks.run(2, run, replace(job, root=bucket.uri("runs/reference"), steps=6, saves=[]))
        first = ranks.run(2, run, replace(job, steps=4, saves=[1, 2]))
        assert all(list(node.cache.rglob(".metadata")) for node in nodes)
        again = ranks.run(2, run, replace(job, steps=3, saves=[]))
        elsewhere = ranks.run(2, run, replace(job, addresses=[str(cold.socket)] * 2, steps=3, saves=[]))
    for rank in range(2):
        assert_same(first[rank], reference[rank])
        for ran in (again[rank], elsewhere[rank]):
            assert ran.restored is not None
            assert (ran.restored.step, ran.restored.source, ran.restored.notes) == (2, "durable", ())
            assert_same(ran, reference[rank])
    assert [ran.generation for ran in elsewhere] == [3, 3]


def test_other_numbers_of_ranks_go_on_exactly_in_data_and_with_the_same_weights(
    job: Job, home: Path, ranks: Ranks
) -> None:
    """CASES 44: a width of 5 divides by none of them, Adam's state follows the parameters."""
    job = replace(job, wrap="fsdp", steps=2)
    reference = ranks.run(1, run, replace(job, root=f"{home}/reference", steps=8, saves=[]))[0]
    seen: dict[int, list[int]] = {}
    total = SampleDigest()
    for start, world_size in enumerate((4, 2, 3, 4)):
        ran = ranks.run(world_size, run, replace(job, saves=[2 * start + 1]))
        if start:
            restored = ran[0].restored
            assert restored is not None
            assert restored.step == 2 * start - 1
            assert any("random states are derived anew" in note for note in restored.notes)
            assert restored.digest == total
        total = sum((each.digest for each in ran if each.digest is not None), total)
        for step in ran[0].samples:
            seen[step] = sorted(sample for each in ran for sample in each.samples[step])
    assert seen == {step: sorted(samples) for step, samples in reference.samples.items()}
    assert total == reference.digest


@pytest.mark.filterwarnings("ignore::DeprecationWarning:sqlalchemy", "ignore::DeprecationWarning:mlflow")
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")
def test_the_active_run_gets_what_saves_cost_and_the_ledger_what_was_handed_out(job: Job, home: Path) -> None:
    import mlflow

    with mlflow.start_run() as active:
        ran = alone(replace(job, wrap="plain", steps=3, saves=[1], options={"report_to": "mlflow"}))
    found = mlflow.MlflowClient().get_run(active.info.run_id).data.metrics
    names = {"staged_seconds", "local_seconds", "durable_seconds", "blocked_seconds", "pending", "failures"}
    assert {name.removeprefix("checkpoint/") for name in found} == names
    assert found["checkpoint/failures"] == 0
    assert found["checkpoint/local_seconds"] == ran.seconds[0][1]
    parts = sorted((home / "root/ledger/g000001").iterdir())
    begun, *_, saved, ended = events_of(part.read_bytes() for part in parts)
    assert (begun["event"], begun["world_size"], saved["event"], ended["event"]) == ("began", 1, "saved", "ended")
    assert (saved["step"], saved["position"]["position"], saved["digest"]["samples"]) == (1, 24, 24)
    assert saved["durable_seconds"] == ran.seconds[0][2]


def by_hand(job: Job, steps: int, *, has_optimizer: bool = False) -> list[tuple[list[int], str]]:
    """Changes the weights without an optimizer's step, saves as the job says: samples and weights by step."""
    torch.manual_seed(1)
    model, seen = torch.nn.Linear(1, 1), []
    optimizer = torch.optim.SGD(model.parameters()) if has_optimizer else None
    with (
        closing(loader_of(job, 0)) as loader,
        Checkpointer(job.root, model=model, optimizer=optimizer, loader=loader, address=job.addresses[0]) as saver,
    ):
        restored = saver.restore()
        first = restored.step + 1 if restored else 1
        if restored is not None:
            assert restored.digest is not None
            assert restored.digest.samples == 12 * restored.step
        for step, batch in zip(range(first, first + steps), loader, strict=False):
            saver.wait_staged()
            with torch.no_grad():
                model.weight.add_(batch["value"].mean() * torch.rand(1))
            seen.append((batch[SAMPLE_ID].tolist(), float(model.weight.item()).hex()))
            saver.save(step, force=step in job.saves)
    return seen


def test_without_an_optimizer_training_goes_on_behind_all_that_was_handed_out(job: Job, home: Path) -> None:
    reference = by_hand(replace(job, root=f"{home}/reference", saves=[]), 6)
    assert by_hand(replace(job, saves=[3]), 3) == reference[:3]
    assert by_hand(replace(job, saves=[4]), 1) == reference[3:4]
    assert by_hand(replace(job, saves=[]), 2) == reference[4:]


def test_whose_optimizer_never_steps_is_told_once_that_the_position_stays(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "forebay.checkpoint"):
        by_hand(replace(job, saves=[2]), 2, has_optimizer=True)
        assert "none of the optimizers given has stepped" not in caplog.text
        by_hand(replace(job, root=f"{job.root}-2", saves=[2, 3, 4]), 4, has_optimizer=True)
    assert caplog.text.count("none of the optimizers given has stepped") == 1
