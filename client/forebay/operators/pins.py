"""`forebay pin` and `forebay unpin`: what must stay in the cache, now and after a restart of the daemon."""

import dataclasses
import sys
from typing import Annotated

import typer

from forebay.command_options import AddressOption, JsonOption
from forebay.console import make_console, print_json, size, table
from forebay.daemon.source_urls import absolute
from forebay.operators.asking import Operator, Pinned
from forebay_core.printing import printable


def pin(
    source: Annotated[
        list[str] | None, typer.Argument(help="Objects at or below these URLs or paths; none: show what is pinned.")
    ] = None,
    address: AddressOption = None,
    as_json: JsonOption = False,
) -> int:
    """Keep what is cached of SOURCE, and what will be, from eviction. It fetches nothing: see forebay warm."""
    pinned = Operator(address).pin([absolute(each) for each in source or []])
    _warn_of_patterns(source or [])
    if as_json:
        print_json({"pinned": [dataclasses.asdict(row) for row in pinned]})
    else:
        _print(pinned)
    return 0


def unpin(
    source: Annotated[str, typer.Argument(help="A URL or path that is pinned, or lies above pinned ones.")],
    address: AddressOption = None,
    as_json: JsonOption = False,
) -> int:
    """Let what was pinned at or below SOURCE be evicted again. Exit status 1 where nothing was."""
    url = absolute(source)
    ended, pinned = Operator(address).unpin(url)
    if as_json:
        print_json({"ended": ended, "pinned": [dataclasses.asdict(row) for row in pinned]})
    elif not ended:
        make_console(sys.stdout).print(f"nothing was pinned at or below {printable(url)}")
    else:
        _print(pinned)
    return 0 if ended else 1


def _warn_of_patterns(sources: list[str]) -> None:
    for source in sources:
        if "*" in source:
            make_console(sys.stderr).print(
                f"{source}: names are literal here, so this pins an object with a '*' in its name: give the prefix"
                " before it instead"
            )


def _print(pinned: list[Pinned]) -> None:
    console = make_console(sys.stdout)
    if not pinned:
        console.print("nothing is pinned")
        return
    columns = {"pinned": False, "pieces": True, "on disk": True, "beyond what may be kept": True}
    rows = [[row.url, f"{row.pieces:,}", size(row.bytes), f"{row.beyond:,}" if row.beyond else ""] for row in pinned]
    console.print(table("", columns, rows))
    if any(row.beyond for row in pinned):
        console.print("At most 80 % of a disk's capacity is kept, so that other data can pass through: give it more.")
