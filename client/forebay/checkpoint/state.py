"""The tensors of models and optimizers by name, and back: the same names in one process, under DDP, FSDP2 and HSDP.

Names are those of `torch.distributed.checkpoint.state_dict`: of a model's own structure, without what wraps it. An
optimizer's state is named by the parameter it belongs to, so that no order of parameters matters. An optimizer that
has not stepped has no state, and is restored without any (T14: asking torch for it would run a step). What is not a
tensor (learning rates, betas, ...) is in `settings`, which the checkpointer keeps with the job's other objects.

Called by the thread that trains.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.modules.module import _EXTRA_STATE_KEY_SUFFIX
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from forebay.checkpoint.group import Group
from forebay.checkpoint.holdings import Collected, Entry
from forebay.checkpoint.loading import Target, check_names, check_sizes, load_into
from forebay.checkpoint.optimizers import change_of, load_optimizer, state_of, targets_of
from forebay.checkpoint.reader import CheckpointReader
from forebay_core.errors import CheckpointError, ConfigurationError

_CHECKPOINTED = "_checkpoint_wrapped_module"
_COMPILED = "_orig_mod"


class TrainingState:
    """Models and optimizers, each by a name without dots; every parameter of an optimizer is in one of the models."""

    def __init__(self, models: Mapping[str, nn.Module], optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
        if twice := models.keys() & optimizers.keys():
            raise ConfigurationError(
                f"a model and an optimizer are both called {min(twice)}: give them different names"
            )
        for name in (*models, *optimizers):
            if not name or "." in name:
                raise ConfigurationError(f"{name!r} cannot be the name of a model or an optimizer: it is part of keys")
        for module in (part for model in models.values() for part in model.modules()):
            if isinstance(module, FullyShardedDataParallel):
                raise ConfigurationError("the model is wrapped in FullyShardedDataParallel: use fully_shard (FSDP2)")
        self._models = dict(models)
        self._optimizers = dict(optimizers)
        self._names: dict[str, tuple[str, ...]] = {}

    def collect(self) -> tuple[Collected, dict[str, Any]]:
        """The tensors by reference, and the settings: JSON values and tensors, by model and optimizer."""
        tensors, extras = self._model_state()
        entries = []
        aliases: dict[tuple[str, ...], str] = {}
        keys: dict[int, str] = {}
        buffers = {id(buffer) for buffer in self._root().buffers()}
        for path, tensor in tensors:
            if (known := keys.get(id(tensor))) is not None:
                aliases[path] = known
                continue
            keys[id(tensor)] = ".".join(path)
            entries.append(Entry(path, tensor, id(tensor) in buffers))
        settings: dict[str, Any] = {}
        for name, optimizer in self._optimizers.items():
            of_optimizer, settings[name] = state_of(name, optimizer, keys)
            entries += of_optimizer
        return Collected(tuple(entries), aliases), {"optimizers": settings, "extra": extras}

    def restore(self, reader: CheckpointReader, settings: Mapping[str, Any], group: Group | None = None) -> None:
        """Loads all of it, whatever the number of ranks was. All ranks of the group call it; None: one process.

        Raises `CheckpointError` that names what does not fit, and `CheckpointDamaged`; then the state is undefined.
        """
        group = group or Group(None, 0)
        wanted: list[_Wanted] = []
        group.together(lambda: wanted.append(self._want(reader)))
        load_into(wanted[0].targets, reader, group.process_group)
        self._set_models(wanted[0].of_models, settings.get("extra", {}))
        for name, optimizer in self._optimizers.items():
            saved = settings["optimizers"].get(name)
            load_optimizer(name, optimizer, wanted[0].keys, wanted[0].of_optimizers[name], saved)

    def changes(self, settings: Mapping[str, Any]) -> list[str]:
        """What a person should know of the difference between this state and the one that was saved."""
        saved = settings["optimizers"]
        found = [change_of(name, each, saved[name]) for name, each in self._optimizers.items() if name in saved]
        return [change for change in found if change is not None]

    def _want(self, reader: CheckpointReader) -> "_Wanted":
        tensors, _ = self._model_state()
        keys: dict[int, str] = {}
        targets = []
        for path, tensor in tensors:
            if id(tensor) not in keys:
                keys[id(tensor)] = ".".join(path)
                targets.append(Target(path, tensor.detach()))
        stored = reader.described()
        of_optimizers = {name: targets_of(name, each, keys, stored) for name, each in self._optimizers.items()}
        targets += [target for of_one in of_optimizers.values() for of_key in of_one.values() for target in of_key]
        check_names(targets, stored, {".".join(path) for path, _ in tensors}, {*self._models, *self._optimizers})
        check_sizes(targets, stored)
        return _Wanted(targets, {".".join(path): tensor for path, tensor in tensors}, of_optimizers, keys)

    def _root(self) -> nn.ModuleDict:
        return nn.ModuleDict(self._models)

    def _model_state(self) -> tuple[list[tuple[tuple[str, ...], Tensor]], dict[str, Any]]:
        """Path and tensor of all that is one, and the rest by plain name: what is of no fixed size, too."""
        tensors: list[tuple[tuple[str, ...], Tensor]] = []
        extras: dict[str, Any] = {}
        root = self._root()
        for raw, value in root.state_dict(keep_vars=True).items():
            path = self._names.get(raw) or self._names.setdefault(raw, tuple(plain_name(root, raw).split(".", 1)))
            if is_lazy(value):
                raise CheckpointError(f"{'.'.join(path)} has no size yet: run one batch through the model before")
            if isinstance(value, Tensor) and path[-1].rpartition(".")[2] != _EXTRA_STATE_KEY_SUFFIX:
                tensors.append((path, value))
            else:
                extras[".".join(path)] = value
        return tensors, extras

    def _set_models(self, tensors: Mapping[str, Tensor], extras: Mapping[str, Any]) -> None:
        """Through `load_state_dict`, for what a module does there; the tensors are loaded already.

        They are the modules' own, but for those that hooks have made, which only `load_state_dict` takes over.
        """
        _, unloaded = self._model_state()
        missing = sorted(unloaded.keys() - extras.keys())
        if missing:
            raise CheckpointError(f"the checkpoint has no {missing[0]}, which the model has")
        state: dict[str, Any] = {name: tensor.detach() for name, tensor in tensors.items()}
        state |= {name: extras[name] for name in unloaded}
        root = self._root()
        raw = {name: state[".".join(self._names[name])] for name in root.state_dict(keep_vars=True)}
        root.load_state_dict(raw, strict=True)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """All that is loaded; the models' part by each name, the optimizers' by parameter; parameters' names by id."""

    targets: list[Target]
    of_models: Mapping[str, Tensor]
    of_optimizers: Mapping[str, Mapping[str, list[Target]]]
    keys: Mapping[int, str]


def plain_name(root: nn.Module, name: str) -> str:
    """A name in the state without what `DistributedDataParallel`, `torch.compile` and activation checkpoints add."""
    return ".".join(_plain_parts(root, name))


def _plain_parts(root: nn.Module, name: str) -> Iterator[str]:
    module: Any = root
    for part in name.split("."):
        wraps = (part == "module" and isinstance(module, DistributedDataParallel)) or part in (_COMPILED, _CHECKPOINTED)
        if not wraps:
            yield part
        module = getattr(module, part, None)
