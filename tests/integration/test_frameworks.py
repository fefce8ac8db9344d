"""Lightning, Accelerate and torchdata over forebay's loaders: the right share of the data, and exact resumes."""

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import accelerate
import lightning
import pytest
import torch
from accelerate.data_loader import prepare_data_loader
from lightning.pytorch.callbacks import BasePredictionWriter, ModelCheckpoint
from lightning.pytorch.trainer.connectors.data_connector import _get_distributed_sampler
from lightning.pytorch.trainer.states import RunningStage
from lightning.pytorch.utilities.data import _update_dataloader
from torch.utils.data import Dataset, SubsetRandomSampler, WeightedRandomSampler

import forebay

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

SAMPLES = 40


class Rows(Dataset[dict[str, Any]]):
    """A feature, and the sample's index."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.tensor([index / SAMPLES]), "index": index}


class Model(lightning.LightningModule):
    """One weight; keeps what it was trained and validated on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []
        self.validated: list[int] = []

    def training_step(self, batch: dict[str, Any]) -> torch.Tensor:
        self.seen.append(batch["index"].tolist())
        loss: torch.Tensor = self.layer(batch["x"]).square().mean()
        return loss

    def validation_step(self, batch: dict[str, Any]) -> None:
        self.validated += batch["index"].tolist()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def train(directory: Path, *, epochs: int, steps: int = -1, resume: Path | None = None, **loader: Any) -> Model:
    """A run of Lightning's trainer, with a checkpoint after every third step."""
    model = Model()
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        max_steps=steps,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ModelCheckpoint(directory, filename="{step}", every_n_train_steps=3, save_top_k=-1)],
    )
    with closing(forebay.DataLoader(Rows(), 6, shuffle=True, seed=4, **loader)) as training:
        validation = forebay.DataLoader(Rows(), 10)
        trainer.fit(model, training, validation, ckpt_path=None if resume is None else os.fspath(resume))
    return model


def test_lightning_trains_on_every_sample_once_an_epoch_and_resumes_its_checkpoints_exactly(tmp_path: Path) -> None:
    whole = train(tmp_path, epochs=3)
    assert len(whole.seen) == 21
    for epoch in range(3):
        assert sorted(sum(whole.seen[7 * epoch : 7 * epoch + 7], [])) == list(range(SAMPLES))  # noqa: RUF017
    assert whole.validated[-SAMPLES:] == list(range(SAMPLES))
    for step in (3, 9, 12):
        resumed = train(tmp_path / "again", epochs=3, resume=tmp_path / f"step={step}.ckpt")
        assert resumed.seen == whole.seen[step:]


class Written(BasePredictionWriter):
    """Keeps which samples Lightning says that each prediction is of."""

    def __init__(self) -> None:
        super().__init__("batch")
        self.pairs: list[tuple[list[int], Any]] = []

    def write_on_batch_end(self, *arguments: Any) -> None:
        _, _, prediction, batch_indices, *_ = arguments
        self.pairs.append((prediction.tolist(), batch_indices))


def test_lightning_predicts_each_sample_once_and_knows_which() -> None:
    class Predictor(Model):
        def predict_step(self, batch: dict[str, Any]) -> Any:
            return batch["index"]

    written = Written()
    trainer = lightning.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, callbacks=[written]
    )
    trainer.predict(Predictor(), forebay.DataLoader(Rows(), 12))
    assert [predicted for predicted, _ in written.pairs] == [indices for _, indices in written.pairs]
    assert [index for predicted, _ in written.pairs for index in predicted] == list(range(SAMPLES))


def rebuilt(loader: forebay.DataLoader, rank: int, world_size: int, *, shuffle: bool) -> forebay.DataLoader:
    """The loader as Lightning makes it anew on a rank of a distributed job."""
    sampler = _get_distributed_sampler(
        loader, shuffle, overfit_batches=0, mode=RunningStage.TRAINING, num_replicas=world_size, rank=rank
    )
    made = _update_dataloader(loader, sampler, mode=RunningStage.TRAINING)
    assert isinstance(made, forebay.DataLoader)
    return made


