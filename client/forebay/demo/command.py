"""`forebay demo`: its options, its progress on standard error, and its report on standard output."""

import importlib.util
import json as json_module
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from forebay.demo import report, scenario
from forebay_core.errors import ConfigurationError

__all__ = ["demo"]


def demo(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, and nothing else.")] = False,
    bucket: Annotated[
        str | None,
        typer.Option("--bucket", metavar="s3://BUCKET/PREFIX", help="A real bucket instead of a directory."),
    ] = None,
    directory: Annotated[
        Path, typer.Option("--directory", help="Where the demo keeps its files and its MLflow run.")
    ] = Path("demo-output"),
    keep: Annotated[
        bool,
        typer.Option("--keep/--clean", help="Keep the directory and the bucket's shards, or remove them."),
    ] = True,
    seed: Annotated[int, typer.Option("--seed", help="Of the order and of the model.")] = 0,
) -> None:
    """Train on real text, kill the trainer, resume with another number of ranks, and prove that nothing was lost."""
    _check_installed()
    options = scenario.Options(directory=directory, bucket=bucket, keep=keep, seed=seed)
    stderr = Console(stderr=True)
    with _terminated_as_interrupted(), Display(stderr) as display:
        outcome = scenario.play(options, display)
    numbers = report.summary(outcome)
    if as_json:
        typer.echo(json_module.dumps(numbers))
    else:
        Console().print(report.table(outcome, numbers, kept=keep))
    problems = report.failures(numbers)
    if problems:
        stderr.print(f"recovery was not exact: {'; '.join(problems)} (records and logs: {directory})", soft_wrap=True)
        raise typer.Exit(1)
    stderr.print("• recovery was exact")


class Display:
    """What people see while the demo plays: a line for each phase, and on a terminal a bar of the steps."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("  step"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._bar: TaskID | None = None

    def __enter__(self) -> "Display":
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def phase(self, what: str) -> None:
        self._console.print(f"• {what}", highlight=False)

    def steps(self, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = self._progress.add_task("steps", total=total)
        self._progress.update(self._bar, completed=done, total=total)


def _check_installed() -> None:
    missing = [name for name in ("torch", "mlflow") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(f'the demo needs {" and ".join(missing)}: pip install "forebay[torch,mlflow]"')


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM ends the demo as Ctrl-C does, so that what it started ends too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
