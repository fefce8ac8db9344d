"""How long does a restart take until model and optimizer are back?

Four gloo ranks, a state of 1 GB in all, under DDP and FSDP2: from what is staged on the node, from the store through a
daemon that has nothing of it, and by torch's own `load` from local files, which checks nothing. The page cache is warm
for the local ones. `benchmarks/checkpoints/restore_program.py` says what a turn is.
"""

import argparse
import os
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks.checkpoints.launching import on_ranks
from benchmarks.checkpoints.program import Settings
from benchmarks.checkpoints.restore_program import DURABLE, PLAIN, STAGED
from benchmarks.daemon import daemon
from benchmarks.shape import Report, describe_machine, main, summarised
from tests.support.seaweedfs import Bucket, SeaweedFS

QUESTION = "How long does a restart take until model and optimizer are back?"
RANKS = 4
Turns = Sequence[Mapping[str, float]]


def benchmark(options: argparse.Namespace) -> Report:
    with tempfile.TemporaryDirectory(prefix="fb-", dir=options.directory) as temporary, SeaweedFS() as server:
        directory, bucket = Path(temporary), Bucket(f"bench-{secrets.token_hex(4)}", server)
        server.create_bucket(bucket.name)
        os.environ.update(server.environment())
        with daemon(directory, "--capacity", "1GiB") as node, daemon(directory, "--capacity", "1GiB") as cold:
            restored: dict[str, Mapping[str, Turns]] = {}
            for wrap in ("ddp", "fsdp"):
                settings = Settings(
                    wrap=wrap,
                    size_bytes=options.megabytes * 10**6,
                    repeats=options.repeats,
                    products=0,
                    directory=str(directory),
                    root=bucket.uri(f"runs/{wrap}"),
                    store="",
                    address=node.address,
                    cold_address=cold.address,
                )
                restored[wrap] = on_ranks(RANKS, "benchmarks.checkpoints.restore_program", settings)
    rows = [summarised(f"{name}, {wrap}", turns) for wrap, ways in restored.items() for name, turns in ways.items()]
    return Report(QUESTION, rows, ratios(restored), {}, describe_machine())


def ratios(restored: Mapping[str, Mapping[str, Turns]]) -> dict[str, float]:
    """Times over torch's, each the median within turns."""
    found = {}
    for wrap, ways in restored.items():
        for name, key in ((STAGED, "staged"), (DURABLE, "durable")):
            pairs = zip(ways[name], ways[PLAIN], strict=True)
            found[f"{key}_vs_dcp_{wrap}"] = median(ours["seconds"] / plain["seconds"] for ours, plain in pairs)
    return found


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megabytes", type=int, default=1000, help="of the whole state")
    parser.add_argument("--directory", default=None, help="where the bucket's copy and the files go")


if __name__ == "__main__":
    main("bench_restore", benchmark, repeats=5, add_arguments=_arguments)
