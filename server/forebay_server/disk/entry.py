"""What is known of a whole piece on a disk, and of what it was made from. Pure values."""

import os
import stat
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Origin:
    """What a piece was made from, for people and for checks; kept in its sidecar. URLs as they are spelt."""

    #: The root of the dataset for which it was fetched first.
    dataset: str
    #: The object.
    url: str
    version: str
    rows: int
    columns: tuple[str, ...]
    layout: str
    #: The piece's number in the dataset that it was filled for.
    piece: int = 0
    #: The version that the manifest names, where the object was read at another one (--allow-changed); else empty.
    instead_of: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """A whole piece on a disk. `size` in bytes, `blocks` what it takes on the disk in bytes, sidecar included."""

    key: str
    size: int
    blocks: int
    inode: int
    crc32c: int
    #: True once its bytes are known to have reached the disk.
    synced: bool
    #: Of the machine, in which they were written or were last seen to be right.
    boot: str
    #: When the data file was last written to.
    modified_ns: int
    #: The root of the dataset for which it was fetched first; empty where its sidecar does not say.
    dataset: str = ""
    #: True where the bytes are of another version than the piece's key says.
    is_changed: bool = False

    def is_of(self, found: os.stat_result) -> bool:
        """Whether that is the piece's data file, and nobody has written to it since."""
        identity = (found.st_ino, found.st_size, found.st_mtime_ns)
        return stat.S_ISREG(found.st_mode) and identity == (self.inode, self.size, self.modified_ns)

    @classmethod
    def from_json(cls, value: Any) -> "Entry | None":
        """An entry from what `to_json` made of it; None where the value is anything else."""
        if not isinstance(value, dict) or value.keys() != _KINDS.keys():
            return None
        if [type(value[name]) for name in _KINDS] != _KIND_LIST:
            return None
        value |= {name: sys.intern(value[name]) for name in ("boot", "dataset")}  # a few, of very many pieces
        return cls(**value)

    def to_json(self) -> dict[str, Any]:
        """Its fields."""
        return {name: getattr(self, name) for name in _KINDS}


_KINDS: dict[str, type] = {
    **dict.fromkeys(("key", "boot", "dataset"), str),
    **dict.fromkeys(("size", "blocks", "inode", "crc32c", "modified_ns"), int),
    **dict.fromkeys(("synced", "is_changed"), bool),
}
_KIND_LIST = list(_KINDS.values())
