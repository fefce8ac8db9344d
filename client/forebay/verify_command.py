"""`forebay verify`: all cached pieces read in full, by the daemon, or by a program beside none.

Exit status 0 where all pieces are right, or damaged ones were taken out of use with `--repair`; 1 where there are some.
Nothing is changed without `--repair`. Progress goes to standard error, what was found to standard output.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

from forebay.command_options import AddressOption, JsonOption
from forebay.console import make_console, print_json, size
from forebay.daemon import channel
from forebay.daemon.client import DaemonClient
from forebay_core.errors import InternalError, by_name
from forebay_core.printing import printable


@dataclass(frozen=True)
class DamagedPiece:
    """A piece that is not what was written."""

    key: str
    disk: str
    url: str
    piece: int
    reason: str
    #: The disk does not give it, whatever it holds.
    is_unreadable: bool


@dataclass(frozen=True)
class Step:
    """How far a verification is, and what it found since the step before."""

    pieces: int
    bytes: int
    total_pieces: int
    total_bytes: int
    damaged: tuple[DamagedPiece, ...]


def verify(
    repair: Annotated[bool, typer.Option("--repair", help="Take damaged pieces out of use.")] = False,
    cache_dir: Annotated[
        Path | None, typer.Option(help="A cache directory that no daemon holds; else the daemon's own.", metavar="DIR")
    ] = None,
    address: AddressOption = None,
    as_json: JsonOption = False,
) -> int:
    """Read all cached pieces in full and compare them with their checksums."""
    steps = _of_daemon(address, repair) if cache_dir is None else _of_directory(cache_dir.absolute(), repair)
    last, damaged = _watched(steps)
    if as_json:
        counts = {"pieces": last.pieces, "bytes": last.bytes}
        print_json({**counts, "damaged": [asdict(piece) for piece in damaged], "repaired": repair})
    else:
        _print(last, damaged, repair)
    return 1 if damaged and not repair else 0


def _of_daemon(address: str | None, repair: bool) -> Iterator[Step]:
    from forebay_protos.v1 import admin_pb2 as pb

    client = DaemonClient(address, reconnect_seconds=0.0, start=False)
    request = pb.VerifyRequest(repair=repair)
    for reply in channel.answers(client.address.socket, "AdminService/Verify", request, pb.VerifyResponse):
        damaged = tuple(
            DamagedPiece(each.key, each.disk, each.url, each.piece, each.reason, each.is_unreadable)
            for each in reply.damaged
        )
        yield Step(reply.pieces, reply.bytes, reply.total_pieces, reply.total_bytes, damaged)


def _of_directory(root: Path, repair: bool) -> Iterator[Step]:
    command = [sys.executable, "-P", "-m", "forebay_server.offline", "--cache-dir", str(root)]
    with subprocess.Popen([*command, *(["--repair"] if repair else [])], stdout=subprocess.PIPE, text=True) as program:  # noqa: S603
        assert program.stdout is not None
        for line in program.stdout:
            yield _step(json.loads(line))
    if program.returncode:
        raise InternalError(f"the verification of {root} ended with status {program.returncode}")


def _step(line: Mapping[str, Any]) -> Step:
    if "error" in line:
        raise by_name(line["error"])(line["message"])
    damaged = tuple(DamagedPiece(**each) for each in line["damaged"])
    return Step(line["pieces"], line["bytes"], line["total_pieces"], line["total_bytes"], damaged)


def _watched(steps: Iterator[Step]) -> tuple[Step, list[DamagedPiece]]:
    """The last step and all damage, with a bar on a terminal while it takes."""
    last = Step(0, 0, 0, 0, ())
    damaged: list[DamagedPiece] = []
    console = make_console(sys.stderr)
    columns = ("verifying", BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None)
        for last in steps:
            damaged += last.damaged
            progress.update(task, completed=last.bytes, total=last.total_bytes)
    return last, damaged


def _print(last: Step, damaged: list[DamagedPiece], repair: bool) -> None:
    console = make_console(sys.stdout)
    for piece in damaged:
        name = printable(piece.url) or "an unknown object"
        console.print(f"piece {piece.piece} of {name} {piece.reason}: {piece.key} on {piece.disk}")
    found = f"{last.pieces} pieces, {size(last.bytes)}"
    if not damaged:
        console.print(f"{found}: all right")
    elif repair:
        console.print(f"{found}: {len(damaged)} damaged, taken out of use; they are fetched again when they are needed")
    else:
        console.print(f"{found}: {len(damaged)} damaged; take them out of use with --repair")
