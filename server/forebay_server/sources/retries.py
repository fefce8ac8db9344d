"""Attempts at one request, with the waits between them.

The stores make single requests (max_retries=0 in obstore): so every request is counted, and a wait is ours to bound.
Each attempt takes its turn at the store's gate. A store that throttles is not given up while it still answers others,
and an attempt that was throttled counts for nothing but the time that it took: the pause at the gate is the wait.
Called on the event loop.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState
from tenacity.wait import wait_random_exponential

from forebay_core.errors import ConfigurationError
from forebay_server.sources.failures import STORE_FAILURES, classify, is_odd, is_transient, shown, throttle_of
from forebay_server.sources.gate import Gate
from forebay_server.sources.remote import NOW, Caller, RemoteStore

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a request is made, and how long it is worth a further attempt."""

    attempts: int
    #: No further attempt is begun this long after the first.
    give_up_seconds: float
    #: Waits are drawn from [0, first · 2ⁿ]: many readers of one store must not come back together.
    first_wait_seconds: float = 0.2
    longest_wait_seconds: float = 10.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or min(self.give_up_seconds, self.first_wait_seconds, self.longest_wait_seconds) <= 0:
            raise ConfigurationError(f"a retry policy needs at least one attempt and positive times, not {self}")


#: While someone waits to learn whether a source exists at all: a wrong endpoint must be said in seconds.
OPENING = RetryPolicy(attempts=4, give_up_seconds=3.0)
#: While a known source is read: a store that throttles or restarts is ridden out.
READING = RetryPolicy(attempts=8, give_up_seconds=120.0)


#: An answer that is not S3's may come of a proxy once; after so many it is what the endpoint gives.
_ODD_ATTEMPTS = 3


async def attempt(
    store: RemoteStore, url: str, policy: RetryPolicy, request: Callable[[], Awaitable[T]], caller: Caller = NOW
) -> T:
    """The request's result after as many attempts as the policy allows; its last failure as a `ForebayError`."""

    async def once() -> T:
        async with store.gate.turn(caller):
            return await request()

    return await persist(store, url, policy, once)


async def persist(store: RemoteStore, url: str, policy: RetryPolicy, once: Callable[[], Awaitable[T]]) -> T:
    """As `attempt`, for what takes its turns at the gate, one or several, by itself."""

    def retrying(state: RetryCallState) -> None:
        store.counters.retries += 1
        _log.info("attempt %d at %s failed: %s", state.attempt_number, shown(url), _first_line(_failure(state)))

    patience = Patience(policy, store.gate)
    attempts = AsyncRetrying(
        stop=patience.is_over,
        wait=patience.wait,
        retry=_is_worth_another,
        before_sleep=retrying,
        reraise=True,
    )
    try:
        return await attempts(once)
    except STORE_FAILURES as error:
        typed = classify(error, url=url, endpoint=store.endpoint, who=store.who)
        if typed is error:
            raise
        raise typed from error


def _is_worth_another(state: RetryCallState) -> bool:
    error = state.outcome.exception() if state.outcome else None
    if error is None:
        return False
    return is_transient(error) or (is_odd(error) and state.attempt_number < _ODD_ATTEMPTS)


class Patience:
    """When one request is given up, and how long is waited before its next attempt."""

    def __init__(self, policy: RetryPolicy, gate: Gate) -> None:
        self._policy = policy
        self._gate = gate
        self._began = gate.clock()
        self._failures = 0
        self._backing_off = wait_random_exponential(
            multiplier=policy.first_wait_seconds, max=policy.longest_wait_seconds
        )

    def is_over(self, state: RetryCallState) -> bool:
        """Asked once after each attempt that failed."""
        since = self._began
        if throttle_of(_failure(state)):
            since = max(since, self._gate.pace.succeeded_at)
        else:
            self._failures += 1
        return self._failures >= self._policy.attempts or self._gate.clock() - since >= self._policy.give_up_seconds

    def wait(self, state: RetryCallState) -> float:
        """In seconds."""
        return 0.0 if throttle_of(_failure(state)) else self._backing_off(state)


def _failure(state: RetryCallState) -> BaseException:
    error = state.outcome.exception() if state.outcome else None
    assert error is not None, "asked after an attempt that failed"
    return error


def _first_line(error: BaseException) -> str:
    return shown(str(error).partition("\n")[0])
