"""Ranks of a training job, as the integration tests play them: loaders of one dataset side by side in one process."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import numpy as np
import torch

import forebay

EXTRAS = (forebay.SAMPLE_ID, forebay.POSITION, forebay.IS_PAD)


class Job:
    """All ranks of a job. What it has seen is kept as (epoch, position, sample id) of every sample but the pads."""

    def __init__(self, loaders: Sequence[forebay.DataLoader]) -> None:
        self.loaders = loaders
        self.seen: list[tuple[int, int, int]] = []
        self.pads = 0
        self.batches: list[list[dict[str, Any]]] = []

    def run(self, steps: int | None = None) -> int:
        """Steps of all ranks in turn, to the epoch's end or `steps`; gives how many there were."""
        epochs = [loader.epoch for loader in self.loaders]
        iterators = [iter(loader) for loader in self.loaders]
        epochs = [loader.epoch for loader in self.loaders]
        done = 0
        while steps is None or done < steps:
            step = [next(iterator, None) for iterator in iterators]
            ended = [batch is None for batch in step]
            assert len(set(ended)) == 1, "ranks disagree on the number of steps"
            if ended[0]:
                break
            self._keep([batch for batch in step if batch is not None], epochs)
            done += 1
        states = [loader.state_dict() for loader in self.loaders]
        assert all(state == states[0] for state in states)
        return done

    def _keep(self, step: list[dict[str, Any]], epochs: list[int]) -> None:
        self.batches.append(step)
        for batch, epoch in zip(step, epochs, strict=True):
            assert len(batch[forebay.SAMPLE_ID]) > 0
            check_values(batch)
            pads = batch[forebay.IS_PAD].tolist()
            places = zip(batch[forebay.POSITION].tolist(), batch[forebay.SAMPLE_ID].tolist(), pads, strict=True)
            self.seen += [(epoch, position, sample) for position, sample, pad in places if not pad]
            self.pads += sum(pads)

    @property
    def state(self) -> dict[str, Any]:
        return self.loaders[0].state_dict()


def check_values(batch: dict[str, Any]) -> None:
    """The datasets' columns say which sample they belong to."""
    samples = batch[forebay.SAMPLE_ID]
    if "id" in batch:
        assert torch.equal(batch["id"], samples)
        assert torch.equal(batch["value"], samples.to(torch.float32) / 4)


@contextmanager
def job(
    source: str,
    address: str | None,
    *,
    world_size: int,
    batch_size: int,
    state: dict[str, Any] | None = None,
    dataset: dict[str, Any] | None = None,
    loader: dict[str, Any] | None = None,
) -> Iterator[Job]:
    """A job of that many ranks, resumed from a state if one is given."""
    options = {"columns": ["id", "value"], "extras": EXTRAS, "seed": 11, "address": address, **(dataset or {})}
    with ExitStack() as stack:
        loaders = []
        for rank in range(world_size):
            data = forebay.StreamingDataset(source, rank=rank, world_size=world_size, **options)
            made = stack.enter_context(closing(forebay.DataLoader(data, batch_size, **(loader or {}))))
            if state is not None:
                made.load_state_dict(state)
            loaders.append(made)
        yield Job(loaders)


def reference(source: str, address: str | None, epochs: int, **dataset: Any) -> list[tuple[int, int, int]]:
    """(epoch, position, sample id) of one process that iterates alone."""
    with job(source, address, world_size=1, batch_size=50, dataset=dataset) as alone:
        for _ in range(epochs):
            alone.run()
        return alone.seen


def in_order(seen: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """By epoch and position; nothing is dropped, so doubles show."""
    return sorted(seen)


def same_batches(one: Job, other: Job) -> bool:
    """Whether two jobs saw the same tensors in the same steps."""
    pairs = zip(one.batches, other.batches, strict=True)
    return all(
        np.array_equal(left[name], right[name])
        for mine, theirs in pairs
        for left, right in zip(mine, theirs, strict=True)
        for name in left
    )
