"""What of the machine's memory the daemon takes for itself. Pure; how much there is, `forebay_core.machine` says."""

from dataclasses import dataclass

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Budgets:
    """What the daemon allows itself, in bytes of memory."""

    #: For bytes of objects on their way: asked for, and not handed on yet.
    flight_bytes: int
    #: For pieces that are decoded in memory.
    decode_bytes: int


def budgets(memory_bytes: int) -> Budgets:
    """A small part of the memory: it belongs to the trainers. At least four parts of 8 MiB in flight and one large
    piece decoded; 256 MiB in flight fill 20 Gbit/s at 100 ms, more would not make anything faster."""
    return Budgets(
        flight_bytes=min(max(memory_bytes // 32, 32 * _MIB), 256 * _MIB),
        decode_bytes=min(max(memory_bytes // 8, 128 * _MIB), 1024 * _MIB),
    )
