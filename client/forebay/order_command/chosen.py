"""Which order is shown: what the command line says of it, or what a saved state says (pure).

A state wins; an option given beside it must say the same, so that a typing error never shows another order.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from forebay import progress
from forebay.order import Order, OrderOptions, Shuffle, Split, Tail
from forebay.progress import Identity, SavedState
from forebay_core.errors import ConfigurationError, StateError
from forebay_core.manifest import Manifest

_STATE_FIELDS = {"version", "dataset", "order", "epoch", "position"}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What is said of an order and of the place in it; None where nothing is."""

    shuffle: Shuffle | None = None
    seed: int | None = None
    lanes: int | None = None
    window: int | None = None
    sticky: bool | None = None
    tail: Tail | None = None
    epoch: int | None = None
    position: int | None = None
    batch_size: int | None = None
    global_batch_size: int | None = None

    def resumed(self, saved: SavedState) -> "Choice":
        """This choice, with what the state says wherever it says anything.

        The state's position counts only in its own epoch; its last global batch only where no batch size is given.
        Raises `ConfigurationError` where an option of the order differs from the state's, `StateError` where the state
        is of an order that is not one dataset's.
        """
        recorded = _recorded(saved)
        for name, value in recorded.items():
            given = getattr(self, name)
            if given is not None and value is not None and given != value:
                raise ConfigurationError(
                    f"{name} is {_shown(name, given)} on the command line, {_shown(name, value)} in the state: "
                    f"leave it out"
                )
        epoch = saved.epoch if self.epoch is None else self.epoch
        position = saved.position if self.position is None and epoch == saved.epoch else self.position
        is_sized = self.batch_size is not None or self.global_batch_size is not None
        return Choice(
            **recorded,
            epoch=epoch,
            position=position,
            batch_size=self.batch_size,
            global_batch_size=self.global_batch_size if is_sized else saved.last_global_batch,
        )

    def order(self, manifest: Manifest) -> Order:
        """The order of a dataset. Raises `ConfigurationError`."""
        return Order(
            manifest.piece_rows,
            seed=self.seed or 0,
            shuffle="window" if self.shuffle is None else self.shuffle,
            options=OrderOptions(self.lanes, self.window, sticky=self.sticky is not False),
            total_bytes=manifest.total_bytes,
        )

    def split(self, world_size: int) -> Split:
        """How its steps are shared out. Raises `ConfigurationError`."""
        if self.batch_size is not None and self.global_batch_size is not None:
            raise ConfigurationError("--batch-size and --global-batch-size contradict each other: give one of them")
        if self.batch_size is None and self.global_batch_size is None:
            raise ConfigurationError("how large a batch is, is not said: give --batch-size or --global-batch-size")
        batch = self.global_batch_size or (self.batch_size or 0) * world_size
        return Split(world_size, batch, self.tail or "even")

    def place(self, split: Split, samples: int, *, is_loaded: bool) -> tuple[int, int]:
        """The epoch and the position from which steps are counted.

        As a loader does: a state that was loaded where its epoch has no step left goes on in the next one.
        """
        epoch, position = self.epoch or 0, self.position or 0
        if is_loaded and position > 0 and split.steps(samples, position) == 0:
            return epoch + 1, 0
        return epoch, position


def find_state(document: Any) -> dict[str, Any]:
    """The loader's state in a JSON document, which is one or holds one at any depth, as a checkpoint's does.

    Raises `StateError` where there is none, or where there are different ones.
    """
    found = dict(_states(document, "$"))
    different = {name: state for name, state in found.items() if state != next(iter(found.values()))}
    if not found:
        raise StateError("no state of a forebay loader is in it: give what state_dict() returned, saved as JSON")
    if different:
        places = ", ".join([next(iter(found)), *different])
        raise StateError(f"there are different states in it, at {places}: give a file of the one that is meant")
    return next(iter(found.values()))


def check(saved: SavedState, manifest: Manifest, order: Order, tail: Tail | None) -> None:
    """Raises `StateMismatch` where the state is of other data, or the order is not the one that it records."""
    here = Identity(manifest.fingerprint, order.samples, {**order.spec(), "tail": tail or "even"})
    progress.check(saved, here)


def _states(value: Any, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, dict) and value.keys() >= _STATE_FIELDS and isinstance(value["order"], Mapping):
        yield place, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _states(item, f"{place}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _states(item, f"{place}[{index}]")


def _recorded(saved: SavedState) -> dict[str, Any]:
    recorded = saved.identity.order
    algorithm = recorded.get("algorithm")
    shuffles = {Order([], seed=0, shuffle=shuffle).algorithm: shuffle for shuffle in get_args(Shuffle)}
    if algorithm not in shuffles:
        raise StateError(
            f"the state is of the order {algorithm!r}, of which no single dataset's batches can be shown: "
            f"there are {', '.join(shuffles)}"
        )
    shuffle = shuffles[algorithm]
    fields = {name: recorded.get(name) for name in ("seed", "lanes", "sticky", "tail")}
    return {"shuffle": shuffle, **fields, "window": recorded.get("window") if shuffle == "window" else None}


def _shown(name: str, value: Any) -> str:
    return "none" if name == "shuffle" and value is False else str(value)
