"""How do our workers compare with torch's, threads with processes, and how soon does a later epoch begin?

Three parts, each with 2 workers unless said, all variants in turns:

- *Map-style*: the same dataset object, whose `__getitem__` works in Python, in torch's DataLoader with worker processes
  and in ours. "Heavy" is about 0.2 ms of Python a sample; "light" only copies the row, so that the way from
  process to process is what is measured. A StreamingDataset over the same tokens, with the same Python as its
  transform, stands beside them.
- *JPEGs*: 256 × 256 pictures decoded and shrunk with Pillow, which lets go of the GIL, from a Parquet file, in threads,
  in processes and without workers.
- *Later epochs*: short epochs one after the other, with a trainer that does nothing else, so that every batch is waited
  for. What is compared is how long the trainer is blocked from asking for an iterator to its first batch, in every
  epoch after the first, with the median over the other batches. Here torch's workers persist.

In the first two, workers begin with each turn, and its first batches are left out: they hold the workers' start, and
what was read ahead.
"""

import argparse
import io
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import forebay
from benchmarks.daemon import daemon
from benchmarks.shape import Report, Target, interleaved, main, measured, summarised

SEQUENCE, BATCH, WORKERS = 2048, 64, 2
IMAGES, IMAGE_BATCH, IMAGE_SIDE, SHRUNK_SIDE = 2048, 32, 256, 128
EPOCHS, EPOCH_STEPS = 12, 24
LEFT_OUT = 12
"""More batches than two workers hold ready."""
QUESTION = "Batches a second of worker processes against torch's, of threads against processes; the first of an epoch?"
TARGETS = {"process_vs_torch": Target(at_least=0.95), "later_epoch_first_batch": Target(at_most=2)}

Row = npt.NDArray[np.int32]
Result = Mapping[str, float]


def heavy(row: Row) -> Row:
    """Work in Python on one sample."""
    values = row.tolist()
    for place in range(0, len(values), 2):
        if values[place] % 7 == 0:
            values[place] = -1
    return np.array(values, dtype=np.int32)


def light(row: Row) -> Row:
    """No work: a copy."""
    return row.copy()


def heavy_sample(sample: dict[str, Any]) -> dict[str, Any]:
    """The same on a sample of a StreamingDataset."""
    return {"tokens": heavy(np.asarray(sample["tokens"]))}


class MappedRows(Dataset[Row]):
    """Rows of a mapped token file, one by one."""

    def __init__(self, tokens: Path, work: Callable[[Row], Row]) -> None:
        self._rows = np.memmap(tokens, dtype=np.int32, mode="r").reshape(-1, SEQUENCE)
        self._work = work

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Row:
        return self._work(self._rows[index])


def decoded(sample: dict[str, Any]) -> npt.NDArray[np.uint8]:
    """A JPEG as an array [side, side, 3]."""
    image = Image.open(io.BytesIO(sample["jpeg"])).convert("RGB").resize((SHRUNK_SIDE, SHRUNK_SIDE))
    return np.asarray(image).copy()


def turn_of(loader: Iterable[Any], size: Callable[[Any], int]) -> Callable[[int], Result]:
    """A turn: one epoch, of which the first batches are left out, with workers that begin and end with it."""

    def turn(_: int) -> Result:
        batches = iter(loader)
        for _ in range(LEFT_OUT):
            next(batches)
        with measured() as usage:
            sizes = [size(batch) for batch in batches]
        close(loader)
        return {
            "batches_per_second": len(sizes) / usage.wall_seconds,
            "samples_per_second": sum(sizes) / usage.wall_seconds,
        }

    return turn


def close(loader: Iterable[Any]) -> None:
    """Ends what ours reads ahead, so that it takes nothing from the other variants' turns."""
    if isinstance(loader, forebay.DataLoader):
        loader.close()


def map_style(tokens: Path, address: str, stack: ExitStack) -> Mapping[str, Iterable[Any]]:
    """The loaders of the first part."""
    loaders: dict[str, Iterable[Any]] = {}
    for kind, work in {"heavy": heavy, "light": light}.items():
        dataset = MappedRows(tokens, work)
        loaders[f"torch, {kind}"] = DataLoader(dataset, BATCH, shuffle=True, num_workers=WORKERS)
        loaders[f"forebay, {kind}"] = stack.enter_context(
            closing(forebay.DataLoader(dataset, BATCH, shuffle=True, num_workers=WORKERS, report_to=None))
        )
    stream = forebay.StreamingDataset(
        str(tokens),
        format=forebay.Tokens(sequence_length=SEQUENCE, dtype="int32"),
        transform=heavy_sample,
        address=address,
    )
    loaders["forebay StreamingDataset, heavy"] = stack.enter_context(
        closing(forebay.DataLoader(stream, BATCH, num_workers=WORKERS, report_to=None))
    )
    return loaders


def pictures(images: Path, address: str, stack: ExitStack) -> Mapping[str, Iterable[Any]]:
    """The loaders of the second part."""

    def loader(workers: int, worker_type: Any) -> Iterable[Any]:
        dataset = forebay.StreamingDataset(str(images), transform=decoded, address=address)
        made = forebay.DataLoader(dataset, IMAGE_BATCH, num_workers=workers, worker_type=worker_type, report_to=None)
        return stack.enter_context(closing(made))

    return {
        "Pillow, 2 threads": loader(WORKERS, "thread"),
        "Pillow, 2 processes": loader(WORKERS, "process"),
        "Pillow, in process": loader(0, None),
    }


