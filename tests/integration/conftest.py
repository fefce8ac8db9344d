"""A daemon that the tests of a module share, for those that leave it as they find it."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.daemons import Daemon, daemon
from tests.support.data import write_parquet
from tests.support.processes import HOME_VARIABLE, end_processes_of
from tests.support.ranks import Ranks


@pytest.fixture(scope="module")
def node() -> Iterator[Daemon]:
    """One daemon for the module, with a home of its own."""
    with tempfile.TemporaryDirectory(prefix="fb-") as directory:
        home = Path(directory)
        environment = {"PATH": "/usr/bin:/bin", HOME_VARIABLE: str(home)}
        with daemon(home, env=environment, limit_seconds=600) as started:
            yield started
        end_processes_of(home)


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Up to 4 ranks of real groups, for jobs as `tests.integration.training` runs them."""
    with Ranks(4, preload=("tests.integration.training",)) as made:
        yield made


@pytest.fixture
def data(home: Path) -> Path:
    """30 pieces of 10 samples."""
    write_parquet(home / "data", shards=3, rows=100, row_group_rows=10)
    return home / "data"


@pytest.fixture
def address(node: Daemon) -> str:
    return str(node.socket)
