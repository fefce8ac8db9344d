"""The common shape of all benchmarks: how they repeat, what they report, and how they are called.

A benchmark is a function from its options to a `Report`; `main` gives it its command line. Wall-clock numbers are
medians of repeats that are interleaved, so that a machine that slows down slows all variants alike; each has its spread
beside it, and the CPU seconds that it cost.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
_LIBRARIES = ("forebay", "torch", "numpy", "pyarrow", "grpcio", "obstore")


def describe_machine() -> dict[str, Any]:
    """What a reader must know to compare numbers, and nothing that says whose machine it is."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in _LIBRARIES},
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


@dataclass(frozen=True)
class Row:
    """One line of a report: a variant and its numbers, units in their names."""

    name: str
    values: Mapping[str, float | int | str]

    def as_dict(self) -> dict[str, float | int | str]:
        return {"name": self.name, **self.values}


@dataclass(frozen=True)
class Target:
    """What a ratio is to be: `at_least` and `at_most` are bounds that still meet it."""

    at_least: float | None = None
    at_most: float | None = None

    def met(self, value: float | None) -> bool | None:
        """Whether a ratio meets it; None where there is none."""
        if value is None:
            return None
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)

    def __str__(self) -> str:
        bounds = {"at least": self.at_least, "at most": self.at_most}
        return " and ".join(f"{words} {bound:g}" for words, bound in bounds.items() if bound is not None)


@dataclass(frozen=True)
class Report:
    """The answer to a question. `ratios` are the numbers that issues and the README quote, `targets` their bounds."""

    question: str
    rows: Sequence[Row]
    ratios: Mapping[str, float]
    targets: Mapping[str, Target] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=describe_machine)

    def as_dict(self) -> dict[str, Any]:
        return {
            "question": self.question,
            "machine": dict(self.machine),
            "rows": [row.as_dict() for row in self.rows],
            "ratios": dict(self.ratios),
            "targets": {
                name: {"target": str(target), "met": target.met(self.ratios.get(name))}
                for name, target in self.targets.items()
            },
        }

    def verdicts(self) -> list[str]:
        """One line for each ratio and each target."""
        lines = [f"{name}: {value:.4g}{self._verdict(name)}" for name, value in self.ratios.items()]
        return lines + [
            f"{name}: not measured{self._verdict(name)}" for name in self.targets.keys() - self.ratios.keys()
        ]

    def _verdict(self, name: str) -> str:
        if name not in self.targets:
            return ""
        words = {True: "pass", False: "MISS", None: "no verdict"}
        return f" (target: {self.targets[name]}; {words[self.targets[name].met(self.ratios.get(name))]})"


@dataclass
class Usage:
    """What a block of code cost, known when it has ended. Children count once they have ended and were awaited."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0


@contextmanager
def measured() -> Iterator[Usage]:
    usage = Usage()
    wall, cpu = time.perf_counter(), _cpu_seconds()
    yield usage
    usage.wall_seconds, usage.cpu_seconds = time.perf_counter() - wall, _cpu_seconds() - cpu


def interleaved(
    variants: Mapping[str, Callable[[int], Mapping[str, float]]], repeats: int
) -> dict[str, list[Mapping[str, float]]]:
    """Runs every variant once per repeat, given the repeat's number, in turn; all results by variant."""
    results: dict[str, list[Mapping[str, float]]] = {name: [] for name in variants}
    for repeat in range(repeats):
        for name, variant in variants.items():
            results[name].append(variant(repeat))
            print(f"  repeat {repeat + 1} of {repeats}: {name}", file=sys.stderr)
    return results


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest."""
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def summarised(name: str, results: Sequence[Mapping[str, float]]) -> Row:
    """One row of a variant's repeats: for each number its median, lowest and highest."""
    values: dict[str, float | int | str] = {"repeats": len(results)}
    for key in results[0]:
        for statistic, value in spread([result[key] for result in results]).items():
            values[key if statistic == "median" else f"{key}_{statistic}"] = value
    return Row(name, values)


def main(
    name: str,
    benchmark: Callable[[argparse.Namespace], Report],
    *,
    repeats: int = 5,
    add_arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
) -> None:
    """The command line of a benchmark: `--json`, `--save`, `--repeats` and its own options."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--save", action="store_true", help="also write it to benchmarks/results/NAME-DATE.json")
    parser.add_argument("--repeats", type=int, default=repeats)
    add_arguments(parser)
    options = parser.parse_args()
    report = benchmark(options)
    if options.save:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{name.removeprefix('bench_')}-{report.machine['date']}.json"
        path.write_text(json.dumps(report.as_dict(), indent=1) + "\n")
        print(f"  saved to {path}", file=sys.stderr)
    print(json.dumps(report.as_dict()) if options.json else _for_people(report))


def _for_people(report: Report) -> str:
    lines = [report.question]
    for row in report.rows:
        numbers = "  ".join(
            f"{key}={value:.6g}" if isinstance(value, float) else f"{key}={value}" for key, value in row.values.items()
        )
        lines.append(f"  {row.name}: {numbers}")
    return "\n".join([*lines, *report.verdicts()])


def _cpu_seconds() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
