"""`forebay ls`: what is cached, by dataset, or below a URL by object."""

import dataclasses
import sys
from typing import Annotated

import typer

from forebay.command_options import AddressOption, JsonOption
from forebay.console import make_console, print_json, size, table
from forebay.daemon.source_urls import absolute
from forebay.operators.asking import Content, Operator
from forebay_core.printing import printable

_SHOWN_VERSION = 12


def ls(
    source: Annotated[
        str | None, typer.Argument(help="Show the objects at or below this URL or path; else the datasets.")
    ] = None,
    address: AddressOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show what is in the cache. Exit status 1 where nothing at or below SOURCE is."""
    url = "" if source is None else absolute(source)
    contents = list(Operator(address).contents(url, objects=source is not None))
    if as_json:
        print_json({"contents": [dataclasses.asdict(content) for content in contents]})
    else:
        _print(contents, url)
    return 1 if url and not contents else 0


def _print(contents: list[Content], url: str) -> None:
    console = make_console(sys.stdout)
    if not contents:
        console.print(f"nothing of {printable(url)} is in the cache" if url else "the cache is empty")
        return
    columns = {"object" if url else "dataset": False, "version": False, "pieces": True, "on disk": True}
    columns |= {"rows": True} if url else {}
    columns |= {"leased": True, "pinned": True, "disks": False}
    rows = [_row(content, is_object=bool(url)) for content in contents]
    shown = columns if url else {name: kind for name, kind in columns.items() if name != "version"}
    total = f"{sum(c.pieces for c in contents):,} pieces, {size(sum(c.bytes for c in contents))}"
    console.print(table(total, shown, rows))


def _row(content: Content, *, is_object: bool) -> list[str]:
    name = content.url or "(unknown)"
    of_object = [content.version[:_SHOWN_VERSION]] if is_object else []
    rows = [f"{content.rows:,}"] if is_object else []
    counts = [f"{content.pieces:,}", size(content.bytes), *rows, f"{content.leased:,}", f"{content.kept:,}"]
    return [name, *of_object, *counts, ", ".join(content.disks)]
