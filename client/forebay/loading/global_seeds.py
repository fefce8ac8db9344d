"""The global random generators of a worker process, seeded for each sample from (seed, epoch, sample id).

So `random.random()` in a transform gives a sample the same value in any topology and after any resume, another one in
each epoch. Only worker processes do this: in the trainer's process it would change the trainer's dropout. A batch that
is replayed there borrows the generators, and gives them back as they were.
"""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from forebay.order.philox import seed_digest
from forebay.sampling import follow, unfollow

_WORD = (1 << 64) - 1


class GlobalSeeds:
    """The seeds of one dataset's samples. Seeding takes about 10 µs, most of it in Python's and NumPy's generators."""

    def __init__(self, seed: int) -> None:
        self._key = seed_digest(seed)

    def seed(self, epoch: int, sample_id: int, draw: int = 0) -> None:
        """Seeds Python's, NumPy's and torch's CPU generator for this sample in this epoch, and this draw of it."""
        word = _mixed(_mixed(self._key + epoch) + sample_id)
        seed_all(_mixed(word + draw) if draw else word)


@contextmanager
def borrowed(seed: int) -> Iterator[None]:
    """The generators follow the samples that this thread reads, as in a worker process; then they are as before."""
    before = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    seeds, here = GlobalSeeds(seed), threading.get_ident()

    def follower(epoch: int, sample_id: int, draw: int) -> None:
        if threading.get_ident() == here:
            seeds.seed(epoch, sample_id, draw)

    follow(follower)
    try:
        yield
    finally:
        unfollow(follower)
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.default_generator.set_state(before[2])


def seed_all(word: int) -> None:
    """Seeds Python's, NumPy's and torch's CPU generator; torch's alone, for `torch.manual_seed` touches CUDA."""
    random.seed(word)
    np.random.seed(word & 0xFFFF_FFFF)
    torch.default_generator.manual_seed(word)


def _mixed(word: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): every bit of the result depends on every bit."""
    word &= _WORD
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & _WORD
    return word ^ word >> 31
