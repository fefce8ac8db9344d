"""The most hits that a cache can have, had it known all that is to come.

Of pieces of one size: on a miss what is needed furthest away goes (L. A. Belady, 1966), here over the whole future and
not over what sessions have published, and without regard to what readers hold. Of several sizes it is a good guess.
"""

import heapq

import numpy as np

from forebay.order.lanes import Int64
from forebay.simulation.reading import leases
from forebay.simulation.scenario import Scenario
from forebay_core.eviction.contract import Flags, Seconds


def optimum(scenario: Scenario, measured: tuple[float, float]) -> float:
    """The hit ratio of the leases between two times in seconds, the cache being empty at the start."""
    times, pieces = accesses(scenario)
    is_hit = most_hits(pieces.tolist(), scenario.piece_bytes.tolist(), scenario.capacity_bytes)
    counted = (times >= measured[0]) & (times < measured[1])
    return float(is_hit[counted].mean()) if counted.any() else 0.0


def accesses(scenario: Scenario) -> tuple[Seconds, Int64]:
    """The times of all jobs' leases, and their pieces, in order."""
    found = [(job, leases(job)) for job in scenario.jobs]
    times = np.concatenate([job.starts_at + each.start / job.positions_per_second for job, each in found])
    order = np.argsort(times, kind="stable")
    return times[order], np.concatenate([each.pieces for _, each in found])[order]


def most_hits(pieces: list[int], piece_bytes: list[int], capacity_bytes: int) -> Flags:
    """For each access whether it is a hit, with the choice of what goes that makes most of them hits."""
    following = _following(pieces)
    is_hit = np.zeros(len(pieces), np.bool_)
    there: dict[int, int] = {}
    furthest: list[tuple[int, int]] = []
    used = 0
    for index, (piece, next_use) in enumerate(zip(pieces, following, strict=True)):
        is_hit[index] = piece in there
        if piece not in there:
            used += piece_bytes[piece]
            while used > capacity_bytes and furthest:
                negative, candidate = heapq.heappop(furthest)
                if there.get(candidate) == -negative:
                    del there[candidate]
                    used -= piece_bytes[candidate]
        there[piece] = next_use
        heapq.heappush(furthest, (-next_use, piece))
    return is_hit


def _following(pieces: list[int]) -> list[int]:
    """For each access the index of the next one of the same piece; beyond all where there is none."""
    following = [0] * len(pieces)
    seen: dict[int, int] = {}
    for index in range(len(pieces) - 1, -1, -1):
        following[index] = seen.get(pieces[index], len(pieces) + index)
        seen[pieces[index]] = index
    return following
