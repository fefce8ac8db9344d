"""The other loaders, each a process of its own, as the benchmark drives them: started, asked for an epoch, ended.

A contender that is not installed, fails, reads wrong samples or does not answer in time keeps its row, which says why.
Used on the benchmark's main thread.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.shape import Row, summarised

ROOT = Path(__file__).parents[1]
PEERS_ENVIRONMENT = ROOT / ".venv-peers"
_FOLDERS = ("HF_HOME", "LITDATA_CACHE_DIR", "DATA_OPTIMIZER_CACHE_FOLDER", "DATA_OPTIMIZER_DATA_CACHE_FOLDER")
_PREPARE_SECONDS, _EPOCH_SECONDS, _CLOSE_SECONDS = 600.0, 120.0, 20.0

Kind = Literal["peer", "by hand", "limit"]
"""A shard-reading peer as its documentation says; the same with code of our own in place of its conversion to tensors;
a loader that reads no shards."""


@dataclass(frozen=True)
class Contender:
    """One row of the comparison: a variant of a program in `benchmarks.peers`."""

    name: str
    kind: Kind
    program: str
    variant: str


CONTENDERS = (
    Contender("torch DataLoader, memory map", "limit", "torch_loaders", "torch"),
    Contender("torchdata StatefulDataLoader, memory map", "limit", "torch_loaders", "torchdata"),
    Contender("LitData, plain format", "peer", "litdata", "plain"),
    Contender("LitData, TokensLoader", "peer", "litdata", "tokens"),
    Contender("HF datasets, map-style", "peer", "hf_datasets", "map-style"),
    Contender("HF datasets, streaming", "peer", "hf_datasets", "streaming"),
    Contender("HF datasets, map-style, Arrow by hand", "by hand", "hf_datasets", "map-style-by-hand"),
    Contender("HF datasets, streaming, Arrow by hand", "by hand", "hf_datasets", "streaming-by-hand"),
    Contender("MosaicML StreamingDataset", "peer", "mosaicml", "streaming"),
    Contender("MosaicML LocalDataset", "peer", "mosaicml", "local"),
    Contender("WebDataset", "peer", "webdataset", "tar"),
)


class Running:
    """A contender's process. Once it has failed it stays so: `failure` says why, and `measure` gives nothing."""

    def __init__(self, contender: Contender, python: Path, tokens: Path, directory: Path) -> None:
        self.contender = contender
        self.failure: str | None = None
        self.versions: Mapping[str, str] = {}
        self._python, self._tokens, self._directory = python, tokens, directory
        self._log = directory.with_name(directory.name + ".log")
        self._process: subprocess.Popen[str] | None = None

    @property
    def process_id(self) -> int:
        """Of the process; it must have been started."""
        assert self._process is not None
        return self._process.pid

    def prepare(self) -> None:
        """Starts it, has it write the samples, and waits until it has proved that it reads them."""
        if not self._python.exists():
            self.failure = f"not installed: no {self._python.name} in its environment; run `make bench-peers-env`"
            return
        program = f"benchmarks.peers.{self.contender.program}"
        arguments = [self.contender.variant, str(self._tokens), str(self._directory)]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [str(self._python), "-m", program, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env=_environment(self._directory.parent),
            )
        self.versions = self._answer(_PREPARE_SECONDS)

    def measure(self, repeat: int) -> Mapping[str, float]:
        """One epoch's numbers."""
        if self.failure is not None or self._process is None:
            return {}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{repeat + 1}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self.failure = self._last_words()
            return {}
        return self._answer(_EPOCH_SECONDS)

    def row(self, results: Sequence[Mapping[str, float]]) -> Row:
        """Its line of the report."""
        kind = {"kind": self.contender.kind}
        if self.failure is not None:
            return Row(self.contender.name, {**kind, "failed": self.failure})
        return Row(self.contender.name, {**kind, **summarised(self.contender.name, results).values})

    def close(self) -> None:
        """Lets it end by itself, and ends it where it does not."""
        if self._process is None:
            return
        try:
            self._process.communicate(timeout=_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def _answer(self, seconds: float) -> Mapping[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        timer = threading.Timer(seconds, self._process.kill)
        timer.start()
        line = self._process.stdout.readline()
        late = not timer.is_alive()
        timer.cancel()
        if line:
            answer: Mapping[str, Any] = json.loads(line)
            return answer
        self._process.wait()
        self.failure = f"no answer within {seconds:.0f} s" if late else self._last_words()
        return {}

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "ended without a word")


@contextmanager
def running(environment: Path, tokens: Path, directory: Path) -> Iterator[list[Running]]:
    """All contenders, ready or failed; they end with the block. The limits run in this environment."""
    directory.mkdir()
    started: list[Running] = []
    try:
        for contender in CONTENDERS:
            python = Path(sys.executable) if contender.kind == "limit" else environment / "bin" / "python"
            each = Running(contender, python, tokens, directory / f"{contender.program}-{contender.variant}")
            started.append(each)
            each.prepare()
            print(f"  {contender.name}: {each.failure or 'reads every sample'}", file=sys.stderr)
        yield started
    finally:
        for each in started:
            each.close()


def _environment(home: Path) -> dict[str, str]:
    """Nothing is fetched, and what peers keep in a home directory goes below the benchmark's own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "LITDATA_"))}
    folders = {name: str(home / name.lower()) for name in _FOLDERS}
    return {**kept, **folders, "HF_HUB_OFFLINE": "1"}
