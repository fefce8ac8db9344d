"""How the ranks of a job agree on checkpoints: small values over gloo groups of the checkpointer's own.

There are two of them, made once, on all ranks and in the same order, because collectives of two threads must never
meet in one group (the training's, the trainer's thread at a save, and the thread that writes): `control` is used on the
trainer's thread alone, `saving` on the thread that writes. A rank that has died makes the others fail at once, one that
is stuck after the timeout. Without `torch.distributed` a process is alone and agrees with itself.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self, TypeVar, cast

import torch.distributed as dist

from forebay_core.errors import CheckpointError, ForebayError, by_name, one_line

T = TypeVar("T")


class Group:
    """All ranks of the job, for one thread. `process_group` is torch's own, None where this process is alone."""

    def __init__(self, process_group: dist.ProcessGroup | None, timeout_seconds: float) -> None:
        self.process_group = process_group
        self._timeout_seconds = timeout_seconds
        self.rank = 0 if process_group is None else dist.get_rank(process_group)
        self.world_size = 1 if process_group is None else dist.get_world_size(process_group)

    def gather(self, value: T) -> list[T]:
        """Every rank's value, on every rank, in the order of ranks. `CheckpointError` where a rank does not answer."""
        if self.process_group is None:
            return [value]
        found: list[Any] = [None] * self.world_size
        with self.failing_clearly():
            dist.all_gather_object(found, value, group=self.process_group)
        return found

    def from_first(self, value: T | None) -> T:
        """Rank 0's value, on every rank."""
        return cast("T", self.gather(value if self.rank == 0 else None)[0])

    def together(self, action: Callable[[], T]) -> list[T]:
        """Every rank's result of the action. Where it raises on one, the first one's error is raised on all."""
        error: Exception | None = None
        result: T | None = None
        try:
            result = action()
        except Exception as raised:
            error = raised
        outcomes = self.gather((None if error is None else (type(error).__name__, one_line(error)), result))
        first = next((rank for rank, (failed, _) in enumerate(outcomes) if failed), None)
        if first is None:
            return [cast("T", outcome) for _, outcome in outcomes]
        if error is not None and first == self.rank:
            raise error
        raise _of_another_rank(first, *cast("tuple[str, str]", outcomes[first][0])) from error

    def failing_clearly(self) -> AbstractContextManager[None]:
        """A block of collectives, whose failure says that a rank is gone or stuck."""
        return nullcontext() if self.process_group is None else _FailingClearly(self._timeout_seconds)

    def close(self) -> None:
        """Gives the group back. Idempotent; nothing where `torch.distributed` has ended before."""
        group, self.process_group = self.process_group, None
        if group is not None and dist.is_initialized():
            dist.destroy_process_group(group)


@dataclass(frozen=True)
class Groups:
    """The two groups of a checkpointer."""

    control: Group
    saving: Group

    @classmethod
    def make(cls, timeout_seconds: float) -> Self:
        """Called by all ranks of the default group, once each; where there is none, this process is alone."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls(Group(None, timeout_seconds), Group(None, timeout_seconds))
        timeout = timedelta(seconds=timeout_seconds)
        made = [dist.new_group(backend="gloo", timeout=timeout) for _ in range(2)]
        return cls(*(Group(group, timeout_seconds) for group in made))

    def close(self) -> None:
        self.control.close()
        self.saving.close()


class _FailingClearly(AbstractContextManager[None]):
    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, RuntimeError) and not isinstance(error, ForebayError):
            raise CheckpointError(
                f"a rank has ended, or did not answer for {self._timeout_seconds:.0f} s, while a checkpoint was agreed "
                f"on: look at the other ranks' output ({one_line(error)[:200]})"
            ) from error


def _of_another_rank(rank: int, kind: str, message: str) -> ForebayError:
    known = by_name(kind)
    text = message if known.__name__ == kind else f"{kind}: {message}"
    return (known if known.__name__ == kind else CheckpointError)(f"on rank {rank}: {text}")
