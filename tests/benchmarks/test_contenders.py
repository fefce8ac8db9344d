"""The other loaders' processes: what they answer, and that no failure of theirs is left out or ends the benchmark."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import benchmarks.peers
from benchmarks.bench_cached_tokens import ratios
from benchmarks.contenders import CONTENDERS, Contender, Kind, Running
from benchmarks.peers.program import BATCH, SEQUENCE

PYTHON = Path(sys.executable)


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.bin"
    np.random.default_rng(0).integers(0, 2**15, (5 * BATCH, SEQUENCE), dtype=np.int32).tofile(path)
    return path


@pytest.fixture
def contender(tokens: Path) -> Iterator[Running]:
    limit = Contender("torch", "limit", "torch_loaders", "torch")
    running = Running(limit, PYTHON, tokens, tokens.parent / "torch")
    yield running
    running.close()


def _unable(
    name: str,
    kind: Kind,
    tokens: Path,
    python: Path = PYTHON,
    *,
    program: str = "torch_loaders",
    variant: str = "torch",
) -> Running:
    contender = Contender(name, kind, program, variant)
    return Running(contender, python, tokens, tokens.parent / name)


def test_a_contender_proves_its_samples_gives_its_versions_and_is_measured(contender: Running) -> None:
    contender.prepare()
    assert contender.failure is None
    assert contender.versions.keys() == {"torch", "torchdata"}
    results = [contender.measure(repeat) for repeat in range(2)]
    assert all(result["samples_per_second"] > 0 for result in results)
    row = contender.row(results).as_dict()
    assert row["name"] == "torch"
    assert row["repeats"] == 2
    assert row["kind"] == "limit"


def test_a_contender_that_is_not_installed_keeps_its_row_and_says_so(tokens: Path, tmp_path: Path) -> None:
    running = _unable("gone", "peer", tokens, tmp_path / "no" / "python")
    running.prepare()
    assert running.measure(0) == {}
    assert running.row([{}]).as_dict() == {"name": "gone", "kind": "peer", "failed": running.failure}
    assert "not installed" in str(running.failure)
    running.close()


@pytest.mark.parametrize(
    ("program", "variant", "words"),
    [
        ("no_such_peer", "torch", "No module named benchmarks.peers.no_such_peer"),
        ("torch_loaders", "no_such_variant", "invalid choice: 'no_such_variant'"),
    ],
)
def test_a_contender_that_ends_early_says_its_last_words(tokens: Path, program: str, variant: str, words: str) -> None:
    running = _unable("broken", "peer", tokens, program=program, variant=variant)
    running.prepare()
    running.close()
    assert words in str(running.failure)
    assert running.measure(0) == {}


def test_a_contender_that_dies_between_repeats_has_failed(contender: Running) -> None:
    contender.prepare()
    os.kill(contender.process_id, signal.SIGKILL)
    assert contender.measure(0) == {}
    assert contender.measure(1) == {}
    assert contender.failure is not None
    assert "failed" in contender.row([{}, {}]).as_dict()


def test_the_best_peer_is_the_fastest_that_read_shards_as_documented(tokens: Path) -> None:
    def rate(value: float) -> list[dict[str, float]]:
        return [{"samples_per_second": value}, {"samples_per_second": 3 * value}]

    others = [_unable(*names, tokens) for names in _named("slow:peer", "fast:peer", "hand:by hand", "torch:limit")]
    failed = _unable("failed", "peer", tokens)
    failed.failure = "gone"
    rates = {
        "plain numpy gather": 1600,
        "forebay in process": 800,
        "forebay with 2 workers": 80,
        "forebay, map-style, memory map": 900,
        "torch DataLoader, memory map": 1000,
        **{"slow": 50, "fast": 100, "hand": 400, "torch": 1000},
    }
    results = {name: rate(value) for name, value in rates.items()}
    assert ratios({**results, "failed": [{}, {}]}, [*others, failed]) == {
        "limit": 0.5,
        "workers": 0.05,
        "best_peer": 8,
        "best_peer_by_hand": 2,
        "best_map_style": 0.8,
        "map_style_vs_torch": 0.9,
    }


def _named(*pairs: str) -> Iterator[tuple[str, Kind]]:
    for pair in pairs:
        name, _, kind = pair.partition(":")
        assert kind in ("peer", "by hand", "limit")
        yield name, kind  # type: ignore[misc]


def test_every_contender_has_a_program_and_a_name_of_its_own() -> None:
    programs = Path(benchmarks.peers.__file__).parent
    assert all((programs / f"{contender.program}.py").exists() for contender in CONTENDERS)
    assert len({contender.name for contender in CONTENDERS}) == len(CONTENDERS)
