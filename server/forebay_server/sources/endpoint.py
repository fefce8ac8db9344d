"""What an S3 service answers to a HEAD of the bucket without credentials: that it is there, its clock, the region.

obstore shows neither headers nor the time of a connection, so this one request is made by aiohttp, with the same proxy
settings: for a diagnosis, and to name the region of a bucket that is elsewhere. Any status is an answer. Runs on the
event loop.
"""

import time
from datetime import UTC
from email.utils import parsedate_to_datetime

import aiohttp

from forebay_core.diagnosis import EndpointFacts
from forebay_server.sources.credentials import is_on
from forebay_server.sources.failures import shown
from forebay_server.sources.s3_settings import Settings

_SECONDS = 5.0


async def ask_endpoint(settings: Settings) -> EndpointFacts:
    """The facts of the service of one bucket."""
    endpoint = shown(settings.endpoint)
    begun = time.monotonic()
    try:
        async with aiohttp.ClientSession(trust_env=True, timeout=aiohttp.ClientTimeout(total=_SECONDS)) as session:
            url = f"{settings.endpoint}/{settings.bucket}"
            secure = not is_on(settings.values, "AWS_ALLOW_INVALID_CERTIFICATES")
            proxy = settings.values.get("AWS_PROXY_URL") or None
            async with session.head(url, allow_redirects=False, ssl=secure, proxy=proxy) as answer:
                return _facts(endpoint, answer, time.monotonic() - begun)
    except TimeoutError:
        return EndpointFacts(endpoint, message=f"no answer within {_SECONDS:.0f} s")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return EndpointFacts(endpoint, message=shown(str(error) or type(error).__name__))


def _facts(endpoint: str, answer: aiohttp.ClientResponse, seconds: float) -> EndpointFacts:
    now = time.time()
    ahead = clock_ahead(answer.headers.get("Date", ""), now - seconds / 2)
    return EndpointFacts(
        endpoint,
        status=answer.status,
        seconds=seconds,
        has_date=ahead is not None,
        clock_ahead_seconds=ahead or 0.0,
        bucket_region=shown(answer.headers.get("x-amz-bucket-region", "")),
    )


def clock_ahead(date: str, now: float) -> float | None:
    """By how many seconds `now` (since 1970) is ahead of an HTTP date; None where there is none that can be read."""
    try:
        said = parsedate_to_datetime(date)
    except (TypeError, ValueError):
        return None
    said = said if said.tzinfo else said.replace(tzinfo=UTC)
    return now - said.timestamp() - 0.5  # a date has whole seconds
