"""The position of a loader, and its one form outside the process: a small JSON object (pure).

`position` counts the samples of the epoch that were handed to the trainer over all ranks: it moves when a batch is
yielded, never when it is fetched. The last batch of an epoch commits (epoch + 1, 0), so a state taken at the end of an
epoch resumes at the start of the next. The state is the same on every rank and fits any framework's way of saving it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forebay.digest import NOTHING, SampleDigest
from forebay_core.errors import ConfigurationError, StateError, StateMismatch

STATE_VERSION = 1


@dataclass(frozen=True, slots=True)
class Identity:
    """What a state is bound to: the dataset, and all that decides the order of its samples."""

    fingerprint: str
    samples: int
    order: Mapping[str, Any]

    def differences(self, other: "Identity") -> list[str]:
        """One phrase for each field that differs, `other` being the loaded state."""
        found = []
        if other.fingerprint != self.fingerprint:
            found.append(
                f"dataset.fingerprint is {self.fingerprint[:19]}… here, {other.fingerprint[:19]}… in the state"
            )
        if other.samples != self.samples:
            found.append(f"dataset.samples is {self.samples} here, {other.samples} in the state")
        return [*found, *_differing("order", self.order, other.order)]


def _differing(name: str, here: Any, there: Any) -> list[str]:
    """One phrase for each field of two JSON values that differs, by its path."""
    if isinstance(here, Mapping) and isinstance(there, Mapping):
        keys = sorted({*here, *there})
        return [phrase for key in keys for phrase in _differing(f"{name}.{key}", here.get(key), there.get(key))]
    if isinstance(here, list) and isinstance(there, list) and here and isinstance(here[0], Mapping):
        if len(here) != len(there):
            return [f"{name} are {len(here)} here, {len(there)} in the state"]
        pairs = enumerate(zip(here, there, strict=True))
        return [phrase for number, pair in pairs for phrase in _differing(f"{name}[{number}]", *pair)]
    return [] if here == there else [f"{name} is {_shortened(here)} here, {_shortened(there)} in the state"]


def _shortened(value: Any) -> str:
    return f"{value[:19]}…" if isinstance(value, str) and value.startswith("sha256:") else repr(value)


@dataclass(frozen=True, slots=True)
class SavedState:
    """A state as it was read; checked for its form, not yet against a dataset."""

    identity: Identity
    epoch: int
    position: int
    last_global_batch: int | None
    step: int = 0


class Progress:
    """Where one loader is. Moved by the trainer's thread alone."""

    def __init__(self) -> None:
        self.epoch = 0
        self.position = 0
        self.last_global_batch: int | None = None
        #: Of what was handed out since this was made or a state was loaded.
        self.digest = NOTHING
        #: Steps handed out in this pass, where a pass is a number of steps and not an epoch.
        self.step = 0
        #: The next iteration goes on here instead of beginning the next epoch.
        self.resuming = False
        #: Counts iterations begun and places chosen: an iterator of an earlier one has ended.
        self.moves = 0
        self._loaded = False

    def upcoming(self, *, runs_on: bool = False) -> tuple[int, int]:
        """Epoch and position where the next iteration begins.

        One that was left in mid-epoch is followed by the next epoch; where the loader `runs_on` over epochs, by the
        next step.
        """
        if self.position > 0 and not self.resuming and not runs_on:
            return self.epoch + 1, 0
        return self.epoch, self.position

    def begin(self, *, runs_on: bool = False) -> tuple[int, int]:
        """An iteration starts; says where."""
        self.epoch, self.position = self.upcoming(runs_on=runs_on)
        if not self.resuming:
            self.step = 0
        self.resuming = self._loaded = False
        self.moves += 1
        return self.epoch, self.position

    def commit(
        self, epoch: int, position: int, global_batch: int, step: int = 0, *, digest: SampleDigest = NOTHING
    ) -> None:
        """A batch was handed out; all before (epoch, position) is with the trainer, and `step` steps of this pass."""
        self.epoch, self.position, self.last_global_batch, self.step = epoch, position, global_batch, step
        self.digest += digest
        self.resuming = False

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next iteration; the present one keeps its position."""
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise ConfigurationError(f"set_epoch({epoch!r}): give a whole number, 0 or more")
        if epoch == self.epoch:
            self.resuming = self.position > 0
            return
        if self._loaded:
            raise StateError(
                f"set_epoch({epoch}) would drop the loaded position (epoch {self.epoch}, position {self.position}): "
                f"start the epoch loop at loader.epoch, or iterate once before choosing another epoch"
            )
        self.epoch, self.position, self.step, self.resuming = epoch, 0, 0, False
        self.moves += 1

    def load(self, state: SavedState) -> None:
        """Takes a checked state over."""
        self.last_global_batch, self.step, self.digest = state.last_global_batch, state.step, NOTHING
        self.resume_at(state.epoch, state.position)

    def resume_at(self, epoch: int, position: int) -> None:
        """The next iteration goes on there, whatever came before."""
        self.epoch, self.position = epoch, position
        self.resuming = self._loaded = True
        self.moves += 1

    def encode(self, identity: Identity) -> dict[str, Any]:
        """The state as JSON values, under 1 KB."""
        state = {
            "version": STATE_VERSION,
            "dataset": {"fingerprint": identity.fingerprint, "samples": identity.samples},
            "order": dict(identity.order),
            "epoch": self.epoch,
            "position": self.position,
            "last_global_batch": self.last_global_batch,
        }
        return state | ({"step": self.step} if self.step else {})


def decode(state: Mapping[str, Any]) -> SavedState:
    """Reads a state; `StateError` where it is not one, or of a newer version."""
    try:
        version = state["version"]
        if version != STATE_VERSION:
            raise StateError(
                f"the state has version {version!r}, this forebay reads version {STATE_VERSION}: "
                f"load it with the forebay that wrote it, or a newer one"
            )
        dataset, order = state["dataset"], state["order"]
        identity = Identity(str(dataset["fingerprint"]), _whole(dataset["samples"]), dict(order))
        last = state.get("last_global_batch")
        last = None if last is None else _whole(last)
        saved = SavedState(
            identity, _whole(state["epoch"]), _whole(state["position"]), last, _whole(state.get("step", 0))
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(
            f"not a state of a forebay loader ({type(error).__name__}: {error}): give what state_dict() returned"
        ) from error
    if saved.epoch < 0 or not 0 <= saved.position <= saved.identity.samples:
        raise StateError(
            f"the state's epoch {saved.epoch} and position {saved.position} do not exist in a dataset of "
            f"{saved.identity.samples} samples"
        )
    return saved


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"{value!r} is no whole number, or out of reach")
    return value


def check(saved: SavedState, here: Identity) -> None:
    """Raises `StateMismatch`, naming the fields, where the state belongs to another sequence."""
    differences = here.differences(saved.identity)
    if differences:
        raise StateMismatch(
            "the state is of another sequence of samples: "
            + "; ".join(differences)
            + f"; make the loader as it was, or {StateMismatch.LENIENTLY} to keep only epoch and position"
        )
