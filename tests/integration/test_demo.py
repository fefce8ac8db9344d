"""The main job end to end: `forebay demo` as its user runs it, on a directory and on a bucket of a real S3 server."""

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import Process, eventually
from tests.support.seaweedfs import Bucket

pytest.importorskip("mlflow", reason="mlflow is not installed")

KEYS = {
    "samples_repeated",
    "samples_skipped",
    "order_equal",
    "loss_first",
    "loss_last",
    "killed_at_step",
    "resumed_at_step",
    "resumed_from",
    "checkpoints",
    "world_sizes",
    "fetch_seconds",
    "stall_fraction",
    "cache",
    "mlflow_uri",
    "mlflow_run_id",
}
LIMIT_SECONDS = 400.0


def play(home: Path, *options: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Runs the demo and returns the one object that it prints."""
    numbers = home / "numbers.json"
    shell = f'exec "$@" > {numbers}'
    command = ["sh", "-c", shell, "sh", *forebay("demo", "--json", *options)]
    with Process(command, log=home / "demo.log", limit_seconds=LIMIT_SECONDS, env=environment) as process:
        process.check(LIMIT_SECONDS)
    (line,) = numbers.read_text().splitlines()
    printed: dict[str, Any] = json.loads(line)
    return printed


def forebay(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from forebay.cli import main; main()", *arguments]


def assert_exact(numbers: dict[str, Any]) -> None:
    assert set(numbers) == KEYS
    assert numbers["samples_repeated"] == 0
    assert numbers["samples_skipped"] == 0
    assert numbers["order_equal"] is True
    assert numbers["world_sizes"] == [2, 3]
    assert numbers["loss_last"] < numbers["loss_first"] - 1
    assert 161 < numbers["resumed_at_step"] < numbers["killed_at_step"] < 322
    assert numbers["resumed_from"] == "local", "the checkpoint was on the node's disk when the trainer was killed"
    assert_timed(numbers["checkpoints"])
    assert set(numbers["fetch_seconds"]) == {"p50", "p95", "max"}
    assert 0 <= numbers["stall_fraction"] < 1
    assert numbers["cache"]["bytes_downloaded"] > 10_300 * 128 // 4
    assert numbers["cache"]["hits"] > 0


def assert_timed(checkpoints: dict[str, Any]) -> None:
    """CASES 38: the three points of a checkpoint are told apart, and their times come in their order."""
    assert set(checkpoints) == {f"{point}_seconds" for point in ("staged", "local", "durable", "blocked")} | {"durable"}
    assert checkpoints["durable"] >= 8, "those of the second run alone are eight"
    staged, local, durable = (checkpoints[f"{point}_seconds"] for point in ("staged", "local", "durable"))
    for quantile in ("p50", "max"):
        assert 0 < staged[quantile] < local[quantile] < durable[quantile]
    assert 0 < checkpoints["blocked_seconds"]["p50"] < local["p50"]


def no_process_names(directory: Path) -> bool:
    """Whether nothing runs any more that was started with this directory in its command line."""
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = command.read_bytes()
        except OSError:
            continue
        if os.fsencode(directory) in text and int(command.parent.name) != os.getpid():
            return False
    return True


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_SECONDS + 20)
@pytest.mark.filterwarnings("ignore::DeprecationWarning:sqlalchemy", "ignore::DeprecationWarning:mlflow")
def test_a_killed_run_resumes_exactly_with_another_world_size_and_leaves_nothing_behind(home: Path) -> None:
    import mlflow

    directory = home / "demo"
    numbers = play(home, "--directory", str(directory), "--seed", "3")
    assert_exact(numbers)
    assert no_process_names(directory)
    run = mlflow.MlflowClient(numbers["mlflow_uri"]).get_run(numbers["mlflow_run_id"])
    assert run.info.status == "FINISHED"
    assert (run.data.params["run_0_world_size"], run.data.params["run_1_world_size"]) == ("2", "3")
    assert {"loss", "fetch_seconds", "fetch/remote_wait", "forebay/stall_fraction"} <= run.data.metrics.keys()
    points = ("staged_seconds", "local_seconds", "durable_seconds", "blocked_seconds", "pending", "failures")
    assert {f"checkpoint/{name}" for name in points} <= run.data.metrics.keys()
    assert run.data.metrics["checkpoint/failures"] == 0
    losses = mlflow.MlflowClient(numbers["mlflow_uri"]).get_metric_history(numbers["mlflow_run_id"], "loss")
    assert {10, 320} <= {metric.step for metric in losses}, "both runs log to the one MLflow run"


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_SECONDS + 60)
def test_it_is_exact_on_a_real_bucket_and_clean_leaves_neither_files_nor_objects(home: Path, bucket: Bucket) -> None:
    directory = home / "demo"
    environment = {**os.environ, **bucket.server.environment()}
    numbers = play(
        home,
        "--bucket",
        f"s3://{bucket.name}/pre fix",
        "--directory",
        str(directory),
        "--clean",
        environment=environment,
    )
    assert_exact(numbers)
    assert not directory.exists()
    assert bucket.keys() == []


def test_a_directory_that_holds_something_else_is_refused_and_left_alone(home: Path) -> None:
    directory = home / "precious"
    directory.mkdir()
    (directory / "thesis.txt").write_text("mine")
    command = forebay("demo", "--directory", str(directory))
    with Process(command, log=home / "demo.log", limit_seconds=60) as process:
        assert process.wait(60) == 2
        lines = process.output().splitlines()
    assert len(lines) == 1
    assert "choose another" in lines[0]
    assert [entry.name for entry in directory.iterdir()] == ["thesis.txt"]


def test_without_mlflow_it_says_what_to_install(home: Path) -> None:
    program = "import sys; sys.modules['mlflow'] = None; from forebay.cli import main; main()"
    with Process([sys.executable, "-c", program, "demo"], log=home / "demo.log", limit_seconds=60) as process:
        assert process.wait(60) == 2
        lines = process.output().splitlines()
    assert len(lines) == 1
    assert 'pip install "forebay[torch,mlflow]"' in lines[0]


@pytest.mark.slow
def test_a_demo_that_is_terminated_ends_everything_that_it_started(home: Path) -> None:
    directory = home / "demo"
    records = directory / "records"
    with Process(forebay("demo", "--directory", str(directory)), log=home / "demo.log", limit_seconds=100) as process:
        eventually(records.exists, 60, "the ranks' start")
        process.signal(signal.SIGTERM)
        assert process.wait(40) == 130
        assert "Traceback" not in process.output()
    assert no_process_names(directory)
