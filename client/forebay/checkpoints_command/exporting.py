"""`forebay checkpoints export`: the model of a checkpoint as one plain file, whatever the number of ranks was.

Every item that is read is compared with its checksum, and no code of the checkpoint is run (`checkpoint.reader`). The
file appears whole or not at all. All of what is exported is in memory at once. The only module here that needs torch.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forebay.checkpoint.loading import Target, load_into
from forebay.checkpoint.objects import decoded
from forebay.checkpoint.optimizers import plain_state
from forebay.checkpoint.reader import CheckpointReader, Stored
from forebay_core.checkpoints.names import OBJECTS
from forebay_core.errors import CheckpointError, CheckpointNotFound, ConfigurationError

_OF_TORCH = (".pt", ".pth", ".bin", ".ckpt")
_SAFETENSORS = ".safetensors"
#: A model's tensor is known by model and name; an optimizer's by more.
_MODEL_PARTS = 2


@dataclass(frozen=True)
class Exported:
    """What was written. `tied`: names of the file that stand for another one's tensor. `left_out`: of the models, what
    is no tensor and the file cannot hold."""

    path: str
    models: tuple[str, ...]
    tensors: int
    size_bytes: int
    tied: Mapping[str, str]
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class Destination:
    """The file that is to be written, checked before anything is read. Raises `ConfigurationError`."""

    path: Path
    force: bool = False
    full: bool = False

    def __post_init__(self) -> None:
        if self.path.suffix not in (*_OF_TORCH, _SAFETENSORS):
            raise ConfigurationError(f"--to {self.path}: give a name that ends in .pt or .safetensors")
        if self.is_safetensors and self.full:
            raise ConfigurationError("safetensors files hold a model's tensors alone: leave --full out, or give a .pt")
        if not self.path.parent.is_dir():
            raise ConfigurationError(f"--to {self.path}: there is no directory {self.path.parent}")
        if self.path.is_dir() or (self.path.exists() and not self.force):
            raise ConfigurationError(f"{self.path} is there already: give another name, or --force to replace it")
        if self.is_safetensors:
            _safetensors()

    @property
    def is_safetensors(self) -> bool:
        return self.path.suffix == _SAFETENSORS


def export(reader: CheckpointReader, to: Destination, *, model: str | None = None) -> Exported:
    """Writes one model, or of several each under its name; with `full` models, optimizers and objects.

    Raises `CheckpointDamaged`, `CheckpointNotFound` for a model that is not in it, `CheckpointError` where the file
    cannot be written.
    """
    stored = reader.described()
    chosen = {key: found for key, found in stored.items() if to.full or _is_wanted(found, model)}
    models = _models(chosen)
    if not models:
        asked, there = f"no model {model}" if model else "no model", ", ".join(_models(stored)) or "none"
        raise CheckpointNotFound(f"the checkpoint holds {asked}; it holds {there}")
    same = _tied(reader, chosen)
    tensors = _read(reader, {key: found for key, found in chosen.items() if key not in same})
    targets = [Target(chosen[key].path, tensors[same.get(key, key)]) for key in chosen]
    kept = _kept(reader)
    extras = {name: value for name, value in kept["settings"].get("extra", {}).items() if name.split(".")[0] in models}
    tied = {_name(chosen[key].path, models): _name(chosen[other].path, models) for key, other in same.items()}
    if to.is_safetensors:
        flat = {_name(target.path, models): target.tensor for target in targets}
        _write(to, lambda part: _save_safetensors(flat, tied, part))
    else:
        content = _content(targets, extras, models, kept if to.full else None)
        _write(to, lambda part: torch.save(content, part))
    size_bytes = sum(tensor.nbytes for tensor in tensors.values())
    left_out = tuple(sorted(extras)) if to.is_safetensors else ()
    return Exported(str(to.path), tuple(models), len(targets), size_bytes, tied, left_out)


def _models(stored: Mapping[str, Stored]) -> list[str]:
    return sorted({found.path[0] for found in stored.values() if len(found.path) == _MODEL_PARTS})


def _is_wanted(found: Stored, model: str | None) -> bool:
    return len(found.path) == _MODEL_PARTS and model in (None, found.path[0])


def _tied(reader: CheckpointReader, chosen: Mapping[str, Stored]) -> dict[str, str]:
    """Further names of tensors that lie in the same place, to the first one."""
    places: dict[str, list[Any]] = {}
    for index, place in reader.read_metadata().storage_data.items():
        if index.fqn in chosen:
            places.setdefault(index.fqn, []).append((tuple(index.offset or ()), place.relative_path, place.offset))
    first: dict[tuple[Any, ...], str] = {}
    same = {}
    for key in chosen:
        known = first.setdefault(tuple(sorted(places.get(key, [key]))), key)
        if known != key:
            same[key] = known
    return same


def _read(reader: CheckpointReader, chosen: Mapping[str, Stored]) -> dict[str, Tensor]:
    tensors = {key: torch.empty(found.size, dtype=found.dtype) for key, found in chosen.items()}
    load_into([Target(found.path, tensors[key]) for key, found in chosen.items()], reader, None)
    return tensors


def _kept(reader: CheckpointReader) -> Mapping[str, Mapping[str, Any]]:
    """What is beside the tensors: "settings" of models and optimizers, and "objects"."""
    return decoded(reader.read_file(OBJECTS)) if OBJECTS in reader.files else {"settings": {}, "objects": {}}


def _name(path: tuple[str, ...], models: list[str]) -> str:
    """Within the model where there is one alone."""
    return ".".join(path[1:] if len(models) == 1 else path)


def _content(
    targets: list[Target], extras: Mapping[str, Any], models: list[str], kept: Mapping[str, Mapping[str, Any]] | None
) -> dict[str, Any]:
    """The state of the model, or of several by their names; with `kept` models, optimizers and objects."""
    states: dict[str, dict[str, Any]] = {name: {} for name in models}
    for target in targets:
        if len(target.path) == _MODEL_PARTS:
            states[target.path[0]][target.path[1]] = target.tensor
    for name, value in extras.items():
        model, _, rest = name.partition(".")
        states[model][rest] = value
    if kept is None:
        return states if len(models) > 1 else states[models[0]]
    return {"models": states, "optimizers": _optimizers(targets, kept["settings"]), "objects": kept["objects"]}


def _optimizers(targets: list[Target], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The state of each by the names of parameters, and its groups with their hyperparameters."""
    of_parameter: dict[tuple[str, str], list[Target]] = {}
    for target in targets:
        if len(target.path) > _MODEL_PARTS:
            of_parameter.setdefault((target.path[0], target.path[2]), []).append(target)
    found = {name: {"state": {}, **groups} for name, groups in settings.get("optimizers", {}).items()}
    for (name, parameter), its in of_parameter.items():
        found.setdefault(name, {"state": {}})["state"][parameter] = plain_state(its)
    return found


def _write(to: Destination, save: Callable[[Path], object]) -> None:
    part = to.path.with_name(f".{to.path.name}.{os.getpid()}.part")
    try:
        save(part)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        if to.force:
            part.replace(to.path)
        else:
            os.link(part, to.path)
    except FileExistsError as error:
        raise ConfigurationError(f"{to.path} is there since a moment ago: give another name, or --force") from error
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise CheckpointError(f"{to.path} cannot be written: {reason}") from error
    finally:
        with suppress(FileNotFoundError):
            part.unlink()


def _save_safetensors(tensors: Mapping[str, Tensor], tied: Mapping[str, str], path: Path) -> None:
    """Tied weights once; their further names are in the file's metadata, as `safetensors.torch.save_model` has them."""
    alone = {name: tensor.contiguous() for name, tensor in tensors.items() if name not in tied}
    _safetensors()(alone, path, {"format": "pt", **tied})


def _safetensors() -> Callable[..., None]:
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise ConfigurationError("safetensors is not installed: pip install safetensors, or give a .pt") from error
    return save_file
