"""An exception of the user's code on its way from a worker process to the trainer.

It arrives as it was, class, arguments, attributes and notes, with the worker's traceback as its cause, where it can be
pickled and made again: the worker has tried both. What cannot is raised as torch raises it: its class, where that
takes one text, else a `RuntimeError`, with the traceback in the message. The invariant: what crosses is text and bytes,
so that no exception, whatever its own code does, keeps a message from being read. Made on the worker's thread, raised
on the trainer's.
"""

import pickle
import threading
import traceback
from dataclasses import dataclass
from typing import Any, NoReturn

from torch._utils import ExceptionWrapper

TRIAL_SECONDS = 5.0
"""How long an exception may take to be pickled and made again."""
_PLAIN = (str, bytes, int, float, bool, type(None))


class WorkerTraceback(Exception):
    """The cause of an exception that a worker process raised: where, and its traceback there."""


@dataclass(frozen=True)
class Raised:
    """Both ways to raise it, pickled; None where there is none."""

    name: str
    where: str
    traceback: str
    itself: bytes | None
    as_torch: bytes | None

    @classmethod
    def of(cls, error: Exception, where: str, *, trial_seconds: float = TRIAL_SECONDS) -> "Raised":
        """What crosses processes of an error that is being handled."""
        text = "".join(traceback.format_exception(error))
        wrapper = ExceptionWrapper((type(error), error, error.__traceback__), where)  # type: ignore[no-untyped-call]
        return cls(type(error).__name__, where, text, _tried(error, trial_seconds), _pickled(wrapper))

    def reraise(self) -> NoReturn:
        """Raises the exception."""
        error = _again(self.itself)
        if isinstance(error, BaseException):
            raise error from WorkerTraceback(f"{self.where}:\n{self.traceback}")
        wrapper = _again(self.as_torch)
        if wrapper is not None:
            wrapper.reraise()
        raise RuntimeError(f"Caught {self.name} {self.where}.\nOriginal {self.traceback}")


def _tried(error: Exception, seconds: float) -> bytes | None:
    """The exception, if it comes out as it went in. On a thread of its own: its own code may take for ever."""
    found: list[bytes] = []

    def work() -> None:
        pickled = _pickled(error)
        if pickled is not None and _is_same(_again(pickled), error):
            found.append(pickled)

    thread = threading.Thread(target=work, name="forebay-raised", daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else None


def _pickled(value: Any) -> bytes | None:
    try:
        return pickle.dumps(value)
    except Exception:
        return None


def _again(pickled: bytes | None) -> Any:
    try:
        return None if pickled is None else pickle.loads(pickled)  # noqa: S301 - from a process of our own
    except Exception:
        return None


def _is_same(made: Any, error: Exception) -> bool:
    """Whether it has the class, the notes and the arguments: some classes take others than they hand on."""
    try:
        return (
            type(made) is type(error)
            and getattr(made, "__notes__", []) == getattr(error, "__notes__", [])
            and len(made.args) == len(error.args)
            and all(_is_like(one, other) for one, other in zip(made.args, error.args, strict=True))
        )
    except Exception:
        return False


def _is_like(one: Any, other: Any) -> bool:
    return type(one) is type(other) and (not isinstance(one, _PLAIN) or repr(one) == repr(other))
