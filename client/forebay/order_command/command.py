"""`forebay order`: its options, what it asks the daemon (the manifest, never data), and what it prints."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from forebay import progress
from forebay.command_options import AddressOption
from forebay.console import make_console, print_json
from forebay.daemon.client import DaemonClient
from forebay.order import Order, Shuffle, Split, Tail
from forebay.order.quality import advice, measure
from forebay.order_command import contents, tables
from forebay.order_command.chosen import Choice, check, find_state
from forebay.order_command.format_options import FormatOptions
from forebay.order_command.opening import open_manifest
from forebay.progress import SavedState
from forebay_core.errors import ConfigurationError, StateError
from forebay_core.manifest import Manifest

__all__ = ["order"]


class ShuffleName(StrEnum):
    window = "window"
    global_ = "global"
    none = "none"


class TailName(StrEnum):
    even = "even"
    drop = "drop"
    pad = "pad"


def order(
    source: Annotated[list[str], typer.Argument(metavar="SOURCE…", help="The data, as a StreamingDataset takes it.")],
    *,
    world_size: Annotated[int, typer.Option(help="Data-parallel ranks.")] = 1,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Samples of one rank in a step.")] = None,
    global_batch_size: Annotated[int | None, typer.Option(min=1, help="Samples of all ranks in a step.")] = None,
    epoch: Annotated[int | None, typer.Option(min=0, help="From 0; else the state's, or 0.")] = None,
    step: Annotated[
        int | None,
        typer.Option(min=0, help="From 0, counted from the epoch's beginning, or from --position, or from the state."),
    ] = None,
    position: Annotated[
        int | None, typer.Option(min=0, help="Samples of the epoch handed out before, over all ranks.")
    ] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="Show this rank alone.")] = None,
    state: Annotated[
        Path | None,
        typer.Option(help="Go on from a saved state: a JSON file that is or holds what state_dict() returned."),
    ] = None,
    quality: Annotated[bool, typer.Option("--quality", help="Show how well the order mixes, not one step.")] = False,
    ranks_per_node: Annotated[int, typer.Option(min=1, help="GPUs of a node, for --quality.")] = 8,
    shuffle: Annotated[ShuffleName | None, typer.Option(help="Else the state's, or window.")] = None,
    seed: Annotated[int | None, typer.Option(help="Else the state's, or 0.")] = None,
    lanes: Annotated[int | None, typer.Option(help="Parts of the data that are read side by side.")] = None,
    window: Annotated[int | None, typer.Option(help="How far a sample moves in its lane, in samples.")] = None,
    sticky: Annotated[
        bool | None, typer.Option("--sticky/--no-sticky", help="Whether lanes keep their pieces over epochs.")
    ] = None,
    tail: Annotated[
        TailName | None, typer.Option(help="What becomes of the last samples; even where not said.")
    ] = None,
    format: Annotated[str | None, typer.Option(help="Of the data: a name, or a JSON object of it and options.")] = None,
    sequence_length: Annotated[int | None, typer.Option(help="Tokens of a sample, for token files.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Of a token, for token files, such as uint16.")] = None,
    piece_bytes: Annotated[int | None, typer.Option(help="How large pieces are cut, where a loader says it.")] = None,
    address: AddressOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, with every sample.")] = False,
) -> None:
    """Show which samples any batch holds, with their shards and rows, or with --quality how well the order mixes."""
    if quality and not (step is position is rank is None):
        raise ConfigurationError("--quality looks at a whole epoch: leave --step, --position and --rank out")
    choice = Choice(
        shuffle=None if shuffle is None else _shuffle(shuffle),
        seed=seed,
        lanes=lanes,
        window=window,
        sticky=sticky,
        tail=None if tail is None else _tail(tail),
        epoch=epoch,
        position=position,
        batch_size=batch_size,
        global_batch_size=global_batch_size,
    )
    saved = None if state is None else _read_state(state)
    resumed = choice if saved is None else choice.resumed(saved)
    split = resumed.split(world_size)
    options = FormatOptions(format, sequence_length, dtype, piece_bytes)
    manifest = open_manifest(source, options, DaemonClient(address, reconnect_seconds=0.0))
    made = resumed.order(manifest)
    split.check(made.samples)
    if saved is not None:
        check(saved, manifest, made, resumed.tail)
    shown = _Shown(manifest, made, split, as_json)
    if quality:
        shown.quality(resumed.epoch or 0, ranks_per_node)
    else:
        at = resumed.place(split, made.samples, is_loaded=saved is not None and position is None)
        found = contents.find_step(made.samples, split, epoch=at[0], start=at[1], number=step or 0)
        shown.step(found, range(world_size) if rank is None else [rank])


@dataclasses.dataclass(frozen=True)
class _Shown:
    """An order, and how it is printed."""

    manifest: Manifest
    order: Order
    split: Split
    as_json: bool

    def step(self, found: contents.Found, ranks: Sequence[int]) -> None:
        batches = contents.rank_batches(self.manifest, self.order.epoch(found.epoch), found, self.split, ranks)
        if self.as_json:
            print_json(
                self._head(found.epoch) | _step_json(found) | {"ranks": contents.as_json(self.manifest, batches)}
            )
            return
        console = make_console(sys.stdout)
        console.print(tables.step_heading(found, self.split.world_size))
        console.print(tables.step_table(self.manifest, batches))

    def quality(self, epoch: int, ranks_per_node: int) -> None:
        measured = measure(
            self.order,
            self.manifest.piece_rows,
            self.manifest.piece_object,
            split=self.split,
            epoch=epoch,
            ranks_per_node=ranks_per_node,
        )
        if self.as_json:
            print_json(self._head(epoch) | {"quality": dataclasses.asdict(measured), "advice": advice(measured)})
            return
        console = make_console(sys.stdout)
        console.print(tables.quality_heading(measured))
        console.print(tables.quality_table(measured))
        for sentence in advice(measured):
            console.print(sentence)

    def _head(self, epoch: int) -> dict[str, Any]:
        return {
            "root": self.manifest.root,
            "dataset": {"fingerprint": self.manifest.fingerprint, "samples": self.order.samples},
            "order": {**self.order.spec(), "tail": self.split.tail},
            "world_size": self.split.world_size,
            "global_batch": self.split.global_batch,
            "epoch": epoch,
        }


def _step_json(found: contents.Found) -> dict[str, Any]:
    step = found.step
    return {
        "start": found.start,
        "step": found.number,
        "steps": found.steps,
        "position": step.position,
        "samples": step.take,
        "pads": step.pads,
        "after": step.after,
    }


def _shuffle(name: ShuffleName) -> Shuffle:
    return next(shuffle for shuffle in get_args(Shuffle) if (shuffle or "none") == name.value)


def _tail(name: TailName) -> Tail:
    return next(tail for tail in get_args(Tail) if tail == name.value)


def _read_state(path: Path) -> SavedState:
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise StateError(f"{path} cannot be read ({error.strerror}): give a JSON file with a loader's state") from error
    except ValueError as error:
        raise StateError(f"{path} is no JSON ({error}): save what state_dict() returns with json.dump") from error
    try:
        return progress.decode(find_state(document))
    except StateError as error:
        raise StateError(f"{path}: {error}") from error
