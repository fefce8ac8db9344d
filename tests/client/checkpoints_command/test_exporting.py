"""The model of a checkpoint as a plain file; of directories that the writer wrote, without a daemon."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model
from torch import nn

from forebay.checkpoint.manifests import ALONE, write_manifest
from forebay.checkpoint.metadata import record_of
from forebay.checkpoint.objects import taken
from forebay.checkpoint.reader import CheckpointReader
from forebay.checkpoint.saving import Saving
from forebay.checkpoint.staging import Stager
from forebay.checkpoint.state import TrainingState
from forebay.checkpoints_command.exporting import Destination, Exported, export
from forebay_core.checkpoints.names import METADATA, OBJECTS
from forebay_core.errors import CheckpointDamaged, CheckpointError, CheckpointNotFound, ConfigurationError

LIMIT_SECONDS = 60


class Net(nn.Module):
    """With tied weights, buffers, and a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 6, bias=False)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 6, bias=False)
        self.head.weight = self.embed.weight
        self.factor = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.norm(self.embed(x))) * self.factor.sum()
        return found


class Saying(Net):
    """With something that is no tensor."""

    said = "new"

    def get_extra_state(self) -> str:
        return self.said

    def set_extra_state(self, state: str) -> None:
        self.said = state


def trained(seed: int = 0) -> tuple[Net, torch.optim.Adam]:
    torch.manual_seed(seed)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 6)).sum().backward()
    optimizer.step()
    return model, optimizer


def saved(directory: Path, models: dict[str, nn.Module], optimizers: dict[str, Any] | None = None) -> CheckpointReader:
    """A checkpoint of one process."""
    directory.mkdir()
    collected, settings = TrainingState(models, optimizers or {}).collect()
    staging = Stager(0, 1, lambda value: [value]).start(collected)
    written = Saving(None).write(staging.done.result(LIMIT_SECONDS), directory)
    torch.save(taken({"schedule": {"last_epoch": 3}}, settings), directory / OBJECTS)
    files = (*written.files, record_of(OBJECTS, (directory / OBJECTS).read_bytes()))
    assert METADATA in {file.name for file in files}
    write_manifest(directory, ALONE, 0, 1, files=files)
    return CheckpointReader(directory)


def exported(reader: CheckpointReader, path: Path, *, model: str | None = None, **options: bool) -> Exported:
    return export(reader, Destination(path, **options), model=model)


def same(left: nn.Module, right: nn.Module) -> bool:
    pairs = zip(left.state_dict().values(), right.state_dict().values(), strict=True)
    return all(torch.equal(one, other) and one.dtype == other.dtype for one, other in pairs)


def test_the_file_is_what_torch_save_of_the_models_state_is(home: Path) -> None:
    model, optimizer = trained()
    reader = saved(home / "c", {"model": model}, {"optimizer": optimizer})
    found = exported(reader, home / "model.pt")
    state = torch.load(home / "model.pt", weights_only=True)
    assert state.keys() == model.state_dict().keys()
    other = Net()
    other.load_state_dict(state)
    assert same(model, other)
    assert (found.models, found.tensors, found.tied) == (("model",), len(state), {"head.weight": "embed.weight"})
    assert state["head.weight"].data_ptr() == state["embed.weight"].data_ptr(), "written once"
    assert not list(home.glob(".model*")), "nothing is left"


def test_safetensors_hold_tied_weights_once_and_load_into_the_model(home: Path) -> None:
    model, _ = trained()
    exported(saved(home / "c", {"model": model}), home / "model.safetensors")
    names = load_file(home / "model.safetensors").keys()
    assert "embed.weight" in names
    assert "head.weight" not in names
    with safe_open(home / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "head.weight": "embed.weight"}
    other = Net()
    missing, unexpected = load_model(other, home / "model.safetensors")
    assert not missing
    assert not unexpected
    assert same(model, other)


def test_what_is_no_tensor_goes_with_the_model_where_the_file_can_hold_it(home: Path) -> None:
    model = Saying()
    model.said = "trained"
    reader = saved(home / "c", {"model": model})
    assert exported(reader, home / "model.pt").left_out == ()
    other = Saying()
    other.load_state_dict(torch.load(home / "model.pt", weights_only=True))
    assert other.said == "trained"
    assert exported(reader, home / "model.safetensors").left_out == ("model._extra_state",)


