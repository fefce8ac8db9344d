"""How ranks agree on the step at which they all stop, over a store that they share, while they train on.

No rank may be past that step when it learns of it, and none may wait for another meanwhile: that one may be in a
collective which needs the first. So before each step a rank that knows of the wish notes in the store how far it is,
and goes on. The first that finds all ranks' notes there decides: one step after the furthest. Whoever went on had its
note there before the decision (it saw that a note was missing, and the decision is made when none is), so it is not
past it; whoever finds all notes there waits for the decision, which is a moment away. Any skew between ranks is right,
any number of collectives a step, and each rank makes a few requests a step.

`agree` is that protocol without I/O; `StoppingStep` drives it over torch's stores. On the trainer's thread alone.
"""

import time
from collections.abc import Callable, Generator
from datetime import timedelta
from itertools import count
from typing import Any, Literal, NamedTuple, Protocol

from forebay_core.errors import CheckpointError, one_line

LOOK_EVERY_SECONDS = 0.2
"""How often a rank that was not told asks whether another was: a request takes a tenth of a millisecond or so."""
DECISION_SECONDS = 10.0
"""How long the one that decides may take between its two requests."""
_made = count()


class Ask(NamedTuple):
    """A call of a store's method."""

    method: Literal["set", "add", "get", "multi_get", "check"]
    arguments: tuple[Any, ...]


Procedure = Generator[Ask, Any, int | None]


class Store(Protocol):
    """What is used of `torch.distributed.Store`. Calls are atomic, and seen by all ranks in one order."""

    def set(self, key: str, value: str, /) -> Any: ...
    def add(self, key: str, amount: int, /) -> int: ...
    def get(self, key: str, /) -> bytes: ...
    def multi_get(self, keys: list[str], /) -> list[bytes]: ...
    def check(self, keys: list[str], /) -> bool: ...
    def wait(self, keys: list[str], timeout: timedelta, /) -> Any: ...


def agree(rank: int, world_size: int, step: int, *, is_new: bool) -> Procedure:
    """A rank that knows of the wish to stop is about to end `step`: gives the step at which all stop, once decided.

    is_new: it has not noted any step yet. Its `get` waits for the key.
    """
    yield Ask("set", (f"at/{rank}", str(step)))
    noted = yield Ask("add", ("noted", int(is_new)))
    if noted < world_size:
        return None
    if (yield Ask("add", ("deciding", 1))) == 1:
        steps = yield Ask("multi_get", ([f"at/{each}" for each in range(world_size)],))
        yield Ask("set", ("stop", str(1 + max(map(int, steps)))))
    return int((yield Ask("get", ("stop",))))


class StoppingStep:
    """One wish to stop, of all ranks that share `store`, under keys that nobody else uses."""

    def __init__(
        self, store: Store | None, rank: int, world_size: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`store` may be None for a rank that is alone."""
        self._store, self._rank, self._world_size, self._clock = store, rank, world_size, clock
        self._looked_at = -LOOK_EVERY_SECONDS
        self._has_noted = False
        self.is_wanted = False
        """Whether it is known here that some rank was told to stop."""
        self.step: int | None = None
        """At which step all stop; None until it is decided."""

    def is_last(self, step: int, *, asked: bool) -> bool:
        """Whether `step`, of steps that all ranks call this with, is the one to stop after.

        asked: this rank was told to stop. Raises `CheckpointError` where the other ranks' store fails.
        """
        if self.step is None:
            self.is_wanted = self.is_wanted or self._learns(asked)
            if not self.is_wanted:
                return False
            self.step = self._decision(step)
        return self.step is not None and step >= self.step

    def _learns(self, asked: bool) -> bool:
        if asked:
            self._do(Ask("set", ("wanted", "1")))
            return True
        if self._store is None or self._clock() - self._looked_at < LOOK_EVERY_SECONDS:
            return False
        self._looked_at = self._clock()
        return bool(self._do(Ask("check", (["wanted"],))))

    def _decision(self, step: int) -> int | None:
        if self._store is None:
            return step
        procedure = agree(self._rank, self._world_size, step, is_new=not self._has_noted)
        self._has_noted = True
        answer: Any = None
        while True:
            try:
                answer = self._do(procedure.send(answer))
            except StopIteration as end:
                decided: int | None = end.value
                return decided

    def _do(self, ask: Ask) -> Any:
        store = self._store
        if store is None:
            return None
        try:
            if ask.method == "get":
                store.wait([*ask.arguments], timedelta(seconds=DECISION_SECONDS))
            return getattr(store, ask.method)(*ask.arguments)
        except RuntimeError as error:
            raise CheckpointError(
                f"the ranks cannot agree on a step to stop at: their store does not answer ({one_line(error)})"
            ) from error


def of_job() -> StoppingStep:
    """For the ranks of torch's default group, or for this process alone. Made on all ranks in the same order."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore

    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return StoppingStep(None, 0, 1)
    store = PrefixStore(f"forebay/stopping/{next(_made)}/", dist.distributed_c10d._get_default_store())
    return StoppingStep(store, dist.get_rank(), dist.get_world_size())
