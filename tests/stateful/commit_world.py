"""Nodes, trainers, cleaners and readers of one root, any step of which may fail: what the protocol must survive.

The store and the procedures of the protocol are real; uploads are modelled as the daemon does them. Every procedure is
a process that stands at one request. `advance` answers one: as asked, with an error before or after it took effect, or
with an error and the effect at some later moment. After every change of the store the world checks what holds always.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any

from forebay_core.checkpoints.candidates import Seen, picture
from forebay_core.checkpoints.claiming import claim
from forebay_core.checkpoints.collecting import Undecided, collect
from forebay_core.checkpoints.deciding import commit, durable_ranks, quarantine, read_decision
from forebay_core.checkpoints.documents import Decision, FileRecord, Generation, Item, RankManifest, State
from forebay_core.checkpoints.listing import list_checkpoints
from forebay_core.checkpoints.names import METADATA, Attempt, rank_manifest
from forebay_core.checkpoints.requests import Delete, GetMany, Procedure, Put, PutIfAbsent, Request
from forebay_core.checkpoints.retention import Retention
from forebay_core.errors import SourceUnreachable
from tests.support.model_store import ModelStore

NODES = 2
#: More than these at once only spread the steps thin.
MOST_UNDECIDED = 5
ENDED_LATER = frozenset({State.RETIRED, State.QUARANTINED})
ALLOWED = {
    None: {State.COMMITTED, State.ABANDONED, State.QUARANTINED},
    State.COMMITTED: ENDED_LATER,
    State.RETIRED: ENDED_LATER,
    State.QUARANTINED: ENDED_LATER,
    State.ABANDONED: set(),
}


class Violation(AssertionError):
    """Something that must never be was."""


class Fate(Enum):
    """What becomes of one request."""

    ANSWERED = "answered"
    FAILED = "failed, without effect"
    LOST = "had its effect, and its answer was lost"
    LATE = "failed, and has its effect later"


@dataclass(frozen=True, slots=True)
class Rules:
    """The procedures that are tried: the protocol's, or those of a mutant."""

    commit: Callable[[Attempt, int], Procedure[Decision | None]] = commit
    collect: Callable[[Retention, Undecided], Procedure[Any]] = collect
    #: Whether it is asked what is there in the end, and whether others than committers decide.
    ends_well: bool = True
    decides: bool = True


@dataclass(eq=False)
class Process:
    node: int | None
    procedure: Procedure[Any]
    request: Request
    ended: Callable[[Any], None]
    attempt: Attempt | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """An attempt as it was written: every object of it by key, and the ranks by node."""

    attempt: Attempt
    objects: dict[str, bytes]
    ranks: tuple[tuple[int, ...], ...]

    @property
    def world_size(self) -> int:
        return sum(map(len, self.ranks))

    def of_rank(self, rank: int) -> list[str]:
        """Keys in the order in which they are uploaded, the manifest last."""
        keys = [self.attempt.key(f"__{rank}_0.distcp")]
        keys += [self.attempt.key(METADATA)] if rank == 0 else []
        return [*keys, self.attempt.key(rank_manifest(rank))]


def saved(attempt: Attempt, ranks: tuple[tuple[int, ...], ...]) -> Saved:
    size = sum(map(len, ranks))
    objects: dict[str, bytes] = {}
    for rank in range(size):
        names = [f"__{rank}_0.distcp"] + ([METADATA] if rank == 0 else [])
        objects |= {attempt.key(name): b"%d" % rank for name in names}
        records = tuple(FileRecord(name, 1, (Item(0, 1, 0),)) for name in names)
        objects[attempt.key(rank_manifest(rank))] = RankManifest(attempt, rank, size, records).encode()
    return Saved(attempt, objects, ranks)


@cache
def state_in(decision: bytes) -> State:
    return Decision.decode(decision).state


