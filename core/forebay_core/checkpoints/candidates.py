"""Which checkpoint a job goes on from (pure): what all nodes see, put together, and one choice for all ranks."""

from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass

from forebay_core.checkpoints.documents import State
from forebay_core.checkpoints.names import Attempt
from forebay_core.errors import CheckpointDamaged, CheckpointNotFound


@dataclass(frozen=True, slots=True)
class Seen:
    """An attempt as one node sees it. state: None without a decision. world_size: 0 where it is not known.

    durable_ranks: whose files are at the destination; staged_ranks: whose sealed files this node has.
    unreadable: why its decision, which is there, cannot be read: it is damaged, or a newer forebay's. Empty: it can.
    """

    attempt: Attempt
    state: State | None
    world_size: int
    durable_ranks: frozenset[int]
    staged_ranks: frozenset[int] = frozenset()
    unreadable: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An attempt that can be restored. is_committed: by its decision. is_durable: all of it is at the destination."""

    attempt: Attempt
    is_committed: bool
    is_durable: bool


@dataclass(frozen=True, slots=True)
class Picture:
    """What there is of a root, over all nodes.

    usable: newest first. unfinished: that some rank's files are missing of. refused: quarantined ones.
    unreadable: of which nobody can tell what was decided, and why, newest first.
    """

    usable: tuple[Candidate, ...] = ()
    unfinished: tuple[Attempt, ...] = ()
    refused: tuple[Attempt, ...] = ()
    unreadable: tuple[tuple[Attempt, str], ...] = ()

    def choose(self, *, step: int | None, without: Set[Attempt]) -> Candidate | None:
        """The newest, or the newest of a step; None where there is none to be had and none was asked for.

        Raises `CheckpointNotFound` for a step that there is none of, and `CheckpointDamaged` where all there are have
        been found damaged, or cannot be read: training is not begun anew without a word.
        """
        found = [each for each in self.usable if each.attempt not in without]
        if step is not None:
            found = [each for each in found if each.attempt.step == step]
            if not found:
                raise CheckpointNotFound(f"there is no checkpoint of step {step}: {self._there()}")
        if found:
            return found[0]
        if damaged := sorted({*self.refused, *without, *(attempt for attempt, _ in self.unreadable)}):
            why = f"; {self.unreadable[0][1]}" if self.unreadable else ""
            raise CheckpointDamaged(
                f"all checkpoints here are damaged ({', '.join(each.name for each in damaged[-3:])}{why}): to begin "
                f"anew all the same, give another root"
            )
        return None

    def passed_over(self, chosen: Attempt) -> list[tuple[Attempt, str]]:
        """What may be newer than the chosen one, and cannot be read."""
        return [(attempt, why) for attempt, why in self.unreadable if attempt > chosen]

    def _there(self) -> str:
        steps = sorted({each.attempt.step for each in self.usable})
        shown = ", ".join(map(str, steps[-10:]))
        return f"there are those of {shown}" if steps else "there are none"


def is_whole(world_size: int, ranks: Collection[int]) -> bool:
    """Whether these are all ranks of a world of that size; never for one whose size is not known (0)."""
    return world_size > 0 and len(ranks) == world_size and set(ranks) == set(range(world_size))


def picture(nodes: Sequence[Iterable[Seen]]) -> Picture:
    """Of what each node sees: usable are those that are committed, or undecided with every rank's files somewhere.

    Nodes look at different moments: what any of them saw decided counts.
    """
    by_attempt: dict[Attempt, list[Seen]] = {}
    for node in nodes:
        for seen in node:
            by_attempt.setdefault(seen.attempt, []).append(seen)
    usable, unfinished, refused, unreadable = [], [], [], []
    for attempt in sorted(by_attempt, reverse=True):
        sightings = by_attempt[attempt]
        states = {seen.state for seen in sightings} - {None}
        if State.QUARANTINED in states:
            refused.append(attempt)
        elif not states and (why := next((seen.unreadable for seen in sightings if seen.unreadable), "")):
            unreadable.append((attempt, why))
        elif states <= {State.COMMITTED}:
            world_size = max(seen.world_size for seen in sightings)
            durable = frozenset().union(*(seen.durable_ranks for seen in sightings))
            staged = frozenset().union(*(seen.staged_ranks for seen in sightings))
            is_committed = bool(states)
            if is_committed or is_whole(world_size, durable | staged):
                usable.append(Candidate(attempt, is_committed, is_committed or is_whole(world_size, durable)))
            else:
                unfinished.append(attempt)
    return Picture(tuple(usable), tuple(unfinished), tuple(refused), tuple(unreadable))
