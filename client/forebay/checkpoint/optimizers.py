"""An optimizer's state as named tensors, and back.

Tensors keep their names. Numbers, which some optimizers have for their step, become tensors of one element whose name
says what they were (`step:int`). The state is set through `optimizer.load_state_dict`; then a tensor that torch has
cast to its parameter's type gets back the type it had, so that training goes on as it would have.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from forebay.checkpoint.holdings import Entry
from forebay.checkpoint.loading import Target
from forebay.checkpoint.reader import Stored
from forebay_core.errors import CheckpointError

Settings = dict[str, Any]
_KINDS: dict[str, tuple[type, torch.dtype]] = {
    "bool": (bool, torch.bool),
    "int": (int, torch.int64),
    "float": (float, torch.float64),
}


def state_of(name: str, optimizer: Optimizer, keys: Mapping[int, str]) -> tuple[list[Entry], Settings]:
    """The state, empty before the first step, and the hyperparameters of each group with its parameters' names.

    keys: the name of each parameter, by its id.
    """
    saved = optimizer.state_dict()
    names = dict(_numbered(name, optimizer, keys))
    entries = [
        Entry(path, tensor)
        for number, key in names.items()
        for path, tensor in _flat(saved["state"].get(number, {}), (name, "state", key))
    ]
    groups = []
    for group in saved["param_groups"]:
        values = {key: _listed(value) for key, value in group.items() if key != "params"}
        groups.append({**values, "params": [names[number] for number in group["params"]]})
    return entries, {"kind": type(optimizer).__name__, "param_groups": groups, "more": _more(saved, names)}


def targets_of(
    name: str, optimizer: Optimizer, keys: Mapping[int, str], stored: Mapping[str, Stored]
) -> dict[str, list[Target]]:
    """Places for what the checkpoint has of the state, by the parameter's name, placed as the parameter is."""
    parameters = {keys[id(parameter)]: parameter for parameter in _parameters(optimizer) if id(parameter) in keys}
    targets: dict[str, list[Target]] = {}
    for found in stored.values():
        if found.path[:2] == (name, "state") and found.path[2] in parameters:
            place = _place(found, parameters[found.path[2]])
            targets.setdefault(found.path[2], []).append(Target(found.path, place))
    return targets


def load_optimizer(
    name: str,
    optimizer: Optimizer,
    keys: Mapping[int, str],
    loaded: Mapping[str, Sequence[Target]],
    saved: Settings | None,
) -> None:
    """Sets state and hyperparameters. saved: None for a checkpoint without this optimizer."""
    if saved is None:
        raise CheckpointError(f"the checkpoint has no optimizer {name}")
    numbered = list(_numbered(name, optimizer, keys))
    state = {number: plain_state(loaded[key]) for number, key in numbered if key in loaded}
    names = dict(numbered)
    current = optimizer.state_dict()["param_groups"]
    groups = []
    for index, group in enumerate(current):
        values = _saved_group(name, [names[number] for number in group["params"]], index, len(current), saved)
        kept = {key: _like(group.get(key), value) for key, value in values.items() if key != "params"}
        groups.append({**group, **kept})
    more = saved.get("more", {"state": {}})
    loading = {**optimizer.state_dict(), **more, "state": {**state, **more["state"]}, "param_groups": groups}
    optimizer.load_state_dict(loading)
    _keep_types(optimizer, state)


def change_of(name: str, optimizer: Optimizer, saved: Settings) -> str | None:
    """What a person should know of an optimizer that is of another class than the saved one."""
    before, now = saved.get("kind"), type(optimizer).__name__
    if before in (None, now):
        return None
    return f"the optimizer {name} was {before} and is {now} now: it goes on from {before}'s state, as far as it uses it"


def plain_state(targets: Sequence[Target]) -> dict[str, Any]:
    """Of one parameter, as the optimizer's own `state_dict` has it."""
    state: dict[str, Any] = {}
    for target in targets:
        inner = state
        for key in target.path[3:-1]:
            inner = inner.setdefault(key, {})
        key, _, kind = target.path[-1].rpartition(":")
        if kind == "none" and key:
            inner[key] = None
        elif kind == "empty" and key:
            inner[key] = {}
        elif kind in _KINDS and key:
            inner[key] = _KINDS[kind][0](target.tensor.item())
        else:
            inner[target.path[-1]] = target.tensor
    return state


