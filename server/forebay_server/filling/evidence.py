"""What a fill brought beside what is known of its piece: whether it is believed, made once more, or refused.

The rule is `agreement`; this asks for the evidence. On the event loop, but for `Watched`, which is on the fill's
thread.
"""

import hashlib
import logging
from collections.abc import Sequence

from forebay_core.errors import BadObject
from forebay_core.formats.base import Buffer, ByteRange, Localiser, ObjectInfo
from forebay_server.disk.digests import Digest
from forebay_server.filling.agreement import FillDigest, Verdict, Witnesses, judge

_log = logging.getLogger(__name__)


class FillAgain(Exception):
    """A fill's bytes are not those that were expected. Never leaves the daemon."""


class Watched:
    """A localiser, and the MD5 of what goes through it."""

    def __init__(self, localiser: Localiser) -> None:
        self.ranges: Sequence[ByteRange] = localiser.ranges
        self.memory_bytes = localiser.memory_bytes
        self._localiser = localiser
        self._md5 = hashlib.md5(usedforsecurity=False)

    def write(self, chunk: Buffer) -> None:
        self._md5.update(chunk)
        self._localiser.write(chunk)

    def finish(self) -> None:
        self._localiser.finish()

    @property
    def md5(self) -> str:
        """Of all that was written, in hexadecimal."""
        return self._md5.hexdigest()


def is_whole(ranges: Sequence[ByteRange], obj: ObjectInfo) -> bool:
    """Whether the ranges are all of an object, in its order."""
    return obj.size > 0 and list(ranges) == [ByteRange(0, obj.size)]


def weigh(name: str, witnesses: Witnesses, brought: Sequence[FillDigest]) -> None:
    """Returns where the last of the fills is believed. Raises `FillAgain`, or `BadObject` where all of them differ."""
    verdict = judge(witnesses, brought)
    latest = brought[-1].local
    if verdict is Verdict.FILL_AGAIN:
        _log.warning("%s: its bytes are not %s; it is fetched once more", name, _expected(witnesses))
        raise FillAgain
    if verdict is Verdict.REFUSE:
        first = brought[0].local
        raise BadObject(
            f"{name} was fetched twice and came with other bytes each time (CRC-32C {first.crc32c:08x} and"
            f" {latest.crc32c:08x}), neither of them {_expected(witnesses)}: look for a faulty proxy, memory or network"
        )
    if len(brought) > 1 and not witnesses.confirm(brought[-1]):
        _log.warning(
            "%s came with the same bytes twice, which are not %s; they are believed", name, _expected(witnesses)
        )


def _expected(witnesses: Witnesses) -> str:
    said = []
    if witnesses.earlier is not None:
        said.append(f"those that it had when it was here last ({_shown(witnesses.earlier)})")
    if witnesses.md5 is not None:
        said.append(f"those of its ETag ({witnesses.md5})")
    return " nor ".join(said)


def _shown(digest: Digest) -> str:
    return f"CRC-32C {digest.crc32c:08x}"
