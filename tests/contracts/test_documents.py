"""What the documents name exists: every test, and every file of the project."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMED_TEST = re.compile(r"`(?:(tests/[\w/]+\.py)::(?:\w+::)?)?(test_\w+)(?:\[[^\]`]*\])?`")
NAMED_FILE = re.compile(r"`((?:tests|docs|deploy|examples|benchmarks|client|core|server|protos)/[\w./-]+\.\w+)`")


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.fixture(scope="module")
def all_tests() -> dict[str, set[str]]:
    """The functions of every test file, by its path."""
    return {str(path.relative_to(ROOT)): functions_of(path) for path in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_test_and_file_that_a_document_names_exists(document: Path, all_tests: dict[str, set[str]]) -> None:
    text = document.read_text()
    everywhere = set().union(*all_tests.values())
    missing = [
        f"{path}::{name}" if path else name
        for path, name in NAMED_TEST.findall(text)
        if name not in (all_tests.get(path, set()) if path else everywhere)
    ]
    missing += [path for path in NAMED_FILE.findall(text) if not (ROOT / path).exists()]
    assert missing == []


def test_every_promise_names_a_test() -> None:
    for name in ("README.md", "docs/semantics.md"):
        promised = (ROOT / name).read_text().partition("\n## What it promises\n")
        text = promised[2].partition("\n## ")[0] or promised[0]
        promises = [line for line in text.splitlines() if line.startswith("| **")]
        assert len(promises) > 5, name
        assert [line for line in promises if "`test_" not in line and "::test_" not in line] == [], name
