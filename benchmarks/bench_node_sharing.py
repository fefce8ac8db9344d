"""How often does a node download its dataset when eight processes of two jobs read it at the same time?

One real S3 server and one real daemon on this machine. Two jobs of four processes each read one dataset of tokens (64
pieces of 1 MiB), each job in an order of its own, all at once, for two epochs, from an empty cache. `remote_bytes` is
what the daemon downloaded over the size of the dataset: 1 is once for all eight. Then the same with caches that hold a
half and a quarter of the data, which is reported: below that a node must download again, and the fewest downloads of
one job alone would be 2 - share for two epochs. Every process checks that it was given all its samples. No timing but
what each turn took.
"""

import argparse
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.daemon import daemon
from benchmarks.shape import Report, Target, interleaved, main, measured, summarised
from tests.support.seaweedfs import Bucket, SeaweedFS

SEQUENCE, PIECE_BYTES, PIECES, SHARDS = 256, 1 << 20, 64, 8
SAMPLE_BYTES = 4 * SEQUENCE
SAMPLES = PIECES * PIECE_BYTES // SAMPLE_BYTES
JOBS, RANKS, EPOCHS, BATCH = 2, 4, 2, 64
#: A piece or two of each lane are mixed, so that needs spread over the epoch.
LANES, WINDOW = 4, PIECE_BYTES // SAMPLE_BYTES
#: Of the dataset; what pieces take beside their bytes is small.
SHARES = {"all of it": 1.5, "half of it": 0.5, "a quarter of it": 0.25}
QUESTION = "How often does a node download its dataset when 8 processes of 2 jobs read it at the same time?"
TARGETS = {"remote_bytes": Target(at_least=0.99, at_most=1.01)}


def read(url: str, address: str, seed: int, rank: int) -> None:
    """One process of a job, here."""
    from forebay import DataLoader, OrderOptions, StreamingDataset, Tokens

    dataset = StreamingDataset(
        url,
        format=Tokens(sequence_length=SEQUENCE, dtype="int32", piece_bytes=PIECE_BYTES),
        seed=seed,
        order=OrderOptions(lanes=LANES, window=WINDOW),
        rank=rank,
        world_size=RANKS,
        address=address,
    )
    loader = DataLoader(dataset, BATCH, report_to=None)
    for _ in range(EPOCHS):
        given = sum(len(batch["tokens"]) for batch in loader)
        assert given == SAMPLES // RANKS, f"{given} samples of {SAMPLES // RANKS}"
    loader.close()


def turn(bucket: Bucket, directory: Path, share: float, _: int) -> Mapping[str, float]:
    """All processes against a new daemon."""
    capacity = int(share * PIECES * PIECE_BYTES)
    with daemon(directory, "--capacity", str(capacity)) as node, measured() as usage:
        arguments = [sys.executable, "-m", "benchmarks.bench_node_sharing", "--read", bucket.uri("data/"), node.address]
        readers = [subprocess.Popen([*arguments, str(job), str(rank)]) for job in range(JOBS) for rank in range(RANKS)]
        ended = [reader.wait(timeout=600) for reader in readers]
        assert not any(ended), f"a reader failed: {ended}"
        counters = node.status().counters
    return {
        "remote_bytes": counters.bytes_downloaded / (PIECES * PIECE_BYTES),
        "fills": counters.fills,
        "evictions": counters.evictions,
        "hits": counters.hits,
        "misses": counters.misses,
        "wall_seconds": usage.wall_seconds,
        "cpu_seconds": usage.cpu_seconds,
    }


def benchmark(options: argparse.Namespace) -> Report:
    with tempfile.TemporaryDirectory(prefix="fb-", dir=options.directory) as directory, SeaweedFS() as server:
        bucket = Bucket(f"bench-{secrets.token_hex(4)}", server)
        server.create_bucket(bucket.name)
        os.environ.update(server.environment())
        for shard in range(SHARDS):
            bucket.put(f"data/{shard}.bin", os.urandom(PIECES // SHARDS * PIECE_BYTES))
        variants = {
            f"the cache holds {name}": partial(turn, bucket, Path(directory), share) for name, share in SHARES.items()
        }
        results = interleaved(variants, options.repeats)
    return _report(results)


def _report(results: Mapping[str, Sequence[Mapping[str, float]]]) -> Report:
    downloads = {name: median(turn["remote_bytes"] for turn in turns) for name, turns in results.items()}
    ratios = dict(zip(("remote_bytes", "remote_bytes_half", "remote_bytes_quarter"), downloads.values(), strict=True))
    return Report(QUESTION, [summarised(name, turns) for name, turns in results.items()], ratios, TARGETS)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--directory", default=None, help="where the caches go")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--read"]:
        read(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        main("bench_node_sharing", benchmark, repeats=3, add_arguments=_arguments)
