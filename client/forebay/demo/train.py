"""The demo's trainer: what a user would write, and a journal of what it was handed. Run by torchrun.

    torchrun --nproc-per-node 2 -m forebay.demo.train CONFIG.json

DDP averages gradients over ranks, whatever their batch sizes. A global batch of 64 is 22, 21 and 21 samples on three
ranks, so each rank's summed loss is scaled by world size / global batch: the average of the gradients is then that of
the mean over the global batch, and a sample weighs the same on any number of ranks.

Model, optimizer, random states and the position in the data are one checkpoint of `forebay.Checkpointer`. Rank 0 notes
when one has become local, and durable, on the threads that find out.
"""

import sys
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import forebay
from forebay.checkpoint.handle import POINTS, Point, SaveHandle
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
        self.checkpointer = forebay.Checkpointer(
            config.root,
            model=self.model,
            optimizer=self.optimizer,
            loader=self.loader,
            save_every_steps=config.save_every_steps,
            keep_last=config.keep_last,
            address=config.address,
        )
        directory = Path(config.directory)
        self.steps = Journal(journal_path(directory, config.run, self.rank))
        self.events = Journal(journal_path(directory, config.run, None)) if self.rank == 0 else None

    def train(self) -> None:
        restored = self.checkpointer.restore()
        self.step = restored.step if restored is not None else 0
        if self.events is not None:
            kind, source = ("started", "") if restored is None else ("restored", restored.source)
            self.events.append(self._event(kind, source))
        with self.checkpointer:
            for epoch in range(self.loader.epoch, self.config.epochs):
                self._train_epoch(epoch)
            self._save(force=True)
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

    def _save(self, *, force: bool = False) -> None:
        handle = self.checkpointer.save(self.step, force=force)
        if handle is None or self.events is None:
            return
        here = self._event("local")
        handle.local.add_done_callback(lambda reached: self._reached("local", here, handle, reached))
        handle.durable.add_done_callback(lambda reached: self._reached("durable", here, handle, reached))

    def _reached(self, point: Point, here: Event, handle: SaveHandle, reached: "Future[None]") -> None:
        if self.events is None or reached.exception() is not None:
            return
        points = {name: getattr(handle, f"{name}_seconds") for name in POINTS}
        seconds = {name: taken for name, taken in points.items() if taken is not None}
        self.events.append(replace(here, kind=point, seconds=seconds | {"blocked": handle.blocked_seconds}))

    def _event(self, kind: str, source: str = "") -> Event:
        return Event(
            run=self.config.run,
            kind=kind,
            step=self.step,
            epoch=self.loader.epoch,
            position=self.loader.position,
            mlflow_run_id=self.tracking.run_id if self.tracking is not None else "",
            source=source,
            generation=self.checkpointer.generation or 0,
        )


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


if __name__ == "__main__":
    main(sys.argv[1])
