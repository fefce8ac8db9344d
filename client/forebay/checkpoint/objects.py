"""What is saved beside the tensors: schedulers, scalers, counters. JSON values and tensors, and nothing that runs code.

An object has `state_dict` and `load_state_dict`, or is a mutable mapping that is filled again. `taken` copies the
states at the save; anything that could not be read back by `weights_only` is refused there, by its path. Written by
rank 0 as `objects.pt`, on the thread that saves; loaded on every rank.
"""

import copy
import io
import math
from collections import Counter, OrderedDict
from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np
import torch

from forebay_core.checkpoints.names import OBJECTS
from forebay_core.errors import CheckpointDamaged, CheckpointError, ConfigurationError, StateMismatch, one_line

_PLAIN = (bool, int, float, str, bytes, type(None))
_MAPPINGS: tuple[type, ...] = (dict, OrderedDict, Counter)
_SEQUENCES: tuple[type, ...] = (list, tuple, set)


def checked(objects: Mapping[str, Any] | None) -> dict[str, Any]:
    """The objects, if each can be saved and restored. `ConfigurationError` names the one that cannot."""
    if objects is not None and not isinstance(objects, Mapping):
        raise ConfigurationError(f"objects= is a {type(objects).__name__}: give a dict of objects by name")
    found = dict(objects or {})
    for name, each in found.items():
        has_state = callable(getattr(each, "state_dict", None)) and callable(getattr(each, "load_state_dict", None))
        if not has_state and not isinstance(each, MutableMapping):
            raise ConfigurationError(
                f"objects[{name!r}] is a {type(each).__name__}: give what has state_dict() and load_state_dict(), or a "
                f"dict, which is filled again at a restore"
            )
    return found


def taken(objects: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of their states, and of what the training state has beside tensors. `CheckpointError` names by its path
    what cannot be saved."""
    states = {name: _copied(_state(each), f"objects[{name!r}]") for name, each in objects.items()}
    return {"objects": states, "settings": _copied(dict(settings), "the state")}


def size_of(value: Any) -> int:
    """The bytes that are large in such a copy: those of tensors and texts."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(size_of, value.values()))
    return sum(map(size_of, value)) if type(value) in _SEQUENCES else 0


def decoded(content: bytes) -> dict[str, dict[str, Any]]:
    """What was kept: "objects" and "settings". `CheckpointDamaged` where it is neither, or would run code."""
    try:
        found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointDamaged(
            f"{OBJECTS} cannot be read ({type(error).__name__}: {one_line(error)[:200]})"
        ) from error
    if not isinstance(found, dict) or not all(isinstance(found.get(key), dict) for key in ("objects", "settings")):
        raise CheckpointDamaged(f"{OBJECTS} does not hold the states of objects")
    return found


def check_same(objects: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    """Raises `StateMismatch` where the objects here are not those of the checkpoint."""
    here, there = sorted(objects), sorted(states)
    if here != there:
        raise StateMismatch(f"objects= are {here} here and {there} in the checkpoint: give the same ones")


def put(objects: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    """Gives every object its state back."""
    for name, each in objects.items():
        if isinstance(each, MutableMapping) and not hasattr(each, "load_state_dict"):
            each.clear()
            each.update(states[name])
        else:
            each.load_state_dict(states[name])


def _state(each: Any) -> Any:
    return each.state_dict() if hasattr(each, "state_dict") else dict(each)


def _copied(value: Any, path: str) -> Any:
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return _copied_tensor(value, path)
    if isinstance(value, np.generic):
        return _copied(value.item(), path)
    if kind in _PLAIN:
        return value
    if kind in _MAPPINGS:
        return _copied_mapping(value, path)
    if kind in _SEQUENCES:
        return kind(_copied(each, f"{path}[{number}]") for number, each in enumerate(value))
    for plain in (bool, int, float, str):
        if isinstance(value, plain):
            return plain(value)
    raise CheckpointError(
        f"{path} is a {kind.__module__}.{kind.__qualname__}: a checkpoint keeps numbers, strings, None, lists, dicts "
        f"and tensors, nothing that would run code when it is loaded; leave it out, or keep its state as such values"
    )


def _copied_tensor(value: torch.Tensor, path: str) -> torch.Tensor:
    detached = value.detach()
    if type(detached) is not torch.Tensor or detached.is_meta:
        kind = "meta tensor" if detached.is_meta else type(detached).__name__
        raise CheckpointError(
            f"{path} is a {kind}: only plain tensors with values can be loaded again without running code, and only "
            f"rank 0's objects are kept; give the checkpointer its module as one of the models"
        )
    return detached.to("cpu", copy=True)


def _copied_mapping(value: Mapping[Any, Any], path: str) -> Any:
    found = copy.copy(value)
    assert isinstance(found, MutableMapping)
    for key, each in value.items():
        if type(key) not in (str, int, bool, float) or (isinstance(key, float) and math.isnan(key)):
            raise CheckpointError(f"{path} has the key {key!r}, a {type(key).__name__}: give strings or numbers")
        found[key] = _copied(each, f"{path}[{key!r}]")
    return found
