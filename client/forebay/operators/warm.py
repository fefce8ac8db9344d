"""`forebay warm SOURCE`: a dataset into the cache before a run, or how much of it is there.

Exit status 0 where all of it is there in the end, else 1. Ctrl-C ends it; what has come stays.
"""

import dataclasses
import json
import sys
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from forebay.command_options import AddressOption, JsonOption
from forebay.console import make_console, print_json, size
from forebay.operators.asking import Operator, WarmStep
from forebay.order_command.format_options import FormatOptions, absolute_urls
from forebay_core.printing import printable


def warm(
    source: Annotated[list[str], typer.Argument(help="A prefix, glob, object or list of them, as a dataset takes it.")],
    *,
    check: Annotated[bool, typer.Option("--check", help="Fetch nothing: say how much is there.")] = False,
    columns: Annotated[
        list[str] | None, typer.Option("--column", help="A column that is read (repeat it); else all.", metavar="NAME")
    ] = None,
    format: Annotated[
        str | None, typer.Option(help='The format, or JSON such as {"name": "parquet"}; else by extension.')
    ] = None,
    sequence_length: Annotated[int | None, typer.Option(help="Of token files.", metavar="N")] = None,
    dtype: Annotated[str | None, typer.Option(help="Of token files.", metavar="TYPE")] = None,
    piece_bytes: Annotated[int | None, typer.Option(help="How large the pieces are.", metavar="BYTES")] = None,
    address: AddressOption = None,
    as_json: JsonOption = False,
) -> int:
    """Bring a dataset into the cache before anybody reads it. Give the columns and the format that the run has."""
    chosen = FormatOptions(format, sequence_length, dtype, piece_bytes).format()
    spec = "" if chosen is None else json.dumps(chosen.spec())
    steps = Operator(address).warm(absolute_urls(source), spec, columns or [], check=check)
    last = _watched(steps)
    is_whole = last.total == last.there + last.in_place + last.fetched
    if as_json:
        print_json({**dataclasses.asdict(last), "complete": is_whole})
    else:
        _print(last, check=check)
    return 0 if is_whole else 1


def _watched(steps: Iterator[WarmStep]) -> WarmStep:
    """The last step, with a bar on a terminal while it takes."""
    last = WarmStep()
    console = make_console(sys.stderr)
    columns = ("warming", BarColumn(), MofNCompleteColumn(), "pieces", TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None)
        for last in steps:
            progress.update(task, completed=last.settled, total=last.total)
    return last


def _print(last: WarmStep, *, check: bool) -> None:
    console = make_console(sys.stdout)
    here = last.there + last.fetched
    if last.in_place:
        console.print(f"{last.total:,} pieces are read where they lie, on this machine: nothing to fetch")
        return
    brought = "" if check else f", {last.fetched:,} of them fetched now ({size(last.bytes)})"
    console.print(f"{here:,} of {last.total:,} pieces are in the cache{brought}")
    if last.missing and not check:
        console.print(
            f"{last.missing:,} pieces did not fit beside what others need: give the cache more (--capacity), or evict"
            " something (forebay evict)"
        )
    if last.failed:
        console.print(f"{last.failed:,} pieces could not be fetched:")
        for message in last.messages:
            console.print(f"  {printable(message)}")
