"""`forebay checkpoints`: its commands and their options.

Exit status 0; 1 where something is damaged or a checkpoint is not there; 2 for a wrong call.
"""

import dataclasses
import sys
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from forebay.checkpoints_command import tables
from forebay.checkpoints_command.asking import Checkpoints
from forebay.checkpoints_command.chosen import choose
from forebay.checkpoints_command.contents import where
from forebay.checkpoints_command.discarding import discard as discard_attempt
from forebay.checkpoints_command.showing import show_document
from forebay.checkpoints_command.verifying import print_verified, verified
from forebay.command_options import AddressOption, JsonOption
from forebay.console import make_console, print_json, size
from forebay.daemon.checkpoint_root import Checkpoint, Listing
from forebay.daemon.client import DaemonClient
from forebay.order_command.format_options import FormatOptions
from forebay_core.checkpoints.names import MOST_STEP
from forebay_core.errors import CheckpointNotFound, ConfigurationError, one_line
from forebay_core.printing import printable

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

RootArgument = Annotated[str, typer.Argument(help="What the Checkpointer was given: a URL or a path.")]
WhichArgument = Annotated[
    str | None,
    typer.Argument(metavar="[STEP|ATTEMPT]", help="A step, or an attempt's name or its begin; else the newest."),
]
_HOUR_SECONDS = 3600.0


@app.callback(invoke_without_command=True)
def checkpoints(context: typer.Context) -> None:
    """List, show, verify and clean up checkpoints, and export the model of one."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def ls(root: RootArgument, address: AddressOption = None, as_json: JsonOption = False) -> None:
    """List the checkpoints of ROOT, the newest first, with what was decided on them and where they are."""
    listing = _at(root, address).listing().existing()
    if as_json:
        print_json(_listing_json(listing))
    else:
        make_console(sys.stdout).print(tables.listed(listing, time.time()))


@app.command()
def show(
    root: RootArgument,
    which: WhichArgument = None,
    *,
    source: Annotated[
        list[str] | None,
        typer.Option(help="The data that it read (repeat it), to show the shards and rows of its next step."),
    ] = None,
    format: Annotated[str | None, typer.Option(help="Of the data: a name, or a JSON object of it and options.")] = None,
    sequence_length: Annotated[int | None, typer.Option(help="Tokens of a sample, for token files.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Of a token, for token files, such as uint16.")] = None,
    piece_bytes: Annotated[int | None, typer.Option(help="How large pieces are cut, where a loader says it.")] = None,
    address: AddressOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show what a checkpoint holds: position, shards and rows, ranks, sizes, times, and what it went on from.

    Exit status 1 where --source was given, and what is read next cannot be shown; the rest is.
    """
    client = _client(address)
    asked = Checkpoints(client, root)
    chosen = choose(asked.listing().existing(), which)
    options = FormatOptions(format, sequence_length, dtype, piece_bytes)
    document, upcoming, why_not = show_document(asked, chosen, client=client, sources=source or [], options=options)
    if as_json:
        print_json({**document, "notes": [*document["notes"], *[why_not] * bool(why_not)]})
    else:
        make_console(sys.stdout).print(tables.shown(document, upcoming, time.time()))
    if why_not:
        print(printable(f"forebay: {why_not}"), file=sys.stderr)
    return 1 if why_not else 0


@app.command()
def verify(
    root: RootArgument,
    which: WhichArgument = None,
    *,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every byte; else only names and sizes are compared.")
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="All that are committed.")] = False,
    quarantine: Annotated[
        bool, typer.Option("--quarantine", help="Mark what is damaged, so that nobody restores it.")
    ] = False,
    address: AddressOption = None,
    as_json: JsonOption = False,
) -> int:
    """Compare a checkpoint that is committed, or named and quarantined, with what was written.

    Exit status 1 where a file of it is damaged or missing.
    """
    if every and which is not None:
        raise ConfigurationError(f"--all means all that are committed: leave out {which!r}, or --all")
    asked = _at(root, address)
    listing = asked.listing(with_manifests=False).existing()
    chosen = [each for each in listing.checkpoints if each.is_committed] if every else []
    found = []
    for each in chosen or [choose(listing, which, committed=True, quarantined=True)]:
        try:
            found.append(verified(asked, each, deep=deep, quarantine=quarantine))
        except CheckpointNotFound as error:
            if not every:
                raise
            print(printable(f"passed over: {one_line(error)}"), file=sys.stderr)
    if as_json:
        print_json({"root": listing.root, "deep": deep, "verified": [dataclasses.asdict(each) for each in found]})
    else:
        print_verified(make_console(sys.stdout), listing.root, found, deep=deep)
    return 1 if any(each.faults for each in found) else 0


