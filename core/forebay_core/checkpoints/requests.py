"""What a procedure of the commit protocol asks of the store (pure): requests out, answers in, no I/O in between.

A procedure is a generator that yields one request after another and returns its result. Who drives it sends each answer
back in, or throws in the `ForebayError` that was left after the driver's own retries. A request that failed may have
been applied all the same, at once or later: procedures read back what holds. Dropping a procedure between any two
requests, and starting it anew, is always allowed: that is what a restart of the daemon does.

Keys are relative to the root. Reads and listings must see every write that was answered before they began.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Get:
    """Answer: the object's bytes; None where there is none."""

    key: str


@dataclass(frozen=True, slots=True)
class GetMany:
    """Answer: a tuple, per key what `Get` answers. The order in which they are read is the driver's."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Put:
    """Writes, over what is there. Answer: None."""

    key: str
    body: bytes


@dataclass(frozen=True, slots=True)
class PutIfAbsent:
    """Answer: True when it was written now; False when something is there, which may be an earlier try of this one."""

    key: str
    body: bytes


@dataclass(frozen=True, slots=True)
class List:
    """`prefix` ends with a slash. Answer: a tuple of `Listed`, of all objects however deep, in any order."""

    prefix: str


@dataclass(frozen=True, slots=True)
class Listed:
    """modified_unix_seconds: by the store's clock, of the last write of the object."""

    key: str
    size_bytes: int
    modified_unix_seconds: float


@dataclass(frozen=True, slots=True)
class Delete:
    """Answer: None. Keys that are not there are no error. Some may be gone when it fails."""

    keys: tuple[str, ...]


Request = Get | GetMany | Put | PutIfAbsent | List | Delete
Procedure = Generator[Request, Any, T]