def _more(saved: Mapping[str, Any], names: Mapping[int, str]) -> dict[str, Any]:
    """What an optimizer's `state_dict` has that belongs to no parameter and no group."""
    others = {key: value for key, value in saved["state"].items() if key not in names}
    return {**{key: value for key, value in saved.items() if key not in ("state", "param_groups")}, "state": others}


def _saved_group(name: str, params: list[str], index: int, count: int, saved: Settings) -> Mapping[str, Any]:
    groups: list[Mapping[str, Any]] = saved["param_groups"]
    if params:
        found = [group for group in groups if set(params) & set(group["params"])]
        if len(found) == 1:
            return found[0]
        if found:
            raise CheckpointError(f"group {index} of the optimizer {name} was {len(found)} groups in the checkpoint")
    if len(groups) != count:
        raise CheckpointError(f"the optimizer {name} has {count} groups, and {len(groups)} in the checkpoint")
    return groups[index]


def _keep_types(optimizer: Optimizer, state: Mapping[int, Mapping[str, Any]]) -> None:
    for number, parameter in enumerate(_parameters(optimizer)):
        if number in state:
            _retype(optimizer.state[parameter], state[number])


def _retype(now: Any, saved: Mapping[str, Any]) -> None:
    """`step` is of the type that the optimizer asks for (fused, capturable), which its options may have changed."""
    for key, value in saved.items():
        if isinstance(value, Mapping):
            _retype(now[key], value)
        elif isinstance(value, Tensor) and now[key].dtype != value.dtype and key != "step":
            now[key] = value.to(now[key].device)


def _parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    """In the order in which `state_dict` numbers them."""
    for group in optimizer.param_groups:
        yield from group["params"]


def _numbered(name: str, optimizer: Optimizer, keys: Mapping[int, str]) -> Iterator[tuple[int, str]]:
    for number, parameter in enumerate(_parameters(optimizer)):
        if id(parameter) not in keys:
            raise CheckpointError(
                f"parameter {number} of the optimizer {name} (size {list(parameter.shape)}) is in none of the models: "
                f"give all models to the checkpointer, and make the optimizer after the model is sharded"
            )
        yield number, keys[id(parameter)]


def _flat(values: Mapping[Any, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    for key, value in values.items():
        if not isinstance(key, str):
            raise CheckpointError(f"{'.'.join(path)} has the key {key!r}, a {type(key).__name__}: give strings")
        if isinstance(value, Tensor):
            yield (*path, key), value
        elif isinstance(value, Mapping) and value:
            yield from _flat(value, (*path, key))
        elif isinstance(value, Mapping):
            yield (*path, f"{key}:empty"), torch.zeros((), dtype=torch.uint8)
        elif value is None:
            yield (*path, f"{key}:none"), torch.zeros((), dtype=torch.uint8)
        elif type(value).__name__ in _KINDS:
            kind = type(value).__name__
            yield (*path, f"{key}:{kind}"), torch.tensor(value, dtype=_KINDS[kind][1])
        else:
            raise CheckpointError(
                f"{'.'.join(path)}.{key} is a {type(value).__name__}: only tensors and numbers are saved"
            )


def _place(found: Stored, parameter: Tensor) -> Tensor:
    if found.size == parameter.shape:
        return torch.empty_like(parameter, dtype=found.dtype, requires_grad=False)
    if found.size.numel() > 1 and hasattr(parameter, "placements"):
        raise CheckpointError(
            f"{'.'.join(found.path)} is of size {list(found.size)}, its sharded parameter of {list(parameter.shape)}: "
            f"how it was sharded is not known"
        )
    device = "cpu" if not found.size or ":" in found.path[-1] else parameter.device
    return torch.empty(found.size, dtype=found.dtype, device=device)


def _listed(value: Any) -> Any:
    return [_listed(each) for each in value] if isinstance(value, tuple) else value


def _like(current: Any, saved: Any) -> Any:
    return tuple(saved) if isinstance(current, tuple) and isinstance(saved, list) else saved
