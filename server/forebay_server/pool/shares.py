"""How much each cache directory may hold, where several may lie on one file system.

A directory without a capacity of its own takes the general one. A share of the disk is then divided among those on one
file system: 80 % of it for three directories is 80 % together. What is stated is taken at its word, but not more than
the file system has, for one directory or for several on it. Pure; called once at start.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from forebay_core.capacity import Capacity
from forebay_core.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Claim:
    """A cache directory, and the file system that it lies on."""

    path: Path
    #: Its own capacity, if it has one.
    own: Capacity | None
    #: Tells file systems apart (`st_dev`).
    device: int
    #: Of the whole file system.
    size_bytes: int


def capacities(claims: Sequence[Claim], general: Capacity) -> list[int]:
    """In bytes, for each directory. Raises `ConfigurationError` where those on one file system add up to more than it
    has."""
    found = [_capacity(claim, claims, general) for claim in claims]
    for claim in claims:
        together = {
            str(other.path): size for other, size in zip(claims, found, strict=True) if other.device == claim.device
        }
        if sum(together.values()) > claim.size_bytes:
            raise ConfigurationError(_too_much(together, claim.size_bytes))
    return found


def _too_much(together: Mapping[str, int], size_bytes: int) -> str:
    paths, wanted = ", ".join(together), sum(together.values())
    if len(together) == 1:
        return (
            f"the cache directory {paths} lies on a file system of {size_bytes} bytes and would hold {wanted}: give it"
            " a smaller capacity (--capacity, FOREBAY_CAPACITY, or --cache-dir PATH:SIZE)"
        )
    return (
        f"the cache directories {paths} lie on one file system of {size_bytes} bytes and would hold {wanted} together:"
        " give each a smaller capacity (--cache-dir PATH:SIZE)"
    )


def _capacity(claim: Claim, claims: Sequence[Claim], general: Capacity) -> int:
    if claim.own is not None:
        return claim.own.of(claim.size_bytes)
    capacity = general.of(claim.size_bytes)
    if general.bytes is not None:
        return capacity
    return capacity // sum(other.own is None and other.device == claim.device for other in claims)
