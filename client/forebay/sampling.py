"""The random numbers of a sample: a generator from (seed, epoch, sample id) and nothing else.

So a sample is augmented alike in any topology, after any resume, in any worker, and differently in each epoch. The
generator is handed to a transform that has a parameter `rng`, and to any code it calls by `sample_rng()`. The process's
global generators are never touched here: in threads that would change dropout in the trainer. A worker process, whose
generators are its own, `follow`s the samples and seeds them.
"""

import inspect
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from forebay.order.philox import seed_digest
from forebay_core.errors import StateError

SAMPLE_DOMAIN = 64
"""Domain of the Philox key; the order's domains are smaller."""


class _Current(threading.local):
    """The sample that the user's code is at in this thread: its stream, where it is, its generator once asked for."""

    stream: "SampleStream | None" = None
    at: tuple[int, int, int] = (0, 0, 0)
    generator: np.random.Generator | None = None


_current = _Current()
_followers: list[Callable[[int, int, int], None]] = []


class SampleStream:
    """The generators of one dataset's samples."""

    def __init__(self, seed: int) -> None:
        self._key = np.array([seed_digest(seed), SAMPLE_DOMAIN], dtype=np.uint64)

    def generator(self, epoch: int, sample_id: int, draw: int = 0) -> np.random.Generator:
        """A fresh generator for this sample in this epoch; `draw` tells the times apart that an epoch has it."""
        counter = np.array([0, draw, sample_id, epoch], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(counter=counter, key=self._key))

    def call(
        self, function: Callable[..., Any], sample: Any, epoch: int, sample_id: int, *, with_rng: bool, draw: int = 0
    ) -> Any:
        """`function(sample)`, with the sample's generator within its reach.

        A loader that is used within it leaves it its generator.
        """
        outer = _current.stream, _current.at, _current.generator
        _current.stream, _current.at, _current.generator = self, (epoch, sample_id, draw), None
        for follower in _followers:
            follower(epoch, sample_id, draw)
        try:
            return function(sample, rng=sample_rng()) if with_rng else function(sample)
        finally:
            _current.stream, _current.at, _current.generator = outer


def follow(follower: Callable[[int, int, int], None]) -> None:
    """For a worker process, which has one reader: `follower` is told what the user's code is about to work on.

    It gets (epoch, sample id, draw) before a transform gets that sample, and (epoch, ~id of the first sample, 0) before
    a step.
    """
    _followers.append(follower)


def unfollow(follower: Callable[[int, int, int], None]) -> None:
    """Ends what `follow` began."""
    _followers.remove(follower)


def begin_step(epoch: int, first_sample_id: int) -> None:
    """A reader begins with a step, whose samples may reach the user's code together."""
    for follower in _followers:
        follower(epoch, ~first_sample_id, 0)


def sample_rng() -> np.random.Generator:
    """The generator of the sample that is being transformed in this thread. `StateError` outside a transform."""
    stream = _current.stream
    if stream is None:
        raise StateError("forebay.sample_rng() has a meaning only inside a transform, while a sample passes through it")
    if _current.generator is None:
        _current.generator = stream.generator(*_current.at)
    return _current.generator


def takes_rng(function: Callable[..., Any]) -> bool:
    """True where a transform has a parameter named `rng`."""
    try:
        return "rng" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
