"""The random bits of an order: a pure function of (seed, domain, stream, block, epoch).

Everything random in an order comes from here, and only as raw 64-bit words of numpy's Philox4x64-10: the raw stream of
a bit generator is fixed over numpy's versions, the methods of `Generator` are not. A word is addressed, never drawn in
turn, so any part of any epoch can be computed alone. Changing a domain or the layout of key and counter changes every
order: it takes a new algorithm name in `forebay.order.engine`. What hangs on a shard's name and not on its number has a
key of its own (`shard_keys`), a hash of the name.
"""

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

PIECES = 1
"""Domain of the permutation of the pieces into a line."""
PARTS = 2
"""Domain of the permutation of a lane's parts."""
WINDOW = 3
"""Domain of the places that samples draw in the sliding window."""
PERMUTATION = 4
"""Domain of the keys of the global permutation."""
MIXTURE = 5
"""Domain of the permutation of a mixture's slots."""
SPLIT = 6
"""Domain of the membership of shards and their rows in the portions of a split."""
BUCKETS = 7
"""Domain of the permutation of a block's units of samples of like length."""


def seed_digest(seed: int) -> int:
    """64 bits for any integer seed: the first 8 bytes of SHA-256 of its decimal form, big-endian."""
    return int.from_bytes(hashlib.sha256(str(seed).encode()).digest()[:8], "big")


def raw_words(
    digest: int, domain: int, words: int, *, stream: int = 0, block: int = 0, epoch: int = 0
) -> npt.NDArray[np.uint64]:
    """The first `words` words (uint64) of one stream."""
    counter = np.array([0, block, stream, epoch], dtype=np.uint64)
    key = np.array([digest, domain], dtype=np.uint64)
    return np.random.Philox(counter=counter, key=key).random_raw(words)


def shard_keys(digest: int, domain: int, names: Iterable[bytes], *, stream: int = 0) -> npt.NDArray[np.uint64]:
    """64 bits for each name (uint64): the first 8 bytes of SHA-256 of digest, domain, stream (8 bytes each, big-endian)
    and name, big-endian."""
    prefix = hashlib.sha256(b"".join(number.to_bytes(8, "big") for number in (digest, domain, stream)))
    hashes = bytearray()
    for name in names:
        named = prefix.copy()
        named.update(name)
        hashes += named.digest()[:8]
    return np.frombuffer(hashes, dtype=">u8").astype(np.uint64)
