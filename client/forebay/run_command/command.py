"""`forebay run`: its options, and the directory by which job and supervisor speak.

The exit status is that of the job's last start.
"""

import os
import secrets
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from forebay.command_options import AddressOption
from forebay.run_command.decision import Limits, inner_restarts
from forebay.run_command.supervision import Supervisor
from forebay.run_progress import DIRECTORY_VARIABLE, ID_VARIABLE, told
from forebay_core.checkpoints.documents import WERE_COMMITTED
from forebay_core.checkpoints.names import Attempt
from forebay_core.printing import printable

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="Such as: torchrun --nproc-per-node 8 …")],
    max_restarts: Annotated[int, typer.Option(min=0, help="Restarts in all.")] = 3,
    stalled_restarts: Annotated[
        int, typer.Option(min=0, help="Restarts in a row without a new committed checkpoint; 0: any number.")
    ] = 3,
    root: Annotated[
        str | None, typer.Option(help="Of the job's checkpoints, to see there whether it gets on. Else it tells.")
    ] = None,
    address: AddressOption = None,
) -> int:
    """Run a job on this node, and start it anew after a failure, as long as it gets on.

    SIGTERM and SIGINT are passed on, and end it. What a failed start leaves running is killed.
    """
    limits = Limits(max_restarts, stalled_restarts)
    if inner := inner_restarts(command, os.environ):
        _say(
            f"torchrun is asked for {inner} restarts of its own, inside of one start, which are not seen here: give "
            f"them to forebay run alone, which starts everything anew"
        )
    with tempfile.TemporaryDirectory(prefix="forebay-run-") as directory:
        marks = {DIRECTORY_VARIABLE: directory, ID_VARIABLE: secrets.token_hex(16)}
        newest = _at_root(root, address, _say) if root else lambda: told(Path(directory))
        return Supervisor(command, limits, environment={**os.environ, **marks}, newest=newest, say=_say).run()


def _at_root(root: str, address: str | None, say: Callable[[str], None]) -> Callable[[], Attempt | None]:
    """Asks the daemon. A root without any checkpoint is said once, when a start has ended: it may be a wrong one."""
    asked: list[None] = []

    def newest() -> Attempt | None:
        from forebay.daemon.checkpoint_root import CheckpointRoot
        from forebay.daemon.client import DaemonClient

        listing = CheckpointRoot(DaemonClient(address), root).listing()
        asked.append(None)
        if len(asked) == 2 and not listing.checkpoints:
            say(f"no checkpoint yet at {listing.root}: if the job has made one, give --root as its Checkpointer has it")
        return max((each.attempt for each in listing.checkpoints if each.state in WERE_COMMITTED), default=None)

    return newest


def _say(line: str) -> None:
    """The job does not hang on whether somebody still reads this."""
    try:
        print(f"forebay run: {printable(line)}", file=sys.stderr, flush=True)
    except OSError:
        with Path(os.devnull).open("wb") as nothing:
            os.dup2(nothing.fileno(), 2)
