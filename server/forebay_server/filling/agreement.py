"""Whether the bytes of a fill are to be believed, by what else is known of them. Pure; any thread.

What comes over a network is checked by its length and its version, which say nothing of the bytes. Two witnesses may:
the store, where its version of an object is the MD5 of the bytes, and an earlier fill of the same piece. A fill that
agrees with a witness is believed. One that agrees with none is made once more, and believed where two fills agree: a
witness may be wrong (an encrypted object's ETag is no MD5, another version of a library may decode to other bytes, a
kept digest may be damaged), two transfers of the same wrong bytes are not to be expected.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from forebay_server.disk.digests import Digest


@dataclass(frozen=True, slots=True)
class FillDigest:
    """What one fill brought. `md5` (hexadecimal) is of the whole object; None where not all of it went by."""

    local: Digest
    md5: str | None = None


@dataclass(frozen=True, slots=True)
class Witnesses:
    """What is known of a piece without the fill; None: nothing. `md5` is what the store says of the whole object."""

    earlier: Digest | None = None
    md5: str | None = None

    def speak(self) -> bool:
        """Whether there are any."""
        return self.earlier is not None or self.md5 is not None

    def confirm(self, fill: FillDigest) -> bool:
        return fill.local == self.earlier or (self.md5 is not None and fill.md5 == self.md5)


class Verdict(Enum):
    """What is to be done with the latest fill."""

    BELIEVE = auto()
    FILL_AGAIN = auto()
    REFUSE = auto()


def judge(witnesses: Witnesses, fills: Sequence[FillDigest]) -> Verdict:
    """On the last of the fills, of which there is at least one."""
    *before, latest = fills
    if not witnesses.speak() or witnesses.confirm(latest) or any(fill.local == latest.local for fill in before):
        return Verdict.BELIEVE
    return Verdict.REFUSE if before else Verdict.FILL_AGAIN
