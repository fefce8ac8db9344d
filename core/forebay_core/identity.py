"""The name of a piece in the cache: a digest of everything that its local bytes depend on.

Two pieces share a name exactly when their local files are the same bytes of the same source. Every part is hashed with
its length before it, so that no byte can move from one part to its neighbour unseen, and nothing is decoded or
normalised: `a%2Fb`, `a/b` and `A/b` are three keys. Pure; called by the daemon for each piece that it is asked for.
"""

import hashlib
from collections.abc import Sequence

_DOMAIN = b"forebay piece 1"


def piece_key(
    *,
    scheme: str,
    endpoint: str,
    account: str,
    bucket: str,
    key: bytes,
    version: str,
    start: int,
    stop: int,
    first_unit: int,
    units: int,
    columns: Sequence[str],
    layout: str,
) -> str:
    """The name of a piece: 64 lower-case hexadecimal digits.

    `key` is the object's full key as the store spells it; `columns` in the order in which the local file holds them,
    none where the layout ignores columns; `start`, `stop` in bytes.
    """
    numbers = (str(number) for number in (start, stop, first_unit, units, len(columns)))
    texts = (scheme, endpoint, account, bucket, version, *numbers, *columns, layout)
    digest = hashlib.sha256(_DOMAIN)
    for part in (key, *(text.encode("utf-8", "surrogateescape") for text in texts)):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()
