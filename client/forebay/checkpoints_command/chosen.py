"""Which attempt is meant by what stands on the command line (pure)."""

from collections.abc import Sequence

from forebay.daemon.checkpoint_root import Checkpoint, Listing
from forebay_core.checkpoints.documents import State
from forebay_core.checkpoints.names import MOST_STEP, Attempt
from forebay_core.errors import CheckpointNotFound, ConfigurationError

_NAMED = 8
_SHOWN = 80


def choose(listing: Listing, which: str | None, *, committed: bool = False, quarantined: bool = False) -> Checkpoint:
    """The newest one, or that of a step, or of an attempt's name or the begin of one.

    Of several attempts at a step the committed one of the highest generation is meant. `committed`: no other will do,
    but with `quarantined` such a one that is named.
    Raises `CheckpointNotFound`, `ConfigurationError` for what is neither a step nor a name.
    """
    found = _matching(listing, which)
    if not found:
        raise CheckpointNotFound(f"there is no checkpoint {_said(which)} at {listing.root}: {_there(listing)}")
    best = max(found, key=lambda each: (each.is_committed, each.attempt))
    if quarantined and which is not None and best.state == State.QUARANTINED:
        return best
    if committed and not best.is_committed:
        raise CheckpointNotFound(
            f"no checkpoint {_said(which)} is committed at {listing.root}: {best.attempt.name} is {best.said_state}"
        )
    return best


def matching(attempts: Sequence[Attempt], which: str) -> Sequence[Attempt]:
    """Those of a step, or the one of a name or the begin of one. Raises `ConfigurationError` for what is neither."""
    if which.isdecimal() and which.isascii() and len(which) <= len(str(MOST_STEP)):
        return [each for each in attempts if each.step == int(which)]
    if not which.startswith("g") or len(which) < 2:
        raise ConfigurationError(
            f"{which[:_SHOWN]!r} is neither a step nor an attempt: forebay checkpoints ls and forebay status name them"
        )
    found = [each for each in attempts if each.name.startswith(which)]
    if len(found) > 1 and which not in {each.name for each in found}:
        names = ", ".join(each.name for each in found[:_NAMED])
        raise ConfigurationError(f"{which!r} is the begin of {len(found)} attempts ({names}): give more of the name")
    return found


def _matching(listing: Listing, which: str | None) -> Sequence[Checkpoint]:
    if which is None:
        return listing.checkpoints
    found = set(matching([each.attempt for each in listing.checkpoints], which))
    return [each for each in listing.checkpoints if each.attempt in found]


def _said(which: str | None) -> str:
    if which is None:
        return "at all"
    return f"of step {which}" if which.isdecimal() else which


def _there(listing: Listing) -> str:
    steps = sorted({each.attempt.step for each in listing.checkpoints if each.is_committed}, reverse=True)
    if not steps:
        return "none is committed (forebay checkpoints ls shows what was begun)"
    more = f" and {len(steps) - _NAMED} more" if len(steps) > _NAMED else ""
    return f"committed are the steps {', '.join(map(str, steps[:_NAMED]))}{more}"
