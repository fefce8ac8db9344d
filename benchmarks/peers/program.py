"""What a peer's program is: it writes the samples in the peer's format, proves that it reads them, and is timed.

`python -m benchmarks.peers.PEER VARIANT TOKENS DIRECTORY` answers with JSON lines: first the versions of the peer's
libraries, once an epoch has been read that holds every sample exactly once, then for each line on its input (the
number of an epoch) how fast that epoch was. The clock starts when the peer has given its first batch, so that what it
does once an epoch costs it nothing, and stops at the end of the epoch or after `SECONDS`. Nothing else is written to
the output: what libraries print goes to the errors.
"""

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

SEQUENCE, BATCH = 2048, 64
SECONDS = 3.0
SHARD_BYTES = 64 << 20
"""What the peers' own writers take by default, or near it."""

Rows = npt.NDArray[np.int32]
Epoch = Callable[[int], Iterable[Any]]
"""The batches of an epoch, given its number: tensors of whole numbers, [up to BATCH, SEQUENCE]."""


@dataclass(frozen=True)
class Variant:
    """One way to read with a peer."""

    write: Callable[[Path, Path], None]
    """Writes the rows of the token file (the first path) below a directory, with the peer's own writer."""
    read: Callable[[Path], Epoch]
    """Opens what was written."""


class WrongSamples(Exception):
    """The peer did not give every sample once."""


def rows_of(tokens: Path | str) -> Rows:
    """The samples, mapped: int32[samples, SEQUENCE]."""
    return np.memmap(tokens, dtype=np.int32, mode="r").reshape(-1, SEQUENCE)


def checksum(rows: Rows) -> int:
    """The same for the same rows in any order, and for nothing else."""
    digests = (hashlib.blake2b(row.tobytes(), digest_size=12).digest() for row in rows)
    return sum(int.from_bytes(digest, "little") for digest in digests) & (1 << 96) - 1


def verify(rows: Rows, batches: Iterable[Any]) -> None:
    """Raises `WrongSamples` unless the batches hold each row once."""
    count = total = 0
    for batch in batches:
        values = np.asarray(batch)
        if values.ndim != 2 or not 0 < len(values) <= BATCH or not np.issubdtype(values.dtype, np.integer):
            raise WrongSamples(f"a batch of {values.dtype} {values.shape}, not of whole numbers [{BATCH}, {SEQUENCE}]")
        count += len(values)
        total += checksum(values.astype(np.int32))
    if count != len(rows) or total & (1 << 96) - 1 != checksum(rows):
        raise WrongSamples(f"{count} samples were read of {len(rows)}, or their contents differ")


def measure(batches: Iterable[Any], seconds: float = SECONDS) -> dict[str, float]:
    """How fast the batches after the first one come, in the shape that the benchmark reports."""
    iterator = iter(batches)
    next(iterator)
    samples = 0
    wall, cpu = time.perf_counter(), time.process_time()
    for batch in iterator:
        samples += len(batch)
        if time.perf_counter() - wall > seconds:
            break
    return rates(time.perf_counter() - wall, time.process_time() - cpu, samples)


def rates(wall_seconds: float, cpu_seconds: float, samples: int) -> dict[str, float]:
    """The numbers of one repeat."""
    gigabytes = samples * SEQUENCE * 4 / 1e9
    return {
        "samples_per_second": samples / wall_seconds,
        "gigabytes_per_second": gigabytes / wall_seconds,
        "cpu_seconds_per_gigabyte": cpu_seconds / gigabytes,
    }


def serve(variants: Mapping[str, Variant], libraries: Sequence[str]) -> None:
    """The program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("variant", choices=variants)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("directory", type=Path)
    options = parser.parse_args()
    answers = _answers()

    def answer(value: Mapping[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    epoch = _prepared(variants[options.variant], options.tokens, options.directory)
    answer({name: metadata.version(name) for name in libraries})
    for line in sys.stdin:
        answer(measure(epoch(int(line))))


def _prepared(variant: Variant, tokens: Path, directory: Path) -> Epoch:
    directory.mkdir(parents=True)
    variant.write(tokens, directory)
    epoch = variant.read(directory)
    verify(rows_of(tokens), epoch(0))
    return epoch


def _answers() -> Any:
    """The output, kept for ourselves."""
    ours = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return ours
