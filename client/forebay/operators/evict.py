"""`forebay evict`: pieces out of the cache, on an operator's word."""

import dataclasses
import sys
from typing import Annotated

import typer

from forebay.command_options import AddressOption, JsonOption
from forebay.console import make_console, print_json, size
from forebay.daemon.source_urls import absolute
from forebay.operators.asking import Evicted, Operator
from forebay_core.errors import ConfigurationError


def evict(
    source: Annotated[str | None, typer.Argument(help="What lies at or below this URL or path.")] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="All that is cached.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Remove nothing: say what would go.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also what is leased or mapped; readers that have it keep it.")
    ] = False,
    address: AddressOption = None,
    as_json: JsonOption = False,
) -> int:
    """Remove pieces from the cache. What is leased or being read stays, unless --force; what is pinned stays."""
    if (source is None) is not everything:
        raise ConfigurationError("name what is to go, or give --all for everything that is cached (not both)")
    url = "" if source is None else absolute(source)
    found = Operator(address).evict(url, dry_run=dry_run, force=force)
    if as_json:
        print_json({**dataclasses.asdict(found), "dry_run": dry_run})
    else:
        _print(found, dry_run=dry_run)
    return 0


def _print(found: Evicted, *, dry_run: bool) -> None:
    console = make_console(sys.stdout)
    console.print(f"{'would remove' if dry_run else 'removed'} {found.pieces:,} pieces, {size(found.bytes)}")
    spared = {"pinned (forebay unpin)": found.kept, "leased": found.leased, "being read": found.in_use}
    if any(spared.values()):
        console.print("spared: " + ", ".join(f"{count:,} {why}" for why, count in spared.items() if count))