def test_of_several_models_each_has_its_name_or_one_is_chosen(home: Path) -> None:
    one, two = trained(1)[0], trained(2)[0]
    reader = saved(home / "c", {"generator": one, "critic": two})
    assert exported(reader, home / "both.pt").models == ("critic", "generator")
    both = torch.load(home / "both.pt", weights_only=True)
    other = Net()
    other.load_state_dict(both["critic"])
    assert same(two, other)
    exported(reader, home / "one.pt", model="generator")
    other.load_state_dict(torch.load(home / "one.pt", weights_only=True))
    assert same(one, other)
    exported(reader, home / "both.safetensors")
    assert "critic.embed.weight" in load_file(home / "both.safetensors")
    with pytest.raises(CheckpointNotFound, match="no model actor; it holds critic, generator"):
        exported(reader, home / "none.pt", model="actor")


def test_in_full_the_optimizers_and_objects_are_there_too(home: Path) -> None:
    model, optimizer = trained()
    reader = saved(home / "c", {"model": model}, {"optimizer": optimizer})
    exported(reader, home / "all.pt", full=True)
    content = torch.load(home / "all.pt", weights_only=True)
    assert content["models"]["model"].keys() == model.state_dict().keys()
    state = optimizer.state[model.embed.weight]
    assert torch.equal(content["optimizers"]["optimizer"]["state"]["model.embed.weight"]["exp_avg"], state["exp_avg"])
    assert content["optimizers"]["optimizer"]["param_groups"][0]["lr"] == 0.001
    assert content["objects"] == {"schedule": {"last_epoch": 3}}


def test_a_file_is_replaced_only_where_that_is_said(home: Path) -> None:
    reader = saved(home / "c", {"model": trained()[0]})
    (home / "model.pt").write_bytes(b"mine")
    with pytest.raises(ConfigurationError, match=r"model.pt is there already.*--force"):
        exported(reader, home / "model.pt")
    assert (home / "model.pt").read_bytes() == b"mine"
    exported(reader, home / "model.pt", force=True)
    assert torch.load(home / "model.pt", weights_only=True)


def test_a_file_that_appears_meanwhile_is_not_replaced(home: Path) -> None:
    reader = saved(home / "c", {"model": trained()[0]})
    to = Destination(home / "model.pt")
    (home / "model.pt").write_bytes(b"mine")
    with pytest.raises(ConfigurationError, match="a moment ago"):
        export(reader, to)
    assert (home / "model.pt").read_bytes() == b"mine"
    assert not list(home.glob(".model*"))


@pytest.mark.parametrize(
    ("name", "full", "said"),
    [
        ("model.h5", False, "ends in .pt or .safetensors"),
        ("nowhere/model.pt", False, "no directory"),
        ("model.safetensors", True, "leave --full out"),
        ("directory.pt", False, "there already"),
    ],
)
def test_a_name_that_cannot_be_written_is_refused_before_anything_is_read(
    home: Path, name: str, full: bool, said: str
) -> None:
    (home / "directory.pt").mkdir()
    with pytest.raises(ConfigurationError, match=said):
        Destination(home / name, full=full)


def test_without_safetensors_it_says_what_to_install(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(ConfigurationError, match="pip install safetensors"):
        Destination(home / "model.safetensors")


def test_damage_leaves_no_file(home: Path) -> None:
    """CASES 46."""
    reader = saved(home / "c", {"model": trained()[0]})
    (file,) = (home / "c").glob("*.distcp")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointDamaged, match=rf"{file.name} is damaged at \d+"):
        exported(reader, home / "model.pt")
    assert not [path for path in home.iterdir() if "model" in path.name]


def test_a_disk_that_takes_nothing_is_said(home: Path) -> None:
    reader = saved(home / "c", {"model": trained()[0]})
    (home / "out").mkdir()
    to = Destination(home / "out" / "model.pt")
    (home / "out").rmdir()
    with pytest.raises(CheckpointError, match="cannot be written"):
        export(reader, to)