@app.command()
def gc(
    root: RootArgument,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Delete nothing: say what would go.")] = False,
    keep_last: Annotated[
        int,
        typer.Option(
            min=0, max=MOST_STEP, help="Committed checkpoints to keep, of all starts of the job; 0: all.", metavar="N"
        ),
    ] = 0,
    keep_every: Annotated[
        int,
        typer.Option(min=0, max=MOST_STEP, help="Besides, those whose step is a multiple of N; 0: none.", metavar="N"),
    ] = 0,
    undecided_hours: Annotated[
        float,
        typer.Option(min=0, help="What was begun and not written to for so long is given up; 0: never.", metavar="H"),
    ] = 24.0,
    address: AddressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete what is not to be kept, and what crashes left behind. The newest two committed ones always stay."""
    if keep_every and not keep_last:
        raise ConfigurationError("--keep-every names what stays beside the last ones: give --keep-last N too")
    asked = _at(root, address)
    asked.listing(with_manifests=False).existing()
    removed = asked.collect(
        keep_last=keep_last,
        keep_every_steps=keep_every,
        undecided_seconds=undecided_hours * _HOUR_SECONDS,
        dry_run=dry_run,
    )
    if as_json:
        print_json({"dry_run": dry_run, "removed": [dataclasses.asdict(each) for each in removed]})
    else:
        tables.print_removed(make_console(sys.stdout), removed, dry_run=dry_run)


@app.command()
def discard(
    root: RootArgument,
    which: Annotated[str, typer.Argument(metavar="STEP|ATTEMPT", help="A step, or an attempt's name or its begin.")],
    *,
    yes: Annotated[bool, typer.Option("--yes", help="It is meant: what is on this node is lost for good.")] = False,
    address: AddressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give up a checkpoint that waits on this node for an upload that can never succeed. Nothing durable is touched.

    The destination need not be there any more. Each further node that holds a part of it is to be told too.
    """
    found = discard_attempt(_client(address), root, which, is_meant=yes)
    if as_json:
        print_json(dataclasses.asdict(found))
    else:
        print(printable(f"discarded {found.attempt} of {found.root}: {size(found.size_bytes)} on this node"))


@app.command()
def export(
    root: RootArgument,
    which: WhichArgument = None,
    *,
    to: Annotated[Path, typer.Option(help="The file to write: .pt for torch.save, .safetensors.", metavar="FILE")],
    model: Annotated[str | None, typer.Option(help="Of several models this one.", metavar="NAME")] = None,
    full: Annotated[
        bool, typer.Option("--full", help="All that it holds, as models, optimizers and objects by their names.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file of that name.")] = False,
    address: AddressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the model of a committed checkpoint as one plain file, whatever the number of ranks was."""
    if full and model is not None:
        raise ConfigurationError("--full means all that the checkpoint holds: leave out --model, or --full")
    exporting = _exporting()
    destination = exporting.Destination(to.expanduser().absolute(), force=force, full=full)
    asked = _at(root, address)
    listing = asked.listing().existing()
    chosen = choose(listing, which, committed=True, quarantined=True).attempt
    with asked.reading(chosen) as reading:
        reader = exporting.CheckpointReader(f"{chosen.name} of {listing.root}", fetch=reading.fetch)
        found = exporting.export(reader, destination, model=model)
    if as_json:
        print_json({"attempt": chosen.name, **dataclasses.asdict(found)})
        return
    tied = f", {len(found.tied):,} tied" if found.tied else ""
    if found.left_out:
        print(printable(f"left out, because they are no tensors: {', '.join(found.left_out)}"), file=sys.stderr)
    models = ", ".join(found.models)
    print(
        printable(
            f"{found.path}: {found.tensors:,} tensors{tied}, {size(found.size_bytes)}, of {models} at {chosen.name}"
        )
    )


def _exporting() -> ModuleType:
    try:
        return import_module("forebay.checkpoints_command.exporting")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ConfigurationError('reading tensors needs torch: pip install "forebay[torch]"') from error


def _client(address: str | None) -> DaemonClient:
    return DaemonClient(address, reconnect_seconds=0.0)


def _at(root: str, address: str | None) -> Checkpoints:
    return Checkpoints(_client(address), root)


def _listing_json(listing: Listing) -> dict[str, Any]:
    return {
        "root": listing.root,
        "newest_generation": listing.newest_generation,
        "checkpoints": [_checkpoint_json(each) for each in listing.checkpoints],
    }


def _checkpoint_json(checkpoint: Checkpoint) -> dict[str, Any]:
    attempt = checkpoint.attempt
    named = {"attempt": attempt.name, "generation": attempt.generation, "step": attempt.step}
    return named | dataclasses.asdict(checkpoint) | {"attempt": attempt.name, "where": where(checkpoint)}
