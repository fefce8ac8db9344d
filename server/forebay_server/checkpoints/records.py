"""What the daemon writes down of an attempt in its staging area, so that a successor goes on from there (pure).

`begun.json`: a directory was given out, and room is kept for it. `seal.json`: all ranks of this node have written all
of their files, and the daemon is responsible; it is replaced as the upload gets on. Both lie where trainers cannot
write.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from forebay_core.checkpoints.names import Attempt, parse_attempt


@dataclass(frozen=True, slots=True)
class Begun:
    """An attempt that ranks of this node are writing."""

    root: str
    attempt: Attempt
    ranks: tuple[int, ...]
    world_size: int
    #: What they said that they will write.
    size_bytes: int
    since_unix_seconds: float

    def encode(self) -> bytes:
        return _encoded(self)

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """Raises `ValueError` for anything else."""
        found = _decoded(content)
        try:
            return cls(
                root=str(found["root"]),
                attempt=_attempt(found["attempt"]),
                ranks=tuple(int(rank) for rank in found["ranks"]),
                world_size=int(found["world_size"]),
                size_bytes=int(found["size_bytes"]),
                since_unix_seconds=float(found["since_unix_seconds"]),
            )
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"no record of an attempt: {error!r}") from error


@dataclass(frozen=True, slots=True)
class Seal:
    """An attempt that this daemon sees to.

    keep_last, keep_every_steps: the retention to apply after the commit; None: none.
    boot: of the machine, when it was sealed: what was not synced before another boot must be verified.
    """

    root: str
    attempt: Attempt
    ranks: tuple[int, ...]
    world_size: int
    size_bytes: int
    since_unix_seconds: float
    boot: str
    keep_last: int | None = None
    keep_every_steps: int | None = None
    is_synced: bool = False
    is_durable: bool = False

    def encode(self) -> bytes:
        return _encoded(self)

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """Raises `ValueError` for anything else."""
        found = _decoded(content)
        try:
            return cls(
                root=str(found["root"]),
                attempt=_attempt(found["attempt"]),
                ranks=tuple(int(rank) for rank in found["ranks"]),
                world_size=int(found["world_size"]),
                size_bytes=int(found["size_bytes"]),
                since_unix_seconds=float(found["since_unix_seconds"]),
                boot=str(found["boot"]),
                keep_last=_number(found["keep_last"]),
                keep_every_steps=_number(found["keep_every_steps"]),
                is_synced=bool(found["is_synced"]),
                is_durable=bool(found["is_durable"]),
            )
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"no record of a sealed attempt: {error!r}") from error


def _encoded(record: Begun | Seal) -> bytes:
    return json.dumps(asdict(record) | {"attempt": record.attempt.name}, sort_keys=True).encode()


def _decoded(content: bytes) -> Mapping[str, Any]:
    found = json.loads(content)
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found


def _attempt(name: Any) -> Attempt:
    found = parse_attempt(str(name))
    if found is None:
        raise ValueError(f"{name!r} is no attempt")
    return found


def _number(value: Any) -> int | None:
    return None if value is None else int(value)
