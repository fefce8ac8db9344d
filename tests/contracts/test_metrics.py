"""The metrics' contract: what a daemon exports is what `docs/metrics.md` lists, and what Prometheus's conventions ask.

A real daemon is scraped, and the text is read by prometheus-client's own parsers.
"""

import os
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample

from tests.server.daemons import client, daemon

DOCUMENT = Path(__file__).parents[2] / "docs/metrics.md"
ROW = re.compile(r"\| `(?P<name>[^`]+)` \| (?P<kind>\w+) \| (?P<labels>[^|]*) \| (?P<meaning>[^|]+) \|")
NAME = re.compile(r"forebay(_[a-z0-9]+)+")
#: What a name ends with: a base unit, or the plural of what is counted.
UNITS = ("_seconds", "_bytes", "_ratio", "_info")
OTHER_UNITS = ("milliseconds", "microseconds", "minutes", "kilobytes", "megabytes", "mib", "gib", "percent")


@dataclass(frozen=True)
class Family:
    """A metric as documents and scrapers know it; the name of a counter ends in `_total`."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str

    def row(self) -> str:
        labels = ", ".join(f"`{label}`" for label in self.labels)
        return f"| `{self.name}` | {self.kind} | {labels} | {self.meaning} |"


@dataclass(frozen=True)
class Scrape:
    """What was read, and its samples by family."""

    text: str
    families: dict[Family, list[Sample]]

    def ours(self) -> list[Family]:
        return [family for family in self.families if not family.name.startswith("process_")]


def read(text: str) -> Scrape:
    families = {}
    for metric in parse_text(text):
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        labels = {label for sample in metric.samples for label in sample.labels} - {"le"}
        families[Family(name, metric.type, tuple(sorted(labels)), metric.documentation)] = list(metric.samples)
    return Scrape(text, families)


def get(url: str, accept: str = "*/*") -> tuple[str, str]:
    """The body of an answer and its content type."""
    request = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.read().decode(), answer.headers["Content-Type"]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A daemon that nobody uses."""
    home = tmp_path_factory.mktemp("d")
    env = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    with daemon(home, "--http", "127.0.0.1:0", env=env) as running, client(running.socket) as caller:
        yield caller.status().http_address


@pytest.fixture(scope="module")
def scrape(address: str) -> Scrape:
    text, content_type = get(f"{address}metrics")
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    return read(text)


def documented() -> list[Family]:
    return [
        Family(
            row["name"],
            row["kind"],
            tuple(sorted(re.findall(r"`(\w+)`", row["labels"]))),
            row["meaning"],
        )
        for row in ROW.finditer(DOCUMENT.read_text())
    ]


def test_the_document_lists_what_is_exported_and_nothing_else(scrape: Scrape) -> None:
    rows, exported = documented(), scrape.ours()
    assert len(rows) == len({row.name for row in rows})
    missing = "\n".join(family.row() for family in exported if family not in rows)
    assert missing == "", f"rows that {DOCUMENT.name} lacks:\n{missing}"
    assert [family.name for family in rows if family not in exported] == [], "documented and not exported"


def test_names_and_types_follow_the_conventions(scrape: Scrape) -> None:
    for family in scrape.ours():
        assert NAME.fullmatch(family.name), family.name
        assert family.kind in ("counter", "gauge", "histogram"), family
        assert family.meaning.endswith("."), family
        assert not any(unit in family.name for unit in OTHER_UNITS), family
        assert (family.kind == "counter") == family.name.endswith("_total"), family
        name = family.name.removesuffix("_total")
        assert name.endswith((*UNITS, "s", "draining", "stalled", "running", "state")), family


def test_a_metric_has_a_value_for_each_of_its_labels_before_anything_has_happened(scrape: Scrape) -> None:
    assert len(scrape.ours()) > 15
    for family, samples in scrape.families.items():
        assert samples, f"{family.name} would appear only once something has happened"
        assert all(sample.value >= 0 for sample in samples)


def test_the_process_is_measured_too(scrape: Scrape) -> None:
    names = {family.name for family in scrape.families}
    assert {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"} <= names


def test_a_scraper_that_asks_for_openmetrics_gets_it(address: str, scrape: Scrape) -> None:
    text, content_type = get(f"{address}metrics", accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    found = {metric.name for metric in parse_openmetrics(text)}  # type: ignore[no-untyped-call]
    assert found == {family.name.removesuffix("_total") for family in scrape.families}
