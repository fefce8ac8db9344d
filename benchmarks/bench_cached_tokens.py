"""How near to a plain numpy gather is the loader, once the tokens are in the local cache?

Batches of 64 × 2048 int32 from one token file, whose pieces the daemon has copied into its cache. The limit gathers the
same rows of the same epochs, batch by batch, from the mapped file into a new array, with no order to compute, no thread
to hand over and no other process: what any loader does at the least.
"""

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt

import forebay
from benchmarks.daemon import daemon
from benchmarks.shape import Report, interleaved, main, measured, summarised
from forebay.order import Split

SEQUENCE, BATCH = 2048, 64
QUESTION = "How near to a plain numpy gather from the mapped file are batches of 64 x 2048 int32 in the local cache?"


class PlainGather:
    """The limit: numpy and a mapped file."""

    def __init__(self, path: Path, order: forebay.order.Order) -> None:
        self._rows = np.memmap(path, dtype=np.int32, mode="r").reshape(-1, SEQUENCE)
        self._order = order

    def epoch(self, epoch: int) -> Mapping[str, float]:
        batches = self._batches(epoch)
        with measured() as usage:
            for rows in batches:
                np.take(self._rows, rows, axis=0)
        return _rates(usage.wall_seconds, usage.cpu_seconds, sum(map(len, batches)))

    def _batches(self, epoch: int) -> list[npt.NDArray[np.int64]]:
        split = Split(1, BATCH, "even")
        steps = split.steps(self._order.samples)
        plan = self._order.epoch(epoch).plan(0, steps, split=split, rank=0)
        return np.split(plan.sample_id, plan.offsets[1:-1])


class Loaded:
    """Ours, kept open over the epochs; the first epoch fills the cache and is not measured."""

    def __init__(self, path: Path, address: str, num_workers: int) -> None:
        self.dataset = forebay.StreamingDataset(
            str(path), format=forebay.Tokens(sequence_length=SEQUENCE, dtype="int32"), address=address
        )
        self.loader = forebay.DataLoader(self.dataset, BATCH, num_workers=num_workers, report_to=None)
        self._consume()

    def epoch(self, epoch: int) -> Mapping[str, float]:
        assert self.loader.epoch == epoch, "the limit must gather what is read here"
        with measured() as usage:
            samples = self._consume()
        return _rates(usage.wall_seconds, usage.cpu_seconds, samples)

    def _consume(self) -> int:
        return sum(len(batch["tokens"]) for batch in self.loader)


def _rates(wall_seconds: float, cpu_seconds: float, samples: int) -> Mapping[str, float]:
    gigabytes = samples * SEQUENCE * 4 / 1e9
    return {
        "samples_per_second": samples / wall_seconds,
        "gigabytes_per_second": gigabytes / wall_seconds,
        "cpu_seconds_per_gigabyte": cpu_seconds / gigabytes,
    }


def benchmark(options: argparse.Namespace) -> Report:
    with tempfile.TemporaryDirectory(prefix="fb-", dir=options.directory) as temporary:
        directory = Path(temporary)
        path = directory / "tokens.bin"
        size = options.megabytes * 2**20
        np.random.default_rng(0).integers(0, 2**15, size // 4, dtype=np.int32).tofile(path)
        with daemon(directory, "--read-in-place", "never", "--capacity", str(2 * size + 2**30)) as node:
            return _compare(path, node.address, options.repeats)


def _compare(path: Path, address: str, repeats: int) -> Report:
    ours, workers = Loaded(path, address, 0), Loaded(path, address, 2)
    plain = PlainGather(path, ours.dataset._open().order)
    results = interleaved(
        {
            "plain numpy gather": lambda repeat: plain.epoch(repeat + 1),
            "forebay in process": lambda repeat: ours.epoch(repeat + 1),
            "forebay with 2 workers": lambda repeat: workers.epoch(repeat + 1),
        },
        repeats,
    )
    ours.loader.close()
    workers.loader.close()
    limit, in_process, with_workers = ([r["samples_per_second"] for r in rows] for rows in results.values())
    return Report(
        QUESTION,
        [summarised(name, rows) for name, rows in results.items()],
        {
            "limit": median(ours / most for ours, most in zip(in_process, limit, strict=True)),
            "workers": median(theirs / most for theirs, most in zip(with_workers, limit, strict=True)),
        },
    )


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megabytes", type=int, default=512, help="size of the token file")
    parser.add_argument("--directory", default=None, help="where the file and the cache go (default: the system's)")


if __name__ == "__main__":
    main("bench_cached_tokens", benchmark, repeats=7, add_arguments=_arguments)
