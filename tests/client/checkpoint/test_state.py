"""Models and optimizers in one process: names, and state that comes back as it was."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_model_state_dict

from forebay.checkpoint.manifests import ALONE, write_manifest
from forebay.checkpoint.reader import CheckpointReader
from forebay.checkpoint.saving import Saving
from forebay.checkpoint.staging import Stager
from forebay.checkpoint.state import TrainingState
from forebay_core.errors import CheckpointError, ConfigurationError
from tests.client.checkpoint.rank_programs import Net, Trainer


def save(state: TrainingState, directory: Path) -> dict[str, Any]:
    collected, settings = state.collect()
    stager = Stager(0, 1, lambda value: [value], piece_bytes=256)
    written = Saving(None).write(stager.start(collected).done.result(60), directory)
    write_manifest(directory, ALONE, 0, 1, files=written.files)
    return settings


def tensors(state: TrainingState) -> dict[str, Tensor]:
    return {entry.key: entry.tensor.detach().clone() for entry in state.collect()[0].entries}


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for key, tensor in wanted.items():
        assert found[key].dtype == tensor.dtype, key
        assert torch.equal(found[key], tensor), key


def stepped(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.full_like(parameter, 0.25)
    optimizer.step()


def test_training_goes_on_bit_for_bit(tmp_path: Path) -> None:
    one = Trainer("plain")
    losses = [one.step(step) for step in range(2)]
    settings = one.save(tmp_path / "a")
    losses += [one.step(step) for step in range(2, 5)]
    other = Trainer("plain", seed=5)
    other.restore(tmp_path / "a", settings)
    assert [other.step(step) for step in range(2, 5)] == losses[2:]
    assert_same(tensors(other.state), tensors(one.state))


def test_an_optimizer_that_has_not_stepped_is_not_made_to_and_comes_back_so(tmp_path: Path) -> None:
    """T14: torch runs a step to have a state to give: counters become 1, hooks fire."""
    one = Trainer("plain")
    fired = []
    one.optimizer.register_step_pre_hook(lambda *_: fired.append("pre"))
    settings = one.save(tmp_path / "a")
    assert not fired
    assert not one.optimizer.state
    assert all(parameter.grad is None for parameter in one.model.parameters())
    other = Trainer("plain", seed=5)
    other.step(0)
    other.optimizer.register_step_pre_hook(lambda *_: fired.append("pre"))
    other.restore(tmp_path / "a", settings)
    assert not fired
    assert not other.optimizer.state
    assert [other.step(step) for step in range(3)] == [one.step(step) for step in range(3)]


def test_restoring_runs_no_step_either(tmp_path: Path) -> None:
    """T14"""
    one = Trainer("plain")
    one.step(0)
    settings = one.save(tmp_path / "a")
    other = Trainer("plain", seed=5)
    fired = []
    other.optimizer.register_step_pre_hook(lambda *_: fired.append("pre"))
    other.restore(tmp_path / "a", settings)
    assert not fired
    assert_same(tensors(other.state), tensors(one.state))


def test_a_parameter_without_a_gradient_has_no_state_and_gets_none(tmp_path: Path) -> None:
    one = Trainer("plain")
    one.step(0)
    assert not any("unused" in key for key in tensors(one.state) if key.startswith("optimizer"))
    settings = one.save(tmp_path / "a")
    other = Trainer("plain", seed=5)
    other.restore(tmp_path / "a", settings)
    unused = dict(other.model.named_parameters())["unused"]
    assert unused not in other.optimizer.state


def test_tied_weights_are_written_once_and_found_under_each_name(tmp_path: Path) -> None:
    one = Trainer("plain")
    one.save(tmp_path / "a")
    assert "model.head.weight" not in tensors(one.state)
    stored = CheckpointReader(tmp_path / "a").described()
    assert stored["model.head.weight"].path == ("model", "head.weight")
    untied = Net()
    untied.head.weight = nn.Parameter(torch.zeros(10, 10))
    TrainingState({"model": untied}, {}).restore(CheckpointReader(tmp_path / "a"), {})
    assert torch.equal(untied.head.weight, one.model.embed.weight)  # type: ignore[union-attr, arg-type]


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_names_are_those_of_torch_without_what_wraps_a_model() -> None:
    wrapped = nn.Sequential(checkpoint_wrapper(nn.Linear(2, 2)), nn.Linear(2, 2))
    compiled = torch.compile(wrapped)
    names = {key.removeprefix("model.") for key in tensors(TrainingState({"model": compiled}, {}))}  # type: ignore[dict-item]
    assert names == set(get_model_state_dict(compiled))  # type: ignore[arg-type]
    assert names == {"0.weight", "0.bias", "1.weight", "1.bias"}


def optimizers() -> Iterator[Callable[[Any], torch.optim.Optimizer]]:
    yield lambda params: torch.optim.SGD(params, lr=0.1)
    yield lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9)
    yield lambda params: torch.optim.AdamW(params, lr=0.1, amsgrad=True, foreach=True)
    yield lambda params: torch.optim.Adam(params, lr=torch.tensor(0.1), fused=True)
    yield lambda params: torch.optim.Adafactor(params, lr=0.1)
    yield lambda params: torch.optim.Rprop(params, lr=0.1)
    yield lambda params: torch.optim.NAdam(params, lr=0.1)


@pytest.mark.parametrize("make", list(optimizers()))
def test_every_kind_of_optimizer_goes_on_as_it_would_have(
    tmp_path: Path, make: Callable[[Any], torch.optim.Optimizer]
) -> None:
    models = [nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)) for _ in range(2)]
    made = [make(list(model.parameters())) for model in models]
    states = [TrainingState({"net": model}, {"opt": each}) for model, each in zip(models, made, strict=True)]
    stepped(made[0])
    made[0].param_groups[0]["lr"] = made[0].param_groups[0]["lr"] * 0.5
    settings = save(states[0], tmp_path / "a")
    states[1].restore(CheckpointReader(tmp_path / "a"), settings)
    for each in made:
        stepped(each)
    assert_same(tensors(states[1]), tensors(states[0]))
    assert states[1].collect()[1] == states[0].collect()[1]
    kinds = [{key: type(value) for key, value in each.param_groups[0].items()} for each in made]
    assert kinds[1] == kinds[0]


class Odd(torch.optim.Optimizer):
    """State of all kinds: numbers, nothing, mappings, and a type that is wider than the parameter's."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state["step"] = state.get("step", 0) + 1
            state.update(ratio=0.1 * state["step"], warm=True, last=None)
            state["inner"] = {"wide": torch.full((2,), 1 / 3, dtype=torch.float64)}
            state["wide"] = parameter.detach().double() / 3


