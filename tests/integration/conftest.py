"""A daemon that the tests of a module share, for those that leave it as they find it."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.daemons import Daemon, daemon
from tests.support.processes import HOME_VARIABLE, end_processes_of


@pytest.fixture(scope="module")
def node() -> Iterator[Daemon]:
    """One daemon for the module, with a home of its own."""
    with tempfile.TemporaryDirectory(prefix="fb-") as directory:
        home = Path(directory)
        with daemon(home, env={"PATH": "/usr/bin:/bin", HOME_VARIABLE: str(home)}) as started:
            yield started
        end_processes_of(home)


@pytest.fixture
def address(node: Daemon) -> str:
    return str(node.socket)
