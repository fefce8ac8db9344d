"""Runs a scenario: all jobs' leases, releases, reports and publications in the order of time, and prefetches between.

As in the daemon, a job says where it is every few seconds, publishes the needs of an epoch and the next one when it
begins the epoch, and fetches ahead what is needed soonest, until something refuses.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from forebay.order.lanes import Int64
from forebay.simulation.cache import SimulatedCache
from forebay.simulation.reading import leases
from forebay.simulation.scenario import Job, Scenario
from forebay_core.eviction import POLICIES
from forebay_core.eviction.contract import BEYOND, NOBODY, Seconds
from forebay_core.needs import Needs, Progress, next_use

REPORT_SECONDS = 5.0
"""As the loader's heartbeat."""
PREFETCH_SECONDS = 1.0
_RELEASE, _PUBLISH, _REPORT, _LEASE, _PREFETCH = range(5)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of the measured time.

    leases: how often a job began to read a piece.
    fetched, fetched_bytes: what was brought in, for a job that waited for it or ahead of one.
    waited: leases of pieces that were not there.
    evictions: pieces removed to make room.
    bypassed: leases that found no room in the cache, since all of it was held.
    """

    leases: int
    fetched: int
    fetched_bytes: int
    waited: int
    evictions: int
    bypassed: int

    @property
    def hit_ratio(self) -> float:
        """The share of leases for which nothing had to be fetched, at their time or ahead of it."""
        return 1 - self.fetched / self.leases if self.leases else 0.0


class _Event(NamedTuple):
    at: float
    kind: int
    job: int
    #: A piece, or an epoch, or a position.
    number: int


def simulate(scenario: Scenario, measured: tuple[float, float]) -> Outcome:
    """Runs it from an empty cache; what happens between two times, in seconds, is counted."""
    return _Run(scenario).outcome(measured)


class _Run:
    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._now = 0.0
        self._version = 0
        self._progress: dict[int, Progress] = {}
        self._next_use: Seconds | None = None
        self._cache = SimulatedCache(
            scenario.piece_bytes,
            scenario.capacity_bytes,
            POLICIES[scenario.eviction],
            next_use=self._uses,
            clock=lambda: self._now,
        )
        self._leases = self._waited = self._fetched = self._fetched_bytes = 0

    def outcome(self, measured: tuple[float, float]) -> Outcome:
        begin, end = measured
        before: tuple[int, ...] | None = None
        for event in self._events():
            if before is None and event.at >= begin:
                before = self._counts()
            if event.at >= end:
                break
            self._now = event.at
            self._handle(event)
        after = self._counts()
        return Outcome(*(now - then for then, now in zip(before or after, after, strict=True)))

    def _counts(self) -> tuple[int, ...]:
        cache = self._cache
        return self._leases, self._fetched, self._fetched_bytes, self._waited, cache.evictions, cache.bypassed

    def _events(self) -> Iterator[_Event]:
        scenario = self._scenario
        streams = [_of_job(number, job) for number, job in enumerate(scenario.jobs)]
        if scenario.prefetch:
            last = max(job.ends_at for job in scenario.jobs)
            ticks = np.arange(min(job.starts_at for job in scenario.jobs), last, PREFETCH_SECONDS)
            streams.append([_Event(float(at), _PREFETCH, 0, 0) for at in ticks])
        return heapq.merge(*streams)

    def _handle(self, event: _Event) -> None:
        job = self._scenario.jobs[event.job]
        if event.kind == _LEASE:
            self._leases += 1
            if not self._cache.lease(event.number, self._version):
                self._waited += 1
                self._count(event.number)
        elif event.kind == _RELEASE:
            self._cache.release(event.number)
        elif event.kind == _PREFETCH:
            self._prefetch()
        elif event.kind == _PUBLISH:
            self._publish(event.job, job, event.number)
        else:
            self._progress[event.job] = self._progress[event.job].reported(
                event.number, job.positions_per_second, self._now
            )
            self._next_use = None

    def _publish(self, number: int, job: Job, epoch: int) -> None:
        position = epoch * job.order.samples
        if epoch == job.epochs:
            del self._progress[number]
        else:
            needs = _needs(job, epoch, len(self._scenario.piece_bytes))
            self._progress[number] = Progress(needs, position, job.positions_per_second, self._now)
        self._next_use = None
        self._version += 1

    def _prefetch(self) -> None:
        wanted = self._uses().copy()
        wanted[self._cache.is_there()] = NOBODY
        soonest = np.flatnonzero(wanted < BEYOND)
        for piece in soonest[np.argsort(wanted[soonest], kind="stable")].tolist():
            if not self._cache.bring(piece, float(wanted[piece]), self._version):
                return
            self._count(piece)

    def _count(self, piece: int) -> None:
        self._fetched += 1
        self._fetched_bytes += int(self._scenario.piece_bytes[piece])

    def _uses(self) -> Seconds:
        if self._next_use is None:
            uses = next_use(len(self._scenario.piece_bytes), self._progress.values(), self._now)
            for number in self._progress:
                pieces = self._scenario.jobs[number].pieces
                uses[pieces] = np.minimum(uses[pieces], BEYOND)
            self._next_use = uses
        return self._next_use


def _of_job(number: int, job: Job) -> list[_Event]:
    found = leases(job)
    start = job.starts_at + found.start / job.positions_per_second
    stop = job.starts_at + found.stop / job.positions_per_second
    pieces = found.pieces.tolist()
    events = [_Event(at, _LEASE, number, piece) for at, piece in zip(start.tolist(), pieces, strict=True)]
    events += [_Event(at, _RELEASE, number, piece) for at, piece in zip(stop.tolist(), pieces, strict=True)]
    epochs = range(job.epochs + 1)
    events += [_Event(job.time_of(epoch * job.order.samples), _PUBLISH, number, epoch) for epoch in epochs]
    reports = np.arange(job.starts_at + REPORT_SECONDS, job.ends_at, REPORT_SECONDS)
    positions = ((reports - job.starts_at) * job.positions_per_second).astype(np.int64)
    events += [
        _Event(at, _REPORT, number, position) for at, position in zip(reports.tolist(), positions.tolist(), strict=True)
    ]
    return sorted(events)


def _needs(job: Job, epoch: int, piece_count: int) -> Needs:
    """This epoch's and the next one's."""
    samples = job.order.samples
    columns: list[list[Int64]] = [[], [], []]
    for number in (epoch, epoch + 1):
        found = job.order.needs(number, 0)
        for column, values in zip(
            columns,
            (job.pieces[found.pieces], found.first + number * samples, found.last + number * samples),
            strict=True,
        ):
            column.append(values)
    pieces, first, last = (np.concatenate(column) for column in columns)
    return Needs.build(pieces, first, last, piece_count=piece_count)
