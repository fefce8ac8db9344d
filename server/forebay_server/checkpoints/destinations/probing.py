"""Whether a destination keeps the promise of put-if-absent, found out by trying: on objects of its own, which go again.

The commit of a checkpoint rests on it. A store that does not know the condition writes over what is there without a
word, so its answers alone prove nothing: what is there in the end is read. On the event loop.
"""

import logging
import secrets
from collections.abc import Callable

from forebay_core.errors import ForebayError
from forebay_server.checkpoints.destinations.base import Destination

_log = logging.getLogger(__name__)
PROBES = ".forebay-probe"


def probe_key() -> str:
    """A name below the root that nobody else has."""
    return f"{PROBES}/{secrets.token_hex(8)}"


def is_probe(key: str) -> bool:
    """Whether a key below the root is of a probe. Messages name the root then: nobody has asked for the probe."""
    return key.partition("/")[0] == PROBES


async def probe(destination: Destination, *, is_refusal: Callable[[BaseException], bool]) -> bool:
    """Whether the second of two writes finds the first one there. `is_refusal`: of an error that says "cannot".

    Raises the `ForebayError` of a destination that cannot be written at all.
    """
    key = probe_key()
    try:
        is_written = await destination.put_if_absent(key, b"first")
        is_written_again = await destination.put_if_absent(key, b"second")
        found = await destination.get(key)
    except ForebayError as error:
        if not is_refusal(error.__cause__ or error):
            raise
        await destination.put(key, b"first")  # what refuses this too can take no checkpoint at all
        is_written, is_written_again, found = False, False, None
    await _forget(destination, key)
    return is_written and not is_written_again and found == b"first"


async def _forget(destination: Destination, key: str) -> None:
    try:
        await destination.delete([key])
    except ForebayError as error:
        _log.warning("the probe %s/%s stays where it is: %s", destination.url, key, error)
