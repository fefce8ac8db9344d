"""The order as DESIGN §5 tells it, written so plainly that it cannot be wrong: whole lists, sorted all at once.

Only the random words are shared with the engine, and even they are asked from numpy anew. Samples are tuples
(lane, coordinate, sample id, piece, row), so that sorting them is the sort inside a step.
"""

import hashlib
import math
from typing import NamedTuple

import numpy as np

PIECES, PARTS, WINDOW, PERMUTATION, MIXTURE = 1, 2, 3, 4, 5


class Sample(NamedTuple):
    lane: int
    coordinate: int
    sample_id: int
    piece: int
    row: int


def words(seed: int, domain: int, number: int, *, stream: int = 0, block: int = 0, epoch: int = 0) -> list[int]:
    digest = int(hashlib.sha256(str(seed).encode()).hexdigest()[:16], 16)
    philox = np.random.Philox(
        counter=np.array([0, block, stream, epoch], dtype=np.uint64), key=np.array([digest, domain], dtype=np.uint64)
    )
    return [int(word) for word in philox.random_raw(number)]


def bit_reversed_lanes(lanes: int) -> list[int]:
    width = len(bin(lanes - 1)) - 2 if lanes > 1 else 0
    numbers = [int(f"{number:0{width}b}"[::-1], 2) if width else 0 for number in range(2**width)]
    return [number for number in numbers if number < lanes]


def positions(
    rows: list[int], *, seed: int, shuffle: str | bool, lanes: int, window: int, sticky: bool, epoch: int
) -> list[Sample]:
    """The sample at every position of an epoch."""
    total = sum(rows)
    pieces = [piece for piece, number in enumerate(rows) if number]
    if shuffle == "global":
        lanes = 1
    if shuffle == "window":
        keys = words(seed, PIECES, len(pieces), epoch=0 if sticky else epoch)
        pieces = [piece for _, piece in sorted(zip(keys, pieces, strict=True))]
    line = [(piece, row) for piece in pieces for row in range(rows[piece])]
    round_of_lanes = bit_reversed_lanes(lanes)
    lengths = [0] * lanes
    for slot, lane in enumerate(round_of_lanes):
        lengths[lane] = total // lanes + (1 if slot < total % lanes else 0)
    read = []
    coordinate = 0
    for lane, length in enumerate(lengths):
        samples = []
        for piece, row in line[coordinate : coordinate + length]:
            samples.append(Sample(lane, coordinate, sum(rows[:piece]) + row, piece, row))
            coordinate += 1
        if shuffle == "window":
            samples = _shuffled(samples, seed, lane, window, epoch)
        elif shuffle == "global":
            samples = [samples[permuted(position, total, seed, epoch)] for position in range(total)]
        read.append(samples)
    return [read[round_of_lanes[q % lanes]][q // lanes] for q in range(total)]


def _shuffled(samples: list[Sample], seed: int, lane: int, window: int, epoch: int) -> list[Sample]:
    parts: list[list[Sample]] = []
    for sample in samples:
        if not parts or parts[-1][-1].piece != sample.piece:
            parts.append([])
        parts[-1].append(sample)
    part_keys = words(seed, PARTS, len(parts), stream=lane, epoch=epoch)
    track = [sample for index in sorted(range(len(parts)), key=lambda i: (part_keys[i], i)) for sample in parts[index]]
    block = max(window, 64)
    drawn: list[int] = []
    while len(drawn) < len(track):
        drawn += words(seed, WINDOW, block, stream=lane, block=len(drawn) // block, epoch=epoch)
    keys = [(offset << 20) + (((drawn[offset] >> 32) * window) >> 12) for offset in range(len(track))]
    return [track[offset] for offset in sorted(range(len(track)), key=lambda i: (keys[i], i))]


def permuted(position: int, samples: int, seed: int, epoch: int) -> int:
    """The sample that the global shuffle reads at a position."""
    left = math.isqrt(samples - 1) + 1
    left += left % 2
    right = -(-samples // left)
    keys = words(seed, PERMUTATION, 24 if samples < 256 else 8, epoch=epoch)
    cell = position
    while True:
        halves = [cell // right, cell % right]
        for number, key in enumerate(keys):
            side = number % 2
            modulus = (left, right)[side]
            mixed = (halves[1 - side] + key) * 0xBF58476D1CE4E5B9 % 2**64
            mixed = (mixed ^ (mixed >> 32)) * 0x94D049BB133111EB % 2**64
            halves[side] = (halves[side] + (mixed >> 32) * modulus // 2**32) % modulus
        cell = halves[0] * right + halves[1]
        if cell < samples:
            return cell


def draws(sources: list[int], slots: list[int], seed: int, stop: int) -> list[tuple[int, int, int]]:
    """(source, its epoch, its position) at every running position of a mixture up to `stop`, in whole blocks."""
    source_of_slot = [source for source, number in enumerate(slots) for _ in range(number)]
    drawn = [0] * len(sources)
    result = []
    for block in range(math.ceil(stop / sum(slots))):
        keys = words(seed, MIXTURE, sum(slots), block=block)
        for slot in sorted(range(len(keys)), key=lambda slot: (keys[slot] >> 16, slot)):
            source = source_of_slot[slot]
            result.append((source, drawn[source] // sources[source], drawn[source] % sources[source]))
            drawn[source] += 1
    return result


class Step(NamedTuple):
    take: list[int]
    pads: list[int]
    after: int


def next_step(samples: int, position: int, *, world_size: int, global_batch: int, tail: str) -> Step | None:
    """The positions that one step takes, those of its pads, and the position after it."""
    rem = samples - position
    number = min(rem, global_batch)
    pads = 0
    if tail == "even":
        if 0 < rem - global_batch < world_size:
            number = rem if rem < 2 * world_size else math.ceil(rem / 2)
        if number < world_size:
            pads = world_size - number
    elif tail == "pad":
        pads = global_batch - number
    elif number < global_batch:
        number = 0
    if rem == 0 or number == 0:
        return None
    after = position + number
    if tail == "drop" and samples - after < global_batch:
        after = samples
    return Step(list(range(position, position + number)), [(position - pads + j) % samples for j in range(pads)], after)


def shares(epoch: list[Sample], step: Step, world_size: int) -> list[list[tuple[int, Sample, bool]]]:
    """For each rank its (position, sample, is pad) in the order in which they are handed out."""
    whole = []
    for taken, is_pad in ((step.take, False), (step.pads, True)):
        whole += [(q, sample, is_pad) for sample, q in sorted((epoch[q], q) for q in taken)]
    size, larger = divmod(len(whole), world_size)
    result = []
    for rank in range(world_size):
        number = size + (1 if rank < larger else 0)
        result.append(whole[:number])
        whole = whole[number:]
    return result
