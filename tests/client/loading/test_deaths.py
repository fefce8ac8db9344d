"""What is said of workers that died, and how they are started."""

import multiprocessing
import signal
from pathlib import Path
from typing import Any

import pytest

from forebay.loading import start_methods
from forebay.loading.assembly import Assembly
from forebay.loading.deaths import cause_of_death, unpicklable
from forebay.loading.indexed_reader import IndexedReaderSpec
from forebay_core.errors import ConfigurationError


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [
        (-signal.SIGKILL, ["SIGKILL", "out-of-memory", "fewer workers"]),
        (-signal.SIGBUS, ["SIGBUS", "/dev/shm", "--shm-size"]),
        (-signal.SIGSEGV, ["SIGSEGV", "native code"]),
        (-signal.SIGALRM, ["SIGALRM", "outside"]),
        (-(signal.SIGRTMIN + 3), [str(signal.SIGRTMIN + 3), "outside"]),
        (3, ["status 3", "os._exit()"]),
        (None, ["has ended"]),
    ],
)
def test_a_death_is_named_with_its_likely_reason_in_one_line(exit_code: int | None, words: list[str]) -> None:
    said = cause_of_death(exit_code, is_ready=True)
    assert all(word in said for word in words)
    assert "\n" not in said


def test_a_worker_that_never_began_points_to_the_guard_of_the_main_module() -> None:
    assert "__main__" in cause_of_death(1, is_ready=False)


@pytest.mark.parametrize(
    ("spec", "others", "name"),
    [
        ({"dataset": lambda: 1}, {}, "dataset=<function"),
        ({"dataset": [1], "assembly": Assembly(collate_fn=lambda batch: batch)}, {}, "collate_fn=<function"),
        ({"dataset": [1]}, {"worker_init_fn": lambda number: None}, "worker_init_fn=<function"),
    ],
    ids=["dataset", "collate_fn", "worker_init_fn"],
)
def test_what_cannot_be_pickled_is_named(spec: dict[str, Any], others: dict[str, Any], name: str) -> None:
    error = unpicklable(IndexedReaderSpec(seed=0, **spec), others, "spawn", TypeError("no"))
    assert isinstance(error, ConfigurationError)
    assert str(error).startswith(name)
    assert "spawn" in str(error)


def test_threads_of_rusts_tokio_are_found_by_their_names(tmp_path: Path) -> None:
    assert not start_methods.tokio_runs(tmp_path)
    for number, name in enumerate(("python", "tokio-rt-worker")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "comm").write_text(f"{name}\n")
    assert start_methods.tokio_runs(tmp_path)


def test_a_context_that_is_given_is_taken_by_name_and_as_an_object() -> None:
    spawn = multiprocessing.get_context("spawn")
    assert start_methods.context_for(spawn) is spawn
    assert start_methods.context_for("forkserver").get_start_method() == "forkserver"
