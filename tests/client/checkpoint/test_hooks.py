"""Hooks on optimizers: every step waits and says so, a skipped one does neither."""

import torch

from forebay.checkpoint.hooks import StepHooks


def optimizer() -> torch.optim.Optimizer:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    return torch.optim.SGD([parameter], 0.1)


def test_each_of_several_optimizers_waits_before_and_says_so_after_until_removed() -> None:
    said: list[str] = []
    first, second = optimizer(), optimizer()
    hooks = StepHooks([first, second], before=lambda: said.append("before"), after=lambda: said.append("after"))
    first.step()
    second.step(lambda: torch.ones(1))  # type: ignore[arg-type, return-value]
    assert said == ["before", "after"] * 2
    hooks.remove()
    hooks.remove()
    first.step()
    assert len(said) == 4


def test_under_a_scheduler_and_a_scaler_hooks_fire_and_not_for_a_step_that_is_skipped() -> None:
    said: list[str] = []
    mine = optimizer()
    torch.optim.lr_scheduler.StepLR(mine, 1)
    StepHooks([mine], before=lambda: None, after=lambda: said.append("after"))
    scaler = torch.amp.GradScaler("cpu")
    (parameter,) = mine.param_groups[0]["params"]
    for gradient in (1.0, float("inf"), 1.0):
        parameter.grad = None
        scaler.scale((parameter * gradient).sum()).backward()
        scaler.step(mine)
        scaler.update()
    assert len(said) == 2