def later_epochs(loader: Iterable[Any]) -> Result:
    """Blocked seconds of the first batch of the epochs after the first, and of all other batches: medians."""
    blocked = [list(_blocked(loader)) for _ in range(EPOCHS)]
    close(loader)
    first = median(epoch[0] for epoch in blocked[1:])
    other = median(seconds for epoch in blocked for seconds in epoch[1:])
    return {"first_batch_seconds": first, "median_batch_seconds": other, "first_over_median": first / other}


def _blocked(loader: Iterable[Any]) -> Iterator[float]:
    began = time.perf_counter()
    for _ in loader:
        now = time.perf_counter()
        yield now - began
        began = time.perf_counter()


def short_epochs(tokens: Path, address: str, stack: ExitStack) -> Mapping[str, Iterable[Any]]:
    """The loaders of the third part."""
    rows = np.memmap(tokens, dtype=np.int32, mode="r").reshape(-1, SEQUENCE)[: EPOCH_STEPS * BATCH]
    short = tokens.with_name("short.bin")
    rows.tofile(short)

    def loader(workers: int, worker_type: Any) -> Iterable[Any]:
        dataset = forebay.StreamingDataset(
            str(short),
            format=forebay.Tokens(sequence_length=SEQUENCE, dtype="int32"),
            transform=heavy_sample,
            address=address,
        )
        made = forebay.DataLoader(dataset, BATCH, num_workers=workers, worker_type=worker_type, report_to=None)
        return stack.enter_context(closing(made))

    mapped = forebay.DataLoader(MappedRows(short, heavy), BATCH, shuffle=True, num_workers=WORKERS, report_to=None)
    return {
        "forebay in process": loader(0, None),
        "forebay, 2 threads": loader(WORKERS, "thread"),
        "forebay, 2 processes": loader(WORKERS, "process"),
        "forebay map-style, 2 processes": stack.enter_context(closing(mapped)),
        "torch, 2 persistent processes": DataLoader(
            MappedRows(short, heavy), BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True
        ),
    }


def benchmark(options: argparse.Namespace) -> Report:
    with tempfile.TemporaryDirectory(prefix="fb-", dir=options.directory) as temporary:
        directory = Path(temporary)
        tokens = directory / "tokens.bin"
        np.random.default_rng(0).integers(0, 2**15, (options.samples, SEQUENCE), dtype=np.int32).tofile(tokens)
        images = directory / "images.parquet"
        _write_images(images)
        with daemon(directory) as node, ExitStack() as stack:
            results: dict[str, list[Result]] = {}
            parts = [(map_style(tokens, node.address, stack), _tokens), (pictures(images, node.address, stack), len)]
            for part, size in parts:
                turns = {name: turn_of(loader, size) for name, loader in part.items()}
                results |= interleaved(turns, options.repeats)
            epochs = {
                f"later epochs, {name}": (lambda _, loader=loader: later_epochs(loader))
                for name, loader in short_epochs(tokens, node.address, stack).items()
            }
            results |= interleaved(epochs, options.repeats)
    return Report(QUESTION, [summarised(name, turns) for name, turns in results.items()], _ratios(results), TARGETS)


def _tokens(batch: Any) -> int:
    return len(batch["tokens"] if isinstance(batch, dict) else batch)


def _ratios(results: Mapping[str, Sequence[Result]]) -> dict[str, float]:
    def over(ours: str, theirs: str) -> float:
        pairs = zip(results[ours], results[theirs], strict=True)
        return median(our["batches_per_second"] / their["batches_per_second"] for our, their in pairs)

    ours = [turns for name, turns in results.items() if name.startswith("later epochs, forebay")]
    return {
        "process_vs_torch": over("forebay, heavy", "torch, heavy"),
        "process_vs_torch_light": over("forebay, light", "torch, light"),
        "streaming_vs_torch": over("forebay StreamingDataset, heavy", "torch, heavy"),
        "threads_vs_processes": over("Pillow, 2 threads", "Pillow, 2 processes"),
        "later_epoch_first_batch": max(median(turn["first_over_median"] for turn in turns) for turns in ours),
    }


def _write_images(path: Path) -> None:
    generator = np.random.default_rng(0)
    pictures = []
    for _ in range(IMAGES):
        coarse = Image.fromarray(generator.integers(0, 256, (16, 16, 3), dtype=np.uint8))
        file = io.BytesIO()
        coarse.resize((IMAGE_SIDE, IMAGE_SIDE)).save(file, "JPEG", quality=90)
        pictures.append(file.getvalue())
    pq.write_table(pa.table({"jpeg": pa.array(pictures, pa.binary())}), path, row_group_size=128)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--samples", type=int, default=8192, help="samples of an epoch of the first part")
    parser.add_argument("--directory", default=None, help="where the data and the cache go")


if __name__ == "__main__":
    main("bench_workers", benchmark, repeats=7, add_arguments=_arguments)
