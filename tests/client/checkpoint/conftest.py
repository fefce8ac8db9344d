"""Gloo ranks that the tests of checkpoints share."""

from collections.abc import Iterator

import pytest

from tests.support.ranks import Ranks


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    with Ranks() as started:
        yield started
