"""Needs: between which positions of an epoch a rank may want each piece. What the daemon fetches and evicts by.

No sample is planned for it: a sample at offset i of a lane is read less than the reader's width away from turn i, which
bounds the turns of a part from its offsets alone, for the lanes that the rank can touch. Called by the loader when an
epoch is begun or a position restored.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import gcd
from typing import Self

import numpy as np

from forebay.order.lanes import Int64
from forebay.order.plan import RankPlan, plan
from forebay.order.sequence import Sequence
from forebay.order.share import share
from forebay.order.steps import Schedule, Split

_CELLS_AT_ONCE = 1 << 18


@dataclass(frozen=True, slots=True)
class Needs:
    """Piece pieces[i] may be wanted at positions in [first[i], last[i]). int64[n] each, ascending by `first`.

    A piece that is cut by a lane border is listed once for each of its parts.
    """

    pieces: Int64
    first: Int64
    last: Int64

    @classmethod
    def nothing(cls) -> Self:
        empty = np.empty(0, dtype=np.int64)
        return cls(empty, empty, empty)


@dataclass(frozen=True, slots=True)
class PartBounds:
    """Part i, of pieces[i], is read at positions in [first[i], last[i]), all of them of lane[i]. int64[parts] each."""

    pieces: Int64
    lane: Int64
    first: Int64
    last: Int64


def part_bounds(sequence: Sequence) -> PartBounds:
    """Between which positions of the epoch each part is read."""
    lanes, track = sequence.lanes, sequence.track
    reach = sequence.reader.width - 1
    offset = track.start - lanes.start[track.lane]
    first_turn = np.maximum(0, offset - reach)
    last_turn = np.minimum(lanes.length[track.lane], offset + track.length + reach) - 1
    slot = lanes.slot[track.lane]
    return PartBounds(track.piece, track.lane, first_turn * lanes.count + slot, last_turn * lanes.count + slot + 1)


def needs(sequence: Sequence, position: int, *, split: Split, rank: int) -> Needs:
    """What `rank` can still want of the epoch from `position` on; every piece of every plan from there is in it."""
    bounds = part_bounds(sequence)
    first = np.maximum(bounds.first, _touched_from(sequence, position, split, rank)[bounds.lane])
    wanted = first < bounds.last
    mine = Needs(bounds.pieces[wanted], first[wanted], bounds.last[wanted])
    pads = needs_of_pads(
        sequence.samples, position, split, lambda begin: plan(sequence, begin, 1, split=split, rank=rank)
    )
    return by_first([mine, pads])


def _touched_from(sequence: Sequence, position: int, split: Split, rank: int) -> Int64:
    """For each lane the position of the first step in which the rank reads from it; N for those it never reads from.

    Full steps repeat the lanes of a rank after lcm(G, L) positions, so one such period and the tail say it all.
    """
    samples, lanes = sequence.samples, sequence.lanes
    full = split.full_steps(samples, position)
    period = lanes.count // gcd(split.global_batch, lanes.count)
    at_once = max(1, _CELLS_AT_ONCE // lanes.count)
    touched_from = np.full(lanes.count, samples, dtype=np.int64)

    def walk(schedule: Schedule) -> None:
        touched = share(lanes, schedule, split, rank).touched
        reached = touched.any(axis=0)
        touched_from[reached] = np.minimum(touched_from[reached], schedule.position[touched.argmax(axis=0)][reached])

    for step in range(0, min(full, period), at_once):
        steps = min(at_once, min(full, period) - step)
        walk(split.schedule(samples, position + step * split.global_batch, steps))
    tail = split.schedule(samples, position + full * split.global_batch, 2)
    if len(tail):
        walk(tail)
    return touched_from


def needs_of_pads(samples: int, position: int, split: Split, step_at: Callable[[int], RankPlan]) -> Needs:
    """The pieces of the rank's pads, wanted again from the last step on; `step_at(position)` plans one step."""
    tail = split.schedule(samples, position + split.full_steps(samples, position) * split.global_batch, 2)
    if len(tail) == 0 or tail.pads[-1] == 0:
        return Needs.nothing()
    begin = int(tail.position[-1])
    last_step = step_at(begin)
    pieces, _ = np.unique(last_step.piece[last_step.is_pad], return_index=True)
    return Needs(pieces, np.full_like(pieces, begin), np.full_like(pieces, samples))


def by_first(needs: Iterable[Needs]) -> Needs:
    """All of these, ascending by `first`."""
    columns = [(each.pieces, each.first, each.last) for each in needs]
    pieces, first, last = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.argsort(first, kind="stable")
    return Needs(pieces[order], first[order], last[order])
