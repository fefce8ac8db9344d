"""The order as one process sees it that iterates without training: what the demo compares its trainers with."""

import numpy as np

import forebay
from forebay.demo.config import TrainConfig
from forebay.demo.corpus import COLUMNS

__all__ = ["ids_by_position"]


def ids_by_position(config: TrainConfig) -> list[list[int]]:
    """For each epoch the row numbers by position, as a loader of world size 1 reads them."""
    dataset = forebay.StreamingDataset(
        config.source,
        columns=COLUMNS,
        seed=config.seed,
        extras=(forebay.POSITION,),
        rank=0,
        world_size=1,
        address=config.address,
    )
    loader = forebay.DataLoader(dataset, config.global_batch_size, report_to=None)
    try:
        return [_epoch(loader) for _ in range(config.epochs)]
    finally:
        loader.close()


def _epoch(loader: forebay.DataLoader) -> list[int]:
    batches = [(batch[forebay.POSITION].numpy(), batch["number"].numpy()) for batch in loader]
    positions, numbers = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return [int(number) for number in numbers[np.argsort(positions)]]
