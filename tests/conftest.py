"""What every test gets: an environment of its own, and by name an S3 server, a proxy before it, and a leak check.

The server is started by the first test that asks for it and ends with the session.
"""

import multiprocessing.resource_tracker
import os
import secrets
import shutil
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.support.leaks import take_stock, threads_beyond
from tests.support.processes import HOME_VARIABLE, end_processes_of, eventually
from tests.support.proxy import CountingProxy
from tests.support.seaweedfs import Bucket, SeaweedFS

hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))

# A shell's script lets what it runs in the background ignore it, and so would all that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# One for the whole run: started in a test it would belong to that test and be ended with it.
multiprocessing.resource_tracker.ensure_running()

_FOREIGN_PREFIXES = ("FOREBAY_", "AWS_", "GOOGLE_", "GCS_", "AZURE_", "MLFLOW_", "XDG_")
_LONGEST_HOME = 40
"""Leaves 67 of the 107 bytes that a Unix socket's path may have."""


def _make_home() -> Path:
    home = Path(tempfile.mkdtemp(prefix="fb-"))
    if len(bytes(home)) > _LONGEST_HOME:
        home.rmdir()
        home = Path(tempfile.mkdtemp(prefix="fb-", dir="/tmp"))
    return home


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short, empty directory per test that holds every XDG directory and MLflow's store.

    No setting of the user (forebay's, a cloud's, MLflow's) reaches the test, so none touches the user's own daemon.
    Background processes that the test leaves are killed.
    """
    home = _make_home()
    for name in [name for name in os.environ if name.startswith(_FOREIGN_PREFIXES)]:
        monkeypatch.delenv(name)
    for name in ("RUNTIME_DIR", "CACHE_HOME", "CONFIG_HOME", "DATA_HOME", "STATE_HOME"):
        directory = home / name.partition("_")[0].lower()
        directory.mkdir(mode=0o700)
        monkeypatch.setenv(f"XDG_{name}", str(directory))
    monkeypatch.setenv(HOME_VARIABLE, str(home))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home}/mlflow.db")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    yield home
    end_processes_of(home)
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(autouse=True)
def nothing_runs_on(home: Path) -> Iterator[None]:
    """Fails the test whose threads of forebay run on 20 s after it: the next would take them for its own."""
    before = set(threading.enumerate())
    yield
    try:
        eventually(lambda: not threads_beyond(before), 20, "threads to end")
    except TimeoutError:
        pytest.fail(f"still run: {', '.join(threads_beyond(before))}")


@pytest.fixture(scope="session")
def s3() -> Iterator[SeaweedFS]:
    """The session's S3 server."""
    with SeaweedFS() as server:
        yield server


@pytest.fixture
def bucket(s3: SeaweedFS) -> Iterator[Bucket]:
    """A fresh, empty bucket of the test's own."""
    bucket = Bucket(f"test-{secrets.token_hex(6)}", s3)
    s3.create_bucket(bucket.name)
    yield bucket
    s3.delete_bucket(bucket.name)


@pytest.fixture
def counting_proxy(s3: SeaweedFS) -> Iterator[CountingProxy]:
    """A proxy before the S3 server that counts requests and takes faults."""
    with CountingProxy(s3.endpoint) as proxy:
        yield proxy


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """Fails the test where it leaves threads, descriptors or shared memory names behind, 5 s after it has ended."""
    before = take_stock()
    yield
    try:
        eventually(lambda: not take_stock().beyond(before), 5, "threads, descriptors and names to go")
    except TimeoutError:
        pytest.fail(f"left behind: {take_stock().beyond(before)}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first, then those with many: a file's tests run in one process, which may be the last."""
    tests = Counter(item.path for item in items)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in slow, -tests[item.path]))
