"""The process's own random generators, while a batch is replayed in the trainer."""

import random
import threading

import torch

from forebay.loading.global_seeds import GlobalSeeds, borrowed
from forebay.sampling import SampleStream


def drawn(_: object) -> float:
    return random.random()


def test_borrowed_generators_follow_the_samples_and_are_given_back_as_they_were() -> None:
    random.seed(1)
    before = random.getstate(), torch.default_generator.get_state()
    with borrowed(5):
        found = SampleStream(5).call(drawn, None, 2, 3, with_rng=False)
    assert random.getstate() == before[0]
    assert torch.equal(torch.default_generator.get_state(), before[1])
    with borrowed(5):
        GlobalSeeds(5).seed(2, 3)
        assert random.random() == found


def test_borrowed_generators_do_not_follow_what_another_thread_reads() -> None:
    with borrowed(5):
        random.seed(1)
        state = random.getstate()
        another = threading.Thread(
            target=SampleStream(6).call, args=(lambda sample: sample, None, 0, 0), kwargs={"with_rng": False}
        )
        another.start()
        another.join()
        assert random.getstate() == state
