"""The agreement on a last step: every order in which the ranks' requests may come, and torch's own store."""

import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore, TCPStore

from forebay.checkpoint.stopping import LOOK_EVERY_SECONDS, Ask, StoppingStep, agree
from forebay_core.errors import CheckpointError

PATIENCE_SECONDS = 30.0
STEPS = 300
Turn = Callable[[], bool] | None
"""What a rank waits for before it can go on, if for anything."""


@dataclass
class Job:
    """Ranks that train in turns, each turn a step or a request.

    every: a collective, to which all ranks have to come, before each so many steps. asked_every: the steps after which
    the question is asked. told: the step at which a rank gets SIGTERM. slow_to_look: for how many steps a rank misses
    that another was told.
    """

    every: int
    asked_every: int
    told: dict[int, int]
    slow_to_look: list[int]
    store: dict[str, str] = field(default_factory=dict)
    at: dict[int, int] = field(default_factory=dict)
    wanted_at: dict[int, int] = field(default_factory=dict)
    stopped: dict[int, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.slow_to_look)

    def run(self, turns: list[tuple[int, int]]) -> None:
        """Each of these ranks for so many turns, then all in a round; ends where nobody can go on."""
        ranks = {rank: self.train(rank) for rank in range(self.size)}
        waits: dict[int, Turn] = dict.fromkeys(ranks)
        for rank, number in turns:
            for _ in range(number):
                self.advance(rank % self.size, ranks, waits)
        while sum(self.advance(rank, ranks, waits) for rank in ranks):
            pass

    def advance(self, rank: int, ranks: dict[int, Generator[Turn]], waits: dict[int, Turn]) -> bool:
        wait = waits[rank]
        if rank in self.stopped or (wait is not None and not wait()):
            return False
        waits[rank] = next(ranks[rank], lambda: False)
        return True

    def train(self, rank: int) -> Generator[Turn]:
        is_new = True
        for step in range(1, STEPS):
            self.at[rank] = step
            if step % self.every == 0:
                yield self.all_have_come_to(step)
            yield None
            if step % self.asked_every or not self.knows(rank, step):
                continue
            decided = yield from self.answered(agree(rank, self.size, step, is_new=is_new))
            is_new = False
            if decided is not None and step >= decided:
                self.stopped[rank] = step
                return

    def all_have_come_to(self, step: int) -> Turn:
        return lambda: all(self.at.get(rank, 0) >= step for rank in range(self.size))

    def knows(self, rank: int, step: int) -> bool:
        if step >= self.told.get(rank, STEPS):
            self.store["wanted"] = "1"
            return True
        if "wanted" not in self.store:
            return False
        return step >= self.wanted_at.setdefault(rank, step) + self.slow_to_look[rank]

    def answered(self, procedure: Generator[Ask, Any, int | None]) -> Generator[Turn, None, int | None]:
        answer = None
        while True:
            try:
                ask = procedure.send(answer)
            except StopIteration as end:
                decided: int | None = end.value
                return decided
            yield (lambda: "stop" in self.store) if ask.method == "get" else None
            answer = self.do(*ask)

    def do(self, method: str, arguments: tuple[Any, ...]) -> Any:
        key = arguments[0]
        if method == "set":
            self.store[key] = arguments[1]
        if method == "add":
            self.store[key] = str(int(self.store.get(key, "0")) + arguments[1])
            return int(self.store[key])
        if method == "multi_get":
            return [self.store[each].encode() for each in key]
        return self.store[key].encode()


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    size = draw(st.integers(1, 5))
    told = draw(st.dictionaries(st.integers(0, size - 1), st.integers(1, 40), min_size=1))
    slow = draw(st.lists(st.integers(0, 6), min_size=size, max_size=size))
    return Job(draw(st.integers(1, 12)), draw(st.sampled_from((1, 1, 2, 5))), told, slow)


TURNS = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 8)), max_size=150)


@settings(max_examples=600, deadline=None)
@given(job=jobs(), turns=TURNS)
def test_all_ranks_stop_at_one_step_whatever_the_skew_and_however_rare_the_collectives(
    job: Job, turns: list[tuple[int, int]]
) -> None:
    job.run(turns)
    assert set(job.stopped) == set(range(job.size)), "a rank waits for one that has stopped, or never stops"
    assert len(set(job.stopped.values())) == 1


@settings(max_examples=100, deadline=None)
@given(job=jobs(), turns=TURNS)
def test_with_a_collective_each_step_and_no_delay_it_is_within_three_steps(
    job: Job, turns: list[tuple[int, int]]
) -> None:
    job.every = job.asked_every = 1
    job.slow_to_look = [0] * job.size
    job.run(turns)
    assert max(job.stopped.values()) <= min(job.told.values()) + 3


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def ranks_of(store: HashStore, size: int, clock: Clock) -> list[StoppingStep]:
    return [StoppingStep(store, rank, size, clock=clock) for rank in range(size)]


def test_torchs_store_carries_it() -> None:
    first, second = ranks_of(HashStore(), 2, clock := Clock())
    assert [rank.is_last(1, asked=False) for rank in (first, second)] == [False, False]
    assert not second.is_last(2, asked=True)
    assert not first.is_last(2, asked=False)
    assert not first.is_wanted, "it has just looked"
    clock.now += LOOK_EVERY_SECONDS
    assert not first.is_last(3, asked=False)
    assert first.is_wanted
    assert first.step == 4
    assert second.step is None
    assert [second.is_last(step, asked=True) for step in (3, 4)] == [False, True]
    assert [first.is_last(step, asked=False) for step in (4, 9)] == [True, True]


def test_a_rank_that_is_alone_stops_at_once() -> None:
    alone = StoppingStep(None, 0, 1)
    assert [alone.is_last(1, asked=False), alone.is_last(2, asked=True)] == [False, True]


def test_ranks_over_tcp_in_their_own_time_stop_at_one_step() -> None:
    server = TCPStore("127.0.0.1", 0, 3, is_master=True, wait_for_workers=False)
    stopped: dict[int, int] = {}

    def train(rank: int) -> None:
        store = TCPStore("127.0.0.1", server.port, 3, is_master=False, timeout=timedelta(seconds=PATIENCE_SECONDS))
        stopping = StoppingStep(store, rank, 3)
        step = 1
        while not stopping.is_last(step, asked=rank == 2 and step >= 30):
            step += 1
        stopped[rank] = step

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert len(stopped) == 3
    assert len(set(stopped.values())) == 1


def test_a_store_that_fails_is_told_in_one_line() -> None:
    class Gone:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("Broken\npipe")

    with pytest.raises(CheckpointError, match=r"cannot agree on a step to stop at: .* \(Broken pipe\)"):
        StoppingStep(Gone(), 0, 2).is_last(1, asked=True)