def test_numbers_nothing_mappings_and_wider_types_in_an_optimizers_state_come_back(tmp_path: Path) -> None:
    models = [nn.Linear(2, 2).bfloat16() for _ in range(2)]
    made = [Odd(model.parameters()) for model in models]
    states = [TrainingState({"m": model}, {"o": each}) for model, each in zip(models, made, strict=True)]
    made[0].step()
    states[1].restore(CheckpointReader(tmp_path / "a"), save(states[0], tmp_path / "a"))
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        before, after = made[0].state[one], made[1].state[other]
        assert {key: type(value) for key, value in after.items()} == {key: type(value) for key, value in before.items()}
        assert [after[key] for key in ("step", "ratio", "warm", "last")] == [1, 0.1, True, None]
        assert torch.equal(after["wide"], before["wide"])
        assert after["wide"].dtype == torch.float64
        assert torch.equal(after["inner"]["wide"], before["inner"]["wide"])


def test_what_cannot_be_saved_of_an_optimizer_is_named() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[model.weight]["history"] = [torch.ones(2)]
    with pytest.raises(CheckpointError, match=r"o\.state\.m\.weight\.history is a list"):
        TrainingState({"m": model}, {"o": optimizer}).collect()


def test_several_models_and_optimizers_and_one_optimizer_over_two_models(tmp_path: Path) -> None:
    def made(seed: int) -> tuple[TrainingState, list[torch.optim.Optimizer]]:
        torch.manual_seed(seed)
        models = {"encoder": nn.Linear(3, 3), "decoder": nn.Linear(3, 2), "critic": nn.Linear(2, 1)}
        both = [*models["decoder"].parameters(), *models["encoder"].parameters()]
        optimizers = {
            "main": torch.optim.Adam(both),
            "critic_optimizer": torch.optim.SGD(models["critic"].parameters()),
        }
        return TrainingState(models, optimizers), list(optimizers.values())

    (one, optimizers), (other, _) = made(1), made(2)
    for optimizer in optimizers:
        stepped(optimizer)
    settings = save(one, tmp_path / "a")
    other.restore(CheckpointReader(tmp_path / "a"), settings)
    assert_same(tensors(other), tensors(one))
    assert "main.state.encoder.weight.exp_avg" in tensors(one)


