"""Random states of all generators, kept as JSON and put back."""

import json
import random
from typing import Any

import numpy as np
import pytest
import torch

from forebay.checkpoint import randomness
from forebay_core.errors import CheckpointDamaged


def draw() -> list[float]:
    return [
        random.random(),
        random.gauss(0, 1),
        float(np.random.rand()),
        float(np.random.randn()),
        float(torch.rand(1)),
    ]


@pytest.fixture(autouse=True)
def as_before() -> Any:
    before = randomness.capture()
    yield
    randomness.restore(randomness.encoded(before))


def test_every_generator_goes_on_where_it_was_also_with_a_gaussian_in_hand() -> None:
    draw()
    states = json.loads(json.dumps(randomness.encoded(randomness.capture())))
    expected = draw()
    draw()
    assert randomness.restore(states) is None
    assert draw() == expected


def test_reseeding_gives_every_generator_numbers_of_their_own_for_each_thing_named() -> None:
    randomness.reseed("attempt", 0)
    one = draw()
    randomness.reseed("attempt", 1)
    other = draw()
    randomness.reseed("attempt", 0)
    assert draw() == one
    assert not set(one) & set(other)


@pytest.mark.parametrize("name", ["python", "numpy", "torch", "cuda"])
def test_states_that_are_none_are_damage(name: str) -> None:
    states = randomness.encoded(randomness.capture())
    del states[name]
    with pytest.raises(CheckpointDamaged):
        randomness.restore(states)


def test_a_state_of_another_length_is_damage() -> None:
    states = randomness.encoded(randomness.capture())
    with pytest.raises(CheckpointDamaged):
        randomness.restore({**states, "torch": states["torch"][:16]})
