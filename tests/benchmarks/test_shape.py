"""What all benchmarks share: the order of repeats, the spread, and the object that is printed."""

import json
import subprocess
import sys

import pytest

from benchmarks.shape import Report, describe_machine, interleaved, measured, summarised


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


def test_a_report_is_one_object_of_question_machine_rows_and_ratios() -> None:
    report = Report("How fast?", [summarised("ours", [{"seconds": 1.0}])], {"limit": 0.5})
    printed = json.loads(json.dumps(report.as_dict()))
    assert list(printed) == ["question", "machine", "rows", "ratios"]
    assert printed["ratios"] == {"limit": 0.5}


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


@pytest.mark.parametrize("name", ["bench_cached_tokens", "bench_resume"])
def test_every_benchmark_takes_the_common_options(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--help"], check=True, capture_output=True, text=True, timeout=60
    )
    assert {"--json", "--save", "--repeats"} <= set(done.stdout.replace("[", " ").replace("]", " ").split())