def test_the_state_follows_the_parameters_whatever_their_order_and_groups_keep_their_settings(tmp_path: Path) -> None:
    """CASES 44: optimizer state permuted."""

    def made(seed: int, order: int) -> tuple[TrainingState, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        groups = [{"params": list(each.parameters())[::order], "lr": 0.1 * seed} for each in list(model)[::order]]
        optimizer = torch.optim.Adam(groups)
        return TrainingState({"m": model}, {"o": optimizer}), optimizer

    (one, optimizer), (other, again) = made(1, 1), made(2, -1)
    optimizer.param_groups[0]["lr"] = 0.7
    stepped(optimizer)
    with torch.no_grad():
        for number, state in enumerate(optimizer.state.values()):
            state["exp_avg"].fill_(number)
    other.restore(CheckpointReader(tmp_path / "a"), save(one, tmp_path / "a"))
    assert_same(tensors(other), tensors(one))
    assert [group["lr"] for group in again.param_groups] == [0.1, 0.7]


def test_a_checkpoint_of_another_model_says_what_differs(tmp_path: Path) -> None:
    """T10"""
    one = TrainingState({"m": nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))}, {})
    save(one, tmp_path / "a")
    reader = CheckpointReader(tmp_path / "a")
    with pytest.raises(CheckpointError, match=r"it has no m\.2\.weight, m\.2\.bias, m\.3\.weight and 1 more$"):
        TrainingState({"m": nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))}, {}).restore(reader, {})
    with pytest.raises(CheckpointError, match=r"the job has no m\.1\.weight, m\.1\.bias$"):
        TrainingState({"m": nn.Sequential(nn.Linear(2, 2))}, {}).restore(reader, {})
    with pytest.raises(CheckpointError, match=r"m\.0\.weight has the size \[2, 3\], and \[2, 2\] in the checkpoint"):
        TrainingState({"m": nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))}, {}).restore(reader, {})
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.raises(CheckpointError, match="no optimizer o"):
        TrainingState({"m": model}, {"o": torch.optim.SGD(model.parameters())}).restore(reader, {"optimizers": {}})


def test_groups_that_were_others_are_refused(tmp_path: Path) -> None:
    def made(groups: int) -> TrainingState:
        model = nn.Linear(2, 2)
        params = [{"params": [each]} for each in model.parameters()] if groups == 2 else list(model.parameters())
        return TrainingState({"m": model}, {"o": torch.optim.SGD(params)})

    settings = save(made(2), tmp_path / "a")
    with pytest.raises(CheckpointError, match="group 0 of the optimizer o was 2 groups"):
        made(1).restore(CheckpointReader(tmp_path / "a"), settings)


def test_names_that_would_be_mixed_up_and_wrappers_of_old_are_refused() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(ConfigurationError, match="both called a"):
        TrainingState({"a": model}, {"a": optimizer})
    for name in ("", "a.b"):
        with pytest.raises(ConfigurationError, match="part of keys"):
            TrainingState({name: model}, {})
    with pytest.raises(CheckpointError, match="in none of the models"):
        TrainingState({"a": nn.Linear(2, 2)}, {"o": optimizer}).collect()


