"""What a check comes to: one line of what was found, and one of what to do. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from forebay.console import size


class Verdict(StrEnum):
    """How much it matters: a problem keeps the node from working or from working safely."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check and its result. `advice` is empty where there is nothing to do."""

    check: str
    verdict: Verdict
    found: str
    advice: str = ""


def ok(check: str, found: str) -> Finding:
    return Finding(check, Verdict.OK, found)


def warning(check: str, found: str, advice: str) -> Finding:
    return Finding(check, Verdict.WARNING, found, advice)


def problem(check: str, found: str, advice: str) -> Finding:
    return Finding(check, Verdict.PROBLEM, found, advice)


def failed(check: str, message: str) -> Finding:
    """A problem from an error's message, which ends with what to do behind its last semicolon."""
    found, _, advice = message.rpartition("; ")
    return problem(check, found or advice, advice if found else "")


def summary(findings: Iterable[Finding]) -> str:
    """How many there are of each verdict."""
    counts = Counter(finding.verdict for finding in findings)
    plural = {Verdict.WARNING: "warnings", Verdict.PROBLEM: "problems"}
    return ", ".join(
        f"{number} {verdict.value if number == 1 else plural.get(verdict, verdict.value)}"
        for verdict in Verdict
        if (number := counts[verdict])
    )


def rate(bytes_per_second: float) -> str:
    """A rate as people read it."""
    return f"{size(int(bytes_per_second))}/s"
