"""Sizes as people write them: how much a cache directory may hold, `PATH[:CAPACITY]`, and lists of these. Pure."""

import re
from dataclasses import dataclass
from pathlib import Path

from forebay_core.errors import ConfigurationError

_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_UNITS |= {f"{unit}iB": factor for unit, factor in list(_UNITS.items()) if unit not in {"", "B"}}
_UNITS |= {f"{unit}B": 1000**power for power, unit in enumerate("KMGTP", start=1)}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much a cache directory may hold: bytes, or a share of its file system's size."""

    bytes: int | None = None
    share: float | None = None

    @classmethod
    def parse(cls, text: str) -> "Capacity":
        """Reads `1073741824`, `10GiB`, `10GB` or `80%`. Raises `ConfigurationError`."""
        if match := _SHARE.fullmatch(text.strip()):
            share = float(match[1]) / 100
            if 0 < share <= 1:
                return cls(share=share)
        elif (match := _SIZE.fullmatch(text.strip())) and match[2] in _UNITS:
            size = int(float(match[1]) * _UNITS[match[2]])
            if size > 0:
                return cls(bytes=size)
        raise ConfigurationError(
            f"capacity {text!r} is not a size; give bytes, 10GiB or 80% (--capacity, FOREBAY_CAPACITY)"
        )

    def of(self, filesystem_bytes: int) -> int:
        """The bytes that it comes to on a file system of that size."""
        if self.bytes is not None:
            return self.bytes
        return int((self.share or 0.0) * filesystem_bytes)


@dataclass(frozen=True, slots=True)
class CacheDirectory:
    """A directory that holds pieces, and its own capacity where it has one."""

    path: Path
    capacity: Capacity | None = None

    @classmethod
    def parse(cls, text: str) -> "CacheDirectory":
        """Reads `PATH` or `PATH:CAPACITY`. Raises `ConfigurationError`."""
        path, capacity = split_capacity(text)
        if not path.strip() or _is_bare_capacity(path):
            raise ConfigurationError(f"{text!r} names no directory: give PATH, or PATH:CAPACITY such as /nvme:2TiB")
        return cls(Path(path), None if capacity is None else Capacity.parse(capacity))


def split_capacity(text: str) -> tuple[str, str | None]:
    """`PATH[:CAPACITY]` in its two parts, as they are written. A colon that no capacity follows belongs to the path."""
    path, colon, capacity = text.rpartition(":")
    if colon and path and (_SIZE.fullmatch(capacity) or _SHARE.fullmatch(capacity)):
        return path, capacity
    return text, None


def _is_bare_capacity(path: str) -> bool:
    """Whether it is a capacity behind a colon, before which the path is missing, as where a variable was not set."""
    return path.startswith(":") and bool(_SIZE.fullmatch(path[1:]) or _SHARE.fullmatch(path[1:]))


def listed_directories(text: str) -> list[str]:
    """The directories of a comma-separated list, as `FOREBAY_CACHE_DIR` holds them, each `PATH[:CAPACITY]`."""
    return [item.strip() for item in text.split(",") if item.strip()]
