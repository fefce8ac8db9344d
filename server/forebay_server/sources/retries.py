"""Attempts at one request, with the waits between them.

The stores make single requests (max_retries=0 in obstore): so every request is counted, and a wait is ours to bound.
Called on the event loop.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, stop_after_delay
from tenacity.wait import wait_random_exponential

from forebay_core.errors import ConfigurationError
from forebay_server.sources.failures import STORE_FAILURES, classify, is_transient, shown
from forebay_server.sources.remote import RemoteStore

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a request is made, and how long it is worth a further attempt."""

    attempts: int
    #: No further attempt is begun this long after the first.
    give_up_seconds: float
    #: Waits are drawn from [0, first · 2ⁿ]: many readers of one throttled store must not come back together.
    first_wait_seconds: float = 0.2
    longest_wait_seconds: float = 10.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or min(self.give_up_seconds, self.first_wait_seconds, self.longest_wait_seconds) <= 0:
            raise ConfigurationError(f"a retry policy needs at least one attempt and positive times, not {self}")


#: While someone waits to learn whether a source exists at all: a wrong endpoint must be said in seconds.
OPENING = RetryPolicy(attempts=4, give_up_seconds=3.0)
#: While a known source is read: a store that throttles or restarts is ridden out.
READING = RetryPolicy(attempts=8, give_up_seconds=120.0)


async def attempt(store: RemoteStore, url: str, policy: RetryPolicy, request: Callable[[], Awaitable[T]]) -> T:
    """The request's result after as many attempts as the policy allows; its last failure as a `ForebayError`."""

    async def once() -> T:
        return await request()

    def retrying(state: RetryCallState) -> None:
        store.counters.retries += 1
        error = state.outcome.exception() if state.outcome else None
        _log.info("attempt %d at %s failed: %s", state.attempt_number, shown(url), _first_line(error))

    attempts = AsyncRetrying(
        stop=stop_after_attempt(policy.attempts) | stop_after_delay(policy.give_up_seconds),
        wait=wait_random_exponential(multiplier=policy.first_wait_seconds, max=policy.longest_wait_seconds),
        retry=retry_if_exception(is_transient),
        before_sleep=retrying,
        reraise=True,
    )
    try:
        return await attempts(once)
    except STORE_FAILURES as error:
        typed = classify(error, url=url, endpoint=store.endpoint)
        if typed is error:
            raise
        raise typed from error


def _first_line(error: BaseException | None) -> str:
    return shown(str(error).partition("\n")[0])