class Extra(nn.Module):
    """Has state that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = {"seen": 0}

    def get_extra_state(self) -> Any:
        return dict(self.counts)

    def set_extra_state(self, state: Any) -> None:
        self.counts = state


def test_the_extra_state_of_a_module_goes_with_the_settings(tmp_path: Path) -> None:
    one, other = nn.Sequential(Extra(), nn.Linear(1, 1)), nn.Sequential(Extra(), nn.Linear(1, 1))
    one[0].counts["seen"] = 5  # type: ignore[operator, index]
    settings = save(TrainingState({"m": one}, {}), tmp_path / "a")
    TrainingState({"m": other}, {}).restore(CheckpointReader(tmp_path / "a"), settings)
    assert other[0].counts == {"seen": 5}
    with pytest.raises(CheckpointError, match=r"no m\.0\._extra_state"):
        TrainingState({"m": other}, {}).restore(CheckpointReader(tmp_path / "a"), {})


class Sized(nn.Module):
    """Its extra state is a tensor, whose size changes."""

    def __init__(self, *history: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.history = torch.tensor(history)

    def get_extra_state(self) -> Any:
        return self.history.clone()

    def set_extra_state(self, state: Any) -> None:
        self.history = state


def test_an_extra_state_that_is_a_tensor_comes_back_whatever_its_size_was(tmp_path: Path) -> None:
    settings = save(TrainingState({"m": Sized(1.0, 2.0)}, {}), tmp_path / "a")
    other = Sized(0.0)
    TrainingState({"m": other}, {}).restore(CheckpointReader(tmp_path / "a"), settings)
    assert other.history.tolist() == [1.0, 2.0]


class Hooked(nn.Module):
    """Gives its weight to `state_dict` in another form, and takes that form back."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), value))
        self._register_state_dict_hook(Hooked.give)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(Hooked.take)  # type: ignore[no-untyped-call]

    def give(self, state: dict[str, Any], prefix: str, *_: Any) -> None:
        state[f"{prefix}weight"] = self.weight.detach() * 2

    def take(self, state: dict[str, Any], prefix: str, *_: Any) -> None:
        state[f"{prefix}weight"] = state[f"{prefix}weight"] / 2


def test_what_hooks_make_of_a_models_state_goes_back_through_them(tmp_path: Path) -> None:
    settings = save(TrainingState({"m": Hooked(1.5)}, {}), tmp_path / "a")
    other = Hooked(0.0)
    TrainingState({"m": other}, {}).restore(CheckpointReader(tmp_path / "a"), settings)
    assert other.weight.tolist() == [1.5] * 3


class Global(torch.optim.SGD):
    """Has state that is of no parameter, in two places."""

    seen = 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        self.seen += 1
        self.state["all"] = {"mean": torch.full((2,), 0.5), "seen": self.seen}  # type: ignore[index]
        self.state[self.param_groups[0]["params"][0]]["later"] = {}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "seen": self.seen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.seen = state_dict["seen"]


def test_what_an_optimizer_keeps_beside_parameters_and_groups_comes_back(tmp_path: Path) -> None:
    models = [nn.Linear(2, 2) for _ in range(2)]
    made = [Global(model.parameters(), lr=0.1) for model in models]
    states = [TrainingState({"m": model}, {"o": each}) for model, each in zip(models, made, strict=True)]
    stepped(made[0])
    states[1].restore(CheckpointReader(tmp_path / "a"), save(states[0], tmp_path / "a"))
    assert made[1].seen == 1
    assert made[1].state["all"]["seen"] == 1  # type: ignore[index]
    assert made[1].state["all"]["mean"].tolist() == [0.5, 0.5]  # type: ignore[index]
    assert made[1].state[models[1].weight]["later"] == {}


def test_a_key_of_an_optimizers_state_that_would_come_back_as_another_is_refused() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[model.weight][3] = torch.ones(2)
    with pytest.raises(CheckpointError, match=r"o\.state\.m\.weight has the key 3, a int"):
        TrainingState({"m": model}, {"o": optimizer}).collect()


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_the_buffers_of_a_wrapped_module_are_known_as_buffers() -> None:
    """T18: what differs between ranks, and is to, is no error."""
    model = nn.Sequential(checkpoint_wrapper(nn.BatchNorm1d(2)))
    entries = TrainingState({"m": model}, {}).collect()[0].entries
    assert {entry.key for entry in entries if entry.is_buffer} == {
        f"m.0.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")
    }


def test_a_model_without_values_yet_is_told_from_one_without_any(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"m\.weight has no size yet: run one batch"):
        TrainingState({"m": nn.LazyLinear(3)}, {}).collect()
    nothing = TrainingState({"m": nn.ReLU()}, {})
    nothing.restore(CheckpointReader(tmp_path / "a"), save(nothing, tmp_path / "a"))
