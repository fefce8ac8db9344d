"""How much one client, and all together, may ask of a daemon that serves many: more is refused, and harms nobody.

Each limit lies far above what loaders need, and bounds the memory and the time on the event loop that a broken or
hostile client can take. The checks are pure; the service makes them before it does the work.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from forebay_core.errors import CapacityError, ConfigurationError
from forebay_server.sources.failures import shown

#: For `grpc.aio.server`.
CALLS_AT_ONCE = 4096
SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.max_concurrent_streams", 256),
    ("grpc.max_allowed_incoming_connections", 8192),
    # Who connects and does not speak HTTP/2 is cut off.
    ("grpc.server_handshake_timeout_ms", 10_000),
)
_LABEL_CHARACTERS = 300


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one daemon."""

    sessions: int = 4096
    urls: int = 100_000
    columns: int = 10_000
    #: Of one Acquire or Release; an answer of more would exceed the 4 MiB that gRPC's clients take.
    pieces: int = 16_384
    #: Of one session, and of all: some 64 bytes each. A dataset of a million pieces, for two epochs, has two million.
    needs: int = 4_000_000
    needs_of_all: int = 16_000_000
    #: Characters of what is written at a checkpoint's root for people, and of its URL.
    root: int = 4096
    notes: int = 1 << 20
    token: int = 1000
    reason: int = 4000
    #: Between two messages of a stream.
    stream_stall_seconds: float = 30.0

    def check(self, what: str, given: Sized, most: int) -> None:
        """Raises `ConfigurationError` where a call names too many."""
        if len(given) > most:
            raise ConfigurationError(f"a call may name {most} {what} at most, not {len(given)}: split it")

    def check_sessions(self, sessions: Sized) -> None:
        """Raises `CapacityError` where no further session may be opened."""
        if len(sessions) >= self.sessions:
            raise CapacityError(f"{len(sessions)} sessions are open, which is the limit: close some, or let them lapse")


DEFAULT_LIMITS = Limits()


class ArrivingNeeds:
    """Counts the needs that streams are bringing, which nobody has looked at yet."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._arriving = 0

    @contextmanager
    def stream(self, held: Callable[[], int]) -> Iterator[Callable[[int], None]]:
        """For one stream: gives what takes in the number of needs of each message. `held` counts those of all sessions.

        What it gives raises `ConfigurationError` or `CapacityError` before there are too many.
        """
        taken = 0

        def take(more: int) -> None:
            nonlocal taken
            if taken + more > self._limits.needs:
                raise ConfigurationError(
                    f"a session may publish {self._limits.needs} needs at most: give larger pieces (piece_bytes=)"
                )
            if self._arriving + more + held() > self._limits.needs_of_all:
                raise CapacityError(
                    f"the sessions of this daemon may have {self._limits.needs_of_all} needs in all: close some"
                )
            taken += more
            self._arriving += more

        try:
            yield take
        finally:
            self._arriving -= taken


async def unstalled(requests: AsyncIterator[T], stall_seconds: float) -> AsyncIterator[T]:
    """The requests of a stream as they come. Raises `ConfigurationError` where none comes for so long."""
    iterator = aiter(requests)
    while True:
        try:
            async with asyncio.timeout(stall_seconds):
                request = await anext(iterator)
        except TimeoutError:
            raise ConfigurationError(f"the stream said nothing for {stall_seconds:g} s: send it in one go") from None
        except StopAsyncIteration:
            return
        yield request


def label(text: str) -> str:
    """A client's name for itself as people may be shown it: short, without control characters."""
    plain = shown(text[: _LABEL_CHARACTERS + 1])
    return plain if len(plain) <= _LABEL_CHARACTERS else f"{plain[:_LABEL_CHARACTERS]}…"
