"""What all benchmarks share: the order of repeats, the spread, and the object that is printed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import benchmarks
from benchmarks.shape import Report, Target, describe_machine, interleaved, measured, summarised

BENCHMARKS = sorted(path.stem for path in Path(benchmarks.__file__).parent.glob("bench_*.py"))


def test_repeats_are_interleaved_so_that_all_variants_share_the_machines_moods() -> None:
    calls: list[tuple[str, int]] = []

    def variant(name: str, repeat: int) -> dict[str, float]:
        calls.append((name, repeat))
        return {"value": repeat}

    results = interleaved({"a": lambda r: variant("a", r), "b": lambda r: variant("b", r)}, repeats=2)
    assert calls == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert results == {"a": [{"value": 0}, {"value": 1}], "b": [{"value": 0}, {"value": 1}]}


def test_a_row_has_the_median_and_its_spread() -> None:
    row = summarised("ours", [{"seconds": 3.0}, {"seconds": 1.0}, {"seconds": 2.0}])
    assert row.as_dict() == {
        "name": "ours",
        "repeats": 3,
        "seconds": 2.0,
        "seconds_lowest": 1.0,
        "seconds_highest": 3.0,
    }


def test_a_report_is_one_object_of_question_machine_rows_ratios_and_targets() -> None:
    report = Report("How fast?", [summarised("ours", [{"seconds": 1.0}])], {"limit": 0.5}, {"limit": Target(0.4)})
    printed = json.loads(json.dumps(report.as_dict()))
    assert list(printed) == ["question", "machine", "rows", "ratios", "targets"]
    assert printed["ratios"] == {"limit": 0.5}
    assert printed["targets"] == {"limit": {"target": "at least 0.4", "met": True}}


def test_a_target_is_met_up_to_its_bounds_and_no_further() -> None:
    between = Target(at_least=0.99, at_most=1.01)
    assert [between.met(value) for value in (0.98, 0.99, 1.0, 1.01, 1.02)] == [False, True, True, True, False]
    assert str(between) == "at least 0.99 and at most 1.01"


def test_people_are_told_which_targets_are_met_missed_and_not_measured() -> None:
    targets = {"fast": Target(at_least=4), "small": Target(at_most=2), "absent": Target(at_least=1)}
    report = Report("How?", [], {"fast": 3.0, "small": 2.0, "other": 1.0}, targets)
    assert report.verdicts() == [
        "fast: 3 (target: at least 4; MISS)",
        "small: 2 (target: at most 2; pass)",
        "other: 1",
        "absent: not measured (target: at least 1; no verdict)",
    ]
    assert report.as_dict()["targets"]["absent"]["met"] is None


def test_the_machine_is_described_without_its_name() -> None:
    import platform

    described = describe_machine()
    assert described["cores"] >= 1
    assert platform.node() not in json.dumps(described).split('"')


def test_measured_counts_wall_clock_and_the_cpu_of_awaited_children() -> None:
    with measured() as usage:
        subprocess.run(
            [sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True, timeout=60
        )
    assert usage.cpu_seconds >= 0.25
    assert usage.wall_seconds >= 0.25


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_takes_the_common_options(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--help"], check=True, capture_output=True, text=True, timeout=60
    )
    assert {"--json", "--save", "--repeats"} <= set(done.stdout.replace("[", " ").replace("]", " ").split())
