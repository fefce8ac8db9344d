"""A loader's sample digest: it moves with the position, and over all ranks it is what the order engine says."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, RandomSampler, Sampler

import forebay
from forebay.digest import NOTHING, SampleDigest, expected, mix, reading

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

PIECES = forebay.Parquet(piece_bytes=1)
EXTRAS = (forebay.SAMPLE_ID, forebay.POSITION, forebay.IS_PAD, forebay.SOURCE)
#: World sizes, and the steps made with each; together more than one epoch of 300 samples.
STRETCHES = [(2, 11), (3, 20), (1, 9), (4, 25)]


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 107

    def __getitem__(self, index: int) -> int:
        return index


class Backwards(Sampler[int]):
    """One of the user's own: all ranks' lists together are no order of ours."""

    def __len__(self) -> int:
        return 107

    def __iter__(self) -> Iterator[int]:
        return iter(range(106, -1, -1))


class Fragile(Numbers):
    """Some samples cannot be read."""

    def __getitem__(self, index: int) -> int:
        if index % 10 == 3:
            raise ValueError("broken")
        return index


class Counting(IterableDataset[int]):
    """An order of its own."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(10))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def stream(data: Path, address: str, **options: Any) -> forebay.StreamingDataset:
    return forebay.StreamingDataset(str(data), format=PIECES, address=address, seed=3, columns=["id"], **options)


def total(digests: Sequence[SampleDigest | None]) -> SampleDigest:
    found = NOTHING
    for each in digests:
        assert each is not None
        found += each
    return found


def of_stretches(make: Any) -> tuple[SampleDigest, forebay.DataLoader]:
    """Through all stretches, each resumed from the state before it; and the last stretch's first loader."""
    found, state = NOTHING, None
    for world, steps in STRETCHES:
        with ExitStack() as stack:
            loaders = [make(rank=rank, world_size=world, steps=steps) for rank in range(world)]
            for loader in loaders:
                stack.callback(loader.close)
                if state is not None:
                    loader.load_state_dict(state)
                assert sum(1 for _ in loader) == steps
            state = loaders[0].state_dict()
            found += total([loader.sample_digest for loader in loaders])
    return found, loaders[0]


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}], ids=["none", "processes"])
def test_ranks_that_are_stopped_and_resized_hand_out_what_the_order_says(
    workers: dict[str, Any], data: Path, address: str
) -> None:
    def make(**options: Any) -> forebay.DataLoader:
        return forebay.DataLoader(stream(data, address), 3, **options, **workers)

    found, last = of_stretches(make)
    order = stream(data, address)._open().order
    assert found == expected(reading(order), 300, (0, 0), (last.epoch, last.position))
    assert (last.epoch, found.samples) == (1, 300 + last.position)


def test_a_mixture_says_of_which_source_each_sample_was(data: Path, address: str) -> None:
    def make(**options: Any) -> forebay.DataLoader:
        sources = {"a": (stream(data, address), 1.0), "b": (stream(data, address, limit=50), 0.5)}
        return forebay.DataLoader(forebay.Mixture(sources, block=30, epoch=300), 3, **options)

    found, last = of_stretches(make)
    ordered: Any = last._ordered
    sequence = ordered._open()._sequence
    assert found == expected(reading(sequence), 300, (0, 0), (last.epoch, last.position))


def test_a_map_style_dataset_and_a_drawn_list_are_proven_alike() -> None:
    for options in ({"shuffle": True, "seed": 4}, {"sampler": RandomSampler(range(107), num_samples=300)}):

        def make(given: dict[str, Any] = options, **where: Any) -> forebay.DataLoader:
            return forebay.DataLoader(Numbers(), 3, **given, **where)

        found, last = of_stretches(make)
        ordered: Any = last._ordered
        order = ordered._lists if "sampler" in options else ordered._ordered()
        if "sampler" in options:
            for epoch in range(last.epoch + 1):
                ordered._draw(epoch)
        samples = ordered.samples
        assert found == expected(reading(order), samples, (0, 0), (last.epoch, last.position))


def test_the_digest_moves_with_the_position_and_never_for_what_is_read_ahead(data: Path, address: str) -> None:
    loader = forebay.DataLoader(stream(data, address, extras=EXTRAS), 7, num_workers=2, rank=1, world_size=2)
    assert loader.sample_digest == NOTHING
    batches = iter(loader)
    seen = NOTHING
    for _ in range(5):
        batch = next(batches)
        seen += of_batch(batch, epoch=0)
        assert loader.sample_digest == seen
        assert loader.position == 2 * seen.samples
    loader.replay(0, 3)
    loader.dataset[4]
    assert loader.sample_digest == seen
    loader.close()


def of_batch(batch: dict[str, Any], *, epoch: int) -> SampleDigest:
    """From what the batch itself says."""
    real = ~batch[forebay.IS_PAD]
    words = mix(epoch, batch[forebay.POSITION][real].numpy(), batch[forebay.SAMPLE_ID][real].numpy()).tolist()
    return SampleDigest(sum(low | high << 64 for low, high in words) % (1 << 128), int(real.sum()))


def test_a_loaded_state_begins_a_digest_anew_and_a_refused_one_does_not(data: Path, address: str) -> None:
    loader = forebay.DataLoader(stream(data, address), 3, rank=0, world_size=1)
    for _, batch in zip(range(4), loader, strict=False):
        assert len(batch["id"]) == 3
    state, before = loader.state_dict(), loader.sample_digest
    with pytest.raises(forebay.StateMismatch):
        loader.load_state_dict({**state, "order": {}})
    assert loader.sample_digest == before
    assert before is not None
    assert before.samples == 12
    loader.load_state_dict(state)
    assert loader.sample_digest == NOTHING
    loader.close()


def test_pads_add_nothing() -> None:
    loaders = [
        forebay.DataLoader(Numbers(), 10, shuffle=True, tail="pad", rank=rank, world_size=3) for rank in range(3)
    ]
    assert sum(len(batch) for loader in loaders for batch in loader) == 120
    found = total([loader.sample_digest for loader in loaders])
    ordered: Any = loaders[0]._ordered
    assert found == expected(reading(ordered._of_now()), 107, (0, 0), (1, 0))


def test_a_skipped_sample_counts_at_its_position_and_is_told() -> None:
    whole = forebay.DataLoader(Numbers(), 10, shuffle=True, rank=0, world_size=1)
    fragile = forebay.DataLoader(Fragile(), 10, shuffle=True, on_error="skip", rank=0, world_size=1)
    for loader in (whole, fragile):
        assert sum(len(batch) for batch in loader) == 107
    assert whole.sample_digest is not None
    assert fragile.sample_digest == SampleDigest(whole.sample_digest.value, 107, skipped=11)


def test_a_ranks_own_list_has_a_digest_of_its_own() -> None:
    loader = forebay.DataLoader(Numbers(), 10, sampler=Backwards())
    seen = torch.cat(list(loader))
    words = mix(0, torch.arange(107).numpy(), seen.numpy()).tolist()
    assert loader.sample_digest == SampleDigest(sum(low | high << 64 for low, high in words) % (1 << 128), 107)


def test_a_dataset_that_keeps_its_own_position_has_none() -> None:
    loader = forebay.DataLoader(Counting(), 2)
    assert len(list(loader)) == 5
    assert loader.sample_digest is None
