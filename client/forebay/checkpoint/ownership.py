"""Which rank writes which piece of the state (pure, but for what `gather` does).

A tensor that several ranks hold alike (replicated parameters, the replicated dimensions of a mesh) is written by one
of them, decided beforehand so that no rank copies what it will not write. Large tensors are cut, so that one of them
does not burden one rank, and so that who reads a part later reads little more.

The invariant: every piece is owned by exactly one of its holders, and all ranks come to the same result without
talking. They compare a signature of what they hold at every save; where it is the same everywhere the holders of a
piece follow from its placement, elsewhere (pipeline stages, an optimizer that skipped a parameter on some ranks) the
ranks tell each other what they hold. Called by the staging thread.
"""

import hashlib
import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from forebay_core.errors import CheckpointError

T = TypeVar("T")
#: Tensors are cut into pieces of at most this.
PIECE_BYTES = 16 << 20
#: Of keys, to a tensor in the nested state; they may have dots.
KeyPath = tuple[str, ...]
#: Gives every rank what each rank passed, in the order of ranks.
Gather = Callable[[Any], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Holding:
    """What one rank holds of one tensor.

    offsets, sizes: of the part held, in elements of the whole tensor, whose size is `whole`.
    holders: the ranks that hold the same part, ascending; as far as the placement tells.
    layout: what must be equal on all ranks for their holders to be right: dtype, placement, mesh.
    is_buffer: module buffers differ between ranks; the first holder's count.
    """

    key: str
    whole: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    item_bytes: int
    holders: tuple[int, ...]
    layout: str
    is_buffer: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a tensor that is written as one item. `holding` is the index of what it is cut from."""

    holding: int
    key: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    size_bytes: int
    holders: tuple[int, ...]
    is_buffer: bool = False


@dataclass(frozen=True, slots=True)
class Agreement:
    """What the ranks agreed on.

    owned: what this rank writes.
    wholes: the size of every tensor that any rank holds, by key.
    replicated: keys of holdings that others hold too, and that must be equal there; holders of each.
    aliases: paths of further names of tensors that are written once, to the key under which they are.
    """

    owned: tuple[Piece, ...]
    wholes: Mapping[str, tuple[int, ...]]
    replicated: Mapping[str, tuple[int, ...]]
    aliases: Mapping[KeyPath, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Held:
    """All that one rank holds. aliases: paths of further names of tensors, to the key under which they are held."""

    holdings: Sequence[Holding]
    aliases: Mapping[KeyPath, str]

    @cached_property
    def signature(self) -> str:
        """Equal where two ranks hold the same tensors, placed alike; which part each holds does not matter."""
        content = [(each.key, each.whole, each.item_bytes, each.layout, each.is_buffer) for each in self.holdings]
        return hashlib.sha256(repr((content, sorted(self.aliases.items()))).encode()).hexdigest()


def cut(sizes: Sequence[int], item_bytes: int, most_bytes: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Offsets and sizes of the parts of at most `most_bytes` (or of one row), along the first dimension of several."""
    whole = math.prod(sizes) * item_bytes
    dimension = next((at for at, size in enumerate(sizes) if size > 1), None)
    if whole <= most_bytes or dimension is None:
        return [((0,) * len(sizes), tuple(sizes))]
    rows = max(1, most_bytes // (whole // sizes[dimension]))
    parts = []
    for start in range(0, sizes[dimension], rows):
        offsets, part = [0] * len(sizes), list(sizes)
        offsets[dimension], part[dimension] = start, min(rows, sizes[dimension] - start)
        parts.append((tuple(offsets), tuple(part)))
    return parts


def pieces(holdings: Sequence[Holding], piece_bytes: int = PIECE_BYTES) -> list[Piece]:
    """What the holdings are cut into. A part without elements of a tensor that has some is nobody's."""
    found = []
    for index, held in enumerate(holdings):
        if 0 in held.sizes and 0 not in held.whole:
            continue
        for offsets, part in cut(held.sizes, held.item_bytes, piece_bytes):
            at = tuple(base + offset for base, offset in zip(held.offsets, offsets, strict=True))
            size_bytes = math.prod(part) * held.item_bytes
            found.append(Piece(index, held.key, at, part, size_bytes, held.holders, held.is_buffer))
    return found


def owned(all_pieces: Sequence[Piece], rank: int) -> tuple[Piece, ...]:
    """The pieces that `rank` writes, of those it holds: among the same holders, the largest to the least burdened."""
    classes: dict[tuple[int, ...], list[Piece]] = defaultdict(list)
    for piece in all_pieces:
        classes[piece.holders].append(piece)
    mine: list[Piece] = []
    for holders, members in classes.items():
        mine += _shared_out(members, holders)[rank]
    return tuple(sorted(mine, key=lambda piece: (piece.holding, piece.offsets)))


def _shared_out(members: Sequence[Piece], holders: tuple[int, ...]) -> dict[int, list[Piece]]:
    shares: dict[int, list[Piece]] = {holder: [] for holder in holders}
    shares[holders[0]] = [piece for piece in members if piece.is_buffer]
    burdens = [(sum(piece.size_bytes for piece in shares[holder]), holder) for holder in holders]
    heapq.heapify(burdens)
    rest = (piece for piece in members if not piece.is_buffer)
    for piece in sorted(rest, key=lambda piece: (-piece.size_bytes, piece.key, piece.offsets)):
        burden, holder = burdens[0]
        shares[holder].append(piece)
        heapq.heapreplace(burdens, (burden + piece.size_bytes, holder))
    return shares


def _part(held: Holding) -> tuple[Any, ...]:
    """What makes two holdings of different ranks the same one."""
    return held.key, held.whole, held.offsets, held.sizes, held.item_bytes, held.is_buffer


class Owners:
    """Agrees with the other ranks, and remembers it for as long as no rank holds anything else.

    gather: a collective; all ranks call `agree` equally often.
    """

    def __init__(self, rank: int, gather: Gather, *, piece_bytes: int = PIECE_BYTES) -> None:
        self._rank = rank
        self._gather = gather
        self._piece_bytes = piece_bytes
        self._signatures: list[str] = []
        self._agreed: Agreement | None = None

    def agree(self, held: Callable[[], Held], sums: Callable[[Sequence[int]], Sequence[int]]) -> Agreement:
        """The agreement; the same object for as long as it holds.

        held: what this rank holds. sums: digests of the holdings with these indexes, asked for when the agreement is
        new, because what several ranks hold must be the same on them.
        Raises `CheckpointError` on all ranks: for tensors that are not the same, and for what one of the two raised.
        """
        mine, signatures = self._each(held, lambda mine: mine.signature)
        if self._agreed is not None and signatures == self._signatures:
            return self._agreed
        self._agreed = None
        agreed = self._alike(mine) if len(set(signatures)) == 1 else self._told(mine)
        self._check(mine.holdings, agreed, sums)
        self._agreed, self._signatures = agreed, signatures
        return agreed

    def _each(self, made: Callable[[], T], told: Callable[[T], Any]) -> tuple[T, list[Any]]:
        """What this rank makes, and what each rank tells of its own; an error on one is raised on all."""
        error: Exception | None = None
        try:
            mine = made()
            answer = (True, told(mine))
        except Exception as raised:
            error, answer = raised, (False, f"{type(raised).__name__}: {raised}")
        answers = self._gather(answer)
        if error is not None:
            raise error
        for rank, (is_right, said) in enumerate(answers):
            if not is_right:
                raise CheckpointError(f"rank {rank} cannot save its state: {said}")
        return mine, [said for _, said in answers]

    def _alike(self, mine: Held) -> Agreement:
        return self._agreement(mine.holdings, {held.key: held.whole for held in mine.holdings}, mine.aliases)

    def _told(self, mine: Held) -> Agreement:
        """Where ranks differ: the holders of a part are those who say that they have it."""
        told = self._gather(([_part(held) for held in mine.holdings], dict(mine.aliases)))
        holders: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        wholes: dict[str, tuple[int, ...]] = {}
        names: dict[KeyPath, str] = {}
        for rank, (theirs, their_aliases) in enumerate(told):
            names |= their_aliases
            for part in theirs:
                if not holders.get(part) or holders[part][-1] != rank:
                    holders[part].append(rank)
                if wholes.setdefault(part[0], part[1]) != part[1]:
                    raise CheckpointError(
                        f"{part[0]} has the size {part[1]} on rank {rank} and {wholes[part[0]]} on another: "
                        f"give tensors that are not the same different names"
                    )
        known = [replace(held, holders=tuple(holders[_part(held)])) for held in mine.holdings]
        return self._agreement(known, wholes, {path: of for path, of in names.items() if ".".join(path) not in wholes})

    def _agreement(
        self, holdings: Sequence[Holding], wholes: Mapping[str, tuple[int, ...]], aliases: Mapping[KeyPath, str]
    ) -> Agreement:
        replicated = {held.key: held.holders for held in holdings if len(held.holders) > 1 and not held.is_buffer}
        return Agreement(owned(pieces(holdings, self._piece_bytes), self._rank), wholes, replicated, dict(aliases))

    def _check(
        self, holdings: Sequence[Holding], agreed: Agreement, sums: Callable[[Sequence[int]], Sequence[int]]
    ) -> None:
        indexes = [index for index, held in enumerate(holdings) if held.key in agreed.replicated]
        keys = [holdings[index].key for index in indexes]
        _, found = self._each(lambda: dict(zip(keys, sums(indexes), strict=True)), lambda mine: mine)
        differing = [
            (key, other)
            for key in keys
            for other in agreed.replicated[key]
            if found[other].get(key) != found[self._rank][key]
        ]
        verdicts = self._gather(differing[0] if differing else None)
        for rank, verdict in enumerate(verdicts):
            if verdict is not None:
                raise CheckpointError(
                    f"{verdict[0]} is not the same on ranks {rank} and {verdict[1]}, although nothing says that it is "
                    f"sharded: one of the two would be lost; synchronise it, or keep it out of the model and optimizer"
                )
