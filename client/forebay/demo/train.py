"""The demo's trainer: what a user would write, and a journal of what it was handed. Run by torchrun.

    torchrun --nproc-per-node 2 -m forebay.demo.train CONFIG.json

DDP averages gradients over ranks, whatever their batch sizes. A global batch of 64 is 22, 21 and 21 samples on three
ranks, so each rank's summed loss is scaled by world size / global batch: the average of the gradients is then that of
the mean over the global batch, and a sample weighs the same on any number of ranks.

Model, optimizer, loader state and random states are saved together by rank 0 with an atomic `torch.save`.
"""

import os
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import forebay
from forebay.demo.config import TrainConfig
from forebay.demo.corpus import COLUMNS
from forebay.demo.model import ByteModel
from forebay.demo.records import Event, Journal, StepRecord, journal_path, read_events

LOG_LOSS_EVERY_STEPS = 10


def main(config_path: str) -> None:
    config = TrainConfig.read(Path(config_path))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    try:
        Trainer(config).train()
    finally:
        dist.destroy_process_group()


class Trainer:
    """One rank of one run."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.step = 0
        torch.manual_seed(config.seed)
        self.model = DistributedDataParallel(ByteModel(config.sample_bytes))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.learning_rate)
        dataset = forebay.StreamingDataset(
            config.source,
            columns=COLUMNS,
            seed=config.seed,
            extras=(forebay.SAMPLE_ID, forebay.POSITION, forebay.IS_PAD),
            address=config.address,
        )
        self.tracking = Tracking(config, self.world_size) if self.rank == 0 else None
        self.loader = forebay.DataLoader(dataset, global_batch_size=config.global_batch_size)
        directory = Path(config.directory)
        self.steps = Journal(journal_path(directory, config.run, self.rank))
        self.events = Journal(journal_path(directory, config.run, None)) if self.rank == 0 else None

    def train(self) -> None:
        if self.config.run > 0:
            self._restore()
        self._announce("restored" if self.config.run else "started")
        for epoch in range(self.loader.epoch, self.config.epochs):
            self._train_epoch(epoch)
        self._save()
        self.loader.close()
        if self.tracking is not None:
            self.tracking.end()

    def _train_epoch(self, epoch: int) -> None:
        began = time.perf_counter()
        for batch in self.loader:
            loss = self._step(batch["text"])
            now = time.perf_counter()
            self._record(epoch, batch, loss, now - began)
            began = now
            if self.step % self.config.save_every_steps == 0:
                self._save()

    def _step(self, text: torch.Tensor) -> float:
        loss = optimizer_step(self.model, self.optimizer, text)
        self.step += 1
        if self.tracking is not None and self.step % LOG_LOSS_EVERY_STEPS == 0:
            self.tracking.log_loss(loss, self.step)
        return loss

    def _record(self, epoch: int, batch: Mapping[str, Any], loss: float, step_seconds: float) -> None:
        real = ~batch[forebay.IS_PAD]
        self.steps.append(
            StepRecord(
                run=self.config.run,
                rank=self.rank,
                world_size=self.world_size,
                step=self.step,
                epoch=epoch,
                positions=batch[forebay.POSITION][real].tolist(),
                sample_ids=batch[forebay.SAMPLE_ID][real].tolist(),
                numbers=batch["number"][real].tolist(),
                loss=loss,
                fetch_seconds=self.loader.timings[-1].fetch_seconds,
                step_seconds=step_seconds,
            )
        )

    def _save(self) -> None:
        random_states = _gather_random_states(self.world_size)
        if self.rank > 0:
            return
        bundle = {
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loader": self.loader.state_dict(),
            "random_states": random_states,
            "step": self.step,
        }
        _save_atomically(bundle, self.config.checkpoint)
        self._announce("saved")

    def _restore(self) -> None:
        bundle = torch.load(self.config.checkpoint, weights_only=True)
        self.model.module.load_state_dict(bundle["model"])
        self.optimizer.load_state_dict(bundle["optimizer"])
        self.loader.load_state_dict(bundle["loader"])
        self.step = bundle["step"]
        random_states = bundle["random_states"]
        if len(random_states) == self.world_size:
            torch.set_rng_state(random_states[self.rank])
        else:
            torch.manual_seed(_derived_seed(self.config.seed, self.step, self.rank))

    def _announce(self, kind: str) -> None:
        if self.events is not None and self.tracking is not None:
            loader, run_id = self.loader, self.tracking.run_id
            self.events.append(Event(self.config.run, kind, self.step, loader.epoch, loader.position, run_id))


class Tracking:
    """The MLflow run of rank 0, alone to import MLflow: a new run, or the one that the run before started."""

    def __init__(self, config: TrainConfig, world_size: int) -> None:
        import mlflow

        self._mlflow = mlflow
        mlflow.set_tracking_uri(config.tracking_uri)
        mlflow.set_experiment("forebay demo")
        earlier = read_events(Path(config.directory), config.run - 1) if config.run else []
        self.run_id: str = mlflow.start_run(run_id=earlier[0].mlflow_run_id if earlier else None).info.run_id
        mlflow.log_param(f"run_{config.run}_world_size", world_size)

    def log_loss(self, loss: float, step: int) -> None:
        self._mlflow.log_metric("loss", loss, step=step)

    def end(self) -> None:
        self._mlflow.end_run()


def optimizer_step(model: DistributedDataParallel, optimizer: torch.optim.Optimizer, text: torch.Tensor) -> float:
    """One step on this rank's share of a global batch, of any size; returns the mean loss over the global batch."""
    losses = model(text)
    total = torch.stack([torch.tensor(float(len(text))), losses.detach().sum()])
    dist.all_reduce(total)
    samples, loss_sum = (float(value) for value in total)
    optimizer.zero_grad()
    (losses.sum() * (dist.get_world_size() / samples)).backward()
    optimizer.step()
    return loss_sum / samples


def _gather_random_states(world_size: int) -> list[torch.Tensor]:
    """Every rank's own generator state, on all ranks."""
    own = torch.get_rng_state()
    states = [torch.empty_like(own) for _ in range(world_size)]
    dist.all_gather(states, own)
    return states


def _derived_seed(*what: int) -> int:
    """A seed of a rank's own, for when the ranks of the checkpoint are not the ranks of this run."""
    return int(np.random.SeedSequence(what).generate_state(1)[0])


def _save_atomically(bundle: Mapping[str, Any], path: Path) -> None:
    """Whoever reads `path`, whenever, finds the whole of this bundle or the whole of the one before."""
    draft = path.with_suffix(".draft")
    with draft.open("wb") as file:
        torch.save(bundle, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


if __name__ == "__main__":
    main(sys.argv[1])
