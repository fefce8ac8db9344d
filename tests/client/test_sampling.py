"""The generator of a sample."""

import numpy as np
import pytest

from forebay.sampling import SampleStream, sample_rng, takes_rng
from forebay_core.errors import StateError


def draw(seed: int, epoch: int, sample_id: int) -> int:
    return int(SampleStream(seed).generator(epoch, sample_id).integers(2**62))


def test_a_samples_numbers_depend_on_seed_epoch_and_sample_alone() -> None:
    assert draw(1, 2, 3) == draw(1, 2, 3)
    assert len({draw(1, 2, 3), draw(0, 2, 3), draw(1, 1, 3), draw(1, 2, 2)}) == 4


def test_neighbouring_samples_and_epochs_draw_apart() -> None:
    drawn = {draw(0, epoch, sample) for epoch in range(20) for sample in range(50)}
    assert len(drawn) == 1000


def test_a_transform_that_asks_for_rng_gets_the_same_numbers_as_one_that_calls_for_them() -> None:
    def asked(_: object, rng: np.random.Generator) -> float:
        return rng.random()

    def called(_: object) -> float:
        return sample_rng().random()

    stream = SampleStream(5)
    assert takes_rng(asked)
    assert not takes_rng(called)
    assert stream.call(asked, None, 1, 2, with_rng=True) == stream.call(called, None, 1, 2, with_rng=False)


def test_one_sample_has_one_generator_however_often_it_is_asked_for() -> None:
    def twice(_: object) -> tuple[float, float]:
        return sample_rng().random(), sample_rng().random()

    first, second = SampleStream(5).call(twice, None, 0, 0, with_rng=False)
    assert first != second


def test_outside_a_transform_there_is_no_generator() -> None:
    SampleStream(5).call(lambda _: sample_rng(), None, 0, 0, with_rng=False)
    with pytest.raises(StateError):
        sample_rng()


def test_samples_that_are_read_while_another_is_transformed_leave_it_its_generator() -> None:
    outer, inner = SampleStream(5), SampleStream(6)

    def nested(_: object) -> tuple[float, float]:
        return inner.call(lambda _: sample_rng().random(), None, 0, 1, with_rng=False), sample_rng().random()

    found = outer.call(nested, None, 0, 2, with_rng=False)
    assert found == (inner.generator(0, 1).random(), outer.generator(0, 2).random())


def test_a_transform_that_raises_ends_the_reach_of_its_generator() -> None:
    def fails(_: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        SampleStream(5).call(fails, None, 0, 0, with_rng=False)
    with pytest.raises(StateError):
        sample_rng()
