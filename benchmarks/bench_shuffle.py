"""How mixed are the batches of class-sorted data, against a true permutation and MosaicML's algorithms?

No timing: figures of the orders themselves. 1000 classes, stored class after class, in batches of 256 on one rank.
ImageNet's shape of 1,281,167 samples as JPEGs of 110 KB, and because the window's default depends on how large samples
are, 10 times as many of 12 KB (64 × 64 × 3 arrays) and 20 times as many of 2 KB, so that there are thousands of pieces
in each case. Each loader has its own default shard or piece size (ours as `Tokens` and `Parquet` have it, MosaicML's 64
MiB), and what else it does where nothing is chosen. MosaicML's default block is 4 million samples a node, more than
there are JPEGs here, so its py1e needs all of them in the cache; "as wide" gives it a block of as many samples as our
window mixes.
"""

import argparse
import json
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.contenders import PEERS_ENVIRONMENT, ROOT
from benchmarks.shape import Report, Row, Target, describe_machine, main
from forebay.order import Order, Split
from forebay.order.options import Shuffle
from forebay_core.formats import Parquet

IMAGENET_SAMPLES, CLASSES, BATCH = 1_281_167, 1000, 256
PIECE_BYTES, MDS_SHARD_BYTES = Parquet().piece_bytes, 64 << 20
ALGORITHMS = ("py1e", "py1br", "py2s", "naive")
QUESTION = "How many classes has a batch of 256 of class-sorted data (1000 classes)?"
TARGETS = {
    "global_classes_vs_permutation": Target(at_least=0.99, at_most=1.01),
    **dict.fromkeys(
        ("window_classes_vs_py1e", "window_classes_vs_py1e_12288", "window_classes_vs_py1e_2048"), Target(at_least=0.9)
    ),
}

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Data:
    """Class-sorted samples of one size."""

    name: str
    sample_bytes: int
    samples: int

    def shard_rows(self, shard_bytes: int) -> list[int]:
        """Rows of the shards, all full but the last."""
        each = shard_bytes // self.sample_bytes
        full, rest = divmod(self.samples, each)
        return [each] * full + [rest] * (rest > 0)

    def class_of(self, ids: Ids) -> Ids:
        """The class of samples that are stored class after class."""
        return ids * CLASSES // self.samples


DATA = (
    Data("JPEGs of 110 KB", 110_000, IMAGENET_SAMPLES),
    Data("arrays of 12 KB", 64 * 64 * 3, 10 * IMAGENET_SAMPLES),
    Data("records of 2 KB", 2048, 20 * IMAGENET_SAMPLES),
)


@dataclass(frozen=True)
class Quality:
    """What the batches of an order are like."""

    classes: float
    """Classes in a batch, on average."""
    classes_first: int
    """In the first batch."""
    classes_least: int
    most_of_one: float
    """Samples of the commonest class of a batch, on average."""
    most_of_one_ever: int

    @classmethod
    def of(cls, classes: npt.NDArray[np.int64], batch: int) -> "Quality":
        """Of the classes of an epoch's samples, in its order; a last batch that is not full is left out."""
        batches = np.sort(classes[: len(classes) // batch * batch].reshape(-1, batch), axis=1)
        changes = np.diff(batches, axis=1, prepend=-1) != 0
        distinct = changes.sum(axis=1)
        starts = np.maximum.accumulate(np.where(changes, np.arange(batch), 0), axis=1)
        most = (np.arange(batch) - starts + 1).max(axis=1)
        return cls(float(distinct.mean()), int(distinct[0]), int(distinct.min()), float(most.mean()), int(most.max()))


def our_order(data: Data, shuffle: Shuffle) -> tuple[Order, Ids]:
    """An order at its defaults, and the sample ids of its first epoch."""
    rows = data.shard_rows(PIECE_BYTES)
    order = Order(rows, seed=0, shuffle=shuffle, total_bytes=data.samples * data.sample_bytes)
    split = Split(1, BATCH, "even")
    return order, order.epoch(0).plan(0, split.steps(data.samples), split=split, rank=0).sample_id


def their_orders(data: Data, as_wide: int, environment: Path) -> tuple[dict[str, Ids], str]:
    """MosaicML's orders by name, and its version; no orders, and the reason, where it cannot be asked."""
    python = environment / "bin" / "python"
    orders: dict[str, dict[str, Any]] = {algorithm: {"algorithm": algorithm} for algorithm in ALGORITHMS}
    orders["py1e as wide"] = {"algorithm": "py1e", "block": as_wide}
    if not python.exists():
        return {}, "not installed: run `make bench-peers-env`"
    with tempfile.TemporaryDirectory() as directory:
        spec = Path(directory) / "spec.json"
        rows = data.shard_rows(MDS_SHARD_BYTES)
        spec.write_text(json.dumps({"shard_rows": rows, "batch": BATCH, "orders": orders, "directory": directory}))
        command = [str(python), "-m", "benchmarks.peers.mosaicml_orders", str(spec)]
        done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=600)
        if done.returncode:
            return {}, done.stderr.strip().rpartition("\n")[2] or f"ended with {done.returncode}"
        return {name: np.load(Path(directory) / f"{name}.npy") for name in orders}, done.stdout.strip()


def benchmark(options: argparse.Namespace) -> Report:
    rows: list[Row] = []
    ratios: dict[str, float] = {}
    said = ""
    for data in DATA:
        qualities, failure, said = _qualities(data, options.peers)
        rows += [Row(f"{data.name}, {name}", quality.__dict__) for name, quality in qualities.items()]
        rows += [Row(f"{data.name}, MosaicML", {"failed": failure})] if failure else []
        of_this = _ratios(qualities)
        ratios |= of_this if data is DATA[0] else {f"{name}_{data.sample_bytes}": v for name, v in of_this.items()}
    return Report(QUESTION, rows, ratios, TARGETS, {**describe_machine(), "peers": {"mosaicml-streaming": said}})


def _qualities(data: Data, environment: Path) -> tuple[dict[str, Quality], str, str]:
    """By the order's name; why there are none of MosaicML's, or nothing; and what their program said."""
    window, ids = our_order(data, "window")
    mixed = window.window * window.lanes
    orders = {
        "permutation": np.random.default_rng(0).permutation(data.samples),
        "forebay global": our_order(data, "global")[1],
        f"forebay window ({mixed} samples mixed)": ids,
    }
    theirs, said = their_orders(data, mixed, environment)
    for name, order in {**orders, **theirs}.items():
        assert np.bincount(order, minlength=data.samples).all(), f"{name} leaves samples out"
    named = {**orders, **{f"MosaicML {name}": order for name, order in theirs.items()}}
    return (
        {name: Quality.of(data.class_of(order), BATCH) for name, order in named.items()},
        "" if theirs else said,
        said,
    )


def _ratios(qualities: Mapping[str, Quality]) -> dict[str, float]:
    window = next(quality for name, quality in qualities.items() if name.startswith("forebay window"))
    found = {"global_classes_vs_permutation": _ratio(qualities["forebay global"], qualities["permutation"])}
    for key, name in {"": "MosaicML py1e", "_as_wide": "MosaicML py1e as wide"}.items():
        if name in qualities:
            found[f"window_classes_vs_py1e{key}"] = _ratio(window, qualities[name])
    return found


def _ratio(ours: Quality, theirs: Quality) -> float:
    return ours.classes / theirs.classes


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peers", type=Path, default=PEERS_ENVIRONMENT, help="environment of requirements-peers.txt")


if __name__ == "__main__":
    main("bench_shuffle", benchmark, repeats=1, add_arguments=_arguments)
