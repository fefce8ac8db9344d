"""What does a node's daemon cost, and does it bring the data in time?

Four questions over one real S3 server on this machine, each with its own first lines in `benchmarks/node`: how fast it
fills its cache beside obstore alone (`fills`), how long clients wait for leases (`acquires`), how many pieces are there
before they are asked for (`ahead`), and how fast and how small it starts on a large cache (`restarts`). The server, the
daemon and the clients share the cores: the ratios are within one turn, where all share them alike.
"""

import argparse
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.daemon import Daemon, daemon
from benchmarks.large_cache import make
from benchmarks.node import acquires, ahead, fills, restarts
from benchmarks.shape import Report, Target, describe_machine, interleaved, main, summarised
from tests.support.seaweedfs import Bucket, SeaweedFS

TARGETS = {
    "fill_vs_obstore": Target(at_least=0.9),
    "acquire_p99_milliseconds": Target(at_most=5.0),
    "prefetch_in_time": Target(at_least=0.99),
    "prefetch_in_time_half_cached": Target(at_least=0.99),
    "restart_seconds": Target(at_most=2.0),
    "megabytes": Target(at_most=300.0),
}
QUESTION = "What does a node's daemon cost beside obstore alone, and are pieces there before they are asked for?"
#: Of the speed of a fill: the remote keeps up with such a trainer.
PACE = 0.25
Results = Mapping[str, Sequence[Mapping[str, float]]]


def benchmark(options: argparse.Namespace) -> Report:
    with tempfile.TemporaryDirectory(prefix="fb-", dir=options.directory) as temporary, SeaweedFS() as server:
        directory, bucket = Path(temporary), Bucket(f"bench-{secrets.token_hex(4)}", server)
        server.create_bucket(bucket.name)
        results = {**_network(bucket, directory, options), **_large(directory, options)}
    rows = [summarised(name, turns) for name, turns in results.items()]
    return Report(QUESTION, rows, ratios(results), TARGETS, describe_machine())


def _network(bucket: Bucket, directory: Path, options: argparse.Namespace) -> Results:
    remote = fills.upload(bucket, options.megabytes)
    filling: Mapping[str, Callable[[int], Mapping[str, float]]] = {
        "fill, obstore alone": lambda _: fills.by_obstore(remote, directory),
        "fill, daemon": lambda _: fills.by_daemon(remote, directory),
    }
    filled = interleaved(filling, options.repeats)
    slowest = min(turn["megabytes_per_second"] for turn in filled["fill, daemon"])
    caches = {"fetched ahead": 2 * remote.size, "fetched ahead, half the data cached": remote.size // 2}
    pacing: Mapping[str, Callable[[int], Mapping[str, float]]] = {
        name: partial(_ahead_turn, remote, directory, PACE * slowest, capacity) for name, capacity in caches.items()
    }
    return {**filled, **interleaved(pacing, options.repeats), **_acquiring(remote, directory, options)}


def _acquiring(remote: fills.Remote, directory: Path, options: argparse.Namespace) -> Results:
    with daemon(directory, "--capacity", "10GiB") as node:
        dataset = acquires.prepare(node, remote.bucket.uri(remote.key), ahead.SEQUENCE, ahead.PIECE_BYTES)
        turns = {
            _acquire_row(clients): partial(_acquire_turn, node, dataset, clients, options.calls)
            for clients in acquires.CURVE
        }
        return interleaved(turns, options.repeats)


def _ahead_turn(remote: fills.Remote, directory: Path, pace: float, capacity: int, _: int) -> Mapping[str, float]:
    return ahead.turn(remote, directory, pace, capacity)


def _acquire_turn(node: Daemon, dataset: str, clients: int, calls: int, _: int) -> Mapping[str, float]:
    return acquires.turn(node, dataset, clients, calls)


def _acquire_row(clients: int) -> str:
    return f"acquire of {acquires.BATCH} pieces, {clients} clients"


def _large(directory: Path, options: argparse.Namespace) -> Results:
    cache = directory / "large"
    make(cache, pieces=options.entries)
    starts = {f"start on {options.entries} pieces": lambda _: restarts.turn(directory, cache, options.entries)}
    return interleaved(starts, options.repeats)


def ratios(results: Results) -> dict[str, float]:
    """The numbers with targets; of several turns the median, of ratios the median within turns."""

    def middle(row: str, key: str) -> float:
        return median(turn[key] for turn in results[row])

    start = next(name for name in results if name.startswith("start on "))
    pairs = list(zip(results["fill, daemon"], results["fill, obstore alone"], strict=True))
    return {
        "fill_vs_obstore": median(a["megabytes_per_second"] / b["megabytes_per_second"] for a, b in pairs),
        "fill_cpu_vs_obstore": median(a["cpu_seconds_per_gigabyte"] / b["cpu_seconds_per_gigabyte"] for a, b in pairs),
        "acquire_vs_empty_call": median(
            turn["p99_milliseconds"] / turn["empty_call_p99_milliseconds"] for turn in results[_acquire_row(4)]
        ),
        "acquire_p99_milliseconds": middle(_acquire_row(4), "p99_milliseconds"),
        "prefetch_in_time": middle("fetched ahead", "in_time_fraction"),
        "prefetch_in_time_half_cached": middle("fetched ahead, half the data cached", "in_time_fraction"),
        "restart_seconds": middle(start, "restart_seconds"),
        "megabytes": middle(start, "megabytes"),
    }


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megabytes", type=int, default=512, help="size of the object in the bucket")
    parser.add_argument("--entries", type=int, default=100_000, help="pieces of the large cache")
    parser.add_argument("--calls", type=int, default=100, help="Acquire calls of a turn and client")
    parser.add_argument("--directory", default=None, help="where the bucket's copy and the caches go")


if __name__ == "__main__":
    main("bench_daemon", benchmark, repeats=5, add_arguments=_arguments)