def indices(loader: forebay.DataLoader, steps: int | None = None) -> list[int]:
    """What the next steps read."""
    found: list[int] = []
    for step, batch in enumerate(loader, start=1):
        found += batch["index"].tolist()
        if step == steps:
            break
    return found


@pytest.mark.parametrize("global_seed", [None, "77"], ids=["no global seed", "seed_everything"])
@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 6, "shuffle": True, "seed": 4},
        {"global_batch_size": 12},
        {"batch_size": 6, "sampler": SubsetRandomSampler(range(3, 33))},
        {"batch_size": 6, "sampler": WeightedRandomSampler([1.0] * SAMPLES, 50), "drop_last": True},
    ],
    ids=", ".join,
)
def test_a_loader_that_lightning_rebuilds_for_each_rank_shares_the_epoch_out(
    options: dict[str, Any], global_seed: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if global_seed is not None:
        monkeypatch.setenv("PL_GLOBAL_SEED", global_seed)
    seed = {} if "seed" in options else {"seed": int(global_seed or 0)}
    with closing(forebay.DataLoader(Rows(), **{**options, **seed})) as alone:
        every = indices(alone)
    original = forebay.DataLoader(Rows(), **options)
    ranks = [rebuilt(original, rank, 2, shuffle=bool(options.get("shuffle"))) for rank in range(2)]
    assert len({len(loader) for loader in ranks}) == 1
    seen = sum((indices(loader, 2) for loader in ranks), [])  # noqa: RUF017
    state = ranks[0].state_dict()
    assert state == ranks[1].state_dict()
    again = [rebuilt(original, rank, 2, shuffle=bool(options.get("shuffle"))) for rank in range(2)]
    for loader in again:
        loader.load_state_dict(state)
        seen += indices(loader)
    assert sorted(seen) == sorted(every)


def test_accelerate_leaves_a_loader_as_it_is_and_saves_and_loads_its_state(tmp_path: Path) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    loader = forebay.DataLoader(Rows(), 6, shuffle=True)
    layer = torch.nn.Linear(1, 1)
    prepared = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), 0.1), loader)[2]
    assert prepared is loader
    first = indices(prepared, 3)
    accelerator.save_state(os.fspath(tmp_path))
    rest = indices(prepared)
    assert sorted(first) != sorted(rest)
    accelerator.load_state(os.fspath(tmp_path))
    assert sorted(first + indices(prepared)) == list(range(SAMPLES))


@pytest.mark.parametrize("loader", [torch.utils.data.DataLoader, forebay.DataLoader], ids=["torch's", "forebay's"])
@pytest.mark.parametrize(
    ("way", "options"),
    [("IterableDatasetShard", {}), ("DataLoaderDispatcher", {"dispatch_batches": True, "put_on_device": True})],
)
def test_a_share_of_a_stream_that_accelerate_would_share_out_again_is_refused(
    way: str, options: dict[str, Any], loader: Any
) -> None:
    dataset = forebay.StreamingDataset("s3://nowhere/at-all", rank=0, world_size=2)
    prepared = prepare_data_loader(loader(dataset, 4, drop_last=True), num_processes=2, process_index=0, **options)
    with pytest.raises(forebay.ConfigurationError, match=rf"accelerate's {way} would share .* over 2 ranks again"):
        next(iter(prepared))


def test_a_stateful_dataset_is_not_marked_for_accelerate_which_has_to_share_it_out() -> None:
    class Stream(torch.utils.data.IterableDataset[int]):
        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            """Nothing."""

        def __iter__(self) -> Any:
            return iter(range(SAMPLES))

    prepared = accelerate.Accelerator(cpu=True).prepare(forebay.DataLoader(Stream(), 4))
    assert type(prepared) is not forebay.DataLoader
