"""The order as DESIGN §5 tells it, written so plainly that it cannot be wrong: whole lists, sorted all at once.

Only the random words are shared with the engine, and even they are asked from numpy anew. Samples are tuples
(lane, coordinate, sample id, piece, row), so that sorting them is the sort inside a step.
"""

import hashlib
import math
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

PIECES, PARTS, WINDOW, PERMUTATION, MIXTURE, SPLIT = 1, 2, 3, 4, 5, 6
UNIT_LEVELS, WORD_LEVELS = 15, 5


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
    whole: list[int],
    *,
    seed: int,
    shuffle: str | bool,
    lanes: int,
    window: int,
    sticky: bool,
    epoch: int,
    chosen: list[list[int]],
) -> list[Sample]:
    """The sample at every position of an epoch; `chosen` are the rows of each piece that take part, ascending."""
    rows = [len(each) for each in chosen]
    total = sum(rows)
    pieces = [piece for piece, number in enumerate(rows) if number]
    if shuffle == "global":
        lanes = 1
    if shuffle == "window":
        keys = words(seed, PIECES, len(pieces), epoch=0 if sticky else epoch)
        pieces = [piece for _, piece in sorted(zip(keys, pieces, strict=True))]
    line = [(piece, row) for piece in pieces for row in chosen[piece]]
    round_of_lanes = bit_reversed_lanes(lanes)
    lengths = [0] * lanes
    for slot, lane in enumerate(round_of_lanes):
        lengths[lane] = total // lanes + (1 if slot < total % lanes else 0)
    read = []
    coordinate = 0
    for lane, length in enumerate(lengths):
        samples = []
        for piece, row in line[coordinate : coordinate + length]:
            samples.append(Sample(lane, coordinate, sum(whole[:piece]) + row, piece, row))
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


def chosen(stages: list[dict[str, Any]], rows: list[int], shard: list[int], keys: list[bytes]) -> list[list[int]]:
    """The rows of each piece that a selection's spec names."""
    taken = [(piece, row) for piece, number in enumerate(rows) for row in range(number)]
    splits = 0
    for stage in stages:
        if "limit" in stage:
            taken = taken[: stage["limit"]]
            continue
        number_in_shard = dict.fromkeys(shard, 0)
        left = []
        for piece, row in taken:
            number = number_in_shard[shard[piece]]
            number_in_shard[shard[piece]] += 1
            if portion_of(keys[shard[piece]], number, stage, splits) == stage["portion"]:
                left.append((piece, row))
        taken = left
        splits += 1
    return [[row for at, row in taken if at == piece] for piece in range(len(rows))]


def portion_of(name: bytes, row: int, stage: dict[str, Any], splits: int) -> str | None:
    """The portion to which a row of a shard belongs: one way down the tree, with the bounds between all portions."""
    names = sorted(stage["of"])
    sums = [
        sum((Fraction(repr(stage["of"][name])) for name in names[:number]), Fraction(0))
        for number in range(len(names) + 1)
    ]
    if abs(sums[-1] - 1) < Fraction(1, 10**6):
        sums = [min(each, Fraction(1)) for each in sums[:-1]] + [Fraction(1)]
    bounds = [math.floor(each * 2**40 + Fraction(1, 2)) for each in sums]
    seed = hashlib.sha256(str(stage["seed"]).encode()).digest()[:8]
    key = int(hashlib.sha256(seed + SPLIT.to_bytes(8) + splits.to_bytes(8) + name).hexdigest()[:16], 16)
    if stage["by"] == "shard":
        return next((name for number, name in enumerate(names) if key >> 24 < bounds[number + 1]), None)
    unit = splitmix(key, (row >> UNIT_LEVELS) + 1)
    shares = [((bound << UNIT_LEVELS) + (splitmix(unit, 0) >> 24)) >> 40 for bound in bounds]
    path = f"{row % 2**UNIT_LEVELS:0{UNIT_LEVELS}b}"
    for depth, side in enumerate(path):
        above = path[: depth - depth % WORD_LEVELS]
        word = splitmix(unit, int("1" + above, 2)) >> 32
        bit = word >> int("1" + path[len(above) : depth], 2) & 1
        lefts = [(share + bit) // 2 for share in shares]
        shares = lefts if side == "0" else [share - left for share, left in zip(shares, lefts, strict=True)]
    return next((name for number, name in enumerate(names) if shares[number] < shares[number + 1]), None)


def splitmix(key: int, number: int) -> int:
    word = (key + number * 0x9E3779B97F4A7C15) % 2**64
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    return word ^ word >> 31


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
