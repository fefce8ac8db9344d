"""What happened to each generation, in numbered parts: written by the one start that claimed it, and never changed."""

from dataclasses import dataclass

from forebay_core.checkpoints.claiming import numbers_of
from forebay_core.checkpoints.names import GENERATIONS, LEDGER, generation_key, ledger_key
from forebay_core.checkpoints.once import put_once
from forebay_core.checkpoints.requests import GetMany, List, Listed, Procedure
from forebay_core.errors import CheckpointError

_KEY = f"{LEDGER}/g"


@dataclass(frozen=True, slots=True)
class LedgerOfGeneration:
    """document: the generation's own. parts: in the order of their numbers; what is in them is the trainer's affair."""

    generation: int
    document: bytes
    parts: tuple[bytes, ...]


def append(generation: int, part: int, content: bytes, *, conditional: bool = True) -> Procedure[None]:
    """Durable when it returns; repeating it is harmless. `CheckpointError` where the part has other content already."""
    key = ledger_key(generation, part)
    held = yield from put_once(key, content, conditional=conditional)
    if held != content:
        raise CheckpointError(f"{key} is there already with other content: two processes write one generation's ledger")


def read_ledger(*, with_parts: bool = True) -> Procedure[tuple[LedgerOfGeneration, ...]]:
    """The generations, oldest first. Of a long run the parts are many: one for each minute."""
    claimed: tuple[Listed, ...] = yield List(f"{GENERATIONS}/")
    listed: tuple[Listed, ...] = (yield List(f"{LEDGER}/")) if with_parts else ()
    numbers = sorted(numbers_of(claimed))
    keys = {number: [generation_key(number)] for number in numbers}
    for number, part in sorted(filter(None, (_parsed(each.key) for each in listed))):
        if number in keys:
            keys[number].append(ledger_key(number, part))
    if not keys:
        return ()
    wanted = tuple(key for each in keys.values() for key in each)
    bodies: tuple[bytes | None, ...] = yield GetMany(wanted)
    known = dict(zip(wanted, bodies, strict=True))
    return tuple(_ledger(number, [known[key] for key in keys[number]]) for number in numbers)


def _ledger(number: int, bodies: list[bytes | None]) -> LedgerOfGeneration:
    return LedgerOfGeneration(number, bodies[0] or b"", tuple(body for body in bodies[1:] if body is not None))


def _parsed(key: str) -> tuple[int, int] | None:
    """Generation and part of a ledger part's key; None for other keys."""
    numbers = key.removeprefix(_KEY).removesuffix(".json").split("/")
    if len(numbers) != 2 or not all(number.isascii() and number.isdigit() for number in numbers):
        return None
    found = int(numbers[0]), int(numbers[1])
    return found if ledger_key(*found) == key else None
