"""Objects beside the tensors: kept as JSON values and tensors, refused by path where they are anything else."""

import io
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from forebay.checkpoint import objects
from forebay_core.errors import CheckpointDamaged, CheckpointError, ConfigurationError, StateMismatch


def taken(kept: dict[str, Any]) -> dict[str, Any]:
    return objects.taken(kept, {})["objects"]  # type: ignore[no-any-return]


def written(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def round_trip(states: dict[str, Any]) -> dict[str, Any]:
    return objects.decoded(written({"objects": states, "settings": {}}))["objects"]


def schedulers(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    kinds = torch.optim.lr_scheduler
    return {
        "steps": kinds.StepLR(optimizer, 3),
        "milestones": kinds.MultiStepLR(optimizer, [2, 4, 4]),
        "plateau": kinds.ReduceLROnPlateau(optimizer),
        "cosine": kinds.CosineAnnealingWarmRestarts(optimizer, 5),
        "chain": kinds.SequentialLR(optimizer, [kinds.ConstantLR(optimizer), kinds.ExponentialLR(optimizer, 0.9)], [2]),
    }


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
@pytest.mark.filterwarnings("ignore:The epoch parameter in:UserWarning")
def test_schedulers_scalers_and_counters_come_back_as_they_were() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], 0.5)
    kept = {
        **schedulers(optimizer),
        "scaler": torch.amp.GradScaler("cpu"),
        "counters": {"tokens": 12, "ema": torch.ones(3)},
    }
    for _ in range(3):
        for name in ("steps", "milestones", "cosine", "chain"):
            kept[name].step()
        kept["plateau"].step(np.float64(0.5))
    states = round_trip(taken(kept))
    fresh = {**schedulers(optimizer), "scaler": torch.amp.GradScaler("cpu"), "counters": {"stale": 1}}
    objects.check_same(fresh, states)
    objects.put(fresh, states)
    assert fresh["counters"]["tokens"] == 12
    assert torch.equal(fresh["counters"]["ema"], torch.ones(3))
    assert "stale" not in fresh["counters"]
    for name in ("steps", "milestones", "cosine", "chain", "plateau", "scaler"):
        assert fresh[name].state_dict() == kept[name].state_dict()
    fresh["milestones"].step()


def test_what_is_taken_does_not_change_with_the_object() -> None:
    mine = {"nested": {"list": [1, 2]}, "tensor": torch.zeros(2)}
    states = taken({"mine": mine})
    mine["nested"]["list"].append(3)  # type: ignore[index]
    mine["tensor"].add_(1)  # type: ignore[attr-defined]
    assert states["mine"]["nested"] == {"list": [1, 2]}
    assert torch.equal(states["mine"]["tensor"], torch.zeros(2))


class Custom:
    pass


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": {"b": [0, Custom()]}}, r"objects\['x'\]\['a'\]\['b'\]\[1\] is a .*Custom"),
        ({"f": lambda: 1}, r"\['f'\] is a builtins.function"),
        ({"a": np.zeros(3)}, r"\['a'\] is a numpy.ndarray"),
        ({(1, 2): 3}, r"the key \(1, 2\)"),
    ],
)
def test_anything_else_is_refused_with_the_path_to_it(value: dict[Any, Any], path: str) -> None:
    with pytest.raises(CheckpointError, match=path):
        taken({"x": value})


class Marked(torch.Tensor):
    pass


def test_a_tensor_that_could_not_be_loaded_again_is_refused_when_saving() -> None:
    """One that is written and cannot be read would make each checkpoint a damaged one."""
    for value, kind in ((torch.ones(2).as_subclass(Marked), "Marked"), (torch.ones(2, device="meta"), "meta tensor")):
        with pytest.raises(CheckpointError, match=rf"objects\['x'\]\['a'\] is a {kind}"):
            taken({"x": {"a": value}})
    kept = taken({"x": {"a": torch.nn.Parameter(torch.ones(2))}})
    assert torch.equal(round_trip(kept)["x"]["a"], torch.ones(2))


def test_numbers_that_are_of_a_class_of_their_own_become_plain_ones() -> None:
    states = taken({"x": {"a": np.float64(1.5), "b": np.int64(3), "c": OrderedDict(d=Counter({2: 3}))}})
    found = round_trip(states)["x"]
    assert found == {"a": 1.5, "b": 3, "c": {"d": {2: 3}}}
    assert type(found["a"]) is float
    assert type(found["c"]["d"]) is Counter


def test_an_object_that_could_not_be_restored_is_refused_when_it_is_given() -> None:
    with pytest.raises(ConfigurationError, match=r"objects\['step'\] is a int"):
        objects.checked({"step": 5})


def test_other_objects_than_in_the_checkpoint_are_a_mismatch() -> None:
    with pytest.raises(StateMismatch, match="scheduler"):
        objects.check_same({"scheduler": {}}, {})


def test_a_planted_pickle_is_damage_and_runs_nothing(home: Path) -> None:
    """T9"""
    planted = home / "planted"

    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (planted,))

    content = written({"objects": {"x": Evil()}, "settings": {}})
    with pytest.raises(CheckpointDamaged):
        objects.decoded(content)
    assert not planted.exists()


def test_what_is_cut_off_or_something_else_is_damage() -> None:
    content = written({"objects": {}, "settings": {}})
    for bad in (content[: len(content) // 2], b"", written({"objects": 3}), written([1])):
        with pytest.raises(CheckpointDamaged):
            objects.decoded(bad)
