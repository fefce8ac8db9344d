"""Which pieces a job leases when, and until when: as its loader would, from the plans and needs of its order.

A piece is leased when the first step that reads of it begins, and held until the bound of its need is passed; needs of
one piece that overlap are one lease.
"""

from dataclasses import dataclass

import numpy as np

from forebay.order import Needs
from forebay.order.lanes import Int64
from forebay.simulation.scenario import Job

_STEPS_AT_ONCE = 1 << 12


@dataclass(frozen=True, slots=True)
class Leases:
    """Lease i is of pieces[i], from position start[i] until stop[i], counted over all epochs. int64[n], by start."""

    pieces: Int64
    start: Int64
    stop: Int64


def leases(job: Job) -> Leases:
    """All leases of a job."""
    found = [_of_epoch(job, epoch) for epoch in range(job.epochs)]
    columns = [(each.pieces, each.start, each.stop) for each in found]
    return Leases(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def _of_epoch(job: Job, epoch: int) -> Leases:
    order, begin = job.order, epoch * job.order.samples
    wanted = _merged(order.needs(epoch, 0))
    read, step_begin = _read(job, epoch)
    width = order.samples + 1
    lease = np.searchsorted(wanted.pieces * width + wanted.first, read * width + step_begin, side="right") - 1
    # A step may begin before the bound of a piece that is read later in it.
    lease = np.maximum(lease, np.searchsorted(wanted.pieces, read))
    index, first = np.unique(lease, return_index=True)
    by_time = np.argsort(first, kind="stable")
    index, first = index[by_time], first[by_time]
    return Leases(job.pieces[wanted.pieces[index]], step_begin[first] + begin, wanted.last[index] + begin)


def _read(job: Job, epoch: int) -> tuple[Int64, Int64]:
    """The piece of each sample in the order in which they are read, and where its step begins."""
    pieces, begins = [], []
    position = 0
    while position < job.order.samples:
        plan = job.order.plan(epoch, position, _STEPS_AT_ONCE)
        if plan.steps == 0:
            break
        begin = np.concatenate(([position], plan.after[:-1]))
        pieces.append(plan.piece)
        begins.append(np.repeat(begin, np.diff(plan.offsets)))
        position = int(plan.after[-1])
    return np.concatenate(pieces), np.concatenate(begins)


def _merged(needs: Needs) -> Needs:
    """By piece, then by position; those of one piece that overlap made one."""
    by_piece = np.lexsort((needs.first, needs.pieces))
    pieces, first, last = needs.pieces[by_piece], needs.first[by_piece], needs.last[by_piece]
    width = int(last.max(initial=0)) + 1
    reach = np.maximum.accumulate(pieces * width + last)
    starts = np.flatnonzero(np.concatenate(([True], pieces[1:] * width + first[1:] > reach[:-1])))
    return Needs(pieces[starts], first[starts], np.maximum.reduceat(last, starts))
