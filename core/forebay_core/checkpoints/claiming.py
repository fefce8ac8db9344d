"""Generations: each start of a job claims the next number, and fences every earlier start by that.

A number is claimed by put-if-absent and never given back, so the newest only grows. Who claims again with the same
token, because it did not hear the answer, gets the claim that it has.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from forebay_core.checkpoints.documents import Generation
from forebay_core.checkpoints.names import GENERATIONS, MOST_GENERATION, Attempt, generation_key, parse_number
from forebay_core.checkpoints.once import put_once
from forebay_core.checkpoints.requests import GetMany, List, Listed, Procedure
from forebay_core.errors import CheckpointError, CheckpointFenced


def newest_generation() -> Procedure[int]:
    """The highest number that was claimed; 0: none."""
    numbers = yield from _claimed()
    return numbers[0] if numbers else 0


def check_fenced(generation: int) -> Procedure[None]:
    """`CheckpointFenced` where a newer start of the job has claimed its generation."""
    newest = yield from newest_generation()
    if newest > generation:
        raise CheckpointFenced(
            f"generation {newest} of this job was started while generation {generation} runs: "
            f"its checkpoints count, those of this one do not any more; end this one"
        )


def claim(
    token: str,
    parent: Attempt | None = None,
    notes: Mapping[str, Any] | None = None,
    *,
    conditional: bool = True,
) -> Procedure[Generation]:
    """The generation of this start: the next free number, or the one that this token has.

    token: drawn by the claimant. parent: the attempt that is gone on from.
    conditional: False for a store without put-if-absent; there two starts at the same moment may get one number.
    """
    numbers = yield from _claimed()
    mine = yield from _own_claim(token, numbers)
    if mine is not None:
        return mine
    for number in range((numbers[0] if numbers else 0) + 1, MOST_GENERATION + 1):
        wanted = Generation(number, token, parent, dict(notes or {}))
        body = yield from put_once(generation_key(number), wanted.encode(), conditional=conditional)
        held = _readable(body)
        if held is not None and held.token == token:
            return held
    raise CheckpointError(f"all {MOST_GENERATION} generations of this root are used: choose another root")


def numbers_of(listed: Iterable[Listed]) -> tuple[int, ...]:
    """The numbers of the generations among these keys, newest first; other keys are others'."""
    numbers = ((parse_number(each.key), each.key) for each in listed)
    return tuple(sorted((n for n, key in numbers if n is not None and generation_key(n) == key), reverse=True))


def _claimed() -> Procedure[tuple[int, ...]]:
    listed: tuple[Listed, ...] = yield List(f"{GENERATIONS}/")
    return numbers_of(listed)


def _own_claim(token: str, numbers: tuple[int, ...]) -> Procedure[Generation | None]:
    if not numbers:
        return None
    bodies: tuple[bytes | None, ...] = yield GetMany(tuple(generation_key(number) for number in numbers))
    held = (_readable(body) for body in bodies if body is not None)
    return next((each for each in held if each is not None and each.token == token), None)


def _readable(body: bytes) -> Generation | None:
    """None for what is no generation, or a newer forebay's: its number is taken all the same."""
    try:
        return Generation.decode(body)
    except CheckpointError:
        return None
