"""The JSON objects of a checkpoint (pure): each has one encoding, so that who writes it again writes the same bytes.

`decode` of each raises `CheckpointDamaged` for what is not such a document, and `CheckpointError` for a newer version.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from forebay_core.checkpoints.names import MOST_RANKS, Attempt, is_file, parse_attempt
from forebay_core.errors import CheckpointDamaged, CheckpointError

VERSION = 1
#: In the reason of an attempt that was given up because a newer one was sealed before its upload began. A trainer takes
#: that for no failure, also where it hears of it by the decision alone.
SUPERSEDED = "superseded by"


@dataclass(frozen=True, slots=True)
class Item:
    """A stretch of a file with its checksum (CRC-32C), so that who reads a part verifies that part only."""

    offset: int
    size_bytes: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file of an attempt. Its items cover it without gap or overlap."""

    name: str
    size_bytes: int
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class RankManifest:
    """What one rank wrote. At the destination: a promise that all of it is there and was verified."""

    attempt: Attempt
    rank: int
    world_size: int
    files: tuple[FileRecord, ...]
    #: For people, JSON values: `host`, `staged_seconds` (from the save until its copy was taken), ...
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def encode(self) -> bytes:
        files = [
            {
                "name": file.name,
                "bytes": file.size_bytes,
                "items": [[i.offset, i.size_bytes, i.crc32c] for i in file.items],
            }
            for file in self.files
        ]
        return _encoded(
            attempt=self.attempt.name,
            rank=self.rank,
            world_size=self.world_size,
            files=files,
            notes=dict(self.notes),
        )

    @classmethod
    def decode(cls, content: bytes) -> Self:
        with _reading("a rank's manifest"):
            found = _decoded(content)
            world_size, rank = _whole(found["world_size"]), _whole(found["rank"])
            if not 0 <= rank < world_size <= MOST_RANKS:
                raise ValueError(f"rank {rank} of {world_size}")
            files = tuple(_file(record) for record in found["files"])
            if len({file.name for file in files}) < len(files):
                raise ValueError("a file is named twice")
            return cls(_attempt(found["attempt"]), rank, world_size, files, dict(found["notes"]))


class State(StrEnum):
    """What was decided on an attempt. Put-if-absent decides between the first two; `committed` alone may change."""

    COMMITTED = "committed"
    ABANDONED = "abandoned"
    RETIRED = "retired"
    """Was committed; its objects are being deleted, or are."""
    QUARANTINED = "quarantined"
    """Was committed, or looked whole, and a reader found it damaged."""


#: What became durable, whatever has become of it since: who hears late of a commit may find it retired.
WERE_COMMITTED = frozenset({State.COMMITTED, State.RETIRED})


@dataclass(frozen=True, slots=True)
class Decision:
    """The one decision on an attempt. Its bytes are a function of attempt, state and manifests alone.

    manifests: of `committed`, what `digest_of` gives for the ranks' manifests; empty for an abandoned one.
    """

    attempt: Attempt
    state: State
    world_size: int = 0
    manifests: str = ""
    reason: str = ""

    def encode(self) -> bytes:
        return _encoded(
            attempt=self.attempt.name,
            state=self.state.value,
            world_size=self.world_size,
            manifests=self.manifests,
            reason=self.reason,
        )

    @classmethod
    def decode(cls, content: bytes) -> Self:
        with _reading("a decision"):
            found = _decoded(content)
            world_size = _whole(found["world_size"])
            if world_size > MOST_RANKS or (world_size == 0 and found["state"] == State.COMMITTED):
                raise ValueError(f"{found['state']!r} with a world size of {world_size}")
            return cls(
                _attempt(found["attempt"]),
                State(found["state"]),
                world_size,
                str(found["manifests"]),
                str(found["reason"]),
            )


def digest_of(manifests: Sequence[bytes]) -> str:
    """Of the manifests of all ranks, as they lie at the destination, in the order of ranks: `sha256:` + hexadecimal."""
    return "sha256:" + hashlib.sha256(b"\n".join(hashlib.sha256(each).digest() for each in manifests)).hexdigest()


@dataclass(frozen=True, slots=True)
class Generation:
    """One start of a job.

    parent: the attempt it went on from; None at the beginning.
    token: drawn by the claimant, so that it knows its own claim again.
    """

    number: int
    token: str
    parent: Attempt | None = None
    #: JSON values: `position` of the loader, `digest`, `world_size`, `host`, `began` (UTC, ISO 8601), ...
    notes: Mapping[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        parent = None if self.parent is None else self.parent.name
        return _encoded(number=self.number, token=self.token, parent=parent, notes=dict(self.notes))

    @classmethod
    def decode(cls, content: bytes) -> Self:
        with _reading("a generation"):
            found = _decoded(content)
            parent = None if found["parent"] is None else _attempt(found["parent"])
            return cls(_whole(found["number"]), str(found["token"]), parent, dict(found["notes"]))


class _reading:
    """Turns what reading a document of others raises into `CheckpointDamaged`."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, CheckpointError):
            raise error
        if isinstance(error, (ValueError, KeyError, TypeError, AttributeError, RecursionError)):
            raise CheckpointDamaged(f"not {self._what} of a checkpoint ({type(error).__name__}: {error})") from error


def _encoded(**values: Any) -> bytes:
    return json.dumps({"version": VERSION, **values}, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _decoded(content: bytes) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(content)
    if found["version"] != VERSION:
        raise CheckpointError(
            f"the checkpoint's documents have version {found['version']!r}, this forebay reads version {VERSION}: "
            f"use the forebay that wrote it, or a newer one"
        )
    return found


def _file(record: Mapping[str, Any]) -> FileRecord:
    name, length = str(record["name"]), _whole(record["bytes"])
    items = tuple(Item(*(_whole(value) for value in item)) for item in record["items"])
    end = 0
    for item in items:
        if item.offset != end or item.crc32c >= 1 << 32:
            raise ValueError(f"the items of {name!r} do not cover it")
        end += item.size_bytes
    if end != length or not is_file(name):
        raise ValueError(f"{name!r} of {length} bytes with items of {end}")
    return FileRecord(name, length, items)


def _attempt(name: Any) -> Attempt:
    found = parse_attempt(str(name))
    if found is None or found.name != name:
        raise ValueError(f"{name!r} is no attempt")
    return found


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"{value!r} is no whole number, or out of reach")
    return value
