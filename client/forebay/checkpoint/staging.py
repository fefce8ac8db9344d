"""Copies what this rank will write, and nothing else, into buffers that are kept for the whole run.

`start` copies module buffers before it returns (a forward pass alone changes them: T18) and the rest in threads of its
own: one agrees with the other ranks, another begins meanwhile to copy as the last time (`_copy_ahead`). Until
`Staging.guard` is past, no optimizer may step (T11). Buffers are used again once the copy is released, never before: a
second `start` is refused (T2). Kept buffers need no page faults and, on CUDA, are pinned; memory does not grow with the
number of saves (T12).

`start`, `guard` and `release` are called by the thread that trains, the collectives in `agree` by the staging thread.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forebay.checkpoint.copying import Copier, Moment, follow, now, wait
from forebay.checkpoint.holdings import Collected, holdings_of, local_part
from forebay.checkpoint.ownership import Agreement, Gather, Held, Holding, Owners, Piece
from forebay_core.errors import CheckpointError

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class StagedTensor:
    """The parts of a tensor that this rank writes, by their offsets; `size` is that of the whole tensor."""

    path: tuple[str, ...]
    size: torch.Size
    parts: Mapping[tuple[int, ...], Tensor]

    @property
    def key(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Staged:
    """A copy of what this rank writes. Valid until it is released.

    The same object as in the save before where nothing but values has changed.
    agreement: over all ranks; likewise.
    """

    tensors: tuple[StagedTensor, ...]
    agreement: Agreement

    @property
    def size_bytes(self) -> int:
        return sum(part.nbytes for tensor in self.tensors for part in tensor.parts.values())


class Staging:
    """A copy that is being taken. `done` has it in the end, or the error."""

    def __init__(self) -> None:
        self.done: Future[Staged] = Future()
        self._ordered = threading.Event()
        self._end: Moment = {}

    def guard(self, timeout_seconds: float | None = None) -> None:
        """Waits until training may change what is copied; on CUDA, until what it queues happens behind the copy.

        Raises what went wrong, and TimeoutError.
        """
        if not self._ordered.wait(timeout_seconds):
            raise TimeoutError(f"the state was not copied within {timeout_seconds:g} s")
        follow(self._end)
        if self.done.done():
            self.done.result()

    def _order(self, end: Moment) -> None:
        self._end = end
        self._ordered.set()

    def _fail(self, error: BaseException) -> None:
        self.done.set_exception(error)
        self._ordered.set()


class Stager:
    """Makes one copy at a time, of the pieces that the ranks agree this one owns.

    gather: a collective over all ranks of the save (`group.all_gather`-like), called by the staging thread alone.
    """

    def __init__(self, rank: int, world_size: int, gather: Gather, *, piece_bytes: int | None = None) -> None:
        self._rank = rank
        self._world_size = world_size
        self._owners = Owners(rank, gather) if piece_bytes is None else Owners(rank, gather, piece_bytes=piece_bytes)
        self._kept: dict[tuple[str, tuple[int, ...]], Tensor] = {}
        self._staging: Staging | None = None
        self._is_released = False
        self._copier = Copier()
        self._structure: list[Any] | None = None
        self._layout: _Layout | None = None
        self._held = Held([], {})

    @property
    def kept_bytes(self) -> int:
        """Of all buffers that are kept."""
        return sum(buffer.nbytes for buffer in self._kept.values())

    def start(self, collected: Collected) -> Staging:
        """Begins a copy; returns when module buffers are copied. All ranks call it, or `start_failed`, each time."""
        self._check_free()
        behind: Moment = {}
        try:
            behind = now(entry.tensor for entry in collected.entries)
            early = self._begin(collected, behind)
        except Exception as error:  # no rank must wait for this one: it is told to all when they agree
            early = _Early({}, {}, None, None, error)

        def held() -> Held:
            found = self._hold(collected, early.structure)  # which says better what cannot be kept
            if early.error is not None:
                raise early.error
            return found

        return self._start(held, collected, early, behind)

    def start_failed(self, error: Exception) -> Staging:
        """This rank has no state to copy, as the error says: no rank gets a copy then, and none waits for this one."""
        self._check_free()

        def raising() -> Held:
            raise error

        return self._start(raising, Collected(()), _Early({}, {}, None, None), {})

    def _check_free(self) -> None:
        if self._staging is not None and not (self._is_released and self._staging.done.done()):
            raise CheckpointError(
                "the copy of the save before is still being taken"
                if self._is_released
                else "the copy of the save before is still in use: release it first"
            )

    def _start(self, held: Callable[[], Held], collected: Collected, early: "_Early", behind: Moment) -> Staging:
        self._staging, self._is_released = Staging(), False
        copying = threading.Thread(
            target=self._run, args=(self._staging, held, collected, early, behind), name="forebay-staging", daemon=True
        )
        try:
            copying.start()
        except BaseException as error:
            self._staging._fail(error)
            if not isinstance(error, RuntimeError):  # which says that there are no threads left
                raise
        return self._staging

    def release(self) -> None:
        """The copy is written, or not wanted: its buffers may be used again, once it is taken."""
        self._is_released = True

    @torch.no_grad()
    def _begin(self, collected: Collected, behind: Moment) -> "_Early":
        entries = [entry for entry in collected.entries if entry.is_buffer]
        sources = [local_part(entry.tensor) for entry in entries]
        places = [self._buffer((entry.key, ()), source) for entry, source in zip(entries, sources, strict=True)]
        end = self._copier.copy(places, sources, behind)
        follow(end)
        copied = {entry.key: place for entry, place in zip(entries, places, strict=True)}
        try:
            structure = collected.structure()
            return _Early(copied, end, structure, self._copy_ahead(collected, structure, behind))
        except Exception:  # what is wrong with the state is found again, and told to all ranks, when they agree
            return _Early(copied, end, None, None)

    def _copy_ahead(self, collected: Collected, structure: list[Any], behind: Moment) -> "_Ahead | None":
        """Begins to copy as the last time while the ranks agree on that, where this one holds what it held then.

        Where they do not agree, kept buffers have been filled for nothing.
        """
        if self._layout is None or structure != self._structure:
            return None
        layout, sources = self._layout, self._sources(self._layout, collected)
        ahead = _Ahead(layout)

        def run() -> None:
            try:
                ahead.end.set_result(self._copy(layout, sources, behind))
            except BaseException as error:
                ahead.end.set_exception(error)

        threading.Thread(target=run, name="forebay-copy", daemon=True).start()
        return ahead

    @torch.no_grad()
    def _run(
        self, staging: Staging, held: Callable[[], Held], collected: Collected, early: "_Early", behind: Moment
    ) -> None:
        ahead = early.ahead
        try:
            try:
                layout = self._laid_out(held, collected, early, behind)
            finally:
                copied = None if ahead is None else ahead.end.result()
            if ahead is None or copied is None or ahead.layout is not layout:
                copied = self._copy(layout, self._sources(layout, collected), behind)
            staging._order(copied)
            wait(early.end)
            wait(copied)
            staging.done.set_result(layout.staged)
        except BaseException as error:
            staging._fail(error)

    def _sources(self, layout: "_Layout", collected: Collected) -> list[Tensor]:
        return [_part_of(local_part(collected.entries[each.holding].tensor), at) for each, at in layout.cuts]

    @torch.no_grad()
    def _copy(self, layout: "_Layout", sources: Sequence[Tensor], behind: Moment) -> Moment:
        return self._copier.copy(layout.places, sources, behind)

    def _laid_out(self, held: Callable[[], Held], collected: Collected, early: "_Early", behind: Moment) -> "_Layout":
        """Where every piece goes: as before, as long as no rank holds anything else."""

        def sums(indexes: Sequence[int]) -> list[int]:
            parts = (local_part(collected.entries[index].tensor) for index in indexes)
            return [self._sum(part, behind) for part in parts]

        agreement = self._owners.agree(held, sums)
        if self._layout is None or self._layout.staged.agreement is not agreement:
            self._layout = None
            self._layout = self._lay_out(collected, early.places, agreement)
        return self._layout

    def _sum(self, part: Tensor, behind: Moment) -> int:
        with self._copier.streaming(part.device, behind):
            return bit_sum(part)

    def _hold(self, collected: Collected, structure: list[Any] | None) -> Held:
        structure = structure or collected.structure()
        if structure != self._structure:
            self._structure, self._layout = None, None
            self._held = Held(holdings_of(collected.entries, self._world_size), collected.aliases)
            self._structure = structure
        return self._held

    def _lay_out(self, collected: Collected, early: Mapping[str, Tensor], agreement: Agreement) -> "_Layout":
        parts: dict[int, dict[tuple[int, ...], Tensor]] = defaultdict(dict)
        places: list[Tensor] = []
        cuts: list[tuple[Piece, _Cut]] = []
        for piece in agreement.owned:
            entry = collected.entries[piece.holding]
            cut = _cut_of(piece, self._held.holdings[piece.holding])
            if piece.is_buffer:
                parts[piece.holding][piece.offsets] = _part_of(early[piece.key], cut)
                continue
            places.append(self._buffer((piece.key, piece.offsets), _part_of(local_part(entry.tensor), cut)))
            parts[piece.holding][piece.offsets] = places[-1]
            cuts.append((piece, cut))
        used = {id(place) for place in (*places, *early.values())}
        self._kept = {name: buffer for name, buffer in self._kept.items() if id(buffer) in used}
        tensors = tuple(
            StagedTensor(collected.entries[index].path, collected.entries[index].tensor.shape, of_tensor)
            for index, of_tensor in parts.items()
        )
        return _Layout(Staged(tensors, agreement), tuple(places), tuple(cuts))

    def _buffer(self, name: tuple[str, tuple[int, ...]], source: Tensor) -> Tensor:
        kept = self._kept.get(name)
        if kept is None or kept.shape != source.shape or kept.dtype != source.dtype:
            with torch.inference_mode(False):
                kept = torch.empty(source.shape, dtype=source.dtype, device="cpu", pin_memory=source.is_cuda)
            self._kept[name] = kept
        return kept


def bit_sum(tensor: Tensor) -> int:
    """The sum of its bits taken as whole numbers, modulo 2⁶⁴: one element that differs changes it.

    Of eight bytes at a time: a tenth of the time that the elements take.
    """
    flat = tensor.contiguous().view(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).view(-1)
    size = flat.element_size()
    if flat.storage_offset() * size % 8:
        flat = flat.clone()
    end = flat.numel() - flat.numel() % (8 // size)
    wide, narrow = flat[:end], flat[end:]
    total = sum(int(words.sum(dtype=torch.int64)) for words in (wide.view(torch.int64), narrow.view(_WORDS[size])))
    return total % (1 << 64)


#: Dimension, start and length, where a piece is less than the holding.
_Cut = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class _Early:
    """What is begun before `start` returns: copies of module buffers by key, complete at `end`, and one ahead.

    error: why it could not be begun.
    """

    places: Mapping[str, Tensor]
    end: Moment
    structure: list[Any] | None
    ahead: "_Ahead | None"
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class _Layout:
    """`places` are filled from `cuts`, one from one; buffers of modules are in `staged` alone."""

    staged: Staged
    places: tuple[Tensor, ...]
    cuts: tuple[tuple[Piece, _Cut], ...]


class _Ahead:
    """A copy for a layout that may turn out to be another."""

    def __init__(self, layout: _Layout) -> None:
        self.layout = layout
        self.end: Future[Moment] = Future()


def _cut_of(piece: Piece, held: Holding) -> _Cut:
    for dimension, size in enumerate(piece.sizes):
        if size != held.sizes[dimension]:
            return dimension, piece.offsets[dimension] - held.offsets[dimension], size
    return None


def _part_of(local: Tensor, cut: _Cut) -> Tensor:
    return local if cut is None else local.narrow(*cut)
