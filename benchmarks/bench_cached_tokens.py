"""How near to a plain numpy gather is the loader, and how far from other loaders, with the tokens in the local cache?

Batches of 64 × 2048 int32 from one token file, whose pieces the daemon has copied into its cache. The limit gathers the
same rows of the same epochs, batch by batch, from the mapped file into a new array, with no order to compute, no thread
to hand over and no other process: what any loader does at the least. The other loaders (`benchmarks.peers`) read the
same samples from files of their own writers, in process, shuffled, each in a process of its own that has proved that it
reads every sample; all take turns. A turn of theirs leaves the first batch out, a turn of ours all that may have been
read ahead during the turns of the others.

"by hand" is what a peer gives with code of ours in place of its own conversion to tensors: not what its documentation
shows, so it stands beside `best_peer` and not in it. The map-style loaders read no shards and are limits.
"""

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

import forebay
from benchmarks.contenders import PEERS_ENVIRONMENT, Kind, Running, running
from benchmarks.daemon import daemon
from benchmarks.peers.program import BATCH, SEQUENCE, measure, rates
from benchmarks.peers.torch_loaders import MappedTokens, as_it_is
from benchmarks.shape import Report, Target, describe_machine, interleaved, main, measured, summarised
from forebay.order import Split

QUESTION = (
    "How near to a plain numpy gather from the mapped file, and how far from other loaders, are batches of "
    "64 x 2048 int32 in the local cache?"
)
TARGETS = {"best_peer": Target(at_least=4)}

Results = Sequence[Mapping[str, float]]


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
        return rates(usage.wall_seconds, usage.cpu_seconds, sum(map(len, batches)))

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
        self._consume(iter(self.loader))

    def epoch(self, epoch: int) -> Mapping[str, float]:
        assert self.loader.epoch == epoch, "the limit must gather what is read here"
        batches = iter(self.loader)
        for _ in range(self._ahead()):
            next(batches)
        with measured() as usage:
            samples = self._consume(batches)
        return rates(usage.wall_seconds, usage.cpu_seconds, samples)

    def _ahead(self) -> int:
        """As many batches as may lie ready; at most half an epoch."""
        depth = self.dataset._open().depth(Split(1, BATCH, "even"))
        return min(depth.steps, len(self.loader) // 2)

    def _consume(self, batches: Iterator[Any]) -> int:
        return sum(len(batch["tokens"]) for batch in batches)


class MapStyle:
    """Ours over the mapped file as a map-style dataset: the same as torch's loader reads."""

    def __init__(self, path: Path) -> None:
        self.loader = forebay.DataLoader(MappedTokens(path), BATCH, shuffle=True, collate_fn=as_it_is, report_to=None)

    def epoch(self, _: int) -> Mapping[str, float]:
        return measure(self.loader)


def benchmark(options: argparse.Namespace) -> Report:
    with tempfile.TemporaryDirectory(prefix="fb-", dir=options.directory) as temporary:
        directory = Path(temporary)
        path = directory / "tokens.bin"
        size = options.megabytes * 2**20
        np.random.default_rng(0).integers(0, 2**15, size // 4, dtype=np.int32).tofile(path)
        with (
            running(options.peers, path, directory / "contenders") as others,
            daemon(directory, "--read-in-place", "never", "--capacity", str(2 * size + 2**30)) as node,
        ):
            return _compare(path, node.address, others, options.repeats)


def _compare(path: Path, address: str, others: Sequence[Running], repeats: int) -> Report:
    ours, workers = Loaded(path, address, 0), Loaded(path, address, 2)
    plain, mapped = PlainGather(path, ours.dataset._open().order), MapStyle(path)
    own = {
        "plain numpy gather": lambda repeat: plain.epoch(repeat + 1),
        "forebay in process": lambda repeat: ours.epoch(repeat + 1),
        "forebay with 2 workers": lambda repeat: workers.epoch(repeat + 1),
        "forebay, map-style, memory map": mapped.epoch,
    }
    results = interleaved({**own, **{other.contender.name: other.measure for other in others}}, repeats)
    for each in (ours, workers, mapped):
        each.loader.close()
    rows = [summarised(name, results[name]) for name in own]
    rows += [other.row(results[other.contender.name]) for other in others]
    versions = {name: version for other in others for name, version in sorted(other.versions.items())}
    return Report(
        QUESTION,
        rows,
        ratios(results, others),
        TARGETS,
        {**describe_machine(), "peers": versions},
    )


def ratios(results: Mapping[str, Results], others: Sequence[Running]) -> Mapping[str, float]:
    """Ours over the limits and the best of each kind of contender: medians over the repeats."""
    in_process = results["forebay in process"]
    found = {
        "limit": _faster(in_process, results["plain numpy gather"]),
        "workers": _faster(results["forebay with 2 workers"], results["plain numpy gather"]),
    }
    kinds: Mapping[str, Kind] = {"best_peer": "peer", "best_peer_by_hand": "by hand", "best_map_style": "limit"}
    mapped, torch = results["forebay, map-style, memory map"], results["torch DataLoader, memory map"]
    if all(torch):
        found["map_style_vs_torch"] = _faster(mapped, torch)
    for name, kind in kinds.items():
        theirs = [
            _faster(in_process, results[other.contender.name])
            for other in others
            if other.contender.kind == kind and other.failure is None
        ]
        if theirs:
            found[name] = min(theirs)
    return found


def _faster(ours: Results, theirs: Results) -> float:
    pairs = zip(ours, theirs, strict=True)
    return median(our["samples_per_second"] / their["samples_per_second"] for our, their in pairs)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megabytes", type=int, default=512, help="size of the token file")
    parser.add_argument("--directory", default=None, help="where the file and the cache go (default: the system's)")
    parser.add_argument("--peers", type=Path, default=PEERS_ENVIRONMENT, help="environment of requirements-peers.txt")


if __name__ == "__main__":
    main("bench_cached_tokens", benchmark, repeats=7, add_arguments=_arguments)
