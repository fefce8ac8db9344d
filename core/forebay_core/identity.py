"""The name of a piece in the cache: a digest of everything that its local bytes depend on.

Two pieces share a name exactly when their local files are the same bytes of the same source. Every part is hashed with
its length before it, so that no byte can move from one part to its neighbour unseen, and nothing is decoded or
normalised: `a%2Fb`, `a/b` and `A/b` are three keys. What the pieces of one object have in common is hashed once, since
a large dataset has a hundred thousand of them. Pure; any thread.
"""

import hashlib
import struct
from collections.abc import Sequence

_DOMAIN = b"forebay piece 2"
_PIECE = struct.Struct("<4q")


class SourceIdentity:
    """What all pieces of one object have in common, under one choice of columns and one local layout."""

    __slots__ = ("_digest",)

    def __init__(
        self,
        *,
        scheme: str,
        endpoint: str,
        account: str,
        bucket: str,
        key: bytes,
        version: str,
        columns: Sequence[str],
        layout: str,
    ) -> None:
        """`key` is the object's full key as the store spells it; `columns` in the order in which the local file holds
        them, none where the layout ignores columns."""
        texts = (scheme, endpoint, account, bucket, version, layout, *columns)
        parts = (key, *(text.encode("utf-8", "surrogateescape") for text in texts))
        prefixed = (piece for part in parts for piece in (len(part).to_bytes(8, "little"), part))
        self._digest = hashlib.sha256(_DOMAIN + b"".join(prefixed))

    def piece_key(self, start: int, stop: int, first_unit: int, units: int) -> str:
        """The name of the piece that is bytes [start, stop) and so many of the format's units: 64 lower-case
        hexadecimal digits."""
        digest = self._digest.copy()
        digest.update(_PIECE.pack(start, stop, first_unit, units))
        return digest.hexdigest()