@dataclass
class World:
    rules: Rules
    #: What the daemon of rank 0 applies after each commit.
    retention: Retention = field(default_factory=lambda: Retention(2))
    undecided: Undecided = field(default_factory=lambda: Undecided(1))
    store: ModelStore = field(default_factory=ModelStore)
    processes: list[Process] = field(default_factory=list)
    late: list[Request] = field(default_factory=list)
    attempts: dict[Attempt, Saved] = field(default_factory=dict)
    #: What each node has sealed and not finished.
    staged: list[set[Attempt]] = field(default_factory=lambda: [set() for _ in range(NODES)])
    #: All that belongs to them was sealed, is staged or at the destination, and a node is there that knows of them.
    safe: set[Attempt] = field(default_factory=set)
    jobs: list[Generation] = field(default_factory=list)
    tokens: int = 0
    history: defaultdict[Attempt, list[State]] = field(default_factory=lambda: defaultdict(list))
    newest: Attempt | None = None
    newest_generation: str = ""
    quarantines: int = 0

    # -- what happens ----------------------------------------------------------------------------------------------

    def begin(
        self,
        procedure: Procedure[Any],
        node: int | None = None,
        ended: Callable[[Any], None] = lambda result: None,
        attempt: Attempt | None = None,
    ) -> None:
        self._resume(Process(node, procedure, Delete(()), ended, attempt), None)

    def start_job(self) -> None:
        self.tokens += 1
        self._claim(f"token {self.tokens}")

    def claim_again(self, pick: int) -> None:
        """The trainer that did not hear the answer, or whose daemon forgot that it gave it."""
        if self.tokens:
            self._claim(f"token {pick % self.tokens + 1}")

    def save(self, pick: int, step: int, *, ranks: tuple[tuple[int, ...], ...], sealed: int) -> None:
        """A checkpoint of a running job, of which the first `sealed` nodes get to know."""
        if not self.jobs or sum(not self.history[each] for each in self.attempts) >= MOST_UNDECIDED:
            return
        generation = self.jobs[pick % len(self.jobs)].number
        attempt = Attempt(generation, step, f"{len(self.attempts):012x}")
        self.attempts[attempt] = saved(attempt, ranks)
        nodes = [node for node, held in enumerate(ranks) if held]
        for node in nodes[:sealed]:
            self.staged[node].add(attempt)
        if sealed >= len(nodes):
            self.safe.add(attempt)

    def work(self, node: int, pick: int) -> None:
        """The node's daemon takes up one of its attempts."""
        busy = {process.attempt for process in self.processes if process.node == node}
        if waiting := sorted(self.staged[node] - busy):
            self._upload(node, waiting[pick % len(waiting)])

    def crash(self, node: int) -> None:
        """The daemon is killed; what it staged is there when it comes back."""
        for process in [each for each in self.processes if each.node == node]:
            process.procedure.close()
            self.processes.remove(process)

    def lose(self, node: int) -> None:
        """The node with its disk."""
        self.crash(node)
        held = self.staged[node]
        self.staged[node] = set()
        for attempt in held:
            is_there = self._is_there(attempt, self.attempts[attempt].ranks[node])
            if not is_there or not any(attempt in others for others in self.staged):
                self.safe.discard(attempt)

    def clean(self, retention: Retention, undecided: Undecided) -> None:
        self.begin(self.rules.collect(retention, undecided))

    def decide(self, pick: int, procedure: Callable[[Attempt, str], Procedure[Decision]]) -> None:
        if self.attempts and self.rules.decides:
            attempt = sorted(self.attempts)[pick % len(self.attempts)]
            self.quarantines += procedure is quarantine
            self.begin(procedure(attempt, "asked for"))

    def restore(self) -> None:
        self.begin(self._restoring())

    def advance(self, pick: int, fate: Fate) -> None:
        """Answers the request at which one process stands."""
        if not self.processes:
            return
        process = self.processes.pop(pick % len(self.processes))
        answer = None
        if fate in {Fate.ANSWERED, Fate.LOST}:
            answer = self._take_effect(process.request)
        elif fate is Fate.LATE and isinstance(process.request, Put | PutIfAbsent | Delete):
            self.late.append(process.request)
        failure = None if fate is Fate.ANSWERED else SourceUnreachable(fate.value)
        self._resume(process, answer, failure)

    def arrive(self, pick: int) -> None:
        """A request that was taken for failed has its effect."""
        if self.late:
            self._take_effect(self.late.pop(pick % len(self.late)))

    def settle(self) -> None:
        """Everybody is alive and nothing fails any more: what has to be true in the end."""
        while self.late:
            self.arrive(0)
        self._run_out()
        for node in range(NODES):
            for attempt in sorted(self.staged[node]):
                self._upload(node, attempt)
                self._run_out()
        for node in range(NODES):  # those that waited for the other node
            for attempt in sorted(self.staged[node]):
                self._upload(node, attempt)
                self._run_out()
        if self.rules.ends_well:
            self._check_end()

    # -- what they do ----------------------------------------------------------------------------------------------

    def _claim(self, token: str) -> None:
        def claimed(mine: Generation) -> None:
            for other in self.jobs:
                if (other.number == mine.number) != (other.token == mine.token):
                    raise Violation(f"{mine} and {other}")
            if mine not in self.jobs:
                self.jobs.append(mine)

        self.begin(claim(token), ended=claimed)

    def _upload(self, node: int, attempt: Attempt) -> None:
        def ended(decision: Decision | None) -> None:
            if decision is not None:
                self.staged[node].discard(attempt)
                if 0 in self.attempts[attempt].ranks[node]:
                    self.clean(self.retention, self.undecided)

        self.begin(self._uploading(self.attempts[attempt], node), node, ended, attempt)

    def _uploading(self, saved: Saved, node: int) -> Procedure[Decision | None]:
        held = yield from read_decision(saved.attempt)
        if held is not None:
            return held
        verified = yield from durable_ranks(saved.attempt)
        for rank in sorted(set(saved.ranks[node]) - verified, reverse=True):
            for key in saved.of_rank(rank):
                if key.endswith(METADATA):
                    others = yield from durable_ranks(saved.attempt)
                    if len(others | {0}) < saved.world_size:
                        return None
                yield Put(key, saved.objects[key])
        return (yield from self.rules.commit(saved.attempt, saved.world_size))

    def _restoring(self) -> Procedure[Attempt | None]:
        """What a restore takes: the newest, read from end to end; lists again where it was retired meanwhile."""
        while True:
            found = yield from list_checkpoints(with_manifests=True)
            for each in found:
                if each.fault:
                    raise Violation(f"{each.attempt.name} is taken for damaged: {each.fault}")
            sightings = [Seen(each.attempt, each.state, each.world_size, each.durable_ranks) for each in found]
            for attempt in (each.attempt for each in picture([sightings]).usable):
                decision = yield from commit(attempt)
                if decision is None or decision.state is not State.COMMITTED:
                    break
                keys = tuple(self.attempts[attempt].objects)
                bodies = yield GetMany(keys)
                if dict(zip(keys, bodies, strict=True)) == self.attempts[attempt].objects:
                    return attempt
                decision = yield from read_decision(attempt)
                if decision is None or decision.state is State.COMMITTED:
                    raise Violation(f"a reader misses objects of {attempt.name}, which is committed")
                break
            else:
                return None

    def _resume(self, process: Process, answer: object, failure: Exception | None = None) -> None:
        try:
            if failure is None:
                process.request = process.procedure.send(answer)
            else:
                process.request = process.procedure.throw(failure)
        except StopIteration as end:
            process.ended(end.value)
        except SourceUnreachable:
            pass
        else:
            self.processes.append(process)

    def _run_out(self) -> None:
        while self.processes:
            self.advance(0, Fate.ANSWERED)

    # -- what must hold --------------------------------------------------------------------------------------------

    def _take_effect(self, request: Request) -> object:
        answer = self.store.answer(request)
        if isinstance(request, Put | PutIfAbsent | Delete):
            self._check()
        return answer

    def state_of(self, attempt: Attempt) -> State | None:
        body = self.store.objects.get(attempt.decision)
        return None if body is None else state_in(body)

    def _is_there(self, attempt: Attempt, ranks: Iterable[int]) -> bool:
        own = self.attempts[attempt]
        return all(key in self.store.objects for rank in ranks for key in own.of_rank(rank))

    def _check(self) -> None:
        for attempt, own in self.attempts.items():
            state, past = self.state_of(attempt), self.history[attempt]
            before = past[-1] if past else None
            if state is not before:
                if state is None or state not in ALLOWED[before]:
                    raise Violation(f"{attempt.name} was {before} and is {state}")
                past.append(state)
            if state is State.COMMITTED and any(self.store.objects.get(k) != v for k, v in own.objects.items()):
                raise Violation(f"{attempt.name} is committed without its objects")
        self._check_newest()

    def _check_newest(self) -> None:
        ever = sorted(attempt for attempt, states in self.history.items() if State.COMMITTED in states)
        for attempt in ever[-2:]:
            if self.state_of(attempt) is State.RETIRED and State.QUARANTINED not in self.history[attempt]:
                raise Violation(f"{attempt.name} of the newest two was retired")
        newest = max((each for each in ever if self.state_of(each) is State.COMMITTED), default=None)
        before = self.newest
        is_lower = before is not None and (newest is None or newest < before)
        if before is not None and is_lower and self.state_of(before) is not State.QUARANTINED:
            raise Violation(f"the newest was {before.name} and is {newest}")
        self.newest = newest
        generation = max((key for key in self.store.objects if key.startswith("generations/")), default="")
        if generation < self.newest_generation:
            raise Violation(f"the newest generation was {self.newest_generation} and is {generation}")
        self.newest_generation = generation

    def _check_end(self) -> None:
        for attempt in self.safe:
            if not self.history[attempt]:
                raise Violation(f"{attempt.name} is whole and was never committed")
        self.begin(self._restoring(), ended=self._check_restored)
        self._run_out()
        self._check_cleaned()

    def _check_restored(self, restored: Attempt | None) -> None:
        if restored != self.newest:
            raise Violation(f"the newest is {self.newest}, and {restored} was restored")

    def _check_cleaned(self) -> None:
        """A last cleaning leaves objects of what can be restored, and of what people may want to look at."""
        self.store.now += 1000
        self.start_job()
        self._run_out()
        self.clean(Retention(), Undecided(seconds=500))
        self._run_out()
        for attempt in self.attempts:
            is_left = any(key in self.store.objects for key in self.attempts[attempt].objects)
            if is_left and self.state_of(attempt) not in {State.COMMITTED, State.QUARANTINED}:
                raise Violation(f"objects of {attempt.name} are left, which is {self.state_of(attempt)}")
